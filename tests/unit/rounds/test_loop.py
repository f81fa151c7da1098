"""The rounds of a layer: messages, updates by hand, the best round.

The predictions of +experiment=exact equal closed forms on dense matrices.
"""

import copy
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    RoundRecorder,
    count_edges,
    dense_conv,
    graph_info,
    random_graph,
    thirds,
    train_settings,
    with_arrays,
    worker_context,
    write_partitions,
)
from torch import Tensor
from torch.nn.functional import layer_norm

from partitioning.graph.graph_data import PLAIN_RELATION
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import KINDS
from retexo.errors import TrainingError
from retexo.models.conv.gcn import GCN
from retexo.models.convolution import Inputs
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import as_matrix
from retexo.models.network import Architecture, Schema, build_network, default_model_settings
from retexo.models.stage import OutputHeads, Stage
from retexo.rounds.best_round import EarlyStopping
from retexo.rounds.graph_info import GraphInfo, agree_on_graph_info
from retexo.rounds.objective import (
    AUTO_BATCH_SIZE,
    AUTO_NUM_VAL,
    LabelledNodes,
    LayerObjective,
    choose_batch_size,
    choose_patience,
    choose_precision,
    choose_val_stride,
)
from retexo.rounds.parameters import FlatParameters
from retexo.rounds.schedule import Schedule
from retexo.rounds.training_loop import run_rounds
from retexo.rounds.update_rules import LocalOptimizer, build_optimizer, build_update_rule
from retexo.settings.communication_settings import CommunicationSettings
from retexo.settings.run_settings import TrainSettings
from retexo.tasks.node_classification import NodeClassification
from retexo.trainers.lazy import infer

WORLD, WIDTH, CLASSES = 3, 4, 2
PARAMETERS = WIDTH * CLASSES + CLASSES
TAIL = 2 * (2 + 2)
"""Loss, stop requests, and the counts of correct ones and of all: float64, each as two floats."""
ONE_ALL_REDUCE = 2 * (WORLD - 1) * 4  # bytes for every float of it


class Scripted(NodeClassification):
    """Validation counts with scripted F1, independent of the parameters."""

    def __init__(self, metrics: list[float]) -> None:
        super().__init__(CLASSES, False, with_loss=False)
        object.__setattr__(self, "left", list(metrics))

    def count(self, name: str, logits: Tensor, labels: Tensor) -> Tensor:
        return torch.tensor([round(100 * self.left.pop(0)), 100])  # type: ignore[attr-defined]


@dataclass
class LayerRecord(RoundRecorder):
    """What one worker observed of a layer."""

    stage: Stage
    rounds: int = 0
    final: Tensor = field(default_factory=lambda: torch.zeros(0))
    lines: list[tuple[int, int, float | None, float | None]] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    """After 0, 1, ... rounds."""
    sent: dict[str, int] = field(default_factory=dict)

    def round(self, layer: int, number: int, *scores: float | None) -> None:
        super().round(layer, number, *scores)
        self.parameters.append(flattened(self.stage))


def flattened(stage: Stage) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in stage.parameters()]).clone()


def labelled(rank: int, count: int) -> LabelledNodes:
    rows = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(rank))
    inputs = Inputs((rows,), count, NO_PROJECTED_ROWS) if count else None
    return LabelledNodes.from_inputs(torch.arange(count), torch.arange(count) % CLASSES, inputs)


def train_layer(
    settings: TrainSettings, metrics: list[float], *, num_val: int = 5
) -> list[LayerRecord]:
    """A layer on 3 workers: the first validates, the first two train on 2 and 3 nodes."""

    def work(comm: Communicator) -> LayerRecord:
        generator = torch.Generator().manual_seed(0)
        stage = Stage(GCN(WIDTH, CLASSES, 0.0), None, default_model_settings("gcn", 1, WIDTH))
        seen = LayerRecord(stage)
        for parameter in stage.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
        val = labelled(9, num_val if comm.rank == 0 else 0)
        train = labelled(comm.rank, (2, 3, 0)[comm.rank])
        sizes = graph_info(num_train=5, num_val=num_val, untrained_ranks=frozenset({2}))
        objective = LayerObjective(0, stage, Scripted(metrics), train, val, sizes)
        seen.rounds = run_rounds(objective, settings, comm, seen).num_rounds  # type: ignore[arg-type]
        seen.final = flattened(stage)
        seen.sent = dict(zip(KINDS, comm.meter.table(1).sum(dim=(1, 2)).tolist(), strict=True))
        return seen

    return run_threads(WORLD, work)


