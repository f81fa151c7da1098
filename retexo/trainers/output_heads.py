"""The prediction of a network with several heads: which of them, and how far it is smoothed.

The logits of the chosen heads are averaged (like log-probabilities, up to a number per node that all
classes share and that no step below depends on), then smoothed as by APPNP (Gasteiger, Bojchevski and
Günnemann, "Predict then Propagate", ICLR 2019, equations 5 and 6 written out):

    V_0 = mean over the heads k of z_k        V_i = A V_(i-1)     (retexo.trainers.label_propagation)
    Z = sum over i < K of  alpha (1 - alpha)^i V_i  +  (1 - alpha)^K V_K

K is smoothing.steps, and alpha = 1 leaves V_0.

I inner nodes, C classes, M candidates, T temperatures.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from retexo.comm.collectives import ReduceInput
from retexo.comm.traffic_meter import MessageTag
from retexo.models.stage import Answer
from retexo.trainers.context import Context

TEMPERATURES = 2.0 ** torch.arange(-4, 4.5, 0.5)
"""[T] divisors of logits, so that a loss does not depend on how confident they are."""
Propagate = Callable[[Tensor, int], Iterator[Tensor]]
"""From V_0 and K to V_0 ... V_K."""


def choose_heads(
    context: Context, logits: Sequence[Tensor], propagate: Propagate
) -> tuple[Answer, Tensor]:
    """Choose by validation, the heads first, then alpha; return the choice and its logits, [I, C].

    logits: [I, C] of each stage, or of the last ones.
    """
    smoothing, num_layers = context.settings.smoothing, context.settings.model.num_layers
    stages = range(num_layers - len(logits), num_layers)
    candidates = [Answer((num_layers - 1,))]
    if context.settings.output_heads == "validation" and context.graph_info.num_val:
        candidates = [Answer((stage,)) for stage in stages]
        candidates += [Answer(tuple(range(first, num_layers))) for first in stages[:-1]]
    answer, val = candidates[0], context.partition.val_mask
    if len(candidates) > 1:
        of_val = [each[val] for each in logits]
        answer = candidates[
            _best(context, (average(of_val, each, num_layers) for each in candidates))
        ]
    start = average(logits, answer, num_layers)
    if not smoothing.steps or not context.graph_info.num_val:
        return answer, start
    powers = list(propagate(start, smoothing.steps))
    of_val = [each[val] for each in powers]
    best = _best(context, (weight_powers(of_val, alpha) for alpha in smoothing.alphas))
    answer = replace(
        answer, alpha=smoothing.alphas[best], steps=smoothing.steps, reach=smoothing.reach
    )
    return answer, weight_powers(powers, answer.alpha)


def apply_heads(logits: Sequence[Tensor], answer: Answer, propagate: Propagate) -> Tensor:
    """The logits [I, C] of heads that were chosen before."""
    start = average(logits, answer, len(logits))
    return (
        start
        if answer.alpha == 1
        else weight_powers(list(propagate(start, answer.steps)), answer.alpha)
    )


def average(logits: Sequence[Tensor], answer: Answer, num_layers: int) -> Tensor:
    """V_0, [I, C]; logits: [I, C], or of some nodes, of the last stages of `num_layers`."""
    chosen = [logits[stage - num_layers] for stage in answer.stages]
    return chosen[0] if len(chosen) == 1 else torch.stack(chosen).mean(dim=0)


def weight_powers(powers: Sequence[Tensor], alpha: float) -> Tensor:
    """Z of V_0 ... V_K, [I, C] each."""
    if alpha == 1:
        return powers[0]  # also where the later ones are NaN
    steps = len(powers) - 1
    total = powers[-1] * (1 - alpha) ** steps
    for step, power in enumerate(powers[:-1]):
        total += power * (alpha * (1 - alpha) ** step)
    return total


def _best(context: Context, candidates: Iterator[Tensor]) -> int:
    """The index of the candidate with the least loss among those within half a standard error of the
    best metric; candidates: logits [n, C] of validation nodes."""
    labels, task, size = (
        context.labels.cpu()[context.partition.val_mask],
        context.task,
        context.graph_info.num_val,
    )
    counts, losses = [], []
    for answers in candidates:
        counts.append(task.totals(answers, labels))
        losses.append(
            torch.stack([task.loss_sum(answers / each, labels).double() for each in TEMPERATURES])
        )
    count, loss = torch.stack(counts), torch.stack(losses)  # [M, 3], [M, T]
    context.comm.all_reduce(
        [ReduceInput(count.view(-1)), ReduceInput(loss.view(-1))], MessageTag("metrics")
    )
    metric = np.array([task.metric(each) for each in count])
    best = metric.max()
    close = metric >= best - 0.5 * np.sqrt(best * (1 - best) / size)
    return int(np.where(close, loss.min(dim=1).values.numpy(), np.inf).argmin())
