"""Other trainers than lazy equal one process on the whole graph, with dense matrices.

Bytes are counted by hand. trainer=sampled with full neighbourhoods equals full-graph training,
and names processes that die.
"""

import functools
import os
import re
import signal
import types
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pytest
import torch
from scipy.sparse import eye_array
from support import (
    MODELS,
    RANDOM_STATE,
    ROOT,
    RoundRecorder,
    count_edges,
    dense_conv,
    finish,
    graph_info,
    group_members,
    need_dgl,
    random_graph,
    read_rounds,
    running_cli,
    thirds,
    train_settings,
    wait_until,
    write_partitions,
)
from test_oracle import assignment, context_of, oracle_graph, oracle_masks
from torch import Tensor, nn

from partitioning.directory.read_directory import PartitionDirectory, find_partition_directory
from partitioning.errors import InputError
from partitioning.graph.graph_data import GraphData
from retexo.apps import train
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import KINDS, MessageTag
from retexo.exchange.coding.values import MAX_CODES
from retexo.exchange.differentiable_exchange import HaloExchange
from retexo.models.block import HaloRows
from retexo.models.matrix import SparseMatrix
from retexo.models.network import Architecture, Schema, build_network
from retexo.models.stage import Stage
from retexo.plan.baselines import baseline_bytes
from retexo.plan.traffic import find_architecture
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings, TrainSettings
from retexo.trainers import end_to_end, registry, sign, whole_networks
from retexo.trainers.sampled_dgl.client import SHARED_MEMORY, WatchedProcess
from retexo.worker import compatibility

EPOCHS, LAYERS, WIDTH = 12, 3, 8
CPU = torch.device("cpu")
ONCE = 2 * 3 * 2 * 4 * 8
"""Bytes of the labels by class of two parts: 3 splits, with or without, 4 classes."""
COMMON = (
    f"hidden_dim={WIDTH}",
    "heads=2",
    "dropout=0",
    f"num_rounds=[{EPOCHS}]",
    "learning_rate=[0.2]",
    "weight_decay=0.01",
    "optimizer._target_=torch.optim.SGD",
    "stopping=none",
    "best_val_model=false",
    "device=cpu",
    "base=published",
)
USUAL = ("gcn", "sage-mean", "gat-mean")
SKIPS = "model.self_weight=true model.input_skip=true model.residual=true"
EQUAL = [
    *((model, "trainer=full_graph num_partitions=7") for model in USUAL),
    *((model, "trainer=full_graph") for model in ("sage-pool", "gat-concat", "gin")),
    ("gin", "trainer=full_graph model.norm=none"),
    ("gcn", "trainer=full_graph gradient.compression=powersgd gradient.rank=16 columns"),
    ("sage-mean", "trainer=full_graph exchange=plain sparse"),
    ("sage-mean", f"trainer=full_graph {SKIPS}"),
    ("gat-mean", f"trainer=full_graph {SKIPS}"),
    ("gcn", "trainer=local local.degrees=global"),
    *((model, "trainer=local local.degrees=local") for model in (*USUAL, "sage-pool")),
    ("gcn", "trainer=bns bns.p=0"),
    ("sage-mean", f"trainer=bns bns.p=1 {SKIPS}"),
    ("gat-mean", "trainer=bns bns.p=0"),
    ("sage-pool", "trainer=bns bns.p=1"),
    ("gcn", "trainer=fedgcn fedgcn.hops=2 num_layers=1"),
    ("gcn", "trainer=fedgcn fedgcn.hops=1"),
    ("sage-mean", f"trainer=fedgcn fedgcn.hops=2 {SKIPS}"),
    ("sage-mean", "trainer=fedgcn fedgcn.hops=1 num_layers=2"),
    ("gin", "trainer=fedgcn fedgcn.hops=2 num_layers=2"),
]
"""Model, settings, and the kind of the oracle's graph where it is not `dense`.

columns: some that no training node has; sparse: sparse features, and nodes in no mask.
"""