def settings_of(patience: int | None, limit: int, *more: str) -> TrainSettings:
    stopping = "stopping=none" if patience is None else f"stopping.patience={patience}"
    one_layer = "num_layers=1", f"num_rounds=[{limit}]", "learning_rate=[0.1]"
    return train_settings(*one_layer, "gradient=fp32", "local_epochs=1", stopping, *more)


def messages(workers: list[LayerRecord]) -> tuple[int, int]:
    """Number of updates, and of counts sent alone.

    A worker without training nodes sends no update.
    """
    sent = {kind: sum(seen.sent[kind] for seen in workers) for kind in KINDS}
    step = ONE_ALL_REDUCE * (PARAMETERS + TAIL) - 4 * PARAMETERS
    alone = ONE_ALL_REDUCE * TAIL
    assert (sent["gradients"] % step, sent["metrics"] % alone) == (0, 0)
    assert sent["setup"] == WORLD * (WORLD - 1) * (
        1 + 8
    )  # which of the 4 rows are used; a digest of the result
    return sent["gradients"] // step, sent["metrics"] // alone


@pytest.mark.parametrize(
    ("metrics", "patience", "limit", "rounds", "alone", "best"),
    [
        ([0.1, 0.5, 0.5, 0.5], 2, 50, 3, 1, 1),
        ([0.1, 0.2, 0.1, 0.3, 0.1, 0.1], 2, 50, 5, 2, 3),  # it might have ended after 3 rounds
        ([0.1, 0.2, 0.2], 1, 50, 2, 2, 1),
        ([0.1, 0.2, 0.3, 0.4, 0.3], 1, 50, 4, 4, 3),  # with patience 1 every round may be the last
        ([0.0, 0.0, 0.0, 0.0, 0.0], 3, 50, 4, 1, 1),
        ([0.1, 0.2, 0.3, 0.4], None, 3, 3, 1, 3),
        ([0.1, 0.9, 0.3, 0.4], None, 3, 3, 1, 1),
        ([0.1, 0.5, 0.6], 5, 2, 2, 1, 2),  # the limit comes first
        ([0.1, 0.5, 0.4, 0.4], 2, 3, 3, 1, 1),  # both at once
        ([0.1, 0.5], 1, 1, 1, 1, 1),
        ([0.7], None, 0, 0, 1, 0),
        ([0.7], 1, 0, 0, 1, 0),
    ],
)
def test_no_step_is_sent_that_nobody_takes(
    metrics: list[float], patience: int | None, limit: int, rounds: int, alone: int, best: int
) -> None:
    workers = train_layer(settings_of(patience, limit), metrics)
    assert [seen.rounds for seen in workers] == [rounds] * WORLD
    assert messages(workers) == (rounds, alone)
    for seen in workers:
        _, numbers, losses, scores = zip(*seen.lines, strict=True)
        assert numbers == (*range(rounds + 1),)
        assert scores == pytest.approx(metrics)
        assert [loss is None for loss in losses] == [False] * rounds + [True]
        assert torch.equal(seen.final, seen.parameters[best])
        assert torch.equal(seen.final, workers[0].final)
        for before, after in zip(seen.parameters, seen.parameters[1:], strict=False):
            assert not torch.equal(before, after)  # every round is a step


def test_without_the_best_model_the_last_one_stays() -> None:
    seen, *_ = train_layer(settings_of(None, 3, "best_val_model=false"), [0.1, 0.9, 0.3, 0.4])
    assert torch.equal(seen.final, seen.parameters[3])


def batch_objective(batch_size: int | None, sparse: bool = False) -> LayerObjective:
    """30 training and 7 validation nodes."""
    torch.manual_seed(0)
    stage = Stage(GCN(WIDTH, CLASSES, 0.0), None, default_model_settings("gcn", 1, WIDTH))

    def some(count: int) -> LabelledNodes:
        rows = torch.randn(count, WIDTH)
        matrix = as_matrix(rows * (torch.arange(count)[:, None] % 8 == 0)) if sparse else rows
        return LabelledNodes.from_inputs(
            torch.arange(count),
            torch.arange(count) % CLASSES,
            Inputs((matrix,), count, NO_PROJECTED_ROWS),
            batch_size,
        )

    sizes = graph_info(num_train=30, num_val=7)
    return LayerObjective(
        0, stage, NodeClassification(CLASSES, False), some(30), some(7), sizes, batch_size
    )


