"""A worker's end of DGL's engine: it starts and watches the server of its part, and fetches from all of them."""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psutil
import torch
from torch import Tensor

from partitioning.directory.dgl_files import config_file, read_config
from retexo.cluster.interfaces import interface_address
from retexo.cluster.places import choose_interface
from retexo.comm.collectives import Communicator
from retexo.comm.traffic import SETUP, MessageTag
from retexo.config.settings import TrainSettings
from retexo.distdgl import hooks

SHARED_MEMORY = Path("/dev/shm")
STOP_TIMEOUT = 10.0
"""seconds for which a server may take to end after the last message"""


class Engine:
    """A DistGraph over all parts; use it as a context, which ends the server."""

    def __init__(
        self, settings: TrainSettings, directory: Path, comm: Communicator, fail: Callable[[str], None]
    ) -> None:
        """Starts the server and connects; all workers call it. fail: ends this worker, and says why."""
        self._comm, self._fail, self._patience = comm, fail, settings.cluster.heartbeat_timeout
        self._token, self._closing = f"retexo-{os.getpid()}-{uuid4().hex[:12]}", threading.Event()
        threads = str(torch.get_num_threads())
        os.environ |= {"OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "passive"}
        # DGL aborts where a server is gone. libc's `sleep` as the handler gives us 6 (SIGABRT) seconds to say why.
        libc = ctypes.CDLL(None)
        libc.signal(signal.SIGABRT, libc.sleep)
        os.environ["DGL_DIST_MAX_TRY_TIMES"] = str(int(settings.cluster.init_timeout / hooks.WAIT))
        address = _address(settings)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            ip_config = _agree_on_addresses(comm, address, Path(folder))
            self._start_server(part_config(directory, self._token, Path(folder)), ip_config)
            self.dgl, self._sent = hooks.install(self._token)
            self.graph = connect(self.dgl, self._token, ip_config, comm.rank, address)
        self._rpc = self.dgl.distributed.rpc
        numbers = comm.all_gather(torch.tensor([self._rpc.get_rank()]), SETUP)[:, 0].tolist()
        self._ranks = {number: rank for rank, number in enumerate(numbers)}
        """The part of each client, by DGL's number of it."""

    def _start_server(self, config: Path, ip_config: Path) -> None:
        comm = self._comm
        arguments = (str(config), str(ip_config), str(comm.rank), str(comm.world_size), self._token)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._server = subprocess.Popen(
            [sys.executable, "-m", "retexo.distdgl.server", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Tell the parent when the server has ended, or was stopped for too long; this worker may wait for it in C."""
        stopped = 0
        while stopped <= self._patience:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(1)
                break
            with contextlib.suppress(psutil.Error):
                stopped = stopped + 1 if psutil.Process(self._server.pid).status() == psutil.STATUS_STOPPED else 0
        if not self._closing.is_set():
            self._fail(f"cannot go on: the DGL server of its part {self._how_it_ended()}")

    def _how_it_ended(self) -> str:
        code = self._server.poll()
        if code is None:
            self._server.kill()
            return "was stopped (SIGSTOP, or a debugger)"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        self._errors.seek(0)
        said = [line for line in self._errors.read().splitlines() if line.strip()]
        return f"exited with status {code}: {said[-1] if said else 'without a word'}"

    def rows(self, name: str, nodes: Tensor) -> Tensor:
        """Data of nodes by their ids in the partitioned graph, from whoever has them."""
        found: Tensor = self.graph.ndata[name][nodes]
        return found

    @contextlib.contextmanager
    def counted_as(self, purpose: str) -> Iterator[None]:
        """All that is fetched within counts as that, at both ends."""
        self._tell(purpose)
        yield
        self._tell("")

    def _tell(self, purpose: str) -> None:
        self._sent.purposes[self._rpc.get_rank()] = purpose
        for server in range(self._comm.world_size):
            self._rpc.send_request(server, self._sent.Tag(self._rpc.get_rank(), purpose))  # type: ignore[attr-defined]

    def close(self) -> None:
        """Put what was sent into the account, and end the server; all workers call it."""
        own = self._comm.rank
        self._rpc.send_request(own, self._sent.Counts(self._rpc.get_rank(), ""))  # type: ignore[attr-defined]
        by_server = self._rpc.recv_response().counts
        counts = [(kind, peer, count) for (kind, peer), count in self._sent.bytes.items()]
        counts += [(kind, self._ranks[client], count) for kind, client, count in by_server if client in self._ranks]
        for kind, peer, count in counts:
            if peer != own:
                self._comm.meter.add(MessageTag(kind), peer, count)
        self._closing.set()
        with contextlib.redirect_stdout(io.StringIO()):
            self.dgl.distributed.exit_client()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(STOP_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._closing.set()
            self._server.kill()


def connect(dgl: Any, token: str, ip_config: Path, part: int, address: str) -> Any:
    """The DistGraph of a trainer beside the server of a part, once all servers and trainers are there."""
    client = dgl.distributed.rpc_client
    client.get_local_machine_id = lambda book: part
    client.get_local_usable_addr = lambda probe: f"{address}:{free_port(address)}"
    os.environ["DGL_DIST_MODE"] = "distributed"
    dgl.distributed.initialize(str(ip_config))
    graph = dgl.distributed.DistGraph(token)
    for name in SHARED_MEMORY.glob(f"{token}*"):  # mapped by now at both ends; so nothing is left behind
        name.unlink(missing_ok=True)
    return graph


def _address(settings: TrainSettings) -> str:
    """Where this node listens: on loopback for a run on one machine, else on the interface between nodes."""
    cluster = settings.cluster
    return interface_address(choose_interface(cluster), preferred={cluster.master_addr})


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _agree_on_addresses(comm: Communicator, address: str, folder: Path) -> Path:
    """DGL's ip_config: a line a part."""
    own = torch.tensor([*socket.inet_aton(address), free_port(address)])
    lines = [f"{'.'.join(map(str, octets))} {port}\n" for *octets, port in comm.all_gather(own, SETUP).tolist()]
    file = folder / "ip_config"
    file.write_text("".join(lines))
    return file


def part_config(directory: Path, token: str, folder: Path) -> Path:
    """The partition config under a name of this part's own, as what a server puts into shared memory is called."""
    file = config_file(directory)
    assert file is not None
    config: dict[str, Any] = {**read_config(file), "graph_name": token}
    for part in range(config["num_parts"]):
        files = config[f"part-{part}"]
        config[f"part-{part}"] = {key: str((directory / name).resolve()) for key, name in files.items()}
    made = folder / "parts.json"
    made.write_text(json.dumps(config))
    return made
