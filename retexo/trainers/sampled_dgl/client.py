"""A worker's client of DGL's engine, and the objective of trainer=sampled on its mini-batches.

The client starts and watches the server of its partition, and fetches rows from all servers.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import torch
from torch import Tensor, nn

from partitioning.directory.dgl_config import FILES, config_file, read_config
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import SETUP, WHOLE_RUN, MessageTag
from retexo.launch.addresses import own_address
from retexo.models.block import Block
from retexo.models.conv.sage import SAGEMean
from retexo.models.convolution import Convolution
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import Matrix, as_matrix
from retexo.models.stage import Stage
from retexo.rounds.objective import Objective, Validation, count_validation
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import end_to_end
from retexo.trainers.context import Context
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
        """Start the process, without standard output, and a thread that watches it.

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
        """Start the server and connect; all workers call it, once per process.

        Patches DGL, sets its environment variables and OpenMP's, and handles SIGABRT.

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

        The purpose is "" afterwards, unless the block raises.
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

    InputError if the config is damaged.

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


# --- the objective ----------


class BatchObjective(Objective):
    """Objective of a network on one batch of this partition's training nodes per round."""

    layer, traffic_layer, exchanges_rows = 0, WHOLE_RUN, True

    def __init__(
        self, context: Context, stages: Sequence[Stage], engine: Engine, fanout: Sequence[int]
    ) -> None:
        """Divide the training nodes among the workers; validation nodes are those of the partition.

        All workers call it: a batch's weight is all training nodes over those that the workers have
        in it. InputError where DGL's files lack data that the model reads.
        """
        self.context, self.stages, self.engine = context, stages, engine
        self.task, self.graph_info = context.task, context.graph_info
        needed_data = {"feat", "label", "train_mask", *required_degrees(stages[0].conv)}
        if missing := needed_data - engine.graph.ndata.keys():
            raise InputError(
                f"{context.directory}: model={context.settings.model.name} with trainer=sampled"
                f" reads {', '.join(sorted(missing))}, which are missing in DGL's files; partition"
                " again, or choose model=sage"
            )
        mask, book = engine.graph.ndata["train_mask"], engine.graph.get_partition_book()
        self._nodes: Tensor = engine.dgl.distributed.node_split(mask, book, rank=0, force_even=True)
        """int64 [n] global ids in the order of their batches, as in `_val`."""
        counts = context.comm.all_gather(torch.tensor([len(self._nodes)]), SETUP).flatten()
        self._size = context.batch_size or int(counts.max())
        """Nodes per batch."""
        left = counts[:, None] - self._size * torch.arange(
            max(1, -(-int(counts.max()) // self._size))
        )
        self._weights = self.graph_info.num_train / left.clamp(0, self._size).sum(dim=0).clamp(
            min=1
        )
        """[steps] factor of each batch's loss, so that it stands for all training nodes."""
        self.steps = len(self._weights)
        """Rounds per epoch."""
        mask = context.partition.val_mask
        self._val = mask.nonzero()[:, 0] + self.graph_info.id_bounds[context.comm.rank]
        self._val_labels = context.labels[mask.to(context.device)]
        """Labels as the loss reads them, on the device."""
        self._module = end_to_end.collect_modules(stages)
        self._sampler = engine.dgl.dataloading.NeighborSampler(list(fanout))
        self._step, self._measured = 0, count_validation(self.task, self.metric, [])

    @property
    def module(self) -> nn.Module:
        return self._module

    @property
    def num_train(self) -> int:
        return len(self._nodes)

    def begin_round(self, number: int) -> None:
        """Choose the batch of a round; at the start of an epoch, shuffle by torch's generator."""
        self._step = number % self.steps
        if not self._step:
            self._nodes = self._nodes[torch.randperm(len(self._nodes))]

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        """Return the first weights and all features; a zero feature is in no sample."""
        weights = self.stages[0].first_weights
        return weights, [(as_matrix(self.context.features),) * len(weights)]

    def losses(self) -> Iterator[Tensor]:
        """Yield the weighted loss summed over the round's batch, unless that is empty.

        Puts the network into training mode.
        """
        self.module.train()
        batch = self._nodes[self._step * self._size :][: self._size]
        if len(batch):
            like = self._val_labels
            labels = self.task.make_targets(self.engine.rows("label", batch), like.dtype).to(like)
            yield self.task.loss_sum(self._logits(batch), labels) * self._weights[self._step]

    @torch.no_grad()
    def validate(self) -> Validation:
        """Return the validation of the start of this epoch, on sampled neighbours.

        Puts the network into evaluation mode where it computes it.
        """
        if self._step == 0 and self.graph_info.num_val:
            self.module.eval()
            nodes, labels = (
                torch.split(tensor, self._size) for tensor in (self._val, self._val_labels)
            )
            scored = (
                (self._logits(some), known)
                for some, known in zip(nodes, labels, strict=True)
                if len(some)
            )
            with self.engine.count_as("metrics"):
                self._measured = count_validation(self.task, self.metric, scored)
        return self._measured

    def _logits(self, seeds: Tensor) -> Tensor:
        """Sample the neighbourhood of the seeds, fetch its rows, and run the network."""
        inputs, _, blocks = self._sampler.sample(self.engine.graph, seeds)
        rows = self.engine.rows("feat", inputs).to(self.context.features.dtype)
        degrees = {
            name: self.engine.rows(name, inputs).to(rows)
            for name in required_degrees(self.stages[0].conv)
        }
        rows = rows.to(self._val_labels.device)
        for stage, block in zip(self.stages, blocks, strict=True):
            own = rows.clone() if rows.requires_grad else rows  # prepare may overwrite it
            rows = stage.embed(
                stage.conv.prepare(
                    convert_block(block, degrees).to(rows.device), own, NO_PROJECTED_ROWS
                )
            )
        return rows


def required_degrees(conv: Convolution) -> list[str]:
    """Return the names of the global degrees that a convolution's sums read."""
    names = ["in_deg"] if conv.linear_aggregation and not isinstance(conv, SAGEMean) else []
    return [*names, "out_deg"] if conv.uses_out_degree else names


def convert_block(block: Any, degrees: dict[str, Tensor]) -> Block:
    """Convert a DGL block, without self loops.

    Args:
        block: DGL's block.
        degrees: [n] global degrees; their first nodes are the block's sources.
    """
    src, dst = block.edges()
    src, dst = src[src != dst], dst[src != dst]
    num_src, num_dst = block.num_src_nodes(), block.num_dst_nodes()
    count = torch.bincount(dst, minlength=num_dst)
    in_degree, weight = count.float(), None
    if "in_deg" in degrees:
        in_degree = degrees["in_deg"][:num_dst]
        weight = (in_degree / count)[dst]
    out_degree = degrees["out_deg"][:num_src] if "out_deg" in degrees else torch.zeros(num_src)
    return Block(torch.arange(num_src), num_dst, num_src, src, dst, out_degree, in_degree, weight)
