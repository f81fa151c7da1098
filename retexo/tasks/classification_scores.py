"""Final scores of node classification, from sums over workers.

No label and no score of a node leaves its owner: workers add up counts by class, the sums that
proper scores and calibration need, and histograms of the scores (retexo.tasks.score_histogram).

I inner nodes, n nodes of a split, C classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from retexo.comm.collectives import ReduceInput
from retexo.comm.traffic_meter import METRICS
from retexo.models.stage import OutputHeads
from retexo.tasks.metrics import (
    BY_CLASS,
    average_precision,
    count_correct_by_ogb,
    micro_f1,
    roc_auc,
)
from retexo.tasks.node_classification import NodeClassification
from retexo.tasks.round_metrics import RANKING
from retexo.tasks.score_histogram import (
    best_f1_edge,
    count_scores,
    divide_bins,
    even_bin_edges,
    from_key,
    standard_error,
    summarise_bins,
)
from retexo.tasks.task_context import RunScores, TaskContext

PASSES = 3
"""Histograms of the final scores, each of which divides bins of the one before."""
MOST_BINS, FEWEST_BINS, BINS_PER_NODE = 512, 64, 4
"""Bins of a histogram, by the size of the split."""
CALIBRATION_BINS = 15
MAX_CONFUSED = 30
"""Most classes of a confusion matrix, whose square is sent."""
OFFSET_SHARES = (0.0, 0.5, 1.0)
"""Candidates of OutputHeads.offset_share."""
NODES_AT_ONCE = 1 << 16
"""Nodes whose probabilities, which take a dozen times their logits, are in memory at a time."""
LARGEST_MARGIN = 30.0
"""Thresholds lie between the probabilities of this logit and its negative."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Scores of a split, summed over workers."""

    edges: Tensor
    """int64 [B - 1]"""
    counts: Tensor
    """int64 [2, B] negatives and positives."""


def sum_histograms(context: TaskContext, logits: Tensor) -> dict[str, Histogram]:
    """Return histograms "val" and "test", without those splits that have no nodes.

    {} for more than two classes. All workers call it: it sends PASSES all-reduces, of which each
    divides the bins in which the order of the scores matters most. logits: [I, C]
    """
    task: NodeClassification = context.task
    if not task.has_ranking:
        return {}
    info, labels = context.graph_info, context.labels.cpu()
    enough = max(FEWEST_BINS, BINS_PER_NODE * max(info.num_val, info.num_test))
    num_bins = min(MOST_BINS, enough)
    scored = {
        name: task.scores(logits[mask], labels[mask])
        for name, (mask, size) in context.split_masks.items()
        if size and name != "train"
    }
    edges = even_bin_edges(num_bins)
    histograms = {
        name: Histogram(edges, count_scores(*split_scores, edges))
        for name, split_scores in scored.items()
    }
    _sum([histogram.counts for histogram in histograms.values()], context)
    for _ in range(PASSES - 1):
        histograms = _refine_histograms(context, scored, histograms, num_bins)
    return histograms


def _refine_histograms(
    context: TaskContext,
    scored: Mapping[str, tuple[Tensor, Tensor]],
    histograms: Mapping[str, Histogram],
    num_bins: int,
) -> dict[str, Histogram]:
    """Count the scores again with the bins divided in which the order matters most.

    Return the finer histograms. All workers call it; only counts of divided bins are sent.
    """
    finer, parts, messages = {}, {}, []
    for name, before in histograms.items():
        edges, num_parts = divide_bins(before.edges, before.counts, num_bins)
        counts = count_scores(*scored[name], edges)
        parts[name] = (num_parts > 1).repeat_interleave(num_parts)
        counts[:, ~parts[name]] = before.counts[:, num_parts == 1]
        finer[name] = Histogram(edges, counts)
        # Of the same size in every run, so that app=plan knows it.
        message = counts.new_zeros(2, num_bins)
        message[:, : int(parts[name].sum())] = counts[:, parts[name]]
        messages.append(message)
    _sum(messages, context)
    for (name, after), message in zip(finer.items(), messages, strict=True):
        after.counts[:, parts[name]] = message[:, : int(parts[name].sum())]
    return finer


def _sum(counts: Sequence[Tensor], context: TaskContext) -> None:
    """Add counts up over all workers, in place, in one message of int64."""
    context.comm.all_reduce([ReduceInput(count.view(-1)) for count in counts], METRICS)