MANY = 4 * AUTO_BATCH_SIZE
"""Training nodes from which on batch_size=auto makes batches."""


@pytest.mark.parametrize(
    ("setting", "own", "total", "size"),
    [
        ("auto", 60_000, MANY - 1, None),
        ("auto", 0, 200_000, 1),
        ("auto", 1, 200_000, 1),
        ("auto", 50_000, 200_000, AUTO_BATCH_SIZE // 4),
        ("auto", 149_999, 200_000, 24_576),
        ("7", 60_000, 100_000, 7),
        ("null", 60_000, 200_000, None),
    ],
)
def test_batch_size_auto_is_a_workers_share_where_there_are_many_training_nodes(
    setting: str, own: int, total: int, size: int | None
) -> None:
    assert choose_batch_size(train_settings(f"batch_size={setting}"), own, total) == size


@pytest.mark.parametrize(
    ("setting", "total", "num_val", "stride"),
    [
        ("auto", MANY, 0, 1),
        ("auto", MANY, AUTO_NUM_VAL, 1),
        ("auto", MANY, 3 * AUTO_NUM_VAL, 3),
        ("auto", MANY - 1, 3 * AUTO_NUM_VAL, 1),
        ("null", MANY, 3 * AUTO_NUM_VAL, 1),
    ],
)
def test_batch_size_auto_scores_a_round_by_some_of_many_validation_nodes(
    setting: str, total: int, num_val: int, stride: int
) -> None:
    assert choose_val_stride(train_settings(f"batch_size={setting}"), total, num_val) == stride


@pytest.mark.parametrize(
    ("overrides", "total", "patience"),
    [
        (("batch_size=auto",), 1_000, 20),
        (("batch_size=auto",), MANY, 40),
        (("batch_size=auto",), 200_000, 50),
        (("batch_size=null",), 200_000, 20),
        (("stopping.patience=null", "batch_size=auto"), MANY, None),
    ],
)
def test_patience_is_longer_in_batches(
    overrides: tuple[str, ...], total: int, patience: int | None
) -> None:
    objective: Any = SimpleNamespace(graph_info=graph_info(num_train=total))
    assert choose_patience(train_settings(*overrides), objective) == patience


@pytest.mark.parametrize("sparse", [False, True])
def test_the_loss_of_a_batch_is_that_of_all_nodes_in_the_mean(sparse: bool) -> None:
    (loss_of_all,) = batch_objective(None, sparse).losses()
    batches = batch_objective(8, sparse)
    losses = torch.stack([loss.detach() for _ in range(2_000) for loss in batches.losses()])
    error = losses.std() / len(losses) ** 0.5
    assert 0 < error < 0.02 * loss_of_all
    assert abs(losses.mean() - loss_of_all) < 5 * error
    assert len(losses.unique()) > 20  # another batch each time


def test_a_loss_that_is_not_finite_ends_all_workers() -> None:
    settings = settings_of(
        None, 9, "learning_rate=[1e30]", "weight_decay=1e6", "optimizer._target_=torch.optim.SGD"
    )
    with pytest.raises(
        TrainingError, match=r"layer 0: the training loss is .*; lower learning_rate"
    ):
        train_layer(settings, [0.5] * 10)


def test_a_worker_whose_rounding_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of 1e-6 in one entry."""
    step = LocalOptimizer.backward

    def other_step(self: LocalOptimizer) -> float:
        nodes = self.objective.train.nodes  # type: ignore[attr-defined]
        if nodes.numel() == 0:  # of rank 2, which trains on none
            self.flat.values[0] += 1e-6
        return step(self)

    monkeypatch.setattr(LocalOptimizer, "backward", other_step)
    with pytest.raises(
        TrainingError,
        match=r"rank\(s\) 2 trained other parameters .* in layer 0; .*ATEN_CPU_CAPABILITY",
    ):
        train_layer(settings_of(None, 3), [0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("metrics", "losses", "patience", "min_delta", "best", "last"),
    [
        ([0.1, 0.5, 0.5, 0.5], [], 2, 0.0, 1, 3),  # ties go to the earlier round
        ([0.1, 0.2, 0.3, 0.2, 0.1], [], 2, 0.0, 2, 4),
        ([0.1, 0.2, 0.1, 0.3, 0.1, 0.1], [], 2, 0.0, 3, 5),  # patience begins anew
        ([0.9, 0.1, 0.1], [], 2, 0.0, 1, 2),  # the untrained parameters are no candidate
        ([0.0, 0.0, 0.0, 0.0], [], 3, 0.0, 1, 3),  # but the first round is, whatever its metric
        # min_delta has to be passed, not reached in small steps
        ([0.0, 0.50, 0.55, 0.59, 0.60], [], None, 0.1, 1, 4),
        ([0.0, 0.50, 0.55, 0.61], [], None, 0.1, 3, 3),
        ([0.0, 0.25, 0.5], [], None, 0.25, 1, 2),  # exactly min_delta is not more
        ([0.0, 0.05, 0.0], [], 9, 0.1, 1, 2),  # the first round needs no min_delta
        ([0.1, *[0.3] * 50], [], None, 0.0, 1, 50),  # no patience: never
        ([0.1, 0.2], [], 1, 0.0, 1, 1),
        # the loss decides between equal metrics
        ([0.5] * 6, [9.0, 3.0, 2.0, 1.0, 1.0, 1.0], 2, 0.0, 3, 5),
        ([0.5] * 4, [9.0, 1.0, 2.0, 3.0], 2, 0.0, 1, 3),
        # a fall below LEAST_DECREASE restarts nothing
        ([0.5] * 5, [9.0, 1.0, 0.9995, 0.999, 0.9985], 2, 0.0, 3, 3),
    ],
)
def test_the_best_and_the_last_round(
    metrics: list[float],
    losses: list[float],
    patience: int | None,
    min_delta: float,
    best: int,
    last: int,
) -> None:
    stopping = EarlyStopping(patience, min_delta)
    for number, metric in enumerate(metrics):
        stopping.record(number, metric, losses[number] if losses else math.nan)
        if stopping.out_of_patience(number):
            break
    assert (stopping.best_round, number) == (best, last)


def test_a_lower_loss_keeps_training_on_though_the_metric_falls() -> None:
    stopping = EarlyStopping(2, 0.0)
    for number, (metric, loss) in enumerate([(0.0, 9.0), (0.9, 3.0), (0.8, 2.0), (0.7, 1.0)]):
        stopping.record(number, metric, loss)
    assert (stopping.best_round, stopping.last_improvement) == (1, 3)
    again = EarlyStopping(2, 0.0)
    again.load_state_dict(stopping.state_dict())
    assert again.state_dict() == stopping.state_dict()
    assert not again.out_of_patience(4)
    assert again.out_of_patience(5)


SGD = train_settings("optimizer._target_=torch.optim.SGD", "weight_decay=0")


def test_an_empty_part_takes_the_width_of_edge_features_from_the_others(tmp_path: Path) -> None:
    graph = random_graph()
    graph = with_arrays(graph, edge_feat=np.ones((graph.num_edges, 3), np.float32))
    directory = write_partitions(tmp_path, graph, thirds(40), np.zeros(40, int), 2)
    parts = [directory.read_part(0), directory.read_part(1)]
    edges = replace(parts[1].relations[PLAIN_RELATION], edge_feat=None)
    parts[1] = replace(parts[1], relations={PLAIN_RELATION: edges})
    infos = run_threads(2, lambda comm: agree_on_graph_info(comm, parts[comm.rank], directory))
    assert [info.num_edge_features for info in infos] == [3, 3]


@pytest.mark.parametrize(("ranks", "is_fast"), [((0,), False), ((0, 1), True)])
def test_bfloat16_is_fast_where_it_is_on_all_processors(
    tmp_path: Path, ranks: tuple[int, ...], is_fast: bool
) -> None:
    directory = write_partitions(tmp_path, random_graph(), thirds(40), np.arange(40) % 2, 2)

    def agree(comm: Communicator) -> GraphInfo:
        partition = directory.read_part(comm.rank)
        return agree_on_graph_info(comm, partition, directory, fast_bf16=comm.rank in ranks)

    assert [info.fast_bf16 for info in run_threads(2, agree)] == [is_fast] * 2


@pytest.mark.parametrize(
    ("override", "num_train", "is_fast", "precision"),
    [
        ("compute.precision=auto", 131_072, True, "bf16"),
        ("compute.precision=auto", 131_071, True, "fp32"),
        ("compute.precision=auto", 131_072, False, "fp32"),
        ("compute.precision=fp32", 131_072, True, "fp32"),
        ("compute.precision=bf16", 1, False, "bf16"),
        *(
            (override, 131_072, True, "fp32")
            for override in (
                *("task=link_prediction", "trainer=full_graph"),
                *("+experiment=exact", "+experiment=retexo"),
            )
        ),
    ],
)
def test_products_are_in_bfloat16_on_large_graphs_where_it_is_fast(
    override: str, num_train: int, is_fast: bool, precision: str
) -> None:
    info = graph_info(num_train=num_train, fast_bf16=is_fast)
    assert choose_precision(train_settings(override), info) == precision


class Line(torch.nn.Module):
    """A loss that can be differentiated by hand: sum over n of (w - x_n)^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        self.b = torch.nn.Parameter(torch.tensor([[3.0]]))

    def loss(self, points: torch.Tensor) -> torch.Tensor:
        return ((self.w[0] - points) ** 2).sum() / 2 + 0 * self.w[1] + (self.b * 0).sum()


def test_a_step_takes_the_mean_gradient_after_it_is_summed() -> None:
    module, points = Line(), torch.tensor([0.0, 4.0])
    objective: Any = SimpleNamespace(
        losses=lambda: [module.loss(points)],
        num_train=len(points),
        graph_info=graph_info(num_train=5),
        exchanges_rows=False,
    )
    flat, optimizer = FlatParameters(module, torch.zeros(3)), build_optimizer(SGD, 0.5, module)
    own = LocalOptimizer(flat, optimizer, objective)
    update_rule = build_update_rule(CommunicationSettings(), own)
    update_rule.compute()
    own.flat.gradient += torch.tensor([12.0, 5.0, 0.0])
    expected = torch.nn.Parameter(own.flat.values.clone())
    expected.grad = own.flat.gradient / 5
    torch.optim.SGD([expected], 0.5).step()
    update_rule.apply()
    torch.testing.assert_close(own.flat.values, expected.detach())


@pytest.mark.parametrize("name", ["cosine", "step"])
def test_schedules_are_those_of_torch(name: str) -> None:
    schedule = Schedule(train_settings(f"scheduler={name}"), 120)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    known: Any = {
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=120),
        "step": lambda: torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5),
    }
    torchs = known[name]()
    for number in range(120):
        expected = optimizer.param_groups[0]["lr"]
        assert 0.1 * schedule.rate_factor(number, 0) == pytest.approx(expected)
        optimizer.step()
        torchs.step()


