"""P partitions equal one: losses of every round, embeddings of every layer, in float64."""

import contextlib
import copy
import dataclasses
import functools
import unittest.mock
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    MODELS,
    RoundRecorder,
    count_edges,
    make_graph,
    train_settings,
    with_arrays,
    worker_context,
    write_partitions,
)

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.features.random_rows import random_rows
from partitioning.graph.graph_data import GraphData
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.models.convolution import Inputs
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.network import Architecture, Schema, build_network
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.tasks.output_heads import choose_heads
from retexo.trainers import layerwise, lazy, look_ahead, registry
from retexo.trainers.context import Context
from retexo.trainers.label_propagation import make_smoother, propagate

ROUNDS = 4
COMMON = (
    "num_layers=3",
    "hidden_dim=8",
    "heads=2",
    "dropout=0",
    f"num_rounds=[{ROUNDS}]",
    "learning_rate=[0.2,0.1]",
    "weight_decay=0.01",
    "optimizer._target_=torch.optim.SGD",
    "stopping=none",
    "best_val_model=false",
    "device=cpu",
    "base=published",
)
SPARSE = ("gcn", "sage-mean", "gat-mean")
CASES = [(name, "dense") for name in MODELS] + [(name, "sparse") for name in SPARSE]
LOCAL_3 = ("gradient=local", "local_epochs=3")
AHEAD = "model.lookahead=1"
RESIDUAL = ("model.residual=true", "model.self_weight=true", "num_layers=4")
POWERSGD = "gradient.compression=powersgd"
SKIPS = (
    "model.self_weight=true",
    "model.input_skip=true",
    "output_heads=validation",
    "smoothing.steps=3",
    "smoothing.reach=computed",
)
FEW_ROUNDS = 3
# The graph, and settings besides those above; of FEW_ROUNDS each.
FEW: dict[str, tuple[str, tuple[str, ...]]] = {
    "gcn": ("dense", MODELS["gcn"]),
    "gcn-plain": ("dense", (*MODELS["gcn"], "exchange=plain")),
    "gat": ("dense", MODELS["gat-mean"]),
    "gat-int4": ("dense", (*MODELS["gat-mean"], "exchange.precision=[fp32,int4]")),
    "gat-chunks": ("dense", MODELS["gat-mean"]),
    "gat-batch-of-all": ("dense", (*MODELS["gat-mean"], "batch_size=60")),
    "sage-pool": ("dense", MODELS["sage-pool"]),
    "sage-pool-chunks": ("dense", MODELS["sage-pool"]),
    "gcn-batch-of-all": ("dense", (*MODELS["gcn"], "batch_size=60")),
    "gat-plain": ("dense", (*MODELS["gat-mean"], "exchange=plain")),
    "gcn-third": ("third", MODELS["gcn"]),
    "sage-mean-third": ("third", MODELS["sage-mean"]),
    "gat-third": ("third", MODELS["gat-mean"]),
    "gcn-skips": ("dense", (*MODELS["gcn"], *SKIPS)),
    "gcn-skips-plain": ("dense", (*MODELS["gcn"], *SKIPS, "exchange=plain")),
    "gcn-skips-sparse": ("sparse", (*MODELS["gcn"], *SKIPS, "batch_size=60")),
    "sage-mean-skips": ("third", (*MODELS["sage-mean"], *SKIPS)),
    "gin-skips": ("third", (*MODELS["gin"], *SKIPS)),
    "gat-skips": ("third", (*MODELS["gat-mean"], *SKIPS)),
    "sage-pool-skips": ("dense", (*MODELS["sage-pool"], *SKIPS)),
    "gcn-skips-hops": ("third", (*MODELS["gcn"], *SKIPS, "smoothing.reach=hops")),
    "gat-skips-hops": ("third", (*MODELS["gat-mean"], *SKIPS, "smoothing.reach=hops")),
    "gcn-skips-weights": (
        "dense",
        (
            *MODELS["gcn"],
            *SKIPS,
            "class_weights=balanced",
            "stopping.metric=balanced_accuracy",
        ),
    ),
    "gat-skips-focal": (
        "third",
        (*MODELS["gat-mean"], *SKIPS, "task.loss=focal", "stopping.metric=macro_f1"),
    ),
    "gcn-ahead": ("dense", (*MODELS["gcn"], AHEAD)),
    "gcn-ahead-skips-sparse": ("sparse", (*MODELS["gcn"], *SKIPS, AHEAD, "batch_size=60")),
    "sage-mean-ahead-skips": ("third", (*MODELS["sage-mean"], *SKIPS, AHEAD, "num_layers=5")),
    "sage-mean-ahead-rows": ("third", (*MODELS["sage-mean"], "model.self_weight=true", AHEAD)),
    "sage-mean-ahead": ("dense", (*MODELS["sage-mean"], AHEAD)),
    "sage-mean-ahead-plain": ("dense", (*MODELS["sage-mean"], AHEAD, "exchange=plain")),
    "sage-mean-ahead-residual": ("third", (*MODELS["sage-mean"], *RESIDUAL, AHEAD)),
    "gcn-skips-residual": ("dense", (*MODELS["gcn"], *SKIPS, *RESIDUAL, AHEAD)),
    "gat-skips-residual": ("third", (*MODELS["gat-mean"], *SKIPS, *RESIDUAL)),
    "gin-ahead-hops": ("third", (*MODELS["gin"], *SKIPS, AHEAD, "smoothing.reach=hops")),
    **{
        f"gcn-skips-{loss}": (
            "values",
            (*MODELS["gcn"], *SKIPS, "task=node_regression", f"task.loss={loss}"),
        )
        for loss in ("mse", "mae", "huber")
    },
    "gin-cosine": (
        "dense",
        (*MODELS["gin"], "scheduler=cosine", "model.activation=tanh"),
    ),
    "gcn-columns": ("columns", MODELS["gcn"]),
    "gcn-ids": ("ids", MODELS["gcn"]),
    "gcn-columns-local": ("columns", (*MODELS["gcn"], *LOCAL_3)),
    "gcn-local-powersgd": ("dense", (*MODELS["gcn"], *LOCAL_3, POWERSGD, "gradient.rank=1")),
}
CHUNK = 16
"""In-edges that cases named "chunks" work on together, of some 70 a part or more."""
UNUSED = slice(20, 30)
"""Columns of the graph "columns" that are zero in every training row."""
LONG = pytest.mark.long("of two and seven parts there is every model above")
SOME_PARTS = [pytest.param(2, marks=LONG), 4, pytest.param(7, marks=LONG)]
"""For cases of FEW."""