def choose_threshold(context: TaskContext, histograms: Mapping[str, Histogram]) -> float:
    """Return the probability from which on a label, or the positive class, is predicted.

    That of the settings, or with the best F1 of validation; 0.5 where accuracy or nothing decides.
    """
    task, threshold = context.task, context.settings.threshold
    if not isinstance(threshold, str):
        return threshold
    metric = task.metric_name
    by_accuracy = metric in ("accuracy", "loss") or (metric == "micro_f1" and task.is_binary)
    if by_accuracy or "val" not in histograms:
        return 0.5
    edge = best_f1_edge(histograms["val"].edges, histograms["val"].counts)
    if edge is None:
        return 0.5
    margin = min(LARGEST_MARGIN, max(-LARGEST_MARGIN, from_key(edge)))
    return 1 / (1 + math.exp(-margin))


def choose_offset_share(context: TaskContext, logits: Tensor, heads: OutputHeads) -> float:
    """Return the share of the class weights that is kept to choose among more than two classes.

    The one with the best stopping.metric on validation; ties go to the smaller one, and 0 is the
    most probable class. 0 without class weights, validation nodes or a third class, for the metric
    loss, and with a threshold of the settings.

    Args:
        context: of this worker; all workers call it.
        logits: [I, C], calibrated.
        heads: their offsets and temperature.
    """
    task: NodeClassification = context.task
    if (
        not heads.offsets
        or task.has_ranking
        or context.settings.threshold != "auto"
        or not context.graph_info.num_val
        or task.metric_name == "loss"
    ):
        return 0.0
    val = context.partition.val_mask
    metric, labels = task.make_round_metric(), context.labels.cpu()[val]
    candidates = [task.with_choices(replace(heads, offset_share=share)) for share in OFFSET_SHARES]
    counts = torch.stack(
        [candidate.count(metric.name, logits[val], labels) for candidate in candidates]
    )
    context.comm.all_reduce([ReduceInput(counts.view(-1))], METRICS)
    values = [metric.value(count, math.nan) for count in counts]
    return OFFSET_SHARES[values.index(max(values))]


def score_classes(
    context: TaskContext,
    logits: Tensor,
    heads: OutputHeads,
    histograms: Mapping[str, Histogram] | None = None,
) -> RunScores:
    """Score the whole graph's training, validation and test nodes; all workers call it.

    The test accuracy of an OGB graph is that of OGB's evaluator.

    Args:
        context: of this worker.
        logits: [I, C] of this worker's nodes.
        heads: their threshold and positive class.
        histograms: of sum_histograms; None to call it here.
    """
    task = context.task.with_choices(heads)
    context = replace(context, task=task)
    if histograms is None:
        histograms = sum_histograms(context, logits)
    predicted, labels, splits = task.predict(logits), context.labels.cpu(), context.split_masks
    by_split = torch.stack(
        [task.count_by_class(predicted[mask], labels[mask]) for mask, _ in splits.values()]
    )
    sums = torch.stack(
        [sum_probabilities(task, logits[mask], labels[mask]) for mask, _ in splits.values()]
    )
    confusion = count_confusion(task, predicted, labels, context.partition.test_mask)
    context.comm.all_reduce(
        [ReduceInput(tensor.view(-1)) for tensor in (by_split, sums, confusion)], METRICS
    )
    counts = dict(zip(splits, by_split, strict=True))
    scores = {
        name: compute_scores(counts[name], total, size, multilabel=task.multilabel)
        for (name, (_, size)), total in zip(splits.items(), sums, strict=True)
    }
    for name, histogram in histograms.items():
        scores[name]["roc_auc"] = roc_auc(histogram.counts)
        scores[name]["average_precision"] = average_precision(histogram.counts)
    info = context.graph_info
    if info.ogb_name is not None:
        mask = context.partition.test_mask
        by_ogb = count_correct_by_ogb(info.ogb_name, predicted[mask], labels[mask])
        correct = torch.tensor([by_ogb])
        context.comm.all_reduce([ReduceInput(correct)], METRICS)
        scores["test"]["accuracy"] = int(correct) / max(1, info.num_test)
    reported = [name for name in ("val", "test") if bool(counts[name].any())]
    names, by_accuracy = task.class_names, heads.threshold == 0.5 and not task.multilabel
    return RunScores(
        scores,
        {name: class_rows(counts[name], names) for name in reported},
        baseline=score_baseline(task, counts, names),
        standard_error={
            name: standard_error(score, histograms["test"].counts)
            for name, score in RANKING.items()
            if "test" in histograms
        },
        confusion=confusion.tolist(),
        score_bins={
            name: summarise_bins(histogram.edges, histogram.counts)
            for name, histogram in histograms.items()
        },
        warnings=find_warnings(counts, names, scores["test"]["accuracy"] if by_accuracy else None),
    )