# --- workers ----------


@dataclass(frozen=True)
class Outcome:
    """What one worker trained, predicted and sent."""

    nodes: np.ndarray
    round_state: list[tuple[float | None, float | None]]
    """Loss and validation accuracy, of which there is one more, after the last round."""
    parameters: list[np.ndarray]
    logits: np.ndarray
    sent: dict[str, int]
    rounds: list[int]


def settings_of(num_parts: int, *overrides: str) -> TrainSettings:
    return train_settings(
        *COMMON, f"num_layers={LAYERS}", f"num_partitions={num_parts}", *overrides
    )


def train_workers(
    directory: PartitionDirectory, settings: TrainSettings, dtype: torch.dtype = torch.float64
) -> list[Outcome]:
    def work(comm: Communicator) -> Outcome:
        log = RoundRecorder()
        context, stages, saved = context_of(comm, directory, settings, log, dtype)
        done = registry.find_trainer(settings).train(context, stages)
        assert all(layer == 0 for layer, *_ in log.lines)
        network = saved[0] if settings.trainer.name == "sign" else end_to_end.collect_modules(saved)
        sent = comm.meter.table(len(stages)).sum(dim=(1, 2)).tolist()
        return Outcome(
            context.partition.node_ids.numpy() - 1000,
            log.scores,
            [parameter.detach().numpy() for parameter in network.parameters()],
            done.logits[-1].numpy(),
            dict(zip(KINDS, sent, strict=True)),
            done.rounds,
        )

    def network(*arguments: Any) -> sign.SIGN:
        with RANDOM_STATE:
            return build_network_of_sign(*arguments)

    build_network_of_sign = sign._build_network
    with mock.patch.object(sign, "_build_network", network):
        return run_threads(settings.num_partitions, work)


def parts_of(
    folder: Path, num_parts: int, kind: str = "dense", masks: str = "dense"
) -> PartitionDirectory:
    return write_partitions(
        folder, oracle_graph(kind), oracle_masks(masks), assignment(num_parts), num_parts
    )


def joined_logits(outcomes: list[Outcome]) -> np.ndarray:
    logits = np.concatenate([outcome.logits for outcome in outcomes])
    return logits[np.argsort(np.concatenate([outcome.nodes for outcome in outcomes]))]


# --- one process ----------


@dataclass(frozen=True)
class Edges:
    """What one layer sees: weight[v, u], the number of edges u -> v, and the divisor of sums."""

    weight: Tensor
    in_degree: Tensor
    out_degree: Tensor


def all_edges(graph: GraphData) -> Edges:
    counts = count_edges(graph)
    return Edges(counts, counts.sum(1), counts.sum(0))


def edges_inside_parts(edges: Edges, parts: np.ndarray, degrees: str) -> Edges:
    weight = edges.weight * torch.from_numpy(parts[:, None] == parts[None, :])
    if degrees == "local":
        return Edges(weight, weight.sum(1), weight.sum(0))
    return Edges(weight, edges.in_degree, edges.out_degree)


def aggregation_matrix(model: str, edges: Edges) -> Tensor:
    """The matrix [N, N] that sums rows as GCN does, or takes their mean."""
    if model == "gcn":
        scale_in, scale_out = (edges.in_degree + 1).rsqrt(), (edges.out_degree + 1).rsqrt()
        return scale_in[:, None] * (edges.weight + torch.eye(len(scale_in))) * scale_out
    return edges.weight / edges.in_degree.clamp(min=1)[:, None]


