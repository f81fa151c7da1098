"""Figures of one data set or one run by matplotlib, in the colours of Okabe and Ito (2008)."""

import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from retexo.results.formats import SPLITS, format_bytes
from retexo.results.groups import DataSet
from retexo.results.runs import Run
from retexo.results.tables import MAX_METHODS
from retexo.scores import title_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^DvPX"
STYLE = {
    "font.size": 9,
    "axes.grid": True,
    "lines.linewidth": 1.2,
    "grid.alpha": 0.3,
    "svg.hashsalt": "retexo",
    "axes.axisbelow": True,
}
SPLIT_COLOURS = {"val": COLOURS[1], "test": COLOURS[0]}
JOINED = 5
"""Rows of score_bins for a point of the calibration."""
SHARES = ("accuracy", "f1", "auc", "precision", "mrr", "hits")
"""Words in the names of scores between 0 and 1."""
NAME_WIDTH, TITLE_WIDTH = 34, 24
"""Characters per line of a method's name in a legend, and as the title of a heat map."""
WIDE = 11.8
"""Width of the page in inches, in a window of 1,200 px."""
LEGEND_COLUMN = 2.7
"""Width of a column of a legend, in inches."""
CURVES_PER_METHOD = 10
MAX_NUMBERS = 8
"""Largest number of partitions or classes for which a heat map shows numbers."""
MAX_LABEL = 14
"""Characters of a class name at an axis."""
DARK = 0.6
"""Share of the scale from which on a cell of a heat map has the other colour of text."""


def style() -> "AbstractContextManager[None]":
    """Return the context in which figures are drawn and saved."""
    import matplotlib as mpl

    return mpl.rc_context(STYLE)


def draw(content: DataSet | Run) -> dict[str, tuple[str, "Figure"]]:
    """Draw the figures of a data set, or of one run, that have data: caption and figure by name."""
    kinds = OF_DATA_SET if isinstance(content, DataSet) else OF_RUN
    with style():
        figures = {name: (caption, make(content)) for name, (caption, make) in kinds.items()}
    return {name: (text, figure) for name, (text, figure) in figures.items() if figure is not None}


# --- of a data set ----------


def plot_accuracy(data: DataSet, measure: str, label: str) -> "Figure | None":
    """Plot mean accuracy of each method with standard deviations, and a dot per draw.

    With more than MAX_METHODS methods only the means. None if there is nothing to draw.

    Args:
        measure: Along x; bytes on a logarithmic axis, so methods with 0 bytes are listed below it.
        label: Of x.
    """
    from matplotlib.ticker import EngFormatter, LogLocator

    names, by_bytes = [measure, data.headline], measure == "bytes total"
    if not {*names} <= {*data.draws}:
        return None
    known = data.summary[names].xs("mean", axis=1, level=1).dropna()
    means = known[known[measure] > 0] if by_bytes else known
    if means.empty:
        return None
    figure, (axes,) = make_axes(1, 3.6)
    is_few = len(data.methods) <= MAX_METHODS
    if not is_few:
        axes.scatter(means[measure], means[data.headline], s=12, color=COLOURS[0], rasterized=True)
    for index in means.index if is_few else ():
        colour, marker = _style(index)
        across, up = data.draws[names].loc[index].to_numpy().T
        axes.scatter(across, up, s=12, color=colour, alpha=0.6, linewidths=0, rasterized=True)
        xerr, yerr = (data.summary[name]["std"][index] for name in names)
        axes.errorbar(
            means[measure][index],
            means[data.headline][index],
            yerr,
            xerr,
            color=colour,
            marker=marker,
            markersize=7,
            capsize=2,
            linewidth=1,
            linestyle="none",
        )
    left_out = [data.methods[index].name for index in known.index.difference(means.index)]
    remark = f"\nnot on this axis (0 bytes): {', '.join(left_out[:MAX_METHODS])}" * bool(left_out)
    axes.set(xlabel=label + remark, ylabel=_with_unit(data.headline), title=_wrap(data.name))
    if by_bytes:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 20 * low else (1,)))
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.xaxis.set_minor_formatter("")
    else:
        axes.set_xlim(left=0)
    if is_few:
        counts = data.summary[data.headline]["count"]
        _add_legend(
            figure, {n: f"{data.methods[n].name} (n = {counts[n]:.0f})" for n in means.index}
        )
    return figure