def count_confusion(
    task: NodeClassification, predicted: Tensor, labels: Tensor, mask: Tensor
) -> Tensor:
    """Count this worker's nodes in a mask by label and predicted class, int64 [C, C].

    The count is [0, 0] for multi-label nodes or many classes.
    """
    size = task.num_classes
    if task.multilabel or size > MAX_CONFUSED:
        return torch.zeros(0, 0, dtype=torch.int64)
    cells = labels[mask] * size + predicted[mask].cpu()
    return torch.bincount(cells, minlength=size * size).view(size, size)


def score_baseline(
    task: NodeClassification, counts: Mapping[str, Tensor], names: Sequence[Any]
) -> dict[str, Any]:
    """Return the test scores of predicting the most frequent class for every node.

    With several labels, each label's more frequent value. Rankings are random. Frequencies count
    training and validation nodes: a split by class has as many training nodes of every class.
    Empty without test nodes, or without training and validation nodes.

    Args:
        task: with the positive class.
        counts: by split int64 [4, C], see NodeClassification.count_by_class.
        names: of the classes; empty for 0 ... C-1.
    """
    known, test = (counts["train"] + counts["val"]).double(), counts["test"].double()
    having, lacking = test[0] + test[2], test[1] + test[3]
    total = float(having.sum())
    if not total or not bool(known.any()):
        return {}
    if task.multilabel:
        is_usual = known[0] + known[2] > known[1] + known[3]
        cells = total + float(lacking.sum())
        correct = float(torch.where(is_usual, having, lacking).sum())
        return {"accuracy": correct / cells, "average_precision": total / cells, "roc_auc": 0.5}
    chosen = int((known[0] + known[2]).argmax())
    share, names_it = float(having[chosen]) / total, torch.arange(len(having)) == chosen
    baseline = {"class": names[chosen] if names else chosen, "accuracy": share, "micro_f1": share}
    hits = (having * names_it, lacking * names_it, having * ~names_it)
    baseline |= {name: formula(*hits) for name, formula in BY_CLASS.items()}
    if task.is_binary:
        baseline |= {"roc_auc": 0.5, "average_precision": float(having[task.positive]) / total}
    return baseline


def sum_probabilities(task: NodeClassification, logits: Tensor, labels: Tensor) -> Tensor:
    """Sums that log loss, Brier score and calibration errors are computed from, float64 [2 + 5 B].

    Log loss; Brier score; by bin of confidence the number of predictions, their confidence, and how
    many are correct; by bin of the positive class's probability its sum, and the number of
    positives (0 for more than two classes). The prediction of a multi-label node is one for each
    known label.

    Args:
        task: with the number of classes.
        logits: [n, C].
        labels: int64 [n], all known, or float [n, C], NaN where unknown.
    """
    blocks = (torch.split(tensor, NODES_AT_ONCE) for tensor in (logits, labels))
    sums = [_sum_block(task, *block) for block in zip(*blocks, strict=True)]
    return torch.stack(sums).sum(dim=0)


def _sum_block(task: NodeClassification, logits: Tensor, labels: Tensor) -> Tensor:
    """Return `sum_probabilities` of some nodes."""
    logits = logits.double()
    if task.multilabel:
        known = ~labels.isnan()
        flat, actual = logits[known], labels[known] > 0.5
        logits, labels = torch.stack((torch.zeros_like(flat), flat), dim=1), actual.long()
    logs = logits.log_softmax(dim=1)
    probabilities = logs.exp()
    error = probabilities - torch.nn.functional.one_hot(labels, logits.shape[1])
    brier = (error**2).sum() / (2 if logits.shape[1] == 2 else 1)
    confidence, predicted = probabilities.max(dim=1)
    place = (confidence * CALIBRATION_BINS).long().clamp(max=CALIBRATION_BINS - 1)
    by_bin = confidence.new_zeros(3, CALIBRATION_BINS)
    for row, values in zip(
        by_bin, (torch.ones_like(confidence), confidence, predicted == labels), strict=True
    ):
        row.index_add_(0, place, values.double())
    by_positive = confidence.new_zeros(2, CALIBRATION_BINS)
    if task.has_ranking:
        positive = 1 if task.multilabel else task.positive
        place = (probabilities[:, positive] * CALIBRATION_BINS).long()
        place = place.clamp(max=CALIBRATION_BINS - 1)
        by_positive[0].index_add_(0, place, probabilities[:, positive])
        by_positive[1].index_add_(0, place, (labels == positive).double())
    own = logs.gather(1, labels[:, None])
    return torch.cat((torch.stack((-own.sum(), brier)), by_bin.flatten(), by_positive.flatten()))


