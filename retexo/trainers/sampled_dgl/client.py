"""A worker's client of DGL's engine.

It starts and watches the server of its partition, and fetches rows from all servers.
"""

import contextlib
import ctypes
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import torch
from torch import Tensor

from partitioning.directory.dgl_config import FILES, config_file, read_config
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import SETUP, MessageTag
from retexo.launch.addresses import own_address
from retexo.settings.run_settings import TrainSettings
from retexo.trainers.sampled_dgl import hooks

SHARED_MEMORY = Path("/dev/shm")
STOP_TIMEOUT = 10.0
"""Seconds that a server may take to end after the last message."""


class WatchedProcess:
    """A process that this worker starts and watches from a thread.

    The worker itself may block in C code.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        fail: Callable[[str], None],
        patience: float,
    ):
        """Start the process.

        Args:
            name: in error messages.
            command: arguments after `python -m`.
            fail: ends this worker with a message.
            patience: seconds that the process may be stopped (SIGSTOP).
        """
        self.name, self._fail, self._patience, self.closing = (
            name,
            fail,
            patience,
            threading.Event(),
        )
        self.memory = [0, 0]
        """Peaks in bytes: resident, and without what is shared, of every second."""
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Wait for the process; end this worker if it dies or stays stopped."""
        stopped = 0
        while stopped <= self._patience:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
                break
            stopped = stopped + 1 if self.record_memory().startswith("T") else 0
        if not self.closing.is_set():
            self._fail(f"cannot continue: {self.name} of its partition {self._describe_exit()}")

    def record_memory(self) -> str:
        """Record the process's highest memory; return its state, "S (sleeping)" for instance.

        "": it is gone.
        """
        try:
            lines = (
                Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
            )
        except OSError:
            return ""
        status = dict(line.split(":\t") for line in lines)
        now = (int(status.get(name, "0").split()[0]) * 1024 for name in ("VmHWM", "RssAnon"))
        self.memory = [max(pair) for pair in zip(self.memory, now, strict=True)]
        return status["State"]

    def _describe_exit(self) -> str:
        """Return how the process ended, with its last line on standard error.

        Kill a stopped one.
        """
        code = self.process.poll()
        if code is None:
            self.process.kill()
            return "was stopped (SIGSTOP, or a debugger)"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        self._errors.seek(0)
        said = [line for line in self._errors.read().splitlines() if line.strip()]
        return f"exited with status {code}: {said[-1] if said else 'no message'}"

    def kill(self) -> None:
        self.closing.set()
        self.process.kill()


