"""Prediction of a network with several heads: which of them, and how far it is smoothed.

The logits of the chosen heads are averaged (like log-probabilities, up to a number per node that
all classes share and that no step below depends on), then smoothed as by APPNP (Gasteiger,
Bojchevski and Günnemann, "Predict then Propagate", ICLR 2019, equations 5 and 6 written out):

    V_0 = mean over the heads k of z_k
    V_i = A V_(i-1)
    Z   = sum over i < K of  alpha (1 - alpha)^i V_i  +  (1 - alpha)^K V_K

V_i is a step of retexo.trainers.label_propagation. K is smoothing.steps, and alpha = 1 leaves V_0.
Where few nodes validate, alpha is first chosen for K = 1, at these nodes alone; if it is 1, or many
validation nodes show that the gain is negligible, 1 is the answer, and nothing more is sent.

A loss with class weights w_c is least where the softmax of Z is proportional to w_c times the
probability of class c (Menon et al., "Long-tail Learning via Logit Adjustment", ICLR 2021), so log
w_c is subtracted. Then each class gets a slope and a bias: vector scaling of
Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017; of two
classes, and of each label of multi-label nodes, it is Platt scaling. The loss is convex: it is
minimised by damped Newton steps (Levenberg and Marquardt) over sums of workers, whose number does
not depend on the data. Without class weights
a temperature divides the result.

I inner nodes, C classes, M candidates, T temperatures.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retexo.comm.collectives import ReduceInput
from retexo.comm.traffic_meter import METRICS
from retexo.models.stage import OutputHeads
from retexo.tasks.node_classification import NodeClassification
from retexo.tasks.task_context import TaskContext

TEMPERATURES = 2.0 ** torch.arange(-4, 4.5, 0.5)
"""[T] divisors of logits, so that a loss does not depend on how confident they are."""
LEAST_GAIN = 1e-3
"""Gain of the metric for which all predictions are sent, plus half its standard error."""
MAX_CLASSES = 30
"""The matrix of second derivatives, whose square is sent, has twice as many rows."""
STEPS = 20
PENALTY = 1.0
"""Weight of the squared distance from slope 1 and bias 0, in nodes: it decides where validation
does not, such as for classes without validation nodes."""
LEAST_SLOPE = 0.01
"""So that no ranking is turned round."""
Propagate = Callable[[Tensor, int], Iterator[Tensor]]
"""From V_0 and K to V_0 ... V_K."""


@dataclass(frozen=True)
class Smoother:
    """Label propagation on this worker (retexo.trainers.label_propagation)."""

    propagate: Callable[..., Iterator[Tensor]]
    """From V_0, [I, C], K, and the nodes that a single step is for (bool [I], left out for all) to
    V_0 ... V_K. All workers call it."""
    tries_first: bool
    """Whether the first step, at validation nodes, decides if the others are taken."""
    count_apart: Callable[[], AbstractContextManager[None]] | None = None
    """app=plan: takes all steps in any case, and counts apart what they send in this context."""


def choose_heads(
    context: TaskContext, logits: Sequence[Tensor], smoother: Smoother
) -> tuple[OutputHeads, Tensor]:
    """Choose by validation the heads, alpha and the temperature, in this order.

    All workers call it. Without validation nodes the last stage, without smoothing.

    Returns the choice and its logits, [I, C].

    logits: [I, C] of each stage, or of the last ones.
    """
    smoothing, num_layers = context.settings.smoothing, context.settings.model.depth
    stages = range(num_layers - len(logits), num_layers)
    candidates = [OutputHeads((num_layers - 1,))]
    if context.settings.classifiers == "validation" and context.graph_info.num_val:
        ranges = [range(first, last + 1) for last in stages for first in range(stages[0], last + 1)]
        candidates = [OutputHeads(tuple(stages)) for stages in sorted(ranges, key=len)]
    heads, val = candidates[0], context.partition.val_mask
    if len(candidates) > 1:
        val_logits = [stage_logits[val] for stage_logits in logits]
        averages = [
            average_heads(val_logits, heads_tried, num_layers) for heads_tried in candidates
        ]
        heads = candidates[_compare(context, averages)[0]]
    averaged = average_heads(logits, heads, num_layers)
    if smoothing.steps and context.graph_info.num_val:
        alpha, averaged = _smooth(context, averaged, smoother)
        heads = replace(heads, alpha=alpha, steps=smoothing.steps, reach=smoothing.reach)
    heads = replace(heads, offsets=context.task.offsets)
    heads = calibrated(context, heads, averaged)
    return heads, heads.calibrate(averaged)


def _smooth(context: TaskContext, start: Tensor, smoother: Smoother) -> tuple[float, Tensor]:
    """Smooth averaged logits by label propagation, with alpha chosen by validation.

    All workers call it.

    Return alpha and the smoothed logits, [I, C].
    """
    count_apart = None
    if smoother.tries_first:
        count_apart = smoother.count_apart
        first_two = list(smoother.propagate(start, 1, context.partition.val_mask))
        if not first_step_helps(context, first_two) and count_apart is None:
            return 1.0, start
    with nullcontext() if count_apart is None else count_apart():
        powers = list(smoother.propagate(start, context.settings.smoothing.steps))
        alpha = context.settings.smoothing.alphas[_compare_alphas(context, powers)[0]]
    return alpha, sum_powers(powers, alpha)


def first_step_helps(context: TaskContext, powers: Sequence[Tensor]) -> bool:
    """Return whether one step of label propagation improves validation. All workers call it.

    That is: an alpha below 1 is chosen, and the gain plus half a standard error is enough.
    """
    alphas: Sequence[float] = context.settings.smoothing.alphas
    best, values, margin = _compare_alphas(context, powers)
    return alphas[best] < 1 and values[best] - values[alphas.index(1)] + margin >= LEAST_GAIN


def _compare_alphas(
    context: TaskContext, powers: Sequence[Tensor]
) -> tuple[int, list[float], float]:
    """Choose among smoothing.alphas by the validation nodes.

    Return index, metrics and half the standard error as `_compare` does.
    """
    of_val = [logits_of_power[context.partition.val_mask] for logits_of_power in powers]
    alphas = context.settings.smoothing.alphas
    return _compare(context, [sum_powers(of_val, alpha) for alpha in alphas])


def apply_heads(logits: Sequence[Tensor], heads: OutputHeads, propagate: Propagate) -> Tensor:
    """Average the logits of the chosen heads, smooth and calibrate them: [I, C].

    All workers call it: smoothing exchanges rows.

    logits: [I, C] of each stage.
    """
    averaged = average_heads(logits, heads, len(logits))
    if heads.alpha < 1:
        averaged = sum_powers(list(propagate(averaged, heads.steps)), heads.alpha)
    return heads.calibrate(averaged)


def average_heads(logits: Sequence[Tensor], heads: OutputHeads, num_layers: int) -> Tensor:
    """Average the logits of the chosen heads, [I, C].

    logits: of the last stages of `num_layers`, [I, C] or of some nodes.
    """
    chosen = [logits[stage - num_layers] for stage in heads.stages]
    return chosen[0] if len(chosen) == 1 else torch.stack(chosen).mean(dim=0)


def sum_powers(powers: Sequence[Tensor], alpha: float) -> Tensor:
    """Return the smoothed logits, [I, C]: the weighted sum of V_0 ... V_K.

    V are the results of label propagation, the weights those of APPNP for the teleport probability
    alpha.
    """
    if alpha == 1:
        return powers[0]  # also where the later ones are NaN
    steps = len(powers) - 1
    total = powers[-1] * (1 - alpha) ** steps
    for step, power in enumerate(powers[:-1]):
        total += power * (alpha * (1 - alpha) ** step)
    return total


def calibrated(context: TaskContext, heads: OutputHeads, logits: Tensor) -> OutputHeads:
    """Choose the calibration of smoothed logits [I, C] by validation; return the heads with it.

    Without validation nodes, and for a regression, the heads as they are. All workers call it.
    """
    task, val = context.task, context.partition.val_mask
    if not (task.has_temperature and context.graph_info.num_val):
        return heads
    if not can_be_scaled(task):
        return replace(heads, temperature=choose_temperature(context, heads.calibrate(logits)))

    def add_up(sums: Tensor) -> None:
        context.comm.all_reduce([ReduceInput(sums)], METRICS)

    heads = replace(heads, has_labels=task.multilabel)
    slopes, biases = fit_class_scaling(heads, logits[val], context.labels.cpu()[val], add_up)
    return replace(heads, slopes=tuple(slopes.tolist()), biases=tuple(biases.tolist()))


def choose_temperature(context: TaskContext, logits: Tensor) -> float:
    """Return the divisor of the logits, [I, C], with the least log loss on validation.

    All workers call it. 1.0 if no other divisor has a lower loss.

    Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.
    """
    val = context.partition.val_mask
    loss = _loss_by_temperature(context.task.unweighted, logits[val], context.labels.cpu()[val])
    context.comm.all_reduce([ReduceInput(loss)], METRICS)
    best = int(loss.argmin())
    return float(TEMPERATURES[best]) if loss[best] < loss[TEMPERATURES == 1] else 1.0


def _loss_by_temperature(task: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed loss of the logits divided by each of TEMPERATURES, float64 [T].

    A regression is not divided: [1].
    """
    divisors = TEMPERATURES if task.has_temperature else TEMPERATURES[TEMPERATURES == 1]
    return torch.stack([task.loss_sum(logits / divisor, labels).double() for divisor in divisors])