def test_a_plateau_lowers_the_learning_rate_and_a_resumed_one_goes_on() -> None:
    settings = train_settings("scheduler=plateau")
    schedule, factors = Schedule(settings, 99), []
    improvements = [0, 0, 1, *[2] * 13, 15, 15, 15, 15, 15, 15, 15]
    for number, last_improvement in enumerate(improvements):
        if number == 9:  # a resumed run
            saved, schedule = schedule.state_dict(), Schedule(settings, 99)
            schedule.load_state_dict(saved)
        factors.append(schedule.rate_factor(number, last_improvement))
    assert factors == [1] * 8 + [0.5] * 6 + [0.25] * 7 + [0.125] * 2


def test_the_default_optimizer_is_torchs_adam() -> None:
    """Equal bit for bit, also after saving and loading.

    A parameter without gradient does not change.
    """
    settings = train_settings("weight_decay=0.25")
    ours, torchs = Line(), Line()
    optimizer = build_optimizer(settings, 0.5, ours)
    reference = torch.optim.Adam(torchs.parameters(), lr=0.5, weight_decay=0.25, fused=True)
    for number in range(6):
        for module in (ours, torchs):
            module.w.grad = torch.tensor([number - 2.0, 0.1 * number])
        optimizer.step()
        reference.step()
        saved = optimizer.state_dict()
        assert [
            {name: values.tolist() for name, values in state.items()}
            for state in saved["state"].values()
        ] == [
            {name: values.tolist() for name, values in state.items()}
            for state in reference.state_dict()["state"].values()
        ]
        optimizer = build_optimizer(settings, 0.5, ours)
        optimizer.load_state_dict(copy.deepcopy(saved))
        assert torch.equal(ours.w, torchs.w)
        assert ours.b.item() == 3.0


