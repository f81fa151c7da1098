"""What several tests need: worker processes, small graphs and partitions, the command line."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import logging
import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from partitioning.dgl_import import has_dgl, import_dgl
from partitioning.directory.dgl_files import add_dgl_files
from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory, find_partition_directory
from partitioning.directory.write_directory import write_parts
from partitioning.errors import InputError
from partitioning.files.file_io import with_checksum
from partitioning.graph.graph_data import PLAIN_RELATION, PLAIN_TYPE, GraphData, NodeTable, Relation
from partitioning.links.link_split import LinkSplit
from partitioning.partition_settings import (
    ColumnSettings,
    DatasetSettings,
    FeatureSettings,
    PairSettings,
    SplitSettings,
    SyntheticSettings,
)
from partitioning.setting_fields import with_values
from retexo.comm.collectives import Communicator
from retexo.comm.message_format import as_bytes
from retexo.comm.socket_transport import SocketTransport
from retexo.comm.transport import Pieces, Transport
from retexo.exchange.exchange_plan import ExchangePlan, PlanOptions
from retexo.launch.fork_server import warm_up
from retexo.launch.start_workers import add_local_streams
from retexo.models.network import Architecture, build_network
from retexo.models.stage import Stage
from retexo.results.checkpoint import save_layer, save_model
from retexo.rounds.graph_info import GraphInfo, agree_on_graph_info
from retexo.settings.compose import compose
from retexo.settings.run_settings import TrainSettings
from retexo.trainers.context import Clock, Context
from retexo.trainers.out_edges import OutEdges, find_required_layers
from retexo.worker.graph import make_architecture, read_graph
from retexo.worker.make_context import link_task, make_context

THREADS = 2
"""Threads of torch in the tests' process and in the commands it starts: more than one, so that
errors that need several are seen.
"""
torch.set_num_threads(THREADS)
ROOT = Path(__file__).resolve().parents[1]
MASKS = ("train_mask", "val_mask", "test_mask")
MODELS = {
    "gcn": ("model=gcn",),
    "sage-mean": ("model=sage",),
    "sage-pool": ("model=sage", "model.aggregator=pool"),
    "gat-mean": ("model=gat",),
    "gat-concat": ("model=gat", "model.head_merge=concat"),
    "gin": ("model=gin",),
}
"""Settings of every aggregator."""

Masks = dict[str, np.ndarray]


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- workers ----------


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Call all functions at the same time, each in a thread; return their results in order."""
    pool = ThreadPoolExecutor(len(calls))
    try:
        return [future.result(90) for future in [pool.submit(call) for call in calls]]
    finally:
        pool.shutdown(wait=False)


def over_sockets(
    world: int, work: Callable[[SocketTransport], Any], timeout: float = 30.0
) -> list[Future[Any]]:
    """Call work(transport) in a thread for each rank, over pairs of sockets.

    Return the finished futures by rank, once all threads have ended.
    """
    with ExitStack() as stack, ThreadPoolExecutor(world) as pool:
        streams = add_local_streams(range(world), {}, stack)
        return [
            pool.submit(work, SocketTransport(rank, streams[rank], timeout))
            for rank in range(world)
        ]


def swap(
    transport: Transport, to_peers: Sequence[torch.Tensor], from_sizes: Sequence[int]
) -> list[torch.Tensor]:
    """Do an all-to-all of tensors over a transport; a rank's tensor for itself is not sent."""
    own = to_peers[transport.rank]
    received = [torch.empty(size, dtype=own.dtype) for size in from_sizes]
    outgoing: list[Pieces] = [[as_bytes(tensor)] for tensor in to_peers]
    incoming: list[Pieces] = [[as_bytes(tensor)] for tensor in received]
    outgoing[transport.rank] = incoming[transport.rank] = ()
    transport.swap(outgoing, incoming)
    received[transport.rank] = own
    return received


RANDOM_STATE = threading.Lock()
"""A worker acquires it before it draws: all threads share torch's random state."""