def _compare(context: TaskContext, candidates: Sequence[Tensor]) -> tuple[int, list[float], float]:
    """Choose the candidate of least loss within half a standard error of the best metric.

    All workers call it, with the same number of candidates.

    Args:
        context: of the run.
        candidates: logits [n, C] of the validation nodes.

    Returns:
        Its index, the metric of each candidate, and half the standard error.
    """
    labels = context.labels.cpu()[context.partition.val_mask]
    task, num_val = context.task, context.graph_info.num_val
    loss = torch.stack(
        [_loss_by_temperature(task, candidate, labels) for candidate in candidates]
    )  # [M, T]
    summands = [ReduceInput(loss.view(-1))]
    metrics = [task.make_round_metric() for _ in candidates]
    for _ in range(metrics[0].passes):
        for metric in metrics:
            metric.start()
        count = torch.stack(
            [
                metric.count(logits, labels)
                for metric, logits in zip(metrics, candidates, strict=True)
            ]
        )  # [M, K]
        context.comm.all_reduce([ReduceInput(count.view(-1)), *summands], METRICS)
        summands = []
        least = loss.min(dim=1).values / num_val
        values = [
            metric.value(total, mean)
            for metric, total, mean in zip(metrics, count, least.tolist(), strict=True)
        ]
    best = int(np.argmax(values))
    margin = 0.5 * metrics[best].standard_error(values[best], count[best], num_val)
    is_close = np.array(values) >= values[best] - margin
    return int(np.where(is_close, least.numpy(), np.inf).argmin()), values, margin