def oracle_graph(kind: str) -> GraphData:
    """60 nodes: 0-49 random among themselves, 50-57 a component of their own, 58 and 59 isolated.

    Of the kind "columns" some columns are zero at the training nodes and where these have an edge
    from. Of the kind "values" labels are two targets, of "ids" nobody is sent features.
    """
    rng = np.random.default_rng(7)
    edges = np.concatenate(
        [rng.integers(50, size=(220, 2)), rng.integers(50, 58, size=(16, 2)), [[3, 3], [41, 41]]]
    )
    edges = np.concatenate([edges, edges[:5]])  # some occur twice
    labels = np.arange(60) % 4
    features = rng.standard_normal((60, 30)) + np.eye(4, 30)[labels]
    if kind == "sparse":
        features *= rng.random((60, 30)) < 0.05
    if kind == "columns":
        train = np.flatnonzero(oracle_masks()["train_mask"])
        features[train, UNUSED] = features[edges[np.isin(edges[:, 1], train), 0], UNUSED] = 0
    graph = make_graph(edges, features, labels, 4)
    if kind == "ids":
        features = random_rows(graph.node_ids, 30)
        return dataclasses.replace(with_arrays(graph, features=features), features_of_ids=True)
    if kind == "values":
        targets = 1e6 + features[:, :2] * (10, 1e4)
        targets[::6, 1] = np.nan
        return dataclasses.replace(graph, labels=targets, num_classes=2)
    return graph