def plot_validation_curves(data: DataSet) -> "Figure | None":
    """Plot the validation metric after each round: a line per run, axes per layer.

    None without curves, or with more than MAX_METHODS methods.
    """
    methods = data.methods if len(data.methods) <= MAX_METHODS else []
    curves = [
        (index, run, run.read_rounds().dropna(subset="val_metric"))
        for index, method in enumerate(methods)
        for run in method.runs[:CURVES_PER_METHOD]
    ]
    layers = sorted({layer for *_, curve in curves for layer in curve["layer"]})
    if not layers:
        return None
    figure, all_axes = make_axes(len(layers), 3.0, cell=3.8, share=True)
    for axes, layer in zip(all_axes, layers, strict=False):
        for index, run, curve in curves:
            points = curve[curve["layer"] == layer]
            colour, marker = _style(index)
            axes.plot(
                points["round"],
                points["val_metric"],
                color=colour,
                linewidth=0.9,
                alpha=0.7,
                linestyle="-" if run.status == "done" else ":",
                marker=marker,
                markersize=4,
                markevery=[-1] if len(points) else [],
            )
        axes.set(xlabel="round", title=f"layer {layer:.0f}")
    metrics = {run.metric for _, run, _ in curves}
    name = metrics.pop() if len(metrics) == 1 else None
    all_axes[0].set_ylabel(_with_unit(f"validation {title_of(name or 'metric')}"))
    figure.suptitle(_wrap(data.name, int(13 * figure.get_figwidth())))
    _add_legend(figure, {index: data.methods[index].name for index, *_ in curves}, "-")
    return figure


def plot_pairs(content: DataSet | Run) -> "Figure | None":
    """Plot bytes by sender and receiver: a heat map of a run, or of each method's mean.

    None for a single partition, or more than MAX_METHODS methods.
    """
    runs = (
        {"": [content]} if isinstance(content, Run) else {m.name: m.done for m in content.methods}
    )
    tables_drawn = [
        (name, np.mean([run.summary["bytes"]["by_peer"] for run in done], axis=0))
        for name, done in runs.items()
        if done
    ]
    parts = max((len(table) for _, table in tables_drawn), default=0)
    if parts < 2 or len(tables_drawn) > MAX_METHODS:
        return None
    figure, all_axes = make_axes(len(tables_drawn), 2.6 if parts <= MAX_NUMBERS else 3.0)
    drawn = all_axes[: len(tables_drawn)]
    most = max(float(table.max()) for _, table in tables_drawn) or 1.0
    for axes, (name, table) in zip(drawn, tables_drawn, strict=True):
        own = np.eye(len(table), dtype=bool)
        image = axes.imshow(np.ma.masked_array(table, mask=own), cmap="Blues", vmin=0, vmax=most)
        axes.set_facecolor("0.9")
        axes.set(xlabel="receiver (partition)", ylabel="sender (partition)")
        axes.set_title(_wrap(name, TITLE_WIDTH), fontsize=9)
        _write_numbers(axes, np.where(own, 0, table), table / most, format_bytes)
    bar = figure.colorbar(image, ax=drawn, shrink=0.8, format=lambda x, _: format_bytes(x))
    bar.set_label("bytes", fontsize=8)
    return figure


def _write_numbers(
    axes: "Axes",
    table: "np.ndarray[Any, Any]",
    colours: "np.ndarray[Any, Any]",
    text: Callable[[float], str],
) -> None:
    """Write what is not 0 into the cells of a heat map, white on dark ones.

    table, colours: [n, n]; the colours between 0 and 1.
    """
    axes.grid(False)
    if len(table) > MAX_NUMBERS:
        return
    axes.set_xticks(range(len(table)))
    axes.set_yticks(range(len(table)))
    for row, column in zip(*np.nonzero(table), strict=True):
        ink, size = "white" if colours[row, column] > DARK else "black", 7 if len(table) <= 4 else 5
        words = text(table[row, column]).replace(" ", "\n")
        axes.text(column, row, words, ha="center", va="center", color=ink, fontsize=size)


# --- of one run ----------


