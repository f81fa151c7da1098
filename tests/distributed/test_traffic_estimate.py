"""What a run sends is as estimated from its partitions: by kind, layer, phase and peers."""

import contextlib
import functools
import threading
import unittest.mock
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import MODELS, dgl_directory, make_graph, train_settings, write_partitions

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.graph_data import GraphData
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import WHOLE_RUN, MessageTag
from retexo.exchange import layer_exchange
from retexo.models.stage import Stage
from retexo.plan.traffic import PHASE_NAMES, ROW_KINDS, Entry, TrafficEstimate, estimate_traffic
from retexo.settings.run_settings import TrainSettings
from retexo.sites.disclosure import Disclosure
from retexo.trainers import lazy
from retexo.trainers.context import Context
from retexo.worker import train

WORLD, NODES = 4, 72
LIMITS = (3, 2, 1)
COMMON = (
    f"num_partitions={WORLD}",
    "hidden_dim=8",
    "heads=2",
    "dropout=0.5",
    f"num_rounds={[*LIMITS]}",
    "stopping=none",
    "learning_rate=[0.05]",
    "device=cpu",
    "cluster.threads=1",
    "base=published",
)
EXCHANGES = {
    "fp32": ("exchange=fp32",),
    "bf16": ("exchange.precision=bf16",),
    "int8": ("exchange.precision=int8",),
    "plain": ("exchange=plain",),
}
SKIPS = (
    "model.self_weight=true",
    "model.input_skip=true",
    "model.output=aggregate",
    "classifiers=validation",
    "smoothing.steps=2",
    "smoothing.reach=computed",
    "smoothing.alphas=[0.3,0.1]",
)
LOCAL, LOW_RANK = (
    ("gradient=local", "local_epochs=2"),
    ("gradient.compression=powersgd", "gradient.rank=2"),
)
GRADIENTS = {
    "sync": (),
    "local-bf16": (*LOCAL, "gradient.precision=bf16"),
    "sync-low-rank-int8": ("gradient.precision=int8", *LOW_RANK),
    "local-low-rank": (*LOCAL, *LOW_RANK),
}
FEATURES = ("dense", "sparse", "binary")
Key = tuple[str, int | None, str | None, int, int]


@dataclass(frozen=True)
class Case:
    model: str
    exchange: str
    gradient: str
    features: str
    num_layers: int
    stored_degrees: bool
    masks: str
    """all: every node is in one; some: not every node; blind: every node, none validates."""
    skips: bool = False
    hops: bool = False
    int4: bool = False
    """Layers after the first are sent in four bits."""
    edges: bool = False
    """Whether edges have weights and features."""
    ahead: bool = False
    """Whether residual layers look ahead."""

    def settings(self, *overrides: str) -> TrainSettings:
        options = (*MODELS[self.model], *EXCHANGES[self.exchange], *GRADIENTS[self.gradient])
        options += (SKIPS if self.skips else ()) + (("smoothing.reach=hops",) if self.hops else ())
        options += ("exchange.precision=[int8,int4]",) if self.int4 else ()
        options += ("model.lookahead=1", "model.residual=true") if self.ahead else ()
        return train_settings(*COMMON, f"num_layers={self.num_layers}", *options, *overrides)

    @property
    def data(self) -> tuple[str, bool, str, bool]:
        """What the partition directory depends on."""
        return self.features, self.stored_degrees, self.masks, self.edges

    def __str__(self) -> str:
        made_by = "ours" if self.stored_degrees else "dgl"
        names = (
            self.model,
            self.exchange,
            self.gradient,
            self.features,
            str(self.num_layers),
            made_by,
            self.masks,
        )
        flags = "-skips" * self.skips + "-hops" * self.hops + "-edges" * self.edges
        return "-".join(names) + flags + "-ahead" * self.ahead