def oracle_masks(kind: str = "dense") -> dict[str, np.ndarray]:
    """Return masks in which no node of 40-49 trains and none of 30-39 validates.

    Of the kind "third" a third of the nodes is in no mask.
    """
    node = np.arange(60)
    train, val = (node % 3 == 0) & (node // 10 != 4), (node % 3 == 1) & (node // 10 != 3)
    known = ~np.isin(node % 9, (2, 4, 6)) | (kind != "third")
    return {
        "train_mask": train & known,
        "val_mask": val & known,
        "test_mask": ~train & ~val & known,
    }


def assignment(num_parts: int) -> np.ndarray:
    """2: random. 4: parts without training (2), validation (1), boundary (3). 7: an empty one."""
    tens = np.arange(60) // 10
    if num_parts == 1:
        return np.zeros(60, np.int64)
    if num_parts == 2:
        return np.random.default_rng(1).integers(2, size=60)
    parts = np.array({4: [0, 0, 0, 1, 2, 3], 7: [0, 1, 2, 4, 5, 3]}[num_parts])[tens]
    parts[58:] = [0, 1]
    return parts


Case = tuple[PartitionDirectory, TrainSettings, int]


def train_as_threads(num_parts: int, case: Case) -> list[Any]:
    """Train a case on all workers, as threads of this process; by rank.

    Each result has the embeddings [I, D] of every layer.
    """
    directory, settings, edges_per_step = case
    embeddings: dict[int, list[np.ndarray]] = defaultdict(list)
    with contextlib.ExitStack() as patches:
        edges = unittest.mock.patch.object(layerwise, "EDGES_PER_STEP", edges_per_step)
        patches.enter_context(edges)
        for kind in (layerwise.LayerInput, look_ahead.LookAheadInput):
            recorder = _record_rows(kind.embed_nodes, embeddings)
            patches.enter_context(unittest.mock.patch.object(kind, "embed_nodes", recorder))
        return run_threads(num_parts, lambda comm: _train(comm, directory, settings, embeddings))


def context_of(
    comm: Communicator,
    directory: PartitionDirectory,
    settings: TrainSettings,
    log: Any,
    dtype: torch.dtype = torch.float64,
) -> tuple[Context, list[Stage], list[torch.nn.Module]]:
    """The context, the stages, and what is saved of the trained network."""
    saved: list[torch.nn.Module] = []
    use = registry.find_trainer(settings).USE
    fields = {"log": log, "run_dir": Path("nowhere"), "dtype": dtype, "use": use}
    context, stages = worker_context(comm, directory, settings, **fields)
    context = dataclasses.replace(context, save_layer=lambda layer, module: saved.append(module))
    return context, stages, saved


def _train(
    comm: Communicator,
    directory: PartitionDirectory,
    settings: TrainSettings,
    rows_by_rank: dict[int, list[np.ndarray]],
) -> Any:
    recorder = RoundRecorder()
    context, stages, _ = context_of(comm, directory, settings, recorder)
    trained = lazy.train(context, stages)
    stages = stages[: len(trained.rounds)]
    assert trained.rounds == [settings.num_rounds[0]] * len(stages)
    context = context.with_num_layers(len(stages))
    embeddings = rows_by_rank[comm.rank]
    if not settings.model.grows:  # then the last layer passes on its logits
        np.testing.assert_array_equal(embeddings[-1], trained.logits[-1].numpy())
    if settings.smoothing.steps:
        choice = choose_heads(context, trained.logits, make_smoother(context))
        embeddings += [*(logits.numpy() for logits in trained.logits), choice[1].numpy()]
    parameters = [
        parameter.detach().numpy() for stage in stages for parameter in stage.parameters()
    ]
    return context.partition.node_ids.numpy(), recorder.lines, embeddings, parameters


def _record_rows(embed: Any, embeddings: dict[int, list[np.ndarray]]) -> Any:
    """The function, which now also keeps what it returns."""

    def embed_and_note(
        layer_input: Any, context: Context, *arguments: Any, logits: bool
    ) -> layerwise.LayerOutput:
        output: layerwise.LayerOutput = embed(layer_input, context, *arguments, logits=logits)
        embeddings[context.comm.rank].append(output.rows[: len(context.labels)].numpy())
        return output

    return embed_and_note


def settings_of(num_parts: int, *overrides: str) -> TrainSettings:
    return train_settings(*COMMON, *overrides, f"num_partitions={num_parts}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Results by (parts, case)."""

    @functools.cache
    def directory(num_parts: int, kind: str) -> PartitionDirectory:
        folder = tmp_path_factory.mktemp("oracle")
        masks, parts = oracle_masks(kind), assignment(num_parts)
        return write_partitions(folder, oracle_graph(kind), masks, parts, num_parts)

    def make_job(num_parts: int, name: Any) -> Case:
        if name in FEW:
            kind, case_settings = FEW[name]
            overrides = (*case_settings, f"num_rounds=[{FEW_ROUNDS}]")
            step = CHUNK if "chunks" in name else layerwise.EDGES_PER_STEP
            return directory(num_parts, kind), settings_of(num_parts, *overrides), step
        model, kind = name
        local = LOCAL_3 if kind == "local-3" else ()
        where = directory(num_parts, "dense" if local else kind)
        settings = settings_of(num_parts, *MODELS[model], *local)
        return where, settings, layerwise.EDGES_PER_STEP

    @functools.cache
    def of(num_parts: int, name: Any) -> Any:
        return join_workers(train_as_threads(num_parts, make_job(num_parts, name)))

    return of


def join_workers(workers: list[Any]) -> tuple[list[Any], list[np.ndarray], list[np.ndarray]]:
    """The rounds, each layer's embeddings [N, D] in the order of ids, and all parameters.

    Rounds and parameters have to be the same on all workers, the latter bit for bit.
    """
    for _, rounds, _, parameters in workers:
        assert rounds == workers[0][1]
        for own, first in zip(parameters, workers[0][3], strict=True):
            np.testing.assert_array_equal(own, first)
    ids = np.concatenate([worker[0] for worker in workers])
    assert sorted(ids.tolist()) == list(range(1000, 1060))
    layers = range(len(workers[0][2]))
    embeddings = [
        np.concatenate([worker[2][layer] for worker in workers])[np.argsort(ids)]
        for layer in layers
    ]
    return workers[0][1], embeddings, workers[0][3]


def assert_same(actual: Any, expected: Any) -> None:
    """Assert equal rounds, embeddings (NaN in the same places) and parameters."""
    assert [line[:2] for line in actual[0]] == [line[:2] for line in expected[0]]
    for place in (2, 3):  # the loss and the metric; None becomes NaN
        scores = [[line[place] for line in rounds] for rounds in (actual[0], expected[0])]
        np.testing.assert_allclose(*np.array(scores, float), rtol=1e-8)
    for layer, (rows, expected_values) in enumerate(zip(actual[1], expected[1], strict=True)):
        np.testing.assert_allclose(
            rows, expected_values, rtol=1e-8, atol=1e-11, err_msg=f"layer {layer}"
        )
    for values, expected_values in zip(actual[2], expected[2], strict=True):
        np.testing.assert_allclose(values, expected_values, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(
    ("case", "num_parts"),
    [
        pytest.param(
            case,
            num_parts,
            marks=LONG if num_parts == 2 or (num_parts == 7 and place % 2) else [],
            id=f"{'-'.join(case)}-{num_parts}",
        )
        for place, case in enumerate(CASES)
        for num_parts in (2, 4, 7)
    ],
)
def test_parts_equal_one_part(trained: Any, case: tuple[str, str], num_parts: int) -> None:
    assert_same(trained(num_parts, case), trained(1, case))


def test_a_grown_network_is_that_of_as_many_layers(tmp_path: Path) -> None:
    """The first layer is the best by far, so two more are tried."""
    graph, masks = oracle_graph("third"), oracle_masks("third")
    directory = write_partitions(tmp_path, graph, masks, assignment(2), 2)
    never_better = ("stopping.min_delta=1", "stopping.use_loss=false")

    def train(*depth: str) -> Any:
        settings = settings_of(2, *MODELS["gcn"], *SKIPS, *never_better, *depth)
        return join_workers(train_as_threads(2, (directory, settings, layerwise.EDGES_PER_STEP)))

    grown, fixed = train("num_layers=auto", "max_layers=6"), train("num_layers=3")
    assert [line[:2] for line in grown[0]] == [line[:2] for line in fixed[0]]
    last_output = 2  # the last layer of a fixed network passes nothing on
    for place, (rows, expected) in enumerate(zip(grown[1], fixed[1], strict=True)):
        needed = ~np.isnan(expected)  # a network that may grow needs more nodes
        if place != last_output:
            np.testing.assert_allclose(rows[needed], expected[needed], rtol=1e-8, atol=1e-11)
    for values, expected in zip(grown[2], fixed[2], strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-8, atol=1e-11)


def test_without_validation_a_network_grows_to_two_layers(tmp_path: Path) -> None:
    masks = {**oracle_masks("third"), "val_mask": np.zeros(60, bool)}
    directory = write_partitions(tmp_path, oracle_graph("third"), masks, assignment(2), 2)
    settings = settings_of(2, *MODELS["gcn"], *SKIPS, "num_layers=auto", "max_layers=6")
    rounds, *_ = join_workers(train_as_threads(2, (directory, settings, layerwise.EDGES_PER_STEP)))
    assert {line[0] for line in rounds} == {0, 1}


@pytest.mark.parametrize("num_parts", [1, pytest.param(2, marks=LONG), 4, 7])
@pytest.mark.parametrize(
    ("case", "rounds", "kind"),
    [(("gcn", "local-3"), ROUNDS, "dense"), ("gcn-columns-local", FEW_ROUNDS, "columns")],
)
def test_local_steps_equal_a_simulation_in_one_process(
    trained: Any, case: Any, rounds: int, kind: str, num_parts: int
) -> None:
    """Weights of unused columns decay on every worker, also on those without training nodes."""
    _, embeddings, _ = trained(num_parts, case)
    simulated = simulate_local_gcn(num_parts, 3, rounds, kind)
    for rows, expected_rows in zip(embeddings, simulated, strict=True):
        np.testing.assert_allclose(rows, expected_rows, rtol=1e-8, atol=1e-11)


def simulate_local_gcn(num_parts: int, steps: int, rounds: int, kind: str) -> list[np.ndarray]:
    """Local SGD of a GCN over parts, written with one dense normalised adjacency.

    Embeddings of every layer.
    """
    settings, graph, train = (
        settings_of(num_parts, "model=gcn"),
        oracle_graph(kind),
        oracle_masks(kind)["train_mask"],
    )
    adjacency, parts, rows = (
        normalized(graph),
        assignment(num_parts),
        torch.from_numpy(graph.features).double(),
    )
    groups = [np.flatnonzero(train & (parts == part)) for part in range(num_parts)]
    embeddings = []
    for layer in range(3):
        stage = build_network(_architecture(settings), settings.seed)[layer].double()
        total = adjacency @ rows
        for _ in range(rounds):
            _average(
                stage,
                [
                    _after_steps(stage, total, graph, group, settings, layer, steps)
                    for group in groups
                ],
            )
        rows = stage.embed(Inputs((total,), 60, NO_PROJECTED_ROWS)).detach()
        embeddings.append(rows.numpy())
    return embeddings


def normalized(graph: GraphData) -> torch.Tensor:
    counts = count_edges(graph)
    scale_in, scale_out = (counts.sum(1) + 1).rsqrt(), (counts.sum(0) + 1).rsqrt()
    return scale_in[:, None] * (counts + torch.eye(60)) * scale_out[None, :]


def _architecture(settings: TrainSettings) -> Any:
    return Architecture(settings.model, Schema.of_plain_graph(30), 4)


def _after_steps(
    stage: Stage,
    total: torch.Tensor,
    graph: GraphData,
    group: np.ndarray,
    settings: TrainSettings,
    layer: int,
    steps: int,
) -> tuple[int, list[torch.Tensor]]:
    """Training nodes of a part, and the parameters after its steps of SGD with weight decay."""
    own = copy.deepcopy(stage)
    labels = torch.from_numpy(graph.labels[group])
    for _ in range(steps if len(group) else 0):
        own.zero_grad()
        torch.nn.functional.cross_entropy(
            own.logits(Inputs((total[group],), len(group), NO_PROJECTED_ROWS)), labels
        ).backward()
        with torch.no_grad():
            for parameter in own.parameters():
                parameter -= settings.learning_rate[layer] * (parameter.grad + 0.01 * parameter)
    return len(group), [parameter.detach() for parameter in own.parameters()]


def _average(stage: Stage, shares: list[tuple[int, list[torch.Tensor]]]) -> None:
    total = sum(count for count, _ in shares)
    with torch.no_grad():
        for place, parameter in enumerate(stage.parameters()):
            parameter.copy_(sum(count * values[place] for count, values in shares) / total)  # type: ignore[arg-type]


# --- few rounds of other exchanges, nodes and sums ----------


@pytest.mark.parametrize("num_parts", [1, *SOME_PARTS])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_a_plain_exchange_is_the_exact_one(trained: Any, num_parts: int, model: str) -> None:
    assert_same(trained(num_parts, f"{model}-plain"), trained(1, model))


def test_each_layer_has_its_precision(trained: Any) -> None:
    """Four bits after the first layer: that one is exact, the others are not, but near."""
    (_, exact, _), (_, rounded, _) = trained(1, "gat"), trained(4, "gat-int4")
    np.testing.assert_allclose(rounded[0], exact[0], rtol=1e-8, atol=1e-11)
    for rows, exact_rows in zip(rounded[1:], exact[1:], strict=True):
        error = np.abs(rows - exact_rows).max() / np.abs(exact_rows).max()
        assert 1e-4 < error < 0.2


@pytest.mark.parametrize("num_parts", SOME_PARTS)
@pytest.mark.parametrize("case", ["gcn-third", "sage-mean-third", "gat-third"])
def test_nodes_that_nobody_needs_change_nothing(trained: Any, num_parts: int, case: str) -> None:
    results = trained(num_parts, case)
    assert_same(results, trained(1, case))
    for rows in results[1]:
        assert (np.isnan(rows).any(axis=1) == np.isnan(rows).all(axis=1)).all()
    named = np.any(list(oracle_masks("third").values()), axis=0)
    assert named.sum() == 40
    assert np.isnan(results[1][-1]).any(axis=1).tolist() == (~named).tolist()


SAME_AS = {"gat-chunks": "gat", "gat-batch-of-all": "gat", "gcn-batch-of-all": "gcn"}
SAME_AS |= {"sage-pool-chunks": "sage-pool"}


@pytest.mark.parametrize("case", [*SAME_AS, "gin-cosine", "gcn-columns", "gcn-ids"])
def test_other_ways_lead_to_the_same_network(trained: Any, case: str) -> None:
    assert_same(trained(4, case), trained(1, SAME_AS.get(case, case)))


@pytest.mark.parametrize("num_parts", [1, *SOME_PARTS])
def test_compressed_local_steps_train_and_all_workers_agree(trained: Any, num_parts: int) -> None:
    rounds, embeddings, _ = trained(num_parts, "gcn-local-powersgd")
    losses = [line[2] for line in rounds if line[0] == 0]
    assert losses[FEW_ROUNDS - 1] < losses[0] - 0.02
    assert all(np.isfinite(rows).all() for rows in embeddings)
    exact = simulate_local_gcn(num_parts, 3, FEW_ROUNDS, "dense")
    assert not np.allclose(embeddings[0], exact[0], rtol=1e-3)  # something was left out


ANSWERS = [name for name in FEW if "-skips" in name or "-ahead" in name]
OTHER_LOSSES = ("gcn-skips-mae", "gcn-skips-huber")  # test_node_regression.py has their values


@pytest.mark.parametrize("num_parts", SOME_PARTS)
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=LONG if name in OTHER_LOSSES else []) for name in ANSWERS]
)
def test_skips_and_answers_of_parts_equal_those_of_one(
    trained: Any, num_parts: int, case: str
) -> None:
    one_part = trained(1, case.removesuffix("-plain"))
    assert_same(trained(num_parts, case), one_part)
    assert np.isfinite(one_part[1][-1]).any()


