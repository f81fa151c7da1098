#!/usr/bin/env python3
"""Start a run on several machines over ssh, from one of them or from a machine of its own.

    python scripts/launch.py [options] HOSTFILE ARGUMENTS OF main.py

    python scripts/launch.py hosts.txt --config-name node_classification_gcn app=train \\
        dataset_name=cora

HOSTFILE has one host per line, as ssh knows it (HOST or USER@HOST); the first is node 0. Each gets
an equal share of the partitions, in that order, and rsync copies what a host lacks. Then all nodes
are started; each line of their output begins with the host. When one fails, or on Ctrl-C, all are
ended. Every host needs the project and its environment in the same folder (docs/cluster.md).
"""

import argparse
import secrets
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from partitioning.directory.read_directory import PartitionDirectory  # noqa: E402
from partitioning.errors import InputError  # noqa: E402
from retexo.apps.find_partitions import find_or_make_partitions  # noqa: E402
from retexo.launch.start_workers import terminate_as_exit  # noqa: E402
from retexo.settings.cluster_settings import ClusterSettings  # noqa: E402
from retexo.settings.compose import compose  # noqa: E402

END_TIMEOUT = 30.0
"""seconds within which a node has to end once it is told to"""
SSH = ("ssh", "-o", "BatchMode=yes")
# The program runs as long as ssh's standard input is open, so it ends with this launcher, even a
# killed one.
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
    cluster: ClusterSettings


def read_launch(hostfile: Path, arguments: list[str]) -> Launch:
    """Read the hosts and the settings; raises InputError."""
    hosts = read_hosts(hostfile)
    name, folder, overrides = split_arguments(arguments)
    given = {override.split("=")[0] for override in overrides}
    for setting in ("parts_per_node", "node_rank"):
        if setting in given:
            raise InputError(f"{setting}: the launcher sets it; leave it out")
    settings = compose(
        [override for override in overrides if not override.startswith("hydra.")], name, folder
    )
    cluster = replace(settings, parts_per_node=-(-settings.num_partitions // len(hosts)))
    if cluster.num_nodes < len(hosts):
        raise InputError(
            f"{hostfile}: {len(hosts)} hosts for {cluster.num_partitions} partitions,"
            f" {cluster.parts_per_node} each, so {cluster.num_nodes} host(s) would have them all;"
            f" name {cluster.num_nodes}, or partition again"
        )
    own = {
        "distributed.master_addr": hosts[0].rpartition("@")[2],
        "hydra.run.dir": time.strftime("outputs/%Y-%m-%d/%H-%M-%S"),
        "parts_per_node": cluster.parts_per_node,
    }
    added = [f"{name}={value}" for name, value in own.items() if name not in given]
    return Launch(hosts, [*arguments, *added], find_or_make_partitions(settings), cluster)


def read_hosts(path: Path) -> list[str]:
    try:
        lines = [
            line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()
        ]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    hosts = [line for line in lines if line]
    for host in hosts:
        if len(host.split()) > 1 or host.startswith("-"):
            raise InputError(f"{path}: {host!r} is no host; give one a line, HOST or USER@HOST")
    if not hosts:
        raise InputError(f"{path}: names no host; give one a line")
    return hosts


def split_arguments(arguments: list[str]) -> tuple[str, str | None, list[str]]:
    """The name of the configuration and the folder of users' own, and the overrides."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config-name", "-cn", default="node_classification")
    parser.add_argument("--config-dir", "-cd")
    known, overrides = parser.parse_known_args(arguments)
    return known.config_name, known.config_dir, overrides


def copy_parts(launch: Launch, folder: Path) -> None:
    """Copy each host's partitions to the same path there; rsync sends only what is missing.

    Raises InputError.
    """
    source = launch.directory.path
    there = folder / source  # an absolute one stays as it is
    make = f"mkdir -p {shlex.quote(str(there))} && rsync"
    for node, host in enumerate(launch.hosts):
        parts = (source / f"part{rank}" for rank in launch.cluster.ranks_of(node))
        files = map(str, [*sorted(source.glob("*.json")), *parts])
        command = [
            "rsync",
            "-a",
            "-e",
            shlex.join(SSH),
            "--rsync-path",
            make,
            *files,
            f"{host}:{there}/",
        ]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise InputError(
                f"rsync: {error.strerror}; install it here and on every host, or use --no-copy"
            ) from error
        if done.returncode != 0:
            raise InputError(f"{host}: rsync of {source} ended with status {done.returncode}")


def run(launch: Launch, folder: Path, python: str) -> int:
    """Run the program on all hosts until all have ended with status 0, or one has not.

    Its exit status, or 0.
    """
    environment = f"RETEXO_RUN_KEY={secrets.token_hex(8)}"
    processes: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(len(launch.hosts)) as pool:
        try:
            following = {}
            for node, host in enumerate(launch.hosts):
                words = [
                    "env",
                    environment,
                    python,
                    "main.py",
                    *launch.arguments,
                    f"node_rank={node}",
                ]
                command = REMOTE_SCRIPT.format(
                    folder=shlex.quote(str(folder)), command=shlex.join(words)
                )
                processes.append(start(host, command))
                following[pool.submit(follow, host, processes[-1])] = host
            for ended in as_completed(following):
                status = ended.result()
                if status != 0:
                    print(
                        f"error: {following[ended]} ended with status {status}; the others are"
                        " ended",
                        file=sys.stderr,
                    )
                    return status if status in (1, 2) else 1
            return 0
        finally:
            end(processes)


def start(host: str, command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SSH, host, command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches this launcher alone, which ends the others
    )


def follow(host: str, process: subprocess.Popen[str]) -> int:
    """Show the output of a host until its program ends; its exit status."""
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(f"[{host}] {line.rstrip()}\n")
        sys.stdout.flush()
    return process.wait()


def end(processes: list[subprocess.Popen[str]]) -> None:
    """Close the standard input of every ssh, which ends its program.

    Kill an ssh that does not end in time.
    """
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    deadline = time.monotonic() + END_TIMEOUT
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hostfile")
    parser.add_argument(
        "--folder", default=".", help="the project's folder on every host; as here unless given"
    )
    parser.add_argument(
        "--python",
        default=".venv/bin/python",
        help="the interpreter on every host, from that folder",
    )
    parser.add_argument(
        "--no-copy", action="store_true", help="every host has its partitions already"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    folder = Path(options.folder).absolute()
    try:
        with terminate_as_exit():
            launch = read_launch(Path(options.hostfile), options.arguments)
            if not options.no_copy:
                copy_parts(launch, folder)
            return run(launch, folder, options.python)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
