"""Node regression: targets in training units, the loss, the predicted values, and the scores.

Targets are standardised by the mean and the deviation of the training nodes of all workers. A
target that is unknown at a node (NaN) has no part in loss and scores. No target leaves its owner:
workers add up sums.

N nodes, I inner nodes, n nodes of a split, T targets.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from partitioning.directory.partition import Partition
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.traffic_meter import METRICS
from retexo.models.stage import OutputHeads, TargetScale
from retexo.rounds.graph_info import GraphInfo
from retexo.settings.run_settings import TrainSettings
from retexo.tasks.round_metrics import CountMetric
from retexo.tasks.task_context import RunScores, TaskContext

LIMB_EXPONENTS = range(120, -321, -40)
"""Exponents of the integers that a sum is sent as; the square of the smallest float32 fits."""
SMALLEST_DEVIATION = 1e-12
"""Relative to the mean; a smaller deviation is rounding."""
Row = dict[str, Any]
_NAMES = ("mae", "rmse", "r2")


@dataclass(frozen=True, eq=False)
class NodeRegression:
    """A Task whose seeds are nodes. Heads predict targets in training units."""

    scale: TargetScale
    class_names: Sequence[Any] = ()
    """[T] names of the targets, or empty for 0 ... T-1."""
    loss_name: str = "mse"
    huber_delta: float = 1.0
    """Error above which the Huber loss is linear, in standard deviations of the target."""
    has_temperature = False
    offsets = ()
    """Classes have weights, targets have none."""

    @classmethod
    def of(
        cls,
        settings: TrainSettings,
        partition: Partition,
        info: GraphInfo,
        comm: Communicator,
        class_names: Sequence[Any] = (),
    ) -> Self:
        """Return the task of a run, with the loss task.loss.

        All workers call it and agree on the scale of the targets.

        Raises:
            InputError: a target is not known, or is the same, at all training nodes.
        """
        names = class_names or range(info.num_classes)
        scale = agree_on_scale(partition.labels[partition.train_mask], names, comm)
        return cls(scale, class_names, settings.task.loss)

    def with_choices(self, heads: OutputHeads) -> Self:
        """Return the task itself: validation chooses nothing that changes its predictions."""
        return self

    @property
    def num_classes(self) -> int:
        return len(self.scale.mean)

    def make_targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Return labels [N, T] in training units; NaN everywhere in a graph without labels, [N]."""
        if labels.ndim == 1:
            return torch.full((len(labels), self.num_classes), math.nan, dtype=dtype)
        mean, deviation = self._mean_and_deviation()
        return ((labels.double() - mean) / deviation).to(dtype)

    def make_round_metric(self) -> CountMetric:
        """Return a metric without counts: the validation loss chooses a layer's best round."""
        nothing = torch.zeros(0, dtype=torch.int64)
        return CountMetric("loss", 0, lambda outputs, targets: nothing, with_loss=True)

    def loss_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the nodes' losses, [].

        A node's loss is the mean over its T targets; unknown ones count as 0.

        Args:
            outputs: [N, T] of a head.
            targets: [N, T] in training units.
        """
        known = ~targets.isnan()
        errors = torch.where(known, outputs - torch.where(known, targets, 0), 0)
        losses: dict[str, Callable[[], Tensor]] = {
            "mse": lambda: (errors**2).sum(),
            "mae": lambda: errors.abs().sum(),
            "huber": lambda: functional.huber_loss(
                errors, torch.zeros_like(errors), reduction="sum", delta=self.huber_delta
            ),
        }
        return losses[self.loss_name]() / self.num_classes

    def predict(self, outputs: Tensor) -> Tensor:
        """Return predicted values in the units of the data, float64 [N, T]."""
        mean, deviation = self._mean_and_deviation()
        return outputs.cpu().double() * deviation + mean

    def choices(self, heads: OutputHeads) -> dict[str, Any]:
        """Return what summary.json says about validation: the metric, and what it chose."""
        return {"metric": "loss", "heads": heads.stages, "smoothing_alpha": heads.alpha}

    def describe(self) -> dict[str, Any]:
        """Return the task's fields of model.json in a checkpoint."""
        return {"multilabel": False, "targets": asdict(self.scale)}

    def sum_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return sums over n nodes, float64 [5, T], in training units.

        Known targets, absolute errors, squared errors, targets and their squares.
        """
        targets = targets.cpu().double()
        known = ~targets.isnan()
        targets = torch.where(known, targets, 0)
        errors = torch.where(known, outputs.cpu().double() - targets, 0)
        return torch.stack(
            [values.sum(dim=0) for values in (known, errors.abs(), errors**2, targets, targets**2)]
        )

    def compute_rows(self, sums: Tensor) -> list[Row]:
        """Return MAE, RMSE, R2 and support of each target, in the units of the data.

        R2 is NaN where the targets do not differ. sums: see sum_errors.
        """
        names = self.class_names or range(self.num_classes)
        rows = []
        for name, deviation, column in zip(
            names, self.scale.deviation, sums.T.tolist(), strict=True
        ):
            count, absolute, squared, total, squares = column
            size = max(1.0, count)
            variation = squares - total**2 / size
            varies = variation > SMALLEST_DEVIATION * max(1.0, squares)
            row = {
                "target": name,
                "mae": absolute / size * deviation,
                "rmse": math.sqrt(squared / size) * deviation,
                "r2": 1 - squared / variation if varies else math.nan,
                "support": int(count),
            }
            rows.append(row if count else row | dict.fromkeys(_NAMES, math.nan))
        return rows

    def score_mean(self, sums: Tensor) -> dict[str, float]:
        """Return RMSE and R2 of predicting the training mean, which is 0 in training units.

        {} without known targets. sums: see sum_errors.
        """
        of_mean = sums.clone()
        of_mean[2] = sums[4]
        scores = _mean_scores(self.compute_rows(of_mean))
        return {name: scores[name] for name in ("rmse", "r2")} if bool(sums[0].any()) else {}

    def _mean_and_deviation(self) -> tuple[Tensor, Tensor]:
        """Return the scale of the targets, float64 [T] each."""
        scale = self.scale
        return torch.tensor(scale.mean).double(), torch.tensor(scale.deviation).double()


def score_values(context: TaskContext, outputs: Tensor) -> RunScores:
    """Score the whole graph's training, validation and test nodes; all workers call it.

    outputs: [I, T] of this worker's nodes.
    """
    splits, task, labels = context.split_masks, context.task, context.labels.cpu()
    sums = torch.stack(
        [task.sum_errors(outputs[mask], labels[mask]) for mask, _ in splits.values()]
    )
    context.comm.all_reduce([ReduceInput(sums.view(-1))], METRICS)
    rows = {
        name: task.compute_rows(sums_of_split)
        for name, sums_of_split in zip(splits, sums, strict=True)
    }
    scores = {name: _mean_scores(rows_of_split) for name, rows_of_split in rows.items()}
    warnings = [
        f"the test R2 of {row['target']}, {row['r2']:.4f}, is not above 0: the mean predicts as"
        " well"
        for row in rows["test"]
        if row["r2"] <= 0
    ]
    baseline = task.score_mean(sums[list(splits).index("test")])
    return RunScores(scores, targets=rows, baseline=baseline, warnings=warnings)


def _mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    """Return means over the targets whose scores are known; NaN where none is."""
    known = {name: [row[name] for row in rows if not math.isnan(row[name])] for name in _NAMES}
    return {
        name: sum(values) / len(values) if values else math.nan for name, values in known.items()
    }


def agree_on_scale(labels: Tensor, names: Sequence[Any], comm: Communicator) -> TargetScale:
    """Return the mean and the deviation of each target, known to all workers; two messages.

    Args:
        labels: float64 [n, T] of this worker's training nodes.
        names: of the targets.
        comm: to the other workers.

    Raises:
        InputError: a target is unknown or constant at all training nodes.
    """
    known = ~labels.isnan()
    values = torch.where(known, labels, 0)
    count, total = _sum_exactly(torch.stack((known.double().sum(dim=0), values.sum(dim=0))), comm)
    absent = (count == 0).nonzero()[:, 0].tolist()
    if absent:
        raise InputError(
            f"target {names[absent[0]]}: it is known at no training node; choose another split, or"
            " take it out of columns.label"
        )
    mean = total / count
    squares = _sum_exactly((torch.where(known, values - mean, 0) ** 2).sum(dim=0), comm)
    deviation = (squares / count).sqrt()
    constant = (deviation <= SMALLEST_DEVIATION * mean.abs()).nonzero()[:, 0].tolist()
    if constant:
        raise InputError(
            f"target {names[constant[0]]}: it is {float(mean[constant[0]]):g} at every training"
            " node; choose another split, or take it out of columns.label"
        )
    return TargetScale(tuple(mean.tolist()), tuple(deviation.tolist()))


def _sum_exactly(values: Tensor, comm: Communicator) -> Tensor:
    """Sum float64 values over all workers, whatever their size.

    They are sent as integers of 41 bits each, because masks hide integers only
    (retexo.sites.secure_sums), and fixed point of 64 bits is too short for some units.
    """
    limbs, rest = [], values
    for exponent in LIMB_EXPONENTS:
        limb = (rest * 2.0**-exponent).trunc()
        rest = rest - limb * 2.0**exponent
        limbs.append(limb.long())
    words = torch.stack(limbs)
    comm.all_reduce([ReduceInput(words.view(-1))], METRICS)
    factors = torch.tensor([2.0**exponent for exponent in LIMB_EXPONENTS], dtype=torch.float64)
    return (words.double() * factors.view(-1, *[1] * values.ndim)).sum(dim=0)


def check_settings(settings: TrainSettings) -> None:
    """Raise InputError for a loss or metric that does not fit, and for settings of classes."""
    task = settings.task
    if task.loss not in ("mse", "mae", "huber"):
        raise InputError(
            f"task.loss={task.loss}: a loss of classes; for task=node_regression choose mse, mae or"
            " huber"
        )
    if settings.stopping.metric not in ("auto", "loss"):
        raise InputError(
            f"stopping.metric={settings.stopping.metric}: a regression is validated by its loss;"
            " leave it out"
        )
    of_classes: Mapping[str, tuple[Any, Any]] = {
        "task.class_weights": (task.class_weights, ("auto", "none")),
        "threshold": (settings.threshold, ("auto", 0.5)),
    }
    for name, (value, unset) in of_classes.items():
        if value not in unset:
            raise InputError(
                f"{name}={value}: for classes alone, not task=node_regression; leave it out"
            )
