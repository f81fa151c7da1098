#!/usr/bin/env python3
"""Start a run on several machines over ssh, from one of them or from a machine of its own.

    python scripts/launch.py [options] HOSTFILE ARGUMENTS OF main.py

    python scripts/launch.py hosts.txt --config-name node_classification_gcn app=train dataset_name=cora

HOSTFILE has one host per line, as ssh knows it (HOST or USER@HOST); the first is node 0. Each gets an equal share of
the partitions, in that order, and rsync copies what a host lacks. Then all nodes are started; each line of their output
begins with the host. When one fails, or on Ctrl-C, all are ended. Every host needs the project and its environment in
the same folder (docs/cluster.md).
"""

import argparse
import queue
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hydra.errors import HydraException  # noqa: E402

from main import explain  # noqa: E402
from partitioning.directory.read import PartitionDirectory  # noqa: E402
from partitioning.errors import InputError  # noqa: E402
from retexo.apps.partitions import open_directory  # noqa: E402
from retexo.config.compose import compose  # noqa: E402

END_TIMEOUT = 30.0
"""seconds within which a node has to end once it is told to"""
SSH = ("ssh", "-o", "BatchMode=yes")
# The program runs as long as ssh's standard input is open, so it ends with this launcher, even a killed one.
REMOTE_SCRIPT = """cd {folder} || exit 2
exec 3<&0
{command} &
pid=$!
(while read -r line; do :; done <&3; kill -TERM $pid) >/dev/null 2>&1 &
wait $pid
status=$?
kill $! 2>/dev/null
exit $status"""


@dataclass(frozen=True)
class Launch:
    """What is to be started."""

    hosts: list[str]
    arguments: list[str]
    """Of main.py, for all hosts alike."""
    directory: PartitionDirectory
    num_partitions: int
    folder: Path
    """Of the project, on every host."""
    python: str

    @property
    def parts_per_node(self) -> int:
        """Partitions per host; the last may have fewer."""
        return -(-self.num_partitions // len(self.hosts))

    def ranks(self, node: int) -> range:
        return range(node * self.parts_per_node, min((node + 1) * self.parts_per_node, self.num_partitions))

    def command(self, node: int, run_key: str) -> str:
        """Of a node, for the shell of its host."""
        words = ["env", f"RETEXO_RUN_KEY={run_key}", self.python, "main.py", *self.arguments,
                 f"parts_per_node={self.parts_per_node}", f"node_rank={node}"]  # fmt: skip
        return REMOTE_SCRIPT.format(folder=shlex.quote(str(self.folder)), command=shlex.join(words))


def read_launch(options: argparse.Namespace) -> Launch:
    """Read the hosts and the settings; raises InputError."""
    hosts = read_hosts(Path(options.hostfile))
    config, overrides = split_arguments(options.arguments)
    for name in ("parts_per_node", "node_rank"):
        if any(override.startswith(f"{name}=") for override in overrides):
            raise InputError(f"{name}: the launcher sets it; leave it out")
    settings = compose([override for override in overrides if not override.startswith("hydra.")], config)
    arguments = list(options.arguments)
    names = {override.split("=")[0] for override in overrides}
    if "distributed.master_addr" not in names:
        arguments.append(f"distributed.master_addr={hosts[0].rpartition('@')[2]}")
    if "hydra.run.dir" not in names:
        arguments.append(f"hydra.run.dir={time.strftime('outputs/%Y-%m-%d/%H-%M-%S')}")
    launch = Launch(
        hosts=hosts,
        arguments=arguments,
        directory=open_directory(settings),
        num_partitions=settings.partition.num_partitions,
        folder=Path(options.folder).absolute(),
        python=options.python,
    )
    if not launch.ranks(len(hosts) - 1):
        needed = -(-launch.num_partitions // launch.parts_per_node)
        raise InputError(
            f"{options.hostfile}: {len(hosts)} hosts for {launch.num_partitions} partitions, {launch.parts_per_node} "
            f"each, so {needed} host(s) would have them all; name {needed}, or partition again"
        )
    return launch


def read_hosts(path: Path) -> list[str]:
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    hosts = [line for line in lines if line]
    for host in hosts:
        if len(host.split()) > 1 or host.startswith("-"):
            raise InputError(f"{path}: {host!r} is no host; give one a line, HOST or USER@HOST")
    if not hosts:
        raise InputError(f"{path}: names no host; give one a line")
    return hosts


def split_arguments(arguments: list[str]) -> tuple[str, list[str]]:
    """The name of the configuration, and the overrides."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config-name", "-cn", default="node_classification")
    known, overrides = parser.parse_known_args(arguments)
    return known.config_name, overrides


def copy_parts(launch: Launch) -> None:
    """Copy each host's partitions to the same path there; rsync sends only what is missing. Raises InputError."""
    source = launch.directory.path
    for node, host in enumerate(launch.hosts):
        there = launch.folder / source  # an absolute one stays as it is
        files = [*sorted(source.glob("*.json")), *(source / f"part{rank}" for rank in launch.ranks(node))]
        make = f"mkdir -p {shlex.quote(str(there))} && rsync"
        command = ["rsync", "-a", "-e", shlex.join(SSH), "--rsync-path", make, *map(str, files), f"{host}:{there}/"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise InputError(f"rsync: {error.strerror}; install it here and on every host, or use --no-copy") from error
        if done.returncode != 0:
            raise InputError(f"{host}: rsync of {source} ended with status {done.returncode}")


class Hosts:
    """The ssh processes of a run, one a host."""

    def __init__(self) -> None:
        self._ended: queue.Queue[tuple[str, int]] = queue.Queue()
        self._running: dict[int, subprocess.Popen[str]] = {}

    def start(self, launch: Launch) -> None:
        run_key = secrets.token_hex(8)
        for node, host in enumerate(launch.hosts):
            process = subprocess.Popen(
                [*SSH, host, launch.command(node, run_key)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches this launcher alone, which ends the others in order
            )
            self._running[node] = process
            threading.Thread(target=self._follow, args=(host, process), daemon=True).start()

    def _follow(self, host: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(f"[{host}] {line.rstrip()}\n")
            sys.stdout.flush()
        self._ended.put((host, process.wait()))

    def wait(self) -> int:
        """Wait until all have ended with status 0, or for the first that did not; its exit status, or 0."""
        for _ in self._running:
            host, status = self._ended.get()
            if status != 0:
                print(f"error: {host} ended with status {status}; the others are ended", file=sys.stderr)
                return status if status in (1, 2) else 1
        return 0

    def end(self) -> None:
        """Close the standard input of every ssh, which ends its program; kill an ssh that does not end in time."""
        for process in self._running.values():
            assert process.stdin is not None
            process.stdin.close()
        deadline = time.monotonic() + END_TIMEOUT
        for process in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hostfile")
    parser.add_argument("--folder", default=".", help="the project's folder on every host; as here unless given")
    parser.add_argument("--python", default=".venv/bin/python", help="the interpreter on every host, from that folder")
    parser.add_argument("--no-copy", action="store_true", help="every host has its partitions already")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, terminate)
    try:
        launch = read_launch(options)
        if not options.no_copy:
            copy_parts(launch)
    except (InputError, HydraException) as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return 2
    hosts = Hosts()
    try:
        hosts.start(launch)
        return hosts.wait()
    except OSError as error:
        print(f"error: ssh: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        hosts.end()


if __name__ == "__main__":
    sys.exit(main())