def worker_context(
    comm: Communicator,
    directory: PartitionDirectory,
    settings: TrainSettings,
    *,
    part: Partition | None = None,
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> tuple[Context, list[Stage]]:
    """Return the context of a worker, and the network before training; all workers call it.

    part: used in place of the directory's; more: further arguments of make_context.
    """
    part = part or read_graph(directory, comm.rank, task=settings.task)
    info = agree_on_graph_info(comm, part, directory, task=link_task(settings))
    with RANDOM_STATE:
        network = build_network(make_architecture(part, settings, info), settings.seed)
    stages = [stage.to(dtype) for stage in network]
    first, clock = stages[0].conv, Clock()
    return make_context(settings, part, info, comm, first, clock=clock, dtype=dtype, **more), stages


# --- graphs and their partitions ----------


def make_graph(
    edges: list[tuple[int, int]] | np.ndarray,
    features: Any,
    labels: Any,
    num_classes: int | None = None,
) -> GraphData:
    """Make a graph from literals; labels with one row per node are multi-label."""
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    label = np.array(labels)
    label = label.astype(np.float32 if label.ndim == 2 else np.int64)
    classes = label.shape[1] if label.ndim == 2 else int(label.max()) + 1
    nodes = NodeTable(np.array(features, np.float32), np.arange(len(label)) + 1000)
    relation = Relation(ends[:, 0].copy(), ends[:, 1].copy())
    return GraphData.plain("toy", nodes, relation, label, num_classes or classes)


def with_arrays(graph: GraphData, **arrays: Any) -> GraphData:
    """Replace arrays of a plain graph's nodes and edges, by their names there."""
    of_edges = {name: arrays.pop(name) for name in vars(graph.edges).keys() & arrays.keys()}
    edges, nodes = replace(graph.edges, **of_edges), replace(graph.target_nodes, **arrays)
    return replace(graph, nodes={PLAIN_TYPE: nodes}, relations={PLAIN_RELATION: edges})


def random_graph(
    num_nodes: int = 40,
    num_edges: int = 160,
    width: int = 6,
    num_classes: int = 3,
    *,
    seed: int = 0,
    multi: bool = False,
) -> GraphData:
    """A random directed graph with self loops and edges that occur twice."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(num_nodes, size=(num_edges, 2))
    edges = np.concatenate([edges, edges[:3], [[1, 1], [2, 2]]])
    labels = (
        rng.random((num_nodes, num_classes)) < 0.4
        if multi
        else np.arange(num_nodes) // 3 % num_classes
    )  # not as thirds() draws its masks
    features = rng.standard_normal((num_nodes, width))
    if not multi:
        features += 1.5 * np.eye(num_classes, width)[labels]
    return make_graph(edges, features, labels, num_classes)


def count_edges(graph: GraphData) -> torch.Tensor:
    """Count the edges between each two nodes, [to, from], without self loops."""
    counts = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    ends = torch.from_numpy(graph.edges.dst), torch.from_numpy(graph.edges.src)
    ones = torch.ones(graph.num_edges, dtype=torch.float64)
    return counts.index_put_(ends, ones, accumulate=True).fill_diagonal_(0)


def thirds(num_nodes: int) -> Masks:
    """Return masks: every third node trains, the next one validates, and the one after it tests."""
    return {name: np.arange(num_nodes) % 3 == place for place, name in enumerate(MASKS)}


def provenance(num_parts: int) -> dict[str, Any]:
    """The fields of meta.json that the caller of write gives."""
    request = {"dataset_name": "file", "num_partitions": num_parts, "partition_method": "random"}
    return {"request": request, "split": {"kind": "given"}, "versions": {}}


def write_partitions(
    base: Path,
    graph: GraphData,
    masks: Masks,
    assignment: Any,
    num_parts: int,
    name: str | None = None,
    *,
    with_dgl_files: bool = False,
    links: LinkSplit | None = None,
) -> PartitionDirectory:
    """Write the partitions to base/toy-random-vol-P, and open them.

    assignment: of the nodes, or of those of each type.
    """
    if with_dgl_files:
        need_dgl()
    if not isinstance(assignment, dict):
        assignment = {PLAIN_TYPE: np.array(assignment, dtype=np.int64)}
    directory, made_by = base / (name or f"toy-random-vol-{num_parts}"), provenance(num_parts)
    meta, _ = write_parts(
        directory,
        graph,
        masks,
        assignment,
        num_parts=num_parts,
        provenance=made_by | ({} if links is None else {"links": links.description}),
        overwrite=True,
        links=None if links is None else links.arrays,
    )
    if with_dgl_files:
        add_dgl_files(directory, meta)
    written = find_partition_directory([directory], num_parts)
    assert written.is_plain is graph.is_plain
    return written


def need_dgl() -> None:
    """Skip a test that needs DGL where there is none."""
    if not has_dgl():
        pytest.skip("DGL is not installed")


class _LazyDGL:
    """The package dgl, imported when first used: it takes half a second, and is optional."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # pytest looks for these in what a test module imports
            raise AttributeError(name)
        need_dgl()
        return getattr(import_dgl("a test"), name)


dgl: Any = _LazyDGL()


def dgl_directory(
    folder: Path, graph: GraphData, masks: Masks, parts: Any, halo_hops: int = 1
) -> PartitionDirectory:
    """Partition a graph with DGL's own partition_graph, and open the directory.

    parts: the partition of each node, or such an array by node type. Weights of typed edges are
    called w.
    """
    by_type = parts if isinstance(parts, dict) else {"_N": parts}
    relations = {
        edge_type if edge_type[0] else ("_N", "_E", "_N"): of
        for edge_type, of in graph.relations.items()
    }
    ends = {
        edge_type: tuple(map(torch.from_numpy, (of.src, of.dst)))
        for edge_type, of in relations.items()
    }
    sizes = {name or "_N": table.num_nodes for name, table in graph.nodes.items()}
    dgl_graph = dgl.heterograph(ends, sizes)
    for name, table in graph.nodes.items():
        arrays = {"label": graph.labels, **masks} if name == graph.target else {}
        arrays |= {"feat": table.features} if table.features.shape[1] else {}
        arrays |= {"orig_id": table.node_ids}
        tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
        dgl_graph.nodes[name or "_N"].data.update(tensors)
    for edge_type, edges in relations.items():
        for name, array in edges.edge_data.items():
            called = "w" if name == "edge_weight" and by_type is parts else name
            dgl_graph.edges[edge_type].data[called] = torch.from_numpy(array)
    order = np.concatenate([by_type[name] for name in dgl_graph.ntypes])
    number = int(order.max()) + 1
    assign = mock.Mock(return_value=torch.from_numpy(order))
    with mock.patch.object(dgl.distributed.partition, "metis_partition_assignment", assign):
        dgl.distributed.partition_graph(
            dgl_graph, "toy", number, str(folder), part_method="metis", num_hops=halo_hops
        )
    warm_up()  # DGL's reader is tried in a child of the fork server, which is faster
    return find_partition_directory([folder], number)


def save_npz(path: Path, graph: GraphData, masks: Masks | None = None) -> Path:
    """Write the graph as a file of dataset_name=file; return its path."""
    features = (
        graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    )
    np.savez(
        path,
        src=graph.edges.src,
        dst=graph.edges.dst,
        feat=features,
        label=graph.labels,
        node_id=graph.node_ids,
        **(masks or {}),
    )
    return path


def split_settings(kind: str = "default", **fields: Any) -> SplitSettings:
    return SplitSettings(kind=kind, **{"seed": 0, **fields})


SHORT = {
    "dir": "dataset_dir",
    "max_gib": "dataset_max_gib",
    "unknown": "edges.unknown",
    "reverse": "relations.reverse",
    "relation": "task.relation",
    "spectral": "task.spectral",
    "task": "task.name",
}
"""Names that tests give to settings of data sets."""


def dataset_settings(name: str, file: str | None = None, **fields: Any) -> DatasetSettings:
    """Make the settings of a data set whose features are neither scaled nor filled in."""
    columns = ColumnSettings(**fields.pop("columns", {}))
    features_given = fields.pop("features", ("given",))
    names = {field.name for field in dataclasses.fields(FeatureSettings)}
    is_group = isinstance(features_given, dict) and names & features_given.keys()
    features = {
        "scale": "none",
        "missing": "error",
        **(features_given if is_group else {"kind": features_given}),
    }
    if "labels" in fields:
        fields["labels.kind"] = fields.pop("labels")
    settings = DatasetSettings(
        dataset_name=name,
        dataset_file=file,
        dataset_dir=".",
        columns=columns,
        features=FeatureSettings(**features),
        synthetic=SyntheticSettings(
            nodes=60, edges=150, features=5, classes=3, homophily=0.7, seed=0
        ),
        split=split_settings(),
        task=PairSettings(spectral=0),
    )
    return with_values(settings, {SHORT.get(key, key): value for key, value in fields.items()})


def graph_info(**known: Any) -> GraphInfo:
    """Make what workers agree on about a graph; fields that are not named are zero or None."""
    nothing = {field.name: 0 for field in dataclasses.fields(GraphInfo)}
    return GraphInfo(**{**nothing, "untrained_ranks": frozenset(), "ogb_name": None, **known})  # type: ignore[arg-type]


def train_settings(*overrides: str) -> TrainSettings:
    parts = [
        int(override.split("=")[1])
        for override in overrides
        if override.startswith("num_partitions=")
    ]
    composed = _composed(
        *(override for override in overrides if not override.startswith("num_partitions="))
    )
    number = parts[-1] if parts else composed.num_partitions
    return dataclasses.replace(composed, num_partitions=number)


@functools.cache
def _composed(*overrides: str) -> TrainSettings:
    """Once for every number of partitions: Hydra takes a sixth of a second."""
    return compose(overrides)


def snapshot(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file below a folder by its path.

    Locks are left out, because they name their last owner.
    """
    files = (
        path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".lock")
    )
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


# --- the command line ----------


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    rc: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def _environment(extra: dict[str, str] | None) -> dict[str, str]:
    # The server that workers are forked from looks for packages in its working directory and in
    # PYTHONPATH only.
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": str(THREADS),
        "PYTHONUNBUFFERED": "1",
        **(extra or {}),
    }


def start_cli(
    *arguments: str, cwd: Path, env: dict[str, str] | None = None, prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start main.py in a process group of its own.

    `prefix` is a command that runs another, such as `ip netns exec`.
    """
    return subprocess.Popen(
        [*prefix, sys.executable, str(ROOT / "main.py"), *arguments],
        cwd=cwd,
        env=_environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextlib.contextmanager
def running_cli(
    *arguments: str, cwd: Path, trains_in: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start main.py, in the end kill what is left of its process group.

    trains_in: the directory of the run; then wait until it has written some rounds.
    """
    process = start_cli(*arguments, cwd=cwd)
    try:
        if trains_in is not None:
            rounds = trains_in / "metrics.jsonl"
            some = lambda: rounds.exists() and rounds.read_text().count("\n") > 2  # noqa: E731
            wait_until(lambda: process.poll() is not None or some(), "rounds")
            assert process.poll() is None, finish(process, rc=None).output
        yield process
    finally:
        kill_group(process.pid)
        process.communicate()


def finish(process: subprocess.Popen[str], *, rc: int | None = 0, timeout: float = 90.0) -> Ended:
    """Wait for a command; at the limit all of its process group is killed.

    Its exit status has to be `rc`; None: any.
    """
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            kill_group(process.pid)
    ended = Ended(process.returncode, stdout, stderr)
    assert rc in (ended.rc, None), ended.output
    return ended


def run_main(
    *arguments: str,
    cwd: Path,
    rc: int | None = 0,
    env: dict[str, str] | None = None,
    script: str = "main.py",
) -> Ended:
    """Run main.py to its end within this process, without the seconds that imports take.

    Its exit status has to be `rc`; None: any. What workers print is not kept.
    """
    stdout, stderr, status = io.StringIO(), io.StringIO(), None
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        _hydra_alone(),
        mock.patch.object(sys, "argv", [script, *arguments]),
        mock.patch.dict(os.environ, _environment(env)),
    ):
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as error:
            status = error.code
    assert isinstance(status, int)
    ended = Ended(status, stdout.getvalue(), stderr.getvalue())
    assert rc in (status, None), ended.output
    return ended


@contextlib.contextmanager
def _hydra_alone() -> Iterator[None]:
    """Keep Hydra's state and log handlers of one command from the next one in this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        for handler in root.handlers:
            if handler not in handlers:
                handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = None


def make_credentials(folder: Path, *sites: str) -> list[Path]:
    """Make credentials; return the folders by node. Skips the test without cryptography."""
    pytest.importorskip("cryptography")
    from retexo.apps import credentials

    with contextlib.redirect_stdout(io.StringIO()):
        credentials.init(folder, sites)
    return [folder / site for site in sites]


def free_port() -> int:
    """A port below 32768, where the kernel's own choices begin: no process connects from it."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def group_members(group: int) -> list[psutil.Process]:
    """The processes of a process group that are alive."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait until a condition is true, for less time than a test may take."""
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, f"it never came: {what}"
        time.sleep(0.02)


def save_untrained(
    run_dir: Path, shape: Architecture, answer: dict[str, Any], **described: Any
) -> Path:
    """Write the checkpoint of an untrained network; return the run's directory."""
    for layer, stage in enumerate(build_network(shape, seed=3)):
        save_layer(run_dir / "checkpoint", layer, stage)
    about = {"multilabel": False, "partition_digest": "none", "answer": answer, **described}
    save_model(run_dir / "checkpoint", shape, about)
    return run_dir


@contextlib.contextmanager
def refusing(*words: str, begins: str = "") -> Iterator[None]:
    """Expect an InputError of one line that begins with `begins` and has all these words."""
    with pytest.raises(InputError) as caught:
        yield
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).startswith(begins)
    assert "\n" not in str(caught.value)


def edit_model(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change model.json, and write its checksum anew."""
    content = json.loads((checkpoint / "model.json").read_text())
    del content["sha256"]
    change(content)
    (checkpoint / "model.json").write_text(json.dumps(with_checksum(content)))


def read_rounds(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without their seconds."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def assert_same_run(actual: Path, expected: Path) -> None:
    """Compare checkpoints bit for bit, all rounds and the scores; no state is left."""
    assert snapshot(actual / "checkpoint") == snapshot(expected / "checkpoint")
    assert read_rounds(actual) == read_rounds(expected)
    first, second = (
        json.loads((run_dir / "summary.json").read_text()) for run_dir in (actual, expected)
    )
    for name in ("test", "val", "rounds"):
        assert first[name] == second[name]
    assert not (actual / "state").exists()


def assert_sent_as_planned(planned: dict[str, Any], summary: dict[str, Any]) -> None:
    """Compare a run's bytes by layer and kind with app=plan: equal, or at most those of a bound."""
    smoothed = summary["chosen"].get("smoothing_alpha", 1) < 1
    expected: Counter[tuple[int, str]] = Counter()
    bounded = set()
    for entry in planned["entries"]:
        kind, layer = entry["kind"], -1 if entry["layer"] is None else entry["layer"]
        times = summary["rounds"][layer] if kind == "gradients" else 1
        if smoothed or not entry["if_smoothed"]:
            expected[layer, kind] += times * entry["num_bytes"]
        if not entry["exact"]:
            bounded.add((layer, kind))
    *layers, outside = summary["bytes"]["by_layer_and_kind"]
    for layer, kinds in (*enumerate(layers), (-1, outside)):
        for kind, sent in kinds.items():
            most = expected[layer, kind]
            assert sent <= most if (layer, kind) in bounded else sent == most, (layer, kind)


class RoundRecorder:
    """Stands in for RunLog and keeps the layer, number, training loss and metric of each round."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, int, float | None, float | None]] = []

    def round(
        self,
        layer: int,
        number: int,
        train_loss: float | None,
        val_metric: float | None = None,
        val_loss: float | None = None,
    ) -> None:
        self.lines.append((layer, number, train_loss, val_metric))

    @property
    def scores(self) -> list[tuple[float | None, float | None]]:
        """Training loss and metric of each round."""
        return [(loss, metric) for _, _, loss, metric in self.lines]


def dense_conv(
    conv: Any, weight: torch.Tensor, rows: torch.Tensor, degrees: Any = None
) -> torch.Tensor:
    """Compute a convolution of retexo.models by its equation, with dense matrices [N, N].

    weight: the number of edges [to, from]; degrees: in- and out-degrees that normalise sums; None:
    those of these edges.
    """
    name, own = type(conv).__name__, torch.eye(len(weight), dtype=weight.dtype)
    in_degree, out_degree = degrees or (weight.sum(1), weight.sum(0))
    if name == "GCN":
        scale = (in_degree + 1).rsqrt()[:, None] * (weight + own) * (out_degree + 1).rsqrt()
        return scale @ rows @ conv.weight + conv.bias
    if name == "SAGEMean":
        mean = weight / in_degree.clamp(min=1)[:, None] @ rows
        own_rows = rows @ conv.weight_self if conv.root_weight else 0
        return own_rows + mean @ conv.weight_neigh + conv.bias
    if name == "GIN":
        hidden = conv.norm((rows + weight @ rows) @ conv.weight_in + conv.bias_in)
        return torch.relu(hidden) @ conv.weight_out + conv.bias_out
    if name == "SAGEPool":
        messages = torch.relu(rows @ conv.weight_pool + conv.bias_pool)
        pooled = torch.where(weight[:, :, None] > 0, messages[None], 0).amax(dim=1)
        return rows @ conv.weight_self + pooled @ conv.weight_neigh + conv.bias
    assert name == "GAT", f"{name}: its equation is missing here"
    z = (rows @ conv.weight).view(len(rows), conv.attention_heads, -1)
    score = (z * conv.attention_src).sum(-1)[None] + (z * conv.attention_dst).sum(-1)[:, None]
    weight = weight + conv.self_loops * own
    share = weight[:, :, None] * torch.nn.functional.leaky_relu(score, 0.2).exp()
    share = share / share.sum(dim=1, keepdim=True).clamp(min=1e-300)
    merged = torch.einsum("vuh,uhd->vhd", share, z)
    return (merged.mean(dim=1) if conv.merge == "mean" else merged.flatten(1)) + conv.bias


def make_plan(part: Partition, options: PlanOptions, comm: Communicator) -> ExchangePlan:
    """Make the exchange plan of a plain graph, as retexo.worker.make_context does."""
    edges = {PLAIN_TYPE: OutEdges.of_plain_graph(part.edges, None)}  # type: ignore[arg-type]
    required = find_required_layers(part, PLAIN_TYPE, edges, {PLAIN_TYPE: options}, comm)
    return edges[PLAIN_TYPE].make_plan(required, options, comm)
