"""Figures of one run: learning curves, confusion matrix, calibration."""

import math
from typing import TYPE_CHECKING

import numpy as np

from retexo.results.figures import COLOURS, MAX_NUMBERS, STYLE, WIDE, make_axes
from retexo.results.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LABEL = 14
"""Characters of a class name at an axis."""
DARK = 0.6
"""Share of a row from which on its cell has white text."""
CAPTIONS = {
    "learning": "Loss and validation metric of each round, by layer. The dot is the best round.",
    "confusion": "Test nodes by class (row) and predicted class (column). Colour: share of the "
    "row.",
    "calibration": "Share of correct predictions by confidence; on the diagonal both agree. Areas: "
    "number of predictions.",
}


def draw_run(run: Run, width: float = WIDE) -> dict[str, "Figure"]:
    """Draw the figures of a run that have data, by name; `width` is the page width in inches."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figures = {
            "learning": plot_learning(run, width),
            "confusion": plot_confusion(run, width),
            "calibration": plot_calibration(run, width),
        }
    return {name: figure for name, figure in figures.items() if figure is not None}


def plot_learning(run: Run, width: float) -> "Figure | None":
    """Plot losses and the validation metric by round, two axes per layer; None without rounds.

    width: inches.
    """
    layers = sorted({each.layer for each in run.rounds})
    if not layers:
        return None
    figure, all_axes = make_axes(2 * len(layers), width, 2.4)
    for number, layer in enumerate(layers):
        points = [each for each in run.rounds if each.layer == layer]
        losses, metric = all_axes[2 * number : 2 * number + 2]
        series = (
            (losses, "train_loss", "training", COLOURS[0]),
            (losses, "val_loss", "validation", COLOURS[1]),
            (metric, "val_metric", "validation", COLOURS[1]),
        )
        for axes, name, label, colour in series:
            values = [(each.round, getattr(each, name)) for each in points]
            known = [(number, value) for number, value in values if _is_known(value)]
            if known:
                axes.plot(*zip(*known, strict=True), color=colour, linewidth=1.2, label=label)
            if known and axes is metric:
                axes.plot(*max(known, key=lambda each: each[1]), "o", color=colour, markersize=5)
        losses.set(title=f"layer {layer}: loss", xlabel="round")
        if losses.lines:
            losses.legend(frameon=False, fontsize=8)
        metric.set(title=f"layer {layer}: {run.metric or 'metric'}", xlabel="round")
    return figure


def plot_confusion(run: Run, width: float) -> "Figure | None":
    """Plot the confusion matrix of the test nodes as a heat map; None if the run has none.

    width: inches.
    """
    table = np.array(run.confusion)
    if not table.any():
        return None
    figure, (axes,) = make_axes(1, width, 3.6)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.grid(False)
    names = [_shorten(str(name)) for name in run.class_names]
    axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="predicted", ylabel="class")
    if len(table) <= MAX_NUMBERS:
        for row, column in np.ndindex(table.shape):
            ink = "white" if shares[row, column] > DARK else "black"
            text = f"{table[row, column]:,}"
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("share of the class", fontsize=8)
    return figure


def plot_calibration(run: Run, width: float) -> "Figure | None":
    """Plot the share of correct predictions against their confidence; None without bins.

    width: inches.
    """
    shown = {name: rows for name, rows in run.calibration.items() if rows}
    if not shown:
        return None
    figure, (axes,) = make_axes(1, width, 3.6)
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
    for name, colour in (("val", COLOURS[1]), ("test", COLOURS[0])):
        rows = shown.get(name, [])
        largest = max((row["count"] for row in rows), default=1)
        across, up = ([row[key] for row in rows] for key in ("confidence", "accuracy"))
        axes.plot(across, up, color=colour, linewidth=1, label=_TITLES[name] if rows else None)
        areas = [6 + 80 * row["count"] / largest for row in rows]
        axes.scatter(across, up, s=areas, color=colour, alpha=0.6, linewidths=0)
    low = min(row["confidence"] for rows in shown.values() for row in rows)
    axes.set(xlim=(max(0.0, low - 0.05), 1.02), ylim=(-0.02, 1.02))
    axes.set(xlabel="confidence", ylabel="correct")
    axes.legend(frameon=False, loc="lower right")
    return figure


_TITLES = {"val": "validation", "test": "test"}


def _is_known(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _shorten(name: str) -> str:
    shown = name.replace("$", "\\$")
    return shown if len(shown) <= MAX_LABEL else f"{shown[: MAX_LABEL - 1]}…"
