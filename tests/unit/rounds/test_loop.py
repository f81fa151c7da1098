"""The rounds of a layer: their messages, and the parameters they end with."""

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from support import graph_info, train_settings
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import KINDS, WHOLE_RUN
from retexo.errors import TrainingError
from retexo.models.conv.gcn import GCN
from retexo.models.conv_registry import default_model_settings
from retexo.models.convolution import Inputs
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import as_matrix
from retexo.models.stage import Stage
from retexo.rounds import reduction
from retexo.rounds.graph_info import GraphInfo
from retexo.rounds.objective import (
    AUTO_BATCH_SIZE,
    AUTO_NUM_VAL,
    LabelledNodes,
    LayerObjective,
    choose_batch_size,
    choose_patience,
    choose_val_stride,
)
from retexo.rounds.training_loop import run_rounds
from retexo.rounds.update_rules import LocalOptimizer
from retexo.settings.run_settings import TrainSettings
from retexo.tasks.node_classification import NodeClassification

WORLD, WIDTH, CLASSES = 3, 4, 2
PARAMETERS = WIDTH * CLASSES + CLASSES
TAIL = 2 + 2 * 2
"""Loss, stop requests, and two digits of correct ones and of all."""
ONE_ALL_REDUCE = 2 * (WORLD - 1) * 4  # bytes for every float of it


class Scripted(NodeClassification):
    """Validation counts with scripted F1, independent of the parameters."""

    def __init__(self, metrics: list[float]) -> None:
        super().__init__(CLASSES, False, with_loss=False)
        object.__setattr__(self, "left", list(metrics))

    def count(self, name: str, logits: Tensor, labels: Tensor) -> Tensor:
        return torch.tensor([round(100 * self.left.pop(0)), 100])  # type: ignore[attr-defined]


@dataclass
class Seen:
    """What one worker observed of a layer."""

    rounds: int = 0
    final: Tensor = field(default_factory=lambda: torch.zeros(0))
    lines: list[tuple[int, float | None, float | None]] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    """After 0, 1, ... rounds."""
    sent: dict[str, int] = field(default_factory=dict)


class SeenLog:
    def __init__(self, seen: Seen, stage: Stage) -> None:
        self._seen, self._stage = seen, stage

    def round(
        self,
        layer: int,
        number: int,
        train_loss: float | None,
        val_metric: float | None = None,
        val_loss: float | None = None,
    ) -> None:
        self._seen.lines.append((number, train_loss, val_metric))
        self._seen.parameters.append(flattened(self._stage))


def flattened(stage: Stage) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in stage.parameters()]).clone()


def labelled(rank: int, count: int) -> LabelledNodes:
    rows = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(rank))
    inputs = Inputs((rows,), count, NO_PROJECTED_ROWS) if count else None
    return LabelledNodes.from_inputs(torch.arange(count), torch.arange(count) % CLASSES, inputs)


def train_layer(settings: TrainSettings, metrics: list[float], *, num_val: int = 5) -> list[Seen]:
    """A layer on 3 workers: the first validates, the first two train on 2 and 3 nodes."""

    def work(comm: Communicator) -> Seen:
        generator = torch.Generator().manual_seed(0)
        stage, seen = (
            Stage(GCN(WIDTH, CLASSES, 0.0), None, default_model_settings("gcn", 1, WIDTH)),
            Seen(),
        )
        for parameter in stage.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
        val = labelled(9, num_val if comm.rank == 0 else 0)
        train = labelled(comm.rank, (2, 3, 0)[comm.rank])
        sizes = graph_info(num_train=5, num_val=num_val, untrained_ranks=frozenset({2}))
        objective = LayerObjective(0, stage, Scripted(metrics), train, val, sizes)
        seen.rounds = run_rounds(objective, settings, comm, SeenLog(seen, stage)).num_rounds
        seen.final = flattened(stage)
        seen.sent = dict(zip(KINDS, comm.meter.table(1).sum(dim=(1, 2)).tolist(), strict=True))
        return seen

    return run_threads(WORLD, work)


def settings_of(patience: int | None, limit: int, *more: str) -> TrainSettings:
    stopping = "stopping=none" if patience is None else f"stopping.patience={patience}"
    one_layer = "num_layers=1", f"num_rounds=[{limit}]", "learning_rate=[0.1]"
    return train_settings(*one_layer, "gradient=sync", "local_epochs=1", stopping, *more)