def test_a_layer_that_looks_ahead_trains_end_to_end(trained: Any) -> None:
    """The first stage, with one dense adjacency.

    The head of the second layer trains both, that of the first layer only itself.
    """
    graph, settings = oracle_graph("dense"), settings_of(1, *FEW["gcn-ahead"][1])
    adjacency, labels = normalized(graph), torch.from_numpy(graph.labels)
    stages = [stage.double() for stage in build_network(_architecture(settings), settings.seed)]
    total = adjacency @ torch.from_numpy(graph.features).double()
    train = torch.from_numpy(oracle_masks()["train_mask"])
    parameters = [*stages[0].parameters(), *stages[1].parameters()]
    rate = settings.learning_rate[0]
    optimizer = torch.optim.SGD(parameters, lr=rate, weight_decay=0.01)
    for _ in range(FEW_ROUNDS):
        hidden = stages[0].hidden(Inputs((total,), 60, NO_PROJECTED_ROWS))
        logits = stages[1].logits(Inputs((adjacency @ hidden,), 60, NO_PROJECTED_ROWS))
        own_logits = stages[0].classify(hidden.detach())
        loss = sum(
            torch.nn.functional.cross_entropy(predicted[train], labels[train])
            for predicted in (logits, own_logits)
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()
    expected = stages[0].hidden(Inputs((total,), 60, NO_PROJECTED_ROWS)).detach().numpy()
    np.testing.assert_allclose(trained(4, "gcn-ahead")[1][0], expected, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("num_parts", [1, 2, 7])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("dense", ("model=sage", "smoothing.reach=computed")),
        ("third", ("model=sage", "smoothing.reach=computed")),
        ("third", ("model=sage", "smoothing.reach=hops")),
        ("third", ("model=gat", "smoothing.reach=hops")),
        ("third", ("model=sage", "smoothing.reach=hops", "exchange=plain")),
    ],
)
def test_smoothing_is_the_power_of_the_adjacency(
    num_parts: int, kind: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    graph, masks = oracle_graph(kind), oracle_masks(kind)
    directory = write_partitions(tmp_path, graph, masks, assignment(num_parts), num_parts)
    start = np.random.default_rng(0).standard_normal((60, 4))
    settings = settings_of(num_parts, *more, "num_layers=1", "smoothing.steps=3")

    def worker(comm: Communicator) -> tuple[np.ndarray, list[np.ndarray]]:
        context, _, _ = context_of(comm, directory, settings, RoundRecorder())
        partition = context.partition
        rows = torch.from_numpy(start[partition.node_ids.numpy() - 1000])
        rows[context.plan.required_layers < 1] = torch.nan
        powers, val = list(propagate(context, rows, 3)), partition.val_mask
        if "exchange=plain" not in more:
            _, first = propagate(context, rows, 1, val)
            assert torch.allclose(first[val], powers[1][val], rtol=1e-12)
        return partition.node_ids.numpy(), [rows.numpy() for rows in powers]

    by_rank = run_threads(num_parts, worker)
    order = np.argsort(np.concatenate([ids for ids, _ in by_rank]))
    in_split = np.any(list(masks.values()), axis=0)
    reaches_all = "smoothing.reach=hops" in more
    adjacency, expected = normalized(graph).numpy() * (in_split | reaches_all), start
    for step in range(4):
        got = np.concatenate([powers[step] for _, powers in by_rank])[order]
        np.testing.assert_allclose(got[in_split], expected[in_split], rtol=1e-9, atol=1e-12)
        if reaches_all and "exchange=plain" not in more:
            reached = np.linalg.matrix_power(normalized(graph).numpy(), 3 - step)[in_split].any(
                axis=0
            )
            assert np.isfinite(got).all(axis=1).tolist() == reached.tolist()
            assert step == 0 or not reached.all()
        expected = adjacency @ expected