def compute_scores(
    counts: Tensor, sums: Tensor, num_nodes: int, *, multilabel: bool
) -> dict[str, float]:
    """Return the scores of a split of `num_nodes` nodes; NaN where it has none.

    Args:
        counts: int64 [4, C], see NodeClassification.count_by_class.
        sums: float64, see sum_probabilities.
        num_nodes: of the split.
        multilabel: then accuracy is the share of the known labels that are correct.
    """
    tp, fp, fn, tn = counts.double()
    by_bin, by_positive = torch.split(sums[2:].view(5, -1), [3, 2])
    size = float(by_bin[0].sum())
    correct = (tp.sum() + tn.sum()) / counts.sum().clamp(min=1) if multilabel else tp.sum() / size
    scores = {
        "accuracy": float(correct),
        "micro_f1": micro_f1(counts[:3].sum(dim=1)),
        **{name: formula(tp, fp, fn) for name, formula in BY_CLASS.items()},
        "log_loss": float(sums[0]) / max(1.0, size),
        "brier": float(sums[1]) / max(1.0, size),
        "calibration_error": float((by_bin[1] - by_bin[2]).abs().sum()) / max(1.0, size),
    }
    if multilabel or len(tp) == 2:
        error = float((by_positive[0] - by_positive[1]).abs().sum())
        scores["positive_calibration_error"] = error / max(1.0, size)
    return scores if num_nodes else dict.fromkeys(scores, math.nan)


def class_rows(counts: Tensor, names: Sequence[Any]) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and support of each class; a ratio of nothing is 0.

    Args:
        counts: int64 [4, C].
        names: of the classes; empty for 0 ... C-1.
    """
    rows = []
    for number, (tp, fp, fn, _) in enumerate(counts.T.tolist()):
        rows.append(
            {
                "class": names[number] if number < len(names) else number,
                "precision": tp / max(1, tp + fp),
                "recall": tp / max(1, tp + fn),
                "f1": 2 * tp / max(1, 2 * tp + fp + fn),
                "support": tp + fn,
            }
        )
    return rows


def find_warnings(
    counts: Mapping[str, Tensor], names: Sequence[Any], accuracy: float | None
) -> list[str]:
    """Return sentences about missing or never predicted classes, and about a low accuracy.

    A low accuracy is one that is not above the most frequent class's share.

    Args:
        counts: by split int64 [4, C], see NodeClassification.count_by_class.
        names: of the classes; empty for 0 ... C-1.
        accuracy: on test; None, for no warning of it, unless the most probable class is predicted.
    """
    train, val, test = (counts[name] for name in ("train", "val", "test"))
    num_classes = train.shape[1]
    texts = [
        str(names[number]) if number < len(names) else str(number) for number in range(num_classes)
    ]

    def named(mask: Tensor) -> str:
        chosen = [texts[number] for number in mask.nonzero()[:, 0].tolist()]
        more = f" and {len(chosen) - 5} more" if len(chosen) > 5 else ""
        return f"class{'es' * (len(chosen) > 1)} {', '.join(chosen[:5])}{more}"

    support = {name: tp + fn for name, (tp, _, fn, _) in counts.items()}
    warnings = []
    for name, split in (("train", "training"), ("val", "validation")):
        absent = (support[name] == 0) & (sum(support.values()) > 0)
        if bool(absent.any()) and bool(support[name].any()):
            warnings.append(f"no {split} node has {named(absent)}")
    scored = val + test
    never = (scored[0] + scored[1] == 0) & (scored[2] > 0)
    if bool(never.any()):
        warnings.append(
            f"never predicted: {named(never)}; task.class_weights=balanced gives rare classes more"
            " weight"
        )
    if accuracy is not None and bool(support["test"].any()):
        share = int(support["test"].max()) / int(support["test"].sum())
        if accuracy <= share:
            warnings.append(
                f"the test accuracy, {accuracy:.4f}, is not above {share:.4f}, the share of the"
                " most frequent class"
            )
    return warnings