def messages(workers: list[Seen]) -> tuple[int, int]:
    """Number of updates, and of counts sent alone. A worker without training nodes sends no
    update.
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
        assert [line[0] for line in seen.lines] == list(range(rounds + 1))
        assert [line[2] for line in seen.lines] == pytest.approx(metrics)
        assert [line[1] is None for line in seen.lines] == [False] * rounds + [True]
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


def test_batch_size_auto_is_a_workers_share_where_there_are_many_training_nodes() -> None:
    auto = train_settings("batch_size=auto")
    assert choose_batch_size(auto, 60_000, 4 * AUTO_BATCH_SIZE - 1) is None
    shares = [choose_batch_size(auto, own, 200_000) for own in (0, 1, 50_000, 149_999)]
    assert shares == [1, 1, AUTO_BATCH_SIZE // 4, 24_576]
    assert choose_batch_size(train_settings("batch_size=7"), 60_000, 100_000) == 7
    assert choose_batch_size(train_settings("batch_size=null"), 60_000, 200_000) is None


def test_batch_size_auto_scores_a_round_by_some_of_many_validation_nodes() -> None:
    auto = train_settings("batch_size=auto")
    steps = [
        choose_val_stride(auto, 4 * AUTO_BATCH_SIZE, num_val)
        for num_val in (0, AUTO_NUM_VAL, 3 * AUTO_NUM_VAL)
    ]
    assert steps == [1, 1, 3]
    assert choose_val_stride(auto, 4 * AUTO_BATCH_SIZE - 1, 3 * AUTO_NUM_VAL) == 1
    whole = train_settings("batch_size=null")
    assert choose_val_stride(whole, 4 * AUTO_BATCH_SIZE, 3 * AUTO_NUM_VAL) == 1


class Sized(NamedTuple):
    """The parts of an objective that patience depends on."""

    layer: int
    traffic_layer: int
    graph_info: GraphInfo


def test_patience_is_longer_in_batches_and_may_be_another_of_hidden_layers() -> None:
    def patience(layer: int, total: int, *overrides: str, whole: bool = False) -> int | None:
        objective = Sized(layer, WHOLE_RUN if whole else layer, graph_info(num_train=total))
        return choose_patience(train_settings("num_layers=3", *overrides), objective)  # type: ignore[arg-type]

    assert [
        patience(2, total, "batch_size=auto") for total in (1_000, 4 * AUTO_BATCH_SIZE, 200_000)
    ] == [20, 40, 50]
    assert patience(0, 200_000, "batch_size=null") == 20
    hidden = "stopping.hidden_patience=6"
    assert [patience(layer, 1_000, hidden) for layer in range(3)] == [6, 6, 20]
    assert patience(0, 1_000, hidden, whole=True) == 20
    assert [
        patience(layer, 4 * AUTO_BATCH_SIZE, hidden, "batch_size=auto") for layer in range(3)
    ] == [
        6,
        6,
        40,
    ]
    assert [patience(layer, 1_000, hidden, "stopping.patience=null") for layer in range(3)] == [
        6,
        6,
        None,
    ]


@pytest.mark.parametrize("sparse", [False, True])
def test_the_loss_of_a_batch_is_that_of_all_nodes_in_the_mean(sparse: bool) -> None:
    (whole,) = batch_objective(None, sparse).losses()
    batches = batch_objective(8, sparse)
    losses = torch.stack([loss.detach() for _ in range(2_000) for loss in batches.losses()])
    error = losses.std() / len(losses) ** 0.5
    assert 0 < error < 0.02 * whole
    assert abs(losses.mean() - whole) < 5 * error
    assert len(losses.unique()) > 20  # another batch each time


def test_a_loss_that_is_not_finite_ends_all_workers() -> None:
    settings = settings_of(
        None, 9, "learning_rate=[1e30]", "weight_decay=1e6", "optimizer._target_=torch.optim.SGD"
    )
    with pytest.raises(
        TrainingError, match=r"layer 0: the training loss is .*; lower learning_rate"
    ):
        train_layer(settings, [0.5] * 10)


@pytest.mark.parametrize("compression", ["none", "powersgd"])
def test_a_worker_whose_rounding_differs_is_named(
    compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of 1e-6 in one entry, by the optimiser or by QR."""
    step, add_up = LocalOptimizer.backward, reduction.AllReduce.__call__

    def other_step(self: LocalOptimizer) -> float:
        if self.objective.train.nodes.numel() == 0:  # of rank 2, which trains on none
            self.flat.values[0] += 1e-6
        return step(self)

    def other_qr(self: reduction.AllReduce, update: Tensor, *exact: Tensor) -> None:
        add_up(self, update, *exact)
        if self.comm.rank == 2:
            update[0] *= 1 + 1e-6

    if compression == "none":
        monkeypatch.setattr(LocalOptimizer, "backward", other_step)
    else:
        monkeypatch.setattr(reduction.AllReduce, "__call__", other_qr)
    settings = settings_of(None, 3, f"gradient.compression={compression}", "gradient.rank=1")
    with pytest.raises(
        TrainingError,
        match=r"rank\(s\) 2 trained other parameters .* in layer 0; .*ATEN_CPU_CAPABILITY",
    ):
        train_layer(settings, [0.1, 0.2, 0.3, 0.4])