# --- a slope and a bias for each class ----------


def fit_class_scaling(
    heads: OutputHeads, logits: Tensor, labels: Tensor, add_up: Callable[[Tensor], None]
) -> tuple[Tensor, Tensor]:
    """Fit slopes, at least LEAST_SLOPE, and biases, float64 [C] each; all workers call it.

    Args:
        heads: with the offsets.
        logits: [n, C] of this worker's validation nodes, after smoothing.
        labels: int64 [n], or float [n, C] of multi-label nodes, NaN where unknown.
        add_up: adds a tensor up over all workers, in place.
    """
    num_classes = logits.shape[1]
    inputs = heads.scaling_inputs(logits.double())
    identity = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat_interleave(num_classes)

    def measure(at: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return all workers' summed loss, its gradient [2 C] and second derivatives [2 C, 2 C]."""
        derivatives = torch.cat(
            [derivative.flatten() for derivative in _derivatives(inputs, labels, at)]
        )
        add_up(derivatives)
        loss, gradient, second = torch.split(
            derivatives, [1, 2 * num_classes, (2 * num_classes) ** 2]
        )
        away = at - identity
        total = float(loss) + PENALTY / 2 * float(away @ away)
        second = second.view(2 * num_classes, -1) + PENALTY * torch.eye(2 * num_classes)
        return total, gradient + PENALTY * away, second

    best, damping = identity, 1e-3
    loss, gradient, second = measure(best)
    for _ in range(STEPS):
        damped = second + torch.diag(damping * second.diagonal())
        tried = best - torch.linalg.solve(damped, gradient)
        tried[:num_classes].clamp_(min=LEAST_SLOPE)
        derivatives = measure(tried)
        if derivatives[0] <= loss:
            best, damping = tried, damping / 10
            loss, gradient, second = derivatives
        else:
            damping *= 10
    return best[:num_classes], best[num_classes:]


def _derivatives(inputs: Tensor, labels: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed log loss and its derivatives by slopes and biases.

    Their shapes are [], [2, C] and [2, C, 2, C].

    Args:
        inputs: [n, C] what slopes multiply.
        labels: int64 [n], or float [n, C].
        at: [2 C] slopes, then biases.
    """
    slope, bias = at.view(2, -1)
    scaled = inputs * slope + bias
    factors = (inputs, torch.ones_like(inputs))
    second = inputs.new_zeros(2, len(slope), 2, len(slope))
    if labels.ndim == 2:
        known = ~labels.isnan()
        actual = torch.where(known, labels, 0).double()
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            scaled, actual, reduction="none"
        )
        loss, probability = losses[known].sum(), scaled.sigmoid()
        error = torch.where(known, probability - actual, 0)
        own = torch.where(known, probability * (1 - probability), 0)
    else:
        logs = scaled.log_softmax(dim=1)
        loss, probability = -logs.gather(1, labels[:, None]).sum(), logs.exp()
        error = probability - torch.nn.functional.one_hot(labels, len(slope))
        own = probability
    for row, one in enumerate(factors):
        for column, other in enumerate(factors):
            block = torch.diag((own * one * other).sum(dim=0))
            if labels.ndim == 1:
                block = block - (probability * one).T @ (probability * other)
            second[row, :, column] = block
    gradient = torch.stack([(error * factor).sum(dim=0) for factor in factors])
    return loss, gradient, second


def can_be_scaled(task: NodeClassification) -> bool:
    """Return whether a slope and a bias for each class are fitted: with class weights.

    Their logarithms alone do not restore the probabilities of the data.
    """
    return bool(task.offsets) and task.num_classes <= MAX_CLASSES