def dense_network(model: str, stages: list[Stage], features: Tensor, edges: list[Edges]) -> Tensor:
    """The logits of all nodes, with dense matrices; edges: of each layer."""
    rows = features
    for layer, (stage, seen) in enumerate(zip(stages, edges, strict=True)):
        out = dense_conv(stage.conv, seen.weight, rows, (seen.in_degree, seen.out_degree))
        read = {"rows": rows, "features": features}
        if "aggregate" in stage.skips:
            read["aggregate"] = aggregation_matrix(model, edges[0]) @ features
        skips = [read[name] @ weight for name, weight in stage.skips.items()]
        if skips:
            out = out + sum(skips) if stage.conv.adds_skips else torch.cat((*skips, out), dim=1)
        out = out if stage.norm is None else torch.relu(stage.norm(out))
        if stage.expand is not None:
            out = stage.expand(out) + (rows if layer else 0)
        rows = out
        if stage.is_last and stage.head is not None:
            rows = stage.head(stage.head_norm(rows))
    return rows


@dataclass(frozen=True)
class Expected:
    """What one process on the whole graph arrives at."""

    parameters: list[np.ndarray]
    logits: np.ndarray
    """[N, C]"""
    val: list[float]
    """Accuracy after each round, from 0."""


def train_on_whole_graph(
    settings: TrainSettings,
    graph: GraphData,
    edges: list[list[Edges]],
    final: list[Edges],
    masks: str = "dense",
) -> Expected:
    """SGD on the whole graph, with edges by epoch and layer.

    Validation and test on the edges `final`.
    """
    info = graph_info(num_features=graph.num_features, num_classes=graph.num_classes)
    architecture = Architecture(
        settings.model, Schema.of_plain_graph(info.num_features), info.num_classes
    )
    stages = [stage.double() for stage in build_network(architecture, settings.seed)]
    parameters = list(end_to_end.collect_modules(stages).parameters())
    rows = torch.from_numpy(graph.features).double()
    network = functools.partial(dense_network, settings.model.name, stages, rows)
    steps = [functools.partial(network, seen) for seen in edges]
    return descend(parameters, settings, graph, steps, functools.partial(network, final), masks)


def descend(
    parameters: list[Any],
    settings: TrainSettings,
    graph: GraphData,
    steps: list[Any],
    final: Any,
    masks: str = "dense",
) -> Expected:
    """A step of SGD with weight decay on the training nodes' mean loss for each of `steps`.

    The steps make logits.
    """
    train, val, _ = (torch.from_numpy(mask) for mask in oracle_masks(masks).values())
    labels, hits = torch.from_numpy(graph.labels), []

    def validate() -> None:
        with torch.no_grad():
            hits.append(float((final().argmax(dim=1) == labels)[val].double().mean()))

    for logits in steps:
        validate()
        for parameter in parameters:
            parameter.grad = None
        nn.functional.cross_entropy(logits()[train], labels[train]).backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= settings.learning_rate[0] * (parameter.grad + 0.01 * parameter)
    validate()
    return Expected(
        [parameter.detach().numpy() for parameter in parameters], final().detach().numpy(), hits
    )


def assert_close(outcomes: list[Outcome], expected: Expected, masks: str = "dense") -> None:
    """Parameters are the same on all workers bit for bit, and those wanted.

    Logits likewise at the nodes in a mask.
    """
    for outcome in outcomes:
        assert outcome.rounds == [EPOCHS]
        assert outcome.round_state == outcomes[0].round_state
        for own, first, parameter in zip(
            outcome.parameters, outcomes[0].parameters, expected.parameters, strict=True
        ):
            np.testing.assert_array_equal(own, first)
            np.testing.assert_allclose(own, parameter, rtol=1e-8, atol=1e-11)
    losses, metrics = zip(*outcomes[0].round_state, strict=True)
    assert losses[-2] < losses[0] - 0.02
    np.testing.assert_allclose(metrics, expected.val)
    needed = np.logical_or.reduce(list(oracle_masks(masks).values()))
    np.testing.assert_allclose(
        joined_logits(outcomes)[needed], expected.logits[needed], rtol=1e-7, atol=1e-9
    )