def plot_learning(run: Run) -> "Figure | None":
    """Plot losses and the validation metric by round, two axes per layer; None without rounds."""
    rounds, name = run.read_rounds(), title_of(run.metric or "metric")
    if rounds.empty:
        return None
    series = {"train_loss": ("training", 0), "val_loss": ("validation", 1), "val_metric": ("", 1)}
    figure, all_axes = make_axes(2 * rounds["layer"].nunique(), 2.4)
    for number, (layer, lines) in enumerate(rounds.groupby("layer")):
        losses, metric = all_axes[2 * number : 2 * number + 2]
        for column, (label, colour) in series.items():
            known = lines.dropna(subset=column)
            axes = metric if column == "val_metric" else losses
            if len(known):
                axes.plot("round", column, data=known, color=COLOURS[colour], label=label)
        best = lines.nlargest(1, "val_metric")
        metric.plot("round", "val_metric", "o", data=best, color=COLOURS[1], markersize=5)
        where = f"layer {layer:.0f}"
        losses.set(title=f"{where}: loss", xlabel="round", ylabel="loss (mean of the nodes)")
        if losses.lines:
            losses.legend(frameon=False, fontsize=8)
        metric.set(title=f"{where}: {name}", xlabel="round", ylabel=_with_unit(name))
    return figure


def plot_confusion(run: Run) -> "Figure | None":
    """Plot the confusion matrix of the test nodes as a heat map; None if the run has none."""
    table = np.array(run.summary.get("confusion", []))
    if not table.any():
        return None
    figure, (axes,) = make_axes(1, 3.6)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    _write_numbers(axes, table, shares, lambda count: f"{count:,}")
    names = [_shorten(str(name)) for name in run.classes]
    axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="predicted class", ylabel="known class")
    figure.colorbar(image, ax=axes, shrink=0.8).set_label("share of the row (0 to 1)", fontsize=8)
    return figure


def plot_calibration(run: Run) -> "Figure | None":
    """Plot the share of correct predictions against their confidence; None without bins.

    For two classes, the share of the positive class against its probability.
    """
    by_split, names = _calibration_points(run), ("confidence (probability)", "correct (share)")
    if run.summary.get("score_bins"):
        positive = run.summary.get("chosen", {}).get("positive_class")
        of_class = "a label" if positive is None else f"class {_shorten(str(positive))}"
        names = (f"predicted probability of {of_class}", f"share of {of_class} (0 to 1)")
    if not by_split:
        return None
    figure, (axes,) = make_axes(1, 3.6)
    axes.axline((0, 0), slope=1, color="0.6", linewidth=1, linestyle="--")
    for split, points in by_split.items():
        look: dict[str, Any] = {"data": points, "color": SPLIT_COLOURS[split]}
        axes.plot("confidence", "accuracy", label=SPLITS[split], **look)
        areas = 6 + 80 * points["count"] / points["count"].max()
        axes.scatter("confidence", "accuracy", s=areas, alpha=0.6, linewidths=0, label="_", **look)
    axes.set(xlabel=names[0], ylabel=names[1])
    axes.legend(frameon=False, loc="upper left")
    return figure