NODES, NUM_CLASSES, LAYERS, STEPS, ALPHA = 24, 3, 3, 2, 0.3
GRAPH = random_graph(NODES, 90)
X = torch.from_numpy(GRAPH.features).double()
EYE = torch.eye(NODES, dtype=torch.float64)

COUNT = count_edges(GRAPH)
NORMALISED = (
    torch.diag((COUNT.sum(1) + 1) ** -0.5) @ (COUNT + EYE) @ torch.diag((COUNT.sum(0) + 1) ** -0.5)
)
WEIGHTS = {"gcn": "weight", "sage": "weight_neigh", "gin": "weight_in"}
AGGREGATES = {
    "gcn": NORMALISED,
    "sage": COUNT / COUNT.sum(1, keepdim=True).clamp(min=1),
    "gin": COUNT + EYE,
}


def answers_of(model: str, stages: list[Any]) -> list[Tensor]:
    """Halves [X, A X], then thirds [A X, X, A q], each with its own weights.

    Q = A X W is passed on. Of GAT X W + mean of heads, then X W + h W + mean of heads; h is passed
    on.
    """
    passed, answers = X, []
    for layer, stage in enumerate(stages):
        own, first = dense_conv(stage.conv, COUNT, passed), {"rows": X}
        if model == "gat":
            beside = {"features": X, "rows": passed} if layer else first
        else:
            beside = {"aggregate": AGGREGATES[model] @ X, "features": X} if layer else first
        assert list(stage.skips) == list(beside)
        parts = [rows @ stage.skips[name] for name, rows in beside.items()]
        hidden = own + sum(parts) if model == "gat" else torch.cat((*parts, own), dim=1)
        norm = stage.norm
        if not isinstance(norm, torch.nn.Identity):
            hidden = layer_norm(hidden, hidden.shape[1:], norm.weight, norm.bias)
        hidden = torch.relu(hidden)
        answers.append(hidden @ stage.head.weight.T + stage.head.bias)
        if model == "gat":
            passed = hidden
        else:
            assert {part.shape[1] for part in (*parts, own)} == {12 // (len(parts) + 1)}
            passed = AGGREGATES[model] @ passed @ getattr(stage.conv, WEIGHTS[model])
    return answers


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_the_answers_of_a_network(model: str, norm: str, tmp_path: Path) -> None:
    settings = train_settings(
        "+experiment=exact",
        f"model={model}",
        f"num_layers={LAYERS}",
        "hidden_dim=12",
        "heads=2",
        "device=cpu",
        "num_partitions=1",
        f"smoothing.steps={STEPS}",
        f"model.norm={norm}",
    )
    directory = write_partitions(tmp_path, GRAPH, thirds(NODES), np.zeros(NODES), 1)
    stages = [
        stage.double().eval()
        for stage in build_network(
            Architecture(settings.model, Schema.of_plain_graph(X.shape[1]), NUM_CLASSES), 0
        )
    ]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for stage in stages:
            for parameter in stage.parameters():
                torch.nn.init.normal_(parameter)  # biases, too
        values = answers_of(model, stages)

    def worker(comm: Communicator) -> list[Tensor]:
        context, _ = worker_context(comm, directory, settings, dtype=torch.float64)
        choices = [
            OutputHeads((0,)),
            OutputHeads((2,)),
            OutputHeads((1, 2)),
            OutputHeads((0, 1, 2), ALPHA, STEPS),
        ]
        return [infer(context, stages, heads).logits for heads in choices]

    mean = sum(values) / LAYERS
    powers = [mean, NORMALISED @ mean, NORMALISED @ NORMALISED @ mean]
    smoothed = ALPHA * powers[0] + ALPHA * (1 - ALPHA) * powers[1] + (1 - ALPHA) ** 2 * powers[2]
    closed_forms = [values[0], values[2], (values[1] + values[2]) / 2, smoothed]
    (logits_of_heads,) = run_threads(1, worker)
    for logits, expected in zip(logits_of_heads, closed_forms, strict=True):
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-10)
