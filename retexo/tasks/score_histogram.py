"""Histograms of scores, summed over workers, from which rankings and thresholds are computed.

A score never leaves its owner: each worker counts its positives and negatives between edges that
all workers share. `refine_edges` then places the edges where the summed counts are dense, so that a
few passes resolve any distribution. Scores are compared as integers (`to_keys`), so that bins can
be divided without rounding. retexo.tasks.metrics has ROC AUC and average precision of a histogram.

n scores, B bins.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

LOWEST, HIGHEST = -(1 << 31), 1 << 31
"""Bounds of the keys of float32 scores."""
NUM_REDRAWN = 100
"""Histograms from which a standard error is estimated."""
NUM_ROWS = 50
"""Most rows of `summarise_bins`."""


def to_keys(scores: Tensor) -> Tensor:
    """Map scores, float [n], to int64 [n] in the same order: the bits of the float32 values."""
    bits = (scores.detach().cpu().float() + 0.0).view(torch.int32).long()  # -0.0 becomes 0.0
    return torch.where(bits < 0, LOWEST - 1 - bits, bits)


def from_key(key: int) -> float:
    """Return the score of a key; the largest finite one where a key is no finite score."""
    bits = key if key >= 0 else LOWEST - 1 - key
    score = float(torch.tensor([bits], dtype=torch.int32).view(torch.float32))
    limit = torch.finfo(torch.float32).max
    return score if math.isfinite(score) else math.copysign(limit, key)


def even_bin_edges(num_bins: int) -> Tensor:
    """Return the lower edges of bins 1 to B - 1, int64 [B - 1], evenly over all keys."""
    return LOWEST + torch.arange(1, num_bins) * ((HIGHEST - LOWEST) // num_bins)


def count_scores(scores: Tensor, is_positive: Tensor, edges: Tensor) -> Tensor:
    """Return negatives and positives in each bin, int64 [2, B].

    Args:
        scores: float [n].
        is_positive: bool [n].
        edges: int64 [B - 1], ascending; a bin holds its lower edge.
    """
    num_bins = len(edges) + 1
    place = torch.searchsorted(edges, to_keys(scores), right=True)
    place += num_bins * is_positive.detach().cpu()
    return torch.bincount(place, minlength=2 * num_bins).view(2, num_bins)


def refine_edges(edges: Tensor, counts: Tensor) -> Tensor:
    """Return new edges, int64 [B - 1], such that each bin has about 1 / B of the scores.

    Positives and negatives have equal weight, however rare one of them is. Scores are taken to be
    spread evenly within their bin. Without scores, the same edges. counts: int64 [2, B]
    """
    shares = counts.double() / counts.double().sum(dim=1, keepdim=True).clamp(min=1)
    weight = shares.sum(dim=0)
    if not bool(weight.any()):
        return edges
    num_bins = counts.shape[1]
    bounds = torch.cat((edges.new_tensor([LOWEST]), edges, edges.new_tensor([HIGHEST])))
    below = torch.cat((weight.new_zeros(1), weight.cumsum(dim=0)))
    ranks = below[-1] * torch.arange(1, num_bins) / num_bins
    place = (torch.searchsorted(below, ranks, right=True) - 1).clamp(0, num_bins - 1)
    inside = ((ranks - below[place]) / weight[place].clamp(min=1e-300)).clamp(0, 1)
    width = (bounds[place + 1] - bounds[place]).double()
    return bounds[place] + (inside * width).long()


def divide_bins(edges: Tensor, counts: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """Divide the bins in which the order of positives and negatives matters most.

    Args:
        edges: int64 [B - 1].
        counts: int64 [2, B].
        num_bins: how many bins the divided ones become, at most.

    Returns:
        the edges of all bins, int64 [D - 1]; and how many each bin became, int64 [B].
    """
    negatives, positives = counts.double()
    # `above` counts the bin itself, too.
    above = counts.double().sum(dim=0).flip(0).cumsum(0).flip(0)
    # About the change of average precision plus that of ROC AUC between the extreme orders.
    weight = positives * negatives / positives.sum().clamp(min=1)
    weight *= 1 / above.clamp(min=1) + 1 / negatives.sum().clamp(min=1)
    chosen = weight.argsort(descending=True, stable=True)[: num_bins // 2]
    chosen = chosen[weight[chosen] > 0].sort().values
    num_parts = 1 + (weight[chosen] / weight.sum() * (num_bins - len(chosen))).long()
    bounds = torch.cat((edges.new_tensor([LOWEST]), edges, edges.new_tensor([HIGHEST])))
    width = bounds.diff()
    parts = torch.ones_like(width).index_copy(0, chosen, num_parts).minimum(width)
    of_bin = torch.arange(len(width)).repeat_interleave(parts)
    number = torch.arange(len(of_bin)) - (parts.cumsum(0) - parts)[of_bin]
    lower = bounds[of_bin] + width[of_bin] * number // parts[of_bin]
    return lower[1:], parts


def standard_error(score: Callable[[Tensor], float], counts: Tensor) -> float:
    """Return the deviation of a score over histograms redrawn with these frequencies (bootstrap).

    Drawn by a fixed seed. NaN without both classes.

    Args:
        score: roc_auc or average_precision.
        counts: int64 [2, B]
    """
    size, shares = int(counts.sum()), counts.double().flatten() / max(1, int(counts.sum()))
    if not bool(counts.any(dim=1).all()):
        return math.nan
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(size, shares.numpy(), NUM_REDRAWN).reshape(NUM_REDRAWN, 2, -1)
    values = torch.tensor([score(torch.from_numpy(sample)) for sample in drawn])
    return float(values[values.isfinite()].std())


def summarise_bins(edges: Tensor, counts: Tensor) -> list[dict[str, float]]:
    """Return rows from the highest scores down: mean probability of the positive class, and counts.

    A row joins bins until it has about 1 / NUM_ROWS of the scores; positives and negatives have
    equal weight. A score counts as the middle of its bin.

    Args:
        edges: int64 [B - 1], of differences of two logits.
        counts: int64 [2, B] negatives and positives.
    """
    ends = torch.tensor([from_key(key) for key in (LOWEST, *edges.tolist(), HIGHEST - 1)])
    probability = ends.double().sigmoid()
    middle = (probability[1:] + probability[:-1]) / 2
    weight = (counts.double() / counts.sum(dim=1, keepdim=True).clamp(min=1)).sum(dim=0)
    below = (weight.cumsum(0) - weight / 2) / weight.sum().clamp(min=1e-300)
    row = (below * NUM_ROWS).long().clamp(max=NUM_ROWS - 1)
    sums = counts.new_zeros(3, NUM_ROWS, dtype=torch.float64)
    sums.index_add_(1, row, torch.stack((*counts.double(), counts.sum(dim=0) * middle)))
    return [
        {"probability": total / (no + yes), "positives": int(yes), "negatives": int(no)}
        for no, yes, total in sums.T.flip(0).tolist()
        if no + yes
    ]


def best_f1_edge(edges: Tensor, counts: Tensor) -> int | None:
    """Return the edge from which on scores are predicted positive with the highest F1, or None.

    Args:
        edges: int64 [B - 1].
        counts: int64 [2, B]; without positives or negatives there is no choice.
    """
    if not bool(counts.any(dim=1).all()):
        return None
    false, true = counts.double().flip(1).cumsum(dim=1).flip(1)[:, 1:]
    f1 = 2 * true / (true + false + counts[1].sum())
    return int(edges[f1.argmax()])