# --- the trainers ----------


def edges_seen(settings: TrainSettings, graph: GraphData) -> tuple[list[Edges], list[Edges]]:
    """Return the edges that each layer sees in training, and those it is scored with.

    The first layers see all edges, the others those within a part.
    """
    everything, layers = all_edges(graph), settings.model.depth
    name, parts = settings.trainer.name, assignment(settings.num_partitions)
    local = edges_inside_parts(
        everything, parts, settings.local.degrees if name == "local" else "global"
    )
    num_layers_with_all_edges = {
        "full_graph": layers,
        "local": 0,
        "bns": layers * int(settings.bns.p),
        "fedgcn": settings.fedgcn.hops,
    }[name]
    edges = [everything if layer < num_layers_with_all_edges else local for layer in range(layers)]
    return edges, [everything] * layers if name == "bns" else edges


@pytest.mark.parametrize(("model", "overrides"), EQUAL)
def test_a_trainer_equals_one_process(tmp_path: Path, model: str, overrides: str) -> None:
    options = overrides.split()
    kind = "dense" if "=" in options[-1] else options.pop()
    masks = "third" if kind == "sparse" else "dense"
    settings = settings_of(4, *MODELS[model], *options)
    edges, final = edges_seen(settings, oracle_graph(kind))
    outcomes = train_workers(parts_of(tmp_path, settings.num_partitions, kind, masks), settings)
    expected = train_on_whole_graph(settings, oracle_graph(kind), [edges] * EPOCHS, final, masks)
    assert_close(outcomes, expected, masks)
    if settings.trainer.name in ("local", "fedgcn"):
        assert all(outcome.sent["embeddings"] == 0 for outcome in outcomes)
        assert settings.trainer.name != "local" or total(outcomes, "features") == 0


@pytest.mark.parametrize("model", USUAL)
def test_a_sampled_epoch_is_one_process_on_the_sampled_graph(tmp_path: Path, model: str) -> None:
    """Cut edges from sampled nodes count 1/p times in sums, once in attention.

    The others not at all.
    """
    share, graph, parts = 0.5, oracle_graph("dense"), assignment(4)
    taken: dict[tuple[int, int], np.ndarray] = {}  # by epoch and receiver, bool [N]
    ids: dict[int, Any] = {}
    original = whole_networks.draw_boundary

    def draw(plan: Any, rank: int, share: float, seed: int, epoch: int) -> Any:
        sample = original(plan, rank, share, seed, epoch)
        taken[epoch, rank] = np.zeros(60, bool)
        for boundary, mask in zip(plan.incoming, sample.incoming, strict=True):
            taken[epoch, rank][ids[rank][boundary.rows[mask]]] = True
        return sample

    directory = parts_of(tmp_path, 4)
    own = [directory.read_part(rank) for rank in range(4)]
    for rank, part in enumerate(own):
        halo = zip(part.edges.halo_owner.tolist(), part.edges.halo_index.tolist(), strict=True)
        ids[rank] = np.array([int(own[owner].node_ids[index]) - 1000 for owner, index in halo], int)
    settings = settings_of(4, "trainer=bns", f"bns.p={share}", *MODELS[model])
    with mock.patch.object(whole_networks, "draw_boundary", draw):
        outcomes = train_workers(directory, settings)
    unsampled = all_edges(graph)

    def seen(epoch: int) -> Edges:
        of_receiver = np.stack([taken[epoch, rank] for rank in range(4)])[parts]  # [N dst, N src]
        scale = 1 if model.startswith("gat") else 1 / share
        factor = np.where(parts[:, None] == parts, 1.0, of_receiver * scale)
        return Edges(
            unsampled.weight * torch.from_numpy(factor), unsampled.in_degree, unsampled.out_degree
        )

    expected = train_on_whole_graph(
        settings,
        graph,
        [[seen(epoch)] * LAYERS for epoch in range(1, EPOCHS + 1)],
        [unsampled] * LAYERS,
    )
    assert_close(outcomes, expected)
    draws = np.array(
        [taken[epoch, rank][ids[rank]].mean() for epoch, rank in taken if len(ids[rank])]
    )
    assert 0.4 < draws.mean() < 0.6
    assert draws.std() > 0.05  # a fresh one in each epoch