class Engine:
    """A DistGraph over all partitions; as a context manager it ends the server."""

    def __init__(
        self,
        settings: TrainSettings,
        directory: Path,
        comm: Communicator,
        fail: Callable[[str], None],
    ) -> None:
        """Start the server and connect; all workers call it.

        Args:
            settings: the training settings.
            directory: the partition directory.
            comm: the communicator.
            fail: ends this worker with a message.
        """
        # DGL aborts if a server is gone. libc's `sleep` as handler gives us 6 (SIGABRT) seconds to
        # report it.
        libc = ctypes.CDLL(None)
        libc.signal(signal.SIGABRT, libc.sleep)
        self._comm = comm
        token, address, part = (
            f"retexo-{os.getpid()}-{uuid4().hex[:12]}",
            own_address(settings),
            str(comm.rank),
        )
        os.environ |= {
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
            "OMP_WAIT_POLICY": "passive",
        }
        os.environ["DGL_DIST_MAX_TRY_TIMES"] = str(
            int(settings.distributed.init_timeout / hooks.RETRY_SECONDS)
        )
        watch = fail, settings.distributed.heartbeat_timeout
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            ip_config = _agree_on_addresses(comm, address, Path(folder))
            config = write_part_config(directory, token, Path(folder))
            command = [
                "retexo.trainers.sampled_dgl.server",
                str(config),
                str(ip_config),
                part,
                str(comm.world_size),
                token,
            ]
            self._server = WatchedProcess("the DGL server", command, *watch)
            self.dgl, self.sent = hooks.install(token)
            self.graph = connect(self.dgl, token, ip_config, comm.rank, address)
        self.rpc = self.dgl.distributed.rpc
        self.number: int = self.rpc.get_rank()
        """DGL's of this client."""
        unlink_shared_memory(token)
        numbers = comm.all_gather(torch.tensor([self.number]), SETUP).flatten().tolist()
        self._ranks = {number: rank for rank, number in enumerate(numbers)}
        """Part of each client, by DGL's number of it."""

    def rows(self, name: str, nodes: Tensor) -> Tensor:
        """Fetch data of nodes by global id from the servers that own them."""
        rows: Tensor = self.graph.ndata[name][nodes]
        return rows

    @contextlib.contextmanager
    def count_as(self, purpose: str) -> Iterator[None]:
        """Within the block, count everything fetched under `purpose`, at both ends.

        The purpose is "" afterwards.
        """
        self._set_purpose(purpose)
        yield
        self._set_purpose("")

    def _set_purpose(self, purpose: str) -> None:
        """Tell all servers what this client fetches for."""
        self.sent.purpose_of_client[self.number] = purpose
        for server in range(self.rpc.get_num_server()):
            self.rpc.send_request(server, self.sent.Tag(self.number, purpose))  # type: ignore[attr-defined]

    @property
    def memory(self) -> Sequence[int]:
        """Return the memory peaks of the server: resident, private bytes."""
        return self._server.memory

    def close(self) -> None:
        """Add the traffic to the meter, and end the server; all workers call it."""
        own = self._comm.rank
        self.rpc.send_request(own, self.sent.Counts())  # type: ignore[attr-defined]
        by_server = self.rpc.recv_response().state
        counts = [(kind, peer, count) for (kind, peer), count in self.sent.bytes.items()]
        counts += [
            (kind, self._ranks[client], count)
            for kind, client, count in by_server
            if client in self._ranks
        ]
        for kind, peer, count in counts:
            if peer != own:
                self._comm.meter.add(MessageTag(kind), peer, count)
        self._server.record_memory()
        self._server.closing.set()
        with contextlib.redirect_stdout(io.StringIO()):
            self.dgl.distributed.exit_client()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.process.wait(STOP_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._server.kill()


def connect(dgl: Any, token: str, ip_config: Path, part: int, address: str) -> Any:
    """Return the DistGraph of a worker, once all servers and workers are connected.

    Replaces functions of DGL's client, and sets DGL_DIST_MODE.

    Args:
        dgl: the module.
        token: name of the graph.
        ip_config: file of the servers' addresses.
        part: of this worker.
        address: at which this worker listens.
    """
    client = dgl.distributed.rpc_client
    client.get_local_machine_id = lambda book: part
    client.get_local_usable_addr = lambda probe: f"{address}:{free_port(address)}"
    os.environ["DGL_DIST_MODE"] = "distributed"
    dgl.distributed.initialize(str(ip_config))
    return dgl.distributed.DistGraph(token)


def unlink_shared_memory(token: str) -> None:
    """Unlink a server's names in /dev/shm, after all workers have mapped them."""
    for name in SHARED_MEMORY.glob(f"{token}*"):
        name.unlink(missing_ok=True)


def free_port(address: str) -> int:
    """Find a TCP port of an address that is free now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _agree_on_addresses(comm: Communicator, address: str, folder: Path) -> Path:
    """Write DGL's file ip_config into the folder, and return its path; all workers call it.

    It has one line per partition, its address and a port that is free now.
    """
    own = torch.tensor([*socket.inet_aton(address), free_port(address)])
    lines = [
        f"{'.'.join(map(str, octets))} {port}\n"
        for *octets, port in comm.all_gather(own, SETUP).tolist()
    ]
    file = folder / "ip_config"
    file.write_text("".join(lines), encoding="utf-8")
    return file


def write_part_config(directory: Path, token: str, folder: Path) -> Path:
    """Write a copy of the partition config to folder/parts.json, and return its path.

    Its graph name is `token`, unique for each server; its paths are absolute.
    """
    file = config_file(directory)
    assert file is not None
    read = read_config(file)
    config: dict[str, Any] = {**read.content, "graph_name": token}
    for part, files in enumerate(read.files):
        paths = (str(file.resolve()) for file in files)
        config[f"part-{part}"] = dict(zip(FILES, paths, strict=True))
    path = folder / "parts.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path