def _calibration_points(run: Run) -> dict[str, Any]:
    """Return a DataFrame for each split that has bins: count, confidence and accuracy of each.

    With score_bins, these are the predicted probability and the share of the positive class.
    """
    import pandas as pd

    fields = [run.summary.get(name, {}) for name in ("score_bins", "calibration")]
    points = {}
    for split in SPLIT_COLOURS:
        bins, table = (pd.DataFrame(by_split.get(split, [])) for by_split in fields)
        if len(bins):
            bins["count"] = bins["positives"] + bins["negatives"]
            bins["probability"] *= bins["count"]
            sums = bins.groupby(bins.index // JOINED).sum()
            means = sums[["probability", "positives"]].div(sums["count"], axis=0)
            means.columns = ["confidence", "accuracy"]
            table = means.assign(count=sums["count"])
        if len(table):
            points[split] = table
    return points


def plot_ranking(run: Run) -> "Figure | None":
    """Plot the ROC and the precision-recall curve of the positive class, or of all labels.

    Drawn from `score_bins` of the summary, one curve for each split that has positives and
    negatives. None if there is no such split, as with more than two classes.
    """
    cumulative = {
        split: np.array([[bin_["positives"], bin_["negatives"]] for bin_ in bins]).cumsum(axis=0)
        for split, bins in run.summary.get("score_bins", {}).items()
    }
    cumulative = {
        split: counts for split, counts in cumulative.items() if len(counts) and counts[-1].all()
    }
    if not cumulative:
        return None
    figure, (roc, precision) = make_axes(2, 3.2)
    for split, counts in cumulative.items():
        look: dict[str, Any] = {
            "color": SPLIT_COLOURS[split],
            "linewidth": 1.2,
            "label": SPLITS[split],
        }
        recall, false = (np.concatenate(([0], side / side[-1])) for side in counts.T)
        roc.plot(false, recall, **look)
        precision.plot(recall[1:], counts[:, 0] / counts.sum(axis=1), **look)
        share = counts[-1, 0] / counts[-1].sum()
        precision.axhline(share, color=SPLIT_COLOURS[split], linewidth=1, linestyle="--")
    roc.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
    roc.set(title="ROC", xlabel="false positive rate (share)", ylabel="recall (share)")
    precision.set(title="precision-recall", xlabel="recall (share)", ylabel="precision (share)")
    precision.set_ylim(0, 1.02)
    roc.legend(frameon=False)
    return figure


Kinds = dict[str, tuple[str, Callable[[Any], "Figure | None"]]]
"""Name -> caption and drawing function."""
OF_DATA_SET: Kinds = {
    "accuracy-bytes": (
        "Score against bytes sent. Mark: mean; bars: standard deviations; dots: draws.",
        partial(
            plot_accuracy, measure="bytes total", label="sent by all workers (bytes, log scale)"
        ),
    ),
    "accuracy-seconds": (
        "Score against seconds of training. Mark: mean; bars: standard deviations; dots: draws.",
        partial(plot_accuracy, measure="seconds train", label="training time (s)"),
    ),
    "curves": (
        "Validation metric after each round of up to ten runs of a method; a mark is the last"
        " round. Dotted: unfinished runs.",
        plot_validation_curves,
    ),
    "pairs": (
        "Mean bytes from each partition (row) to each other one (column).",
        plot_pairs,
    ),
}
OF_RUN: Kinds = {
    "learning": (
        "Loss and validation metric of each round, by layer. The dot is the best round.",
        plot_learning,
    ),
    "confusion": (
        "Test nodes by class (row) and predicted class (column). Colour: share of the row.",
        plot_confusion,
    ),
    "ranking": (
        "Positive class (with several labels, all of them) ranked by its probability. Dashed: a"
        " random ranking.",
        plot_ranking,
    ),
    "calibration": (
        "Share of correct predictions by confidence; with a positive class its share by its"
        " probability. On the dashed line both agree. Areas: number of predictions.",
        plot_calibration,
    ),
    "pairs": (
        "Bytes from each partition (row) to each other one (column).",
        plot_pairs,
    ),
}


# --- what several figures need ----------


def make_axes(
    count: int, height: float, *, cell: float = 2.9, share: bool = False
) -> tuple["Figure", list["Axes"]]:
    """Make a grid of axes, each at least `cell` inches wide; `share` gives them one scale.

    Small grids take half of the page. The figure is made without pyplot, which keeps figures in
    global state.
    """
    from matplotlib.figure import Figure

    most = max(1, int(WIDE // cell))
    rows = -(-count // most)
    columns = -(-count // rows)
    across = WIDE / 2 if 2 * columns <= most else WIDE
    figure = Figure(figsize=(across, 0.6 + height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).ravel())
    for left_over in axes[count:]:
        left_over.set_visible(False)
    return figure, axes


def _with_unit(score: str) -> str:
    """Return the name of a score with its range, where it has one."""
    name = score.replace("_", " ").lower()
    if any(word in name for word in SHARES):
        return f"{score} (0 to 1)"
    return f"{score} (1 is exact)" if name.endswith("r2") else score


def _style(index: int) -> tuple[str, str]:
    """Return colour and marker of a method; the pairs differ for up to 49 methods."""
    turn = index // len(COLOURS)
    return COLOURS[index % len(COLOURS)], MARKERS[(index + turn) % len(MARKERS)]


def _add_legend(figure: "Figure", names: Mapping[int, str], line: str = "none") -> None:
    """Add a legend below the figure, whose file grows by it, with the look of each number."""
    from matplotlib.lines import Line2D

    handles = []
    for index, name in names.items():
        colour, marker = _style(index)
        look = Line2D([], [], color=colour, marker=marker, markersize=5, linestyle=line)
        look.set_label(_wrap(name))
        handles.append(look)
    columns = min(len(handles), max(1, int(figure.get_figwidth() // LEGEND_COLUMN)))
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0)}
    figure.legend(handles=handles, frameon=False, ncols=columns, **place)


def _wrap(name: str, width: int = NAME_WIDTH) -> str:
    """Wrap a name to lines of `width` characters, with `$` escaped for matplotlib."""
    return "\n".join(textwrap.wrap(name.replace("$", "\\$"), width))


def _shorten(name: str) -> str:
    """Cut a class name, with `$` escaped for matplotlib."""
    label = name.replace("$", "\\$")
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"