@pytest.mark.parametrize(("model", "kind"), [("gcn", "sparse"), ("sage-mean", "dense")])
def test_sign_equals_one_process(tmp_path: Path, model: str, kind: str) -> None:
    settings, graph = settings_of(4, "trainer=sign", *MODELS[model]), oracle_graph(kind)
    outcomes = train_workers(parts_of(tmp_path, 4, kind), settings)
    assert_close(outcomes, train_sign_on_whole_graph(settings, graph, "dense"))
    assert all(outcome.sent["embeddings"] == 0 for outcome in outcomes)


@pytest.mark.parametrize(
    "more",
    [
        ("trainer=full_graph", "model=gcn"),
        ("trainer=bns", "bns.p=1", "model=gat"),
        ("trainer=fedgcn", "fedgcn.hops=2", "model=sage"),
        ("trainer=sign", "model=gcn"),
    ],
    ids=lambda more: more[0],
)
def test_smoothing_starts_from_the_logits_of_all_nodes_within_reach(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    """With two steps these are the nodes within two hops of the sparse masks' nodes."""
    settings = settings_of(4, *more, "num_layers=2", "smoothing.steps=2")
    graph, edges_of_graph = oracle_graph("third"), all_edges(oracle_graph("third"))
    outcomes = train_workers(parts_of(tmp_path, 4, "third", "third"), settings)
    if settings.trainer.name == "sign":
        expected = train_sign_on_whole_graph(settings, graph, "third")
    else:
        edges = [edges_of_graph] * 2
        expected = train_on_whole_graph(settings, graph, [edges] * EPOCHS, edges, "third")
    assert_close(outcomes, expected, "third")
    logits = joined_logits(outcomes)
    in_a_split = np.logical_or.reduce(list(oracle_masks("third").values()))
    near = torch.linalg.matrix_power(edges_of_graph.weight + torch.eye(60), 2).numpy()
    reached = near[in_a_split].any(axis=0)
    assert in_a_split.sum() < reached.sum() < 60
    assert np.isfinite(logits).all(axis=1).tolist() == reached.tolist()
    np.testing.assert_allclose(logits[reached], expected.logits[reached], rtol=1e-7, atol=1e-9)


def train_sign_on_whole_graph(settings: TrainSettings, graph: GraphData, masks: str) -> Expected:
    rows = torch.from_numpy(graph.features).double()
    operator = aggregation_matrix(settings.model.name, all_edges(graph))
    num_hops = settings.model.depth + 1
    hops = [torch.linalg.matrix_power(operator, hop) @ rows for hop in range(num_hops)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed * 1000)
        network = sign.SIGN([graph.num_features] * num_hops, 4, settings.model).double()
    logits = lambda: network(hops)  # noqa: E731
    return descend(list(network.parameters()), settings, graph, [logits] * EPOCHS, logits, masks)


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    """CONTRIBUTING.md shows how to add one: the network without any edge."""
    example = (ROOT / "CONTRIBUTING.md").read_text().split("```python\n")[1].split("```")[0]
    module = types.ModuleType("edgeless")
    exec(example, module.__dict__)
    settings = settings_of(4, "trainer.name=edgeless", "model=sage")
    with mock.patch.dict(registry.TRAINERS, edgeless=module.EdgelessTrainer()):
        registry.TRAINERS["edgeless"].check(settings)
        outcomes = train_workers(parts_of(tmp_path, 4), settings)
    none = Edges(*(torch.zeros(shape, dtype=torch.float64) for shape in ((60, 60), 60, 60)))
    assert_close(
        outcomes,
        train_on_whole_graph(
            settings, oracle_graph("dense"), [[none] * LAYERS] * EPOCHS, [none] * LAYERS
        ),
    )


# --- bytes ----------


def total(outcomes: list[Outcome], kind: str) -> int:
    return sum(outcome.sent[kind] for outcome in outcomes)


TAIL = 8 * 5
"""Bytes of the losses, stop requests and two counts at the end of a round's message."""


def test_plain_bytes_of_full_graph_are_those_by_hand_and_of_the_plan(tmp_path: Path) -> None:
    directory = parts_of(tmp_path, 2)
    settings = settings_of(2, "trainer=full_graph", "model=gcn", "exchange=plain")
    outcomes = train_workers(directory, settings, torch.float32)
    partitions = [directory.read_part(rank) for rank in range(2)]
    halo = sum(partition.target_nodes.num_halo for partition in partitions)
    width = oracle_graph("dense").num_features
    one_pass = 4 * halo * WIDTH * (LAYERS - 1)
    parameters = sum(values.size for values in outcomes[0].parameters)
    assert total(outcomes, "features") == 4 * halo * width
    assert (
        total(outcomes, "embeddings") == EPOCHS * 2 * one_pass + one_pass
    )  # the last: the final test
    assert total(outcomes, "gradients") == EPOCHS * 2 * (2 - 1) * (4 * parameters + TAIL)
    assert (
        total(outcomes, "metrics") == (EPOCHS + 1) * one_pass + 2 * TAIL + ONCE
    )  # the last counts go alone
    architecture = find_architecture(settings, directory, partitions)
    baselines = baseline_bytes(partitions, architecture, settings.num_rounds)
    predicted = baselines["full graph, end to end"]
    sent = sum(total(outcomes, kind) for kind in ("features", "embeddings", "gradients"))
    assert sent == predicted + one_pass + EPOCHS * 2 * TAIL


def test_rounded_rows_of_full_graph_have_the_bytes_by_hand(tmp_path: Path) -> None:
    """Each pass sends as many vectors as fp32 does, of half a byte per value and a scale."""
    sent = {}
    for precision in ("fp32", "int4"):
        settings = settings_of(
            2, "trainer=full_graph", "model=gcn", f"exchange.precision={precision}"
        )
        outcomes = train_workers(parts_of(tmp_path, 2), settings, torch.float32)
        counts = 2 * TAIL + ONCE  # of the predictions, with either precision
        sent[precision] = total(outcomes, "metrics") - counts
    assert sent["fp32"] > 0
    assert sent["int4"] * 4 * WIDTH == sent["fp32"] * ((WIDTH + 1) // 2 + 4)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_rounded_exchange_is_right_on_average_in_both_directions(precision: Any) -> None:
    repeats, count = 400, 6
    drawn = torch.Generator().manual_seed(1)
    rows, weights = (torch.randn(2, count, WIDTH, generator=drawn) for _ in range(2))
    every_row = SparseMatrix.from_scipy(eye_array(count, format="csr", dtype="float32"), CPU)

    def work(comm: Communicator) -> tuple[Tensor, Tensor]:
        counts = [count * (peer != comm.rank) for peer in range(2)]
        nothing = HaloRows.empty(count, 0, torch.float32)
        exchange = HaloExchange(every_row, counts, counts, nothing, precision)
        values, gradients = torch.zeros(count, WIDTH), torch.zeros(count, WIDTH)
        for _ in range(repeats):
            own, zero = rows[comm.rank].clone().requires_grad_(), torch.zeros(())
            received, after = exchange.run(own, zero, comm, MessageTag("embeddings"))
            ((received * weights[comm.rank]).sum() + after).backward()
            values += received.detach() / repeats
            gradients += own.grad / repeats
        return values, gradients

    for rank, means in enumerate(run_threads(2, work)):
        for mean, exact in zip(means, (rows[1 - rank], weights[1 - rank]), strict=True):
            step = exact.abs().amax(1, keepdim=True) / MAX_CODES[precision]
            # The standard deviation of a code is at most half a step.
            assert ((mean - exact).abs() < 5 * 0.5 * step / repeats**0.5).all()
            assert not torch.allclose(mean, exact, atol=1e-6)


WORLD = 2
SAMPLED_MODELS = ("gcn", "sage", "gin", "gat")
DATA = ("dataset_name=file", "dataset_file=toy.npz", f"num_partitions={WORLD}")
ALIKE = (
    "hidden_dim=8",
    "dropout=0",
    "num_rounds=[5]",
    "stopping=none",
    "device=cpu",
    "cluster.threads=1",
    "optimizer._target_=torch.optim.SGD",
    "learning_rate=[0.5]",
    "best_val_model=false",
    "base=published",
)
PROCESS = 100 << 20
"""Less memory than a process with torch and DGL uses."""
LONG = pytest.mark.long("each starts two servers and two trainers")
SAMPLED = ("trainer=sampled", "sampled.fanout=[-1]", "batch_size=1000")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    masks = thirds(60)
    assignment = [
        int(node >= 36) for node in range(60)
    ]  # 12 and 8 training nodes: two labels travel
    write_partitions(folder, random_graph(60, 240), masks, assignment, WORLD, with_dgl_files=True)
    return folder


def settings(parts: Path, config: str, *more: str) -> Settings:
    return compose([*DATA, f"partition_dir={parts}", *more], config)


def losses(run_dir: Path) -> np.ndarray:
    lines = read_rounds(run_dir)[:-1]
    return np.array([[line[name] for name in ("train_loss", "val_metric")] for line in lines])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "model", ["gcn", *(pytest.param(name, marks=LONG) for name in SAMPLED_MODELS if name != "gcn")]
)
def test_all_neighbours_are_full_graph_training(parts: Path, tmp_path: Path, model: str) -> None:
    """With all neighbours and full batches, every round equals that of trainer=full_graph."""
    config, overrides = f"node_classification_{model}", (*ALIKE, *SAMPLED)
    sampled = train.run(settings(parts, config, *overrides), tmp_path / "sampled")
    full_graph = train.run(settings(parts, config, *ALIKE, "trainer=full_graph"), tmp_path / "full")
    np.testing.assert_allclose(losses(tmp_path / "sampled"), losses(tmp_path / "full"), rtol=1e-4)
    assert sampled["rounds"] == full_graph["rounds"]
    for name in ("train", "val", "test"):
        assert sampled[name] == pytest.approx(full_graph[name], rel=1e-4)
    assert sampled.keys() == full_graph.keys()
    more = np.subtract(sampled["peak_memory_bytes"], full_graph["peak_memory_bytes"])
    assert min(more) > PROCESS  # the servers are among them
    kinds = sampled["bytes"]["by_kind"]
    assert (
        min(kinds[name] for name in ("structure", "labels", "features", "metrics", "gradients")) > 0
    )
    # A label is an int64, asked for by an int64 beside the pickled name, in each of the rounds that
    # use a batch.
    assert kinds["labels"] % 5 == 0


LONG_RUN = (
    "--config-name",
    "node_classification_sage",
    *DATA,
    "hidden_dim=8",
    "num_rounds=[100000]",
    "stopping=none",
    "cluster.threads=1",
    "trainer=sampled",
    "distributed.heartbeat_timeout=4",
    "hydra.run.dir=run",
)


@pytest.mark.parametrize(
    ("how", "cause"),
    [(signal.SIGKILL, "was killed by SIGKILL"), (None, "exited with status 1: .*no_such_module")],
)
def test_how_a_watched_process_ended_is_said(how: signal.Signals | None, cause: str) -> None:
    messages: SimpleQueue[str] = SimpleQueue()
    module = "http.server" if how else "no_such_module"
    watched = WatchedProcess("the DGL server", [module, "0"], messages.put, 5)
    if how:
        watched.process.send_signal(how)
    assert re.search(f"the DGL server of its partition {cause}", messages.get(timeout=60))


@LONG
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        (signal.SIGKILL, "the DGL server of its partition was killed by SIGKILL"),
        (signal.SIGSTOP, "the DGL server of its partition was stopped"),
    ],
)
def test_who_dies_is_named(parts: Path, tmp_path: Path, how: signal.Signals, cause: str) -> None:
    need_dgl()
    arguments = (*LONG_RUN, f"partition_dir={parts}")
    with running_cli(*arguments, cwd=tmp_path, trains_in=tmp_path / "run") as process:
        module = "retexo.trainers.sampled_dgl.server"
        servers = [member for member in group_members(process.pid) if module in member.cmdline()]
        assert len(servers) == WORLD
        for server in servers:
            connections = server.net_connections("inet")
            listening = {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
            assert listening <= {"127.0.0.1"}
        workers = [server.ppid() for server in servers]
        os.kill(servers[0].pid, how)
        ended = finish(process, rc=1)
    last = ended.stderr.splitlines()[-1]
    assert all(words in last for words in ("rank ", cause, "phase: round"))
    wait_until(lambda: not group_members(process.pid), "all processes have ended")
    assert not [name for worker in workers for name in SHARED_MEMORY.glob(f"retexo-{worker}-*")]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("gradient=local", "set gradient=fp32"),
        ("gradient.secure=true", "lets all workers read"),
        ("exchange.precision=bf16", "exchange.precision=bf16"),
        ("sampled.fanout=[-2]", "sampled.fanout"),
        ("sampled.fanout=many", "sampled.fanout"),
        (
            "parts_per_node=1 distributed.backend=sockets distributed.credentials=keys",
            "sends unencrypted",
        ),
        ("link_prediction_sage", "task=link_prediction needs trainer=lazy, full_graph"),
        ("node_classification_rgcn", "trainer=sampled: not for heterogeneous graphs"),
    ],
)
def test_what_is_refused(parts: Path, tmp_path: Path, overrides: str, words: str) -> None:
    """Settings, or another configuration."""
    need_dgl()
    settings_given = overrides.split()
    config = "node_classification_sage" if "=" in overrides else settings_given.pop()
    with pytest.raises(InputError, match=re.escape(words)):
        train.run(settings(parts, config, "trainer=sampled", *settings_given), tmp_path / "run")


