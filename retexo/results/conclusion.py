"""Says what a finished run means, in a few sentences.

The score beside a baseline and with its standard error, what was sent, and what to look at next.

The standard error is that of drawing other test nodes from the same population. That of macro-F1 is
found by redrawing the confusion matrix; the worker redraws histograms for ROC AUC and average
precision (retexo.tasks.score_histogram).
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partitioning.links.score_names import OF_LISTS
from retexo.results.formats import format_bytes
from retexo.scores import OF_LINKS, title_of
from retexo.settings.flatten import flatten
from retexo.settings.messages import quoted

DRAWS = 200
"""How often the confusion matrix is drawn anew."""
CLEAR = 2.0
"""Standard errors from which on a difference is called one."""
LARGE_GAP = 0.1
"""Difference of training and test score from which on a network overfits."""


def conclude(summary: Mapping[str, Any], run_dir: str) -> list[str]:
    """Return sentences about a finished run; summary: content of summary.json."""
    name = headline_of(summary)
    sentences = [_describe_score(summary, name), _describe_bytes(summary["bytes"])]
    return [sentence for sentence in (*sentences, *_advise(summary, name, run_dir)) if sentence]


def headline_of(summary: Mapping[str, Any]) -> str:
    """Return the score to judge a run by: stopping's; for a loss, accuracy or R2.

    Where none is stored, accuracy or MRR.
    """
    metric = summary.get("chosen", {}).get("metric")
    if metric is None:
        return "mrr" if "baselines" in summary else "accuracy"
    return {"loss": "r2" if "targets" in summary else "accuracy"}.get(metric, str(metric))


def _describe_score(summary: Mapping[str, Any], name: str) -> str:
    """Say the test score with its standard error, beside the baseline."""
    value, title = summary.get("test", {}).get(name), title_of(name)
    title = title[0].upper() + title[1:]
    if value is None or not math.isfinite(value):
        return f"{title} on test is not defined: too few test nodes, or none."
    error = standard_error(summary, name)
    sure = "" if error is None else f" (standard error {error:.4f})"
    text = f"{title} on test is {value:.4f}{sure}"
    reference, baseline = _baseline_of(summary, name)
    if baseline is None:
        return f"{text}."
    if value - baseline > CLEAR * (error or 0.0):
        return f"{text}; {reference} has {baseline:.4f}."
    return f"{text}, not clearly above the {baseline:.4f} of {reference.rstrip(',')}."


def _baseline_of(summary: Mapping[str, Any], name: str) -> tuple[str, float | None]:
    """Return what the baseline without a network is, in words, and its score.

    None: not measured.
    """
    of_links = summary.get("baselines")
    if of_links:
        best = max(of_links, key=lambda method: of_links[method].get(name, -math.inf))
        return f"{best} without training", of_links[best].get(name)
    constant = summary.get("baseline", {})
    if name in ("roc_auc", "average_precision"):
        return "a random ranking", constant.get(name)
    if name == "r2":
        return "the mean of the training nodes", constant.get(name)
    if "class" in constant:
        usual = "the most frequent class of training and validation"
        return f"always predicting {constant['class']}, {usual},", constant.get(name)
    return "the most frequent value of each label", constant.get(name)


def standard_error(summary: Mapping[str, Any], name: str) -> float | None:
    """Return the standard error of a test score, approximately; None where it is not known."""
    value, stored = (summary.get(part, {}).get(name) for part in ("test", "standard_error"))
    if value is None or not math.isfinite(value):
        return None
    if stored is not None:
        return float(stored) if math.isfinite(stored) else None
    rows = summary.get("classes", {}).get("test", [])
    supports = [row["support"] for row in rows]
    chosen = summary.get("chosen", {})
    multilabel = "threshold" in chosen and "positive_class" not in chosen
    size = sum(supports)
    if name == "r2":
        size = max((row["support"] for row in summary["targets"]["test"]), default=0)
        return math.sqrt(4 * value * (1 - value) ** 2 / size) if size and value > 0 else None
    if name in OF_LINKS:  # means over pairs or sources of what lies in [0, 1]
        size = summary["test"].get("sources" if name in OF_LISTS else "ranked", 0)
        return math.sqrt(value * (1 - value) / size) if size else None
    if multilabel or not size or not 0 <= value <= 1:
        return None
    if name in ("accuracy", "micro_f1"):
        return math.sqrt(value * (1 - value) / size)
    if name == "balanced_accuracy":
        variances = [
            row["recall"] * (1 - row["recall"]) / row["support"] for row in rows if row["support"]
        ]
        return math.sqrt(sum(variances)) / len(variances)
    if name == "macro_f1":
        return _redraw_macro_f1(summary["confusion"]) if "confusion" in summary else None
    return None


def _redraw_macro_f1(confusion: Sequence[Sequence[int]]) -> float:
    """Return macro-F1's deviation over DRAWS tables drawn with the frequencies of the counted one.

    The seed is 0.
    """
    counted = np.asarray(confusion, dtype=np.float64)
    size = int(counted.sum())
    drawn = np.random.default_rng(0).multinomial(size, counted.ravel() / size, DRAWS)
    tables = drawn.reshape(DRAWS, *counted.shape)
    hits = np.diagonal(tables, axis1=1, axis2=2)
    marginals = tables.sum(axis=1) + tables.sum(axis=2)
    scores = 2 * hits / np.maximum(marginals, 1)
    return float((scores.sum(axis=1) / (marginals > 0).sum(axis=1)).std(ddof=1))


def _describe_bytes(counted: Mapping[str, Any]) -> str:
    """Say how many bytes were sent, and of which three kinds most; "" for one worker."""
    total, num_workers = counted["total"], len(counted["by_peer"])
    if not total:
        return "Nothing was sent." if num_workers > 1 else ""
    kinds = sorted(counted["by_kind"].items(), key=lambda item: -item[1])
    shares = ", ".join(f"{kind} {sent / total:.0%}" for kind, sent in kinds[:3] if sent)
    return f"The {num_workers} workers sent {format_bytes(total)}: {shares}."


def _advise(summary: Mapping[str, Any], name: str, run_dir: str) -> list[str]:
    """Return advice, a sentence each; the last one names app=report.

    On layers that reached num_rounds, more layers, overfitting and other seeds.
    """
    settings = flatten(summary.get("settings", {}))
    limits = settings.get("num_rounds") or []
    limits = limits if isinstance(limits, list) else [limits]
    cut = [
        str(layer)
        for layer, done in enumerate(summary["rounds"])
        if limits and done >= limits[min(layer, len(limits) - 1)] > 0
    ]
    advice = []
    if cut and settings.get("stopping.patience") is not None:
        layers = f"Layer{'s' * (len(cut) > 1)} {', '.join(cut)}"
        advice.append(f"{layers} had no more rounds left: a larger num_rounds may help.")
    advice += _advise_depth(summary, name, settings)
    train, test = (summary.get(split, {}).get(name) for split in ("train", "test"))
    error = standard_error(summary, name) or 0.0
    if train is not None and test is not None and train - test > max(LARGE_GAP, CLEAR * error):
        advice.append(
            f"On training nodes it is {train:.4f}: more dropout or weight_decay may help."
        )
    if "seed" in settings:
        advice.append("Other seeds differ, too: seeds=[0,1,2] shows by how much.")
    is_plain = re.fullmatch(r"[A-Za-z0-9_/.:+@%-]+", run_dir) is not None
    report = f"report.runs={run_dir}" if is_plain else quoted("report.runs", run_dir)
    return [*advice, f"Curves, classes and bytes: app=report {report}"]


def _advise_depth(summary: Mapping[str, Any], name: str, settings: Mapping[str, Any]) -> list[str]:
    """Advise more layers if the last one raised validation by more than its standard error.

    The error is that of the test score `name`, for as many nodes as validate. Returns one sentence,
    or none.
    """
    by_layer, error = summary.get("val_by_layer", []), standard_error(summary, name)
    num_val, num_test = (
        sum(row["support"] for row in summary.get("classes", {}).get(split, []))
        for split in ("val", "test")
    )
    if len(by_layer) < 2 or settings.get("num_layers") == "auto" or not (num_val and error):
        return []
    before, last = by_layer[-2:]
    if last - before <= error * math.sqrt(num_test / num_val):
        return []
    sums_rows = settings["model.name"] in ("gcn", "sage", "gin")
    sums_rows &= settings.get("model.aggregator") != "pool"
    command = "+experiment=deep" if sums_rows else "num_layers=auto"
    rise = f"raised validation from {before:.4f} to {last:.4f}"
    return [f"Layer {len(by_layer) - 1} {rise}: deeper networks may help ({command})."]