def make_case(model: int, exchange: int) -> Case:
    """Every model meets every exchange.

    The rest goes round, so that every model meets each value of it, too.
    """
    pairs = (
        (exchange // 2 + model) % 2,
        ((exchange + 1) // 2 + model // 2) % 2,
        (exchange + model // 3) % 2,
    )
    return Case(
        model=list(MODELS)[model],
        exchange=list(EXCHANGES)[exchange],
        gradient=list(GRADIENTS)[(exchange + model) % 4],
        features=FEATURES[(exchange + 2 * model) % 3],
        num_layers=2 + pairs[0],
        stored_degrees=bool(pairs[1]),
        masks=("some", "all")[pairs[2]],
    )


MATRIX = [
    make_case(model, exchange) for model in range(len(MODELS)) for exchange in range(len(EXCHANGES))
]
CASES = list(MATRIX)
CASES += [
    replace(case, skips=True)
    for case in CASES
    if (case.model, case.exchange)
    in {("gcn", "fp32"), ("sage-mean", "int8"), ("gin", "plain"), ("gat-mean", "bf16")}
]
CASES += [
    replace(case, masks="some", hops=True)
    for case in CASES
    if case.skips and case.model in ("gcn", "gat-mean")
]
CASES += [
    replace(case, num_layers=2, int4=True)
    for case in CASES
    if case.exchange == "int8" and case.model in ("gcn", "gat-mean")
]
CASES += [
    replace(case, edges=True)
    for case in CASES
    if case.model in ("gcn", "gin") and case.exchange == "int8"
]
CASES.append(
    Case(
        "gcn",
        "fp32",
        "sync",
        "dense",
        2,
        stored_degrees=False,
        masks="some",
        skips=True,
        edges=True,
    )
)
CASES.append(
    Case(
        "gat-mean",
        "fp32",
        "sync",
        "dense",
        2,
        stored_degrees=True,
        masks="all",
        skips=True,
        edges=True,
    )
)
CASES.append(
    Case(
        "gcn",
        "int8",
        "sync-low-rank-int8",
        "sparse",
        2,
        stored_degrees=True,
        masks="some",
        skips=True,
    )
)
"""The last has what are the defaults."""
CASES += [
    replace(CASES[-1], ahead=True, num_layers=4, hops=True, int4=True),
    replace(CASES[-1], ahead=True, num_layers=3, model="sage-mean", exchange="plain", edges=True),
]
EARLY = Case("gcn", "plain", "sync", "dense", 2, stored_degrees=True, masks="all")
BLIND = replace(EARLY, masks="blind")
HIDDEN = replace(EARLY, exchange="fp32")
PATIENCE = {
    EARLY: ("stopping.patience=1",),
    BLIND: ("stopping.patience=2",),
    HIDDEN: ("stopping.patience=3", "stopping.hidden_patience=1"),
}


# --- graphs ----------


def toy_graph(features: str) -> GraphData:
    """Random edges, some of them twice, and self loops; an isolated node."""
    rng = np.random.default_rng(5)
    edges = np.concatenate([rng.integers(NODES - 1, size=(330, 2)), [[3, 3], [40, 40]]])
    labels = np.arange(NODES) % 3
    rows = rng.standard_normal((NODES, 20)) + np.eye(3, 20)[labels]
    if features == "sparse":
        rows *= rng.random(rows.shape) < 0.1
    if features == "binary":
        rows = rng.random(rows.shape) < 0.1
    return make_graph(np.concatenate([edges, edges[:9]]), rows, labels, 3)


def toy_masks(parts: np.ndarray, kind: str) -> dict[str, np.ndarray]:
    """None trains in part 1; of the others every fourth.

    Of kind `some` half of the rest are in no mask.
    """
    node = np.arange(NODES)
    train = (node % 4 == 0) & (parts != 1)
    val = (node % 4 == 1) & (kind != "blind")
    test = ~train & ~val & ((kind != "some") | (node % 4 == 2))
    return {"train_mask": train, "val_mask": val, "test_mask": test}


def directory_of(folder: Path, case: Case) -> PartitionDirectory:
    """Ours has an empty part, 3; DGL makes none of these."""
    parts = np.random.default_rng(6).integers(3 if case.stored_degrees else 4, size=NODES)
    graph, masks = toy_graph(case.features), toy_masks(parts, case.masks)
    if case.edges:
        rng = np.random.default_rng(7)
        weight = rng.choice(np.array([0.5, 1, 3], np.float32), graph.num_edges)
        graph = replace(
            graph, edge_weight=weight, edge_feat=rng.random((graph.num_edges, 2), np.float32)
        )
    if case.stored_degrees:
        return write_partitions(folder, graph, masks, parts, WORLD)
    return dgl_directory(folder, graph, masks, parts)


# --- runs ----------


@dataclass(frozen=True)
class Run:
    """A configuration over a directory."""

    directory: PartitionDirectory
    settings: TrainSettings
    run_dir: Path
    max_batch_bytes: int

    def batches(self) -> Any:
        """Few bytes at a time, so that messages are sent in pieces."""
        return unittest.mock.patch.object(layer_exchange, "MAX_BATCH_BYTES", self.max_batch_bytes)


class Noted(threading.local):
    """What a worker, a thread, sends with, and where it trained."""

    def __init__(self) -> None:
        self.comm: Any = None
        self.context: Any = None


LOCK = threading.Lock()
"""torch's random state is all threads' in common."""
Outcome = tuple[dict[str, Any], Counter[Key]]
"""A worker's summary, and what it sent."""


def train_run(run: Run) -> list[Outcome]:
    """retexo.worker.train.run, as each worker calls it, of threads of this process."""
    noted, train_lazily = Noted(), lazy.train
    build = train.build_network  # type: ignore[attr-defined]

    def build_alone(*arguments: Any) -> list[Stage]:
        with LOCK:
            return build(*arguments)

    def note(context: Context, stages: list[Stage]) -> Any:
        noted.context = context
        return train_lazily(context, stages)

    run.run_dir.mkdir(exist_ok=True)
    patch = unittest.mock.patch.object
    with (
        run.batches(),
        patch(train, "configure"),
        patch(train, "catch_termination", lambda: bool),
        patch(train, "build_network", build_alone),
        patch(
            train.TrainJob,
            "connected",
            lambda *_: contextlib.nullcontext(Disclosure(noted.comm, ())),
        ),
        patch(train, "MemoryWatch", **{"return_value.peaks.return_value": (0, 0)}),
        patch(lazy, "train", note),
    ):
        return run_threads(WORLD, lambda comm: _train(comm, run, noted))


def _train(comm: Communicator, run: Run, noted: Noted) -> Outcome:
    noted.comm = comm
    job = train.TrainJob(run.settings, run.directory, run.run_dir, None, "0" * 64)  # type: ignore[arg-type]
    summary = train.run(comm.rank, job, None)
    return summary, account(noted.context.comm)


def account(comm: Communicator) -> Counter[Key]:
    def key(tag: MessageTag, receiver: int) -> Key:
        phase = PHASE_NAMES[tag.phase] if tag.kind in ROW_KINDS else None
        layer = None if tag.layer == WHOLE_RUN else tag.layer
        return tag.kind, layer, phase, comm.rank, receiver

    return Counter(
        {key(tag, receiver): sent for (tag, receiver), sent in comm.meter.entries.items()}
    )


@dataclass(frozen=True)
class Measured:
    """A run that was estimated, then made."""

    run: Run
    estimated: TrafficEstimate
    workers: list[Outcome]

    @property
    def rounds(self) -> list[int]:
        return list(self.workers[0][0]["rounds"])

    @cached_property
    def sent(self) -> Counter[Key]:
        return sum((sent for _, sent in self.workers), Counter())

    def predicted(self, entry: Entry) -> int:
        return entry.num_bytes * (self.rounds[entry.layer or 0] if entry.each_round else 1)


def key_of(entry: Entry) -> Key:
    return entry.kind, entry.layer, entry.phase, entry.sender, entry.receiver


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Measured]:
    """A case, estimated and run once; those of PATIENCE may stop early."""
    folder = tmp_path_factory.mktemp("estimated")

    @functools.cache
    def directory(of: Case) -> PartitionDirectory:
        return directory_of(tmp_path_factory.mktemp("data"), of)

    @functools.cache
    def measure(case: Case) -> Measured:
        stopping = ("num_rounds=[9]", *PATIENCE[case]) if case in PATIENCE else ()
        run = Run(
            directory(next(each for each in (*CASES, *PATIENCE) if each.data == case.data)),
            case.settings(*stopping),
            folder / str(case),
            300 if case.skips else layer_exchange.MAX_BATCH_BYTES,
        )
        return Measured(run, estimate_of(run), train_run(run))

    return measure


def estimate_of(run: Run) -> TrafficEstimate:
    with run.batches():
        return estimate_traffic(
            run.settings, run.directory, [run.directory.read_part(rank) for rank in range(WORLD)]
        )


# --- the comparison ----------

CUT = 6 * 4
"""Bytes a round that one worker may send another above the bound of gradients, see Entry.exact."""
LONG = pytest.mark.long("every model and every exchange is in the sample")


def mark_long(cases: list[Case]) -> list[Any]:
    """Of MATRIX every third case is in the usual run: each model, and each exchange."""
    spared = [
        case
        for place, case in enumerate(MATRIX)
        if (place // len(EXCHANGES) + place % len(EXCHANGES)) % 3
    ]
    return [
        pytest.param(case, marks=LONG if case in spared else [], id=str(case)) for case in cases
    ]


@pytest.mark.parametrize("case", [*mark_long(CASES), *PATIENCE], ids=str)
def test_what_was_sent_is_what_was_estimated(
    measured: Callable[[Case], Measured], case: Case
) -> None:
    found = measured(case)
    assert {key_of(entry) for entry in found.estimated.entries} >= set(found.sent)
    assert len({key_of(entry) for entry in found.estimated.entries}) == len(found.estimated.entries)
    for entry in found.estimated.entries:
        sent = found.sent[key_of(entry)]
        if entry.exact:
            assert sent == found.predicted(entry), entry
        elif entry.kind != "gradients":
            assert sent <= found.predicted(entry), entry
        else:
            assert sent <= found.predicted(entry) + CUT * found.rounds[entry.layer or 0], entry
    later = range(1, case.num_layers)
    for layer in later:
        sent = sum(amount for key, amount in found.sent.items() if key[:2] == ("gradients", layer))
        gradients = [entry for entry in found.estimated.entries if entry.each_round]
        bound = sum(found.predicted(entry) for entry in gradients if entry.layer == layer)
        assert bound / 2 < sent <= bound  # nearer where no unit is dead
    if case in PATIENCE:  # metrics of rounds that are not needed are bounds, too
        return
    # Else only what training makes is a bound: which rows are zero, which units are dead.
    trained = [("embeddings", layer) for layer in later]
    if case.ahead:
        trained = [("aggregates", layer) for layer in later[:-1]]
    bounds = {(entry.kind, entry.layer) for entry in found.estimated.entries if not entry.exact}
    rows = set(trained) if case.exchange != "plain" else set()
    assert bounds == rows | {("gradients", layer) for layer in later}


@pytest.mark.parametrize("helps", [True, False])
def test_all_steps_of_smoothing_are_sent_only_if_the_first_one_helps(
    tmp_path: Path, helps: bool
) -> None:
    """Seven of 72 nodes validate; edges join nodes of one class, or of different ones."""
    graph = toy_graph("dense")
    labels = graph.labels
    kept = (labels[graph.src] == labels[graph.dst]) == helps
    rows = graph.features + (0 if helps else 5 * np.eye(3, 20, dtype=np.float32)[labels])
    graph = replace(graph, src=graph.src[kept], dst=graph.dst[kept], features=rows)
    node, parts = np.arange(NODES), np.arange(NODES) % WORLD
    masks = {"train_mask": node % 2 == 0, "val_mask": node % 11 == 1}
    masks["train_mask"] &= ~masks["val_mask"]
    masks["test_mask"] = ~masks["train_mask"] & ~masks["val_mask"]
    case = next(case for case in CASES if case.skips and case.hops and case.model == "gcn")
    directory = write_partitions(tmp_path / "parts", graph, masks, parts, WORLD)
    longer = ("num_rounds=[20]", "dropout=0", "smoothing.alphas=[1,0.5,0.3]")
    run = Run(directory, case.settings(*longer), tmp_path / "run", layer_exchange.MAX_BATCH_BYTES)
    estimated = estimate_of(run)
    found = Measured(run, estimated if helps else estimated.unsmoothed, train_run(run))
    assert (found.workers[0][0]["chosen"]["smoothing_alpha"] < 1) == helps
    for kind in ("predictions", "metrics", "setup", "features"):
        sent = sum(num_bytes for key, num_bytes in found.sent.items() if key[0] == kind)
        assert sent == found.estimated.total(found.rounds, [kind]), kind
    predictions = [
        each.total([0, 0], ["predictions"]) for each in (estimated.unsmoothed, estimated)
    ]
    assert 0 < 5 * predictions[0] < predictions[1]