def test_graphs_of_other_kinds_are_refused(parts: Path) -> None:
    need_dgl()
    sampled_settings = train_settings("trainer=sampled", "num_partitions=2")
    directory = find_partition_directory([parts / "toy-random-vol-2"], WORLD)
    compatibility.check_directory(sampled_settings, directory)
    words = "dataset_name=parts: trainer=sampled lets all workers read all rows and label"
    with pytest.raises(InputError, match=words):
        compatibility.check_directory(sampled_settings, replace(directory, sites=("a", "b")))
    for edge_data in ({"weighted": True}, {"num_edge_features": 3}):
        context: Any = SimpleNamespace(
            settings=sampled_settings, graph_info=graph_info(**edge_data)
        )
        with pytest.raises(InputError, match="does not support edge weights or edge features"):
            whole_networks.SampledTrainer().train(context, [])


def test_it_needs_dgls_files(tmp_path: Path) -> None:
    write_partitions(
        tmp_path, random_graph(60, 240), thirds(60), [node % 2 for node in range(60)], WORLD
    )
    need_dgl()
    with pytest.raises(InputError, match=r"partition again with partition\.dgl_files=true"):
        train.run(
            settings(tmp_path, "node_classification_sage", "trainer=sampled"), tmp_path / "run"
        )
