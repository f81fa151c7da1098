"""A slope and a bias per class of the final logits, fitted on all workers' validation nodes.

Vector scaling of Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML
2017; of two classes, and of each label of multi-label nodes, it is Platt scaling. The loss is
convex: it is minimised by damped Newton steps (Levenberg and Marquardt) over sums of workers, whose
number does not depend on the data.

n nodes, C classes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from retexo.models.stage import OutputHeads
from retexo.tasks.node_classification import NodeClassification

MAX_CLASSES = 30
"""The matrix of second derivatives, whose square is sent, has twice as many rows."""
STEPS = 20
PENALTY = 1.0
"""Weight of the squared distance from slope 1 and bias 0, in nodes: it decides where validation
does not, such as for classes without validation nodes."""
LEAST_SLOPE = 0.01
"""So that no ranking is turned round."""


def fit_class_scaling(
    heads: OutputHeads, logits: Tensor, labels: Tensor, add_up: Callable[[Tensor], None]
) -> tuple[Tensor, Tensor]:
    """Fit slopes and biases, float64 [C] each; all workers call it.

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
