"""Figures of one data set or one run by matplotlib, in the colours of Okabe and Ito (2008)."""

from collections.abc import Callable
from textwrap import fill
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
    "text.parse_math": False,
}
SPLIT_COLOURS = {"val": COLOURS[1], "test": COLOURS[0]}
SHARES = ("accuracy", "f1", "auc", "precision", "mrr", "hits")
"""Words in the names of scores between 0 and 1."""
NAME_WIDTH = 34
"""Characters per line of a method's name in a legend."""
WIDE = 11.8
"""Width of the page in inches, in a window of 1,200 px."""
CELL = 2.9
"""Least width of axes, in inches."""
LEGEND_COLUMN = 2.7
"""Width of a column of a legend, in inches."""
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


def plot_accuracy(data: DataSet) -> "Figure | None":
    """Plot mean score of each method over its bytes, with standard deviations, a dot per draw.

    With more than MAX_METHODS methods only the means. Methods with 0 bytes have no place on the
    logarithmic axis and are listed below it. None if there is nothing to draw.
    """
    from matplotlib.ticker import EngFormatter, LogLocator

    names = ["bytes total", data.headline]
    if not {*names} <= {*data.draws}:
        return None
    known = data.summary[names].xs("mean", axis=1, level=1).dropna()
    means = known[known["bytes total"] > 0]
    if means.empty:
        return None
    figure, (axes,) = make_axes(1, 3.6)
    is_few, counts = len(data.methods) <= MAX_METHODS, data.summary[data.headline]["count"]
    if not is_few:
        axes.scatter(names[0], names[1], s=12, data=means, color=COLOURS[0], rasterized=True)
    for index, (across, up) in means.iterrows() if is_few else ():
        # The pairs of colour and marker differ for up to 49 methods.
        colour = COLOURS[index % len(COLOURS)]
        marker = MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]
        look: dict[str, Any] = {"color": colour, "alpha": 0.6, "linewidths": 0, "rasterized": True}
        axes.scatter(names[0], names[1], s=12, data=data.draws.loc[index], label="_", **look)
        xerr, yerr = (data.summary[name]["std"][index] for name in names)
        bars = axes.errorbar(
            across,
            up,
            yerr,
            xerr,
            color=colour,
            marker=marker,
            markersize=7,
            capsize=2,
            linewidth=1,
            linestyle="none",
        )
        name = f"{data.methods[index].name} (n = {counts[index]:.0f})"
        bars[0].set_label(fill(name, NAME_WIDTH))
    left_out = [data.methods[index].name for index in known.index.difference(means.index)]
    remark = f"\nnot on this axis (0 bytes): {', '.join(left_out[:MAX_METHODS])}" * bool(left_out)
    label = f"sent by all workers (bytes, log scale){remark}"
    axes.set(
        xlabel=label,
        ylabel=_with_unit(data.headline),
        title=fill(data.name, NAME_WIDTH),
        xscale="log",
    )
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 20 * low else (1,)))
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.xaxis.set_minor_formatter("")
    if is_few:  # the file grows by the legend
        columns = min(len(means), max(1, int(figure.get_figwidth() // LEGEND_COLUMN)))
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0)}
        figure.legend(frameon=False, ncols=columns, **place)
    return figure


# --- of one run ----------


def plot_pairs(run: Run) -> "Figure | None":
    """Plot bytes by sender and receiver as a heat map; None for a single partition."""
    table = np.array(run.summary["bytes"]["by_peer"])
    if len(table) < 2:
        return None
    figure, (axes,) = make_axes(1, 2.6 if len(table) <= MAX_NUMBERS else 3.0)
    own, most = np.eye(len(table), dtype=bool), table.max() or 1.0
    image = axes.imshow(np.ma.masked_array(table, mask=own), cmap="Blues", vmin=0, vmax=most)
    axes.set_facecolor("0.9")
    axes.set(xlabel="receiver (partition)", ylabel="sender (partition)")
    _write_numbers(axes, np.where(own, 0, table), table / most, format_bytes)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, format=lambda x, _: format_bytes(x))
    bar.set_label("bytes", fontsize=8)
    return figure


def _write_numbers(
    axes: "Axes",
    table: "np.ndarray[Any, Any]",
    colours: "np.ndarray[Any, Any]",
    text: Callable[[float], str],
) -> None:
    """Write what is not 0 into the cells of a heat map, white on dark ones.

    Nothing with more than MAX_NUMBERS rows.

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
        plot_accuracy,
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
    "pairs": (
        "Bytes from each partition (row) to each other one (column).",
        plot_pairs,
    ),
}


# --- what several figures need ----------


def make_axes(count: int, height: float) -> tuple["Figure", list["Axes"]]:
    """Make a grid of axes, each at least CELL inches wide.

    Small grids take half of the page. The figure is made without pyplot, which keeps figures in
    global state.
    """
    from matplotlib.figure import Figure

    most = int(WIDE // CELL)
    rows = -(-count // most)
    columns = -(-count // rows)
    across = WIDE / 2 if 2 * columns <= most else WIDE
    figure = Figure(figsize=(across, 0.6 + height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for left_over in axes[count:]:
        left_over.set_visible(False)
    return figure, axes


def _with_unit(score: str) -> str:
    """Return the name of a score with its range, where it has one; R2 with its best value."""
    name = score.replace("_", " ").lower()
    if any(word in name for word in SHARES):
        return f"{score} (0 to 1)"
    return f"{score} (1 is exact)" if name.endswith("r2") else score


def _shorten(name: str) -> str:
    """Cut a class name."""
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"
