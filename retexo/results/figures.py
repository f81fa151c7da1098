"""Figures of one data set by matplotlib, in the colours of Okabe and Ito (2008)."""

import importlib.util
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from partitioning.errors import InputError
from retexo.results.groups import DataSet
from retexo.results.runs import Run
from retexo.results.statistics import Sample
from retexo.results.tables import format_bytes, summarize_measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^DvPX"
STYLE = {
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "svg.hashsalt": "retexo",
    "axes.axisbelow": True,
}
NAME_WIDTH = 34
"""Characters per line of a method's name."""
WIDE, NARROW = 11.8, 3.9
"""Width of the page in inches, in windows of 1,200 px and 400 px."""
MAX_TICKS = 6
STEPS = [digit * 10.0**power for power in (-4, -3, -2, -1) for digit in (1, 2, 5)]
"""Candidate distances between ticks of accuracy."""
UNKNOWN_ERROR = 0.01
"""Standard error to assume if the runs do not determine one."""
LEGEND_LINE, LEGEND_COLUMN = 0.19, 2.7
"""Height of a line and width of a column of a legend, in inches."""
MAX_NUMBERS = 8
"""Largest number of partitions for which the heat map shows numbers."""


def check_installed() -> None:
    """Raise InputError with the remedy if a library of the extra `report` is missing."""
    missing = [
        name
        for name in ("matplotlib", "pandas", "jinja2")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise InputError(
            f"app=report needs {', '.join(missing)}, not installed: pip install -e '.[report]' -c"
            " constraints.txt"
        )


def draw(
    data: DataSet, width: float = WIDE, names: Collection[str] | None = None
) -> dict[str, "Figure"]:
    """Draw the figures that have data, by name; all of FIGURES if `names` is None.

    `width` is the page width in inches.
    """
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figures = {
            name: make(data, width)
            for name, (_, make) in FIGURES.items()
            if names is None or name in names
        }
    return {name: figure for name, figure in figures.items() if figure is not None}


def plot_accuracy(data: DataSet, width: float, measure: str, label: str) -> "Figure | None":
    """Plot mean accuracy of each method with standard deviations, and a dot per run."""
    figure, (axes,) = make_axes(1, width, 3.6)
    by_bytes = measure == "bytes total"
    drawn: dict[int, str] = {}
    without_bytes = []
    for index, method in enumerate(data.methods):
        across, up = summarize_measure(method, measure), summarize_measure(method, data.headline)
        if across.mean is None or up.mean is None:
            continue
        if by_bytes and across.mean <= 0:
            without_bytes.append(method.name)
            continue
        colour, marker = _style(index)
        pairs = [(run.measures[measure], run.measures.get(data.headline)) for run in method.done]
        dots = [
            (a, b) for a, b in pairs if a is not None and b is not None and (a > 0 or not by_bytes)
        ]
        axes.scatter(
            [x for x, _ in dots], [y for _, y in dots], s=12, color=colour, alpha=0.6, linewidths=0
        )
        axes.errorbar(
            across.mean,
            up.mean,
            xerr=_error_bars(across.mean, across.spread, by_bytes),
            yerr=up.spread,
            color=colour,
            marker=marker,
            markersize=7,
            capsize=2,
            linewidth=1,
            linestyle="none",
        )
        drawn[index] = f"{method.name} (n = {up.n})"
    if not drawn:
        return None
    remark = f"\nnot on this axis (0 bytes): {', '.join(without_bytes)}" if without_bytes else ""
    axes.set(xlabel=label + remark, ylabel=data.headline, title=_wrap(data.name))
    if by_bytes:
        _set_log_bytes_axis(axes)
    else:
        axes.set_xlim(left=0)
    _set_accuracy_ticks(
        axes, [summarize_measure(data.methods[index], data.headline) for index in drawn]
    )
    _add_legend(figure, _make_legend_handles(drawn))
    return figure


def _set_accuracy_ticks(axes: "Axes", samples: Sequence[Sample]) -> None:
    """Set ticks no finer than the largest standard error, and at least four steps."""
    errors = [values.spread / values.n**0.5 for values in samples if values.spread is not None]
    low, high = axes.dataLim.intervaly
    least = max(max(errors, default=0) or UNKNOWN_ERROR, (high - low) / MAX_TICKS)
    step = next((step for step in STEPS if step >= least), STEPS[-1])
    first, last = math.floor(low / step - 0.1), math.ceil(high / step + 0.1)  # no mark on the frame
    spare = max(0, 4 - (last - first))
    first, last = first - spare // 2, last + spare - spare // 2
    axes.set_ylim(first * step, last * step)
    axes.set_yticks(
        [tick * step for tick in range(first, last + 1) if 0 <= round(tick * step, 6) <= 1]
    )


def _error_bars(mean: float, spread: float | None, log: bool) -> Any:
    """Return the error bars to the left and right; on a log axis the left one stays above 0."""
    if spread is None:
        return None
    return [[min(spread, 0.9 * mean) if log else spread], [spread]]


def _set_log_bytes_axis(axes: "Axes") -> None:
    """Set a log axis between round numbers, with few ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [digit * 10.0**power for power in range(16) for digit in (1, 2, 5)]
    left = max((tick for tick in ticks if tick <= low), default=low)
    right = min((tick for tick in ticks if tick >= high), default=high)
    axes.set_xlim(left, right)
    shown = [tick for tick in ticks if left <= tick <= right]
    if len(shown) > MAX_TICKS:
        shown = [tick for tick in shown if f"{tick:.0f}".startswith("1")]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))


def plot_validation_curves(data: DataSet, width: float) -> "Figure | None":
    """Plot the validation metric after each round: a line per run, axes per layer."""
    curves = [
        (index, run)
        for index, method in enumerate(data.methods)
        for run in method.runs
        if run.curve
    ]
    if not curves:
        return None
    layers = sorted({point.layer for _, run in curves for point in run.curve})
    figure, all_axes = make_axes(len(layers), width, 3.0, cell=3.8, share=True)
    for axes, layer in zip(all_axes, layers, strict=False):
        for index, run in curves:
            points = [point for point in run.curve if point.layer == layer]
            dashes = "-" if run.status == "done" else ":"
            axes.plot(
                [point.round for point in points],
                [point.val_metric for point in points],
                color=_style(index)[0],
                linewidth=0.9,
                alpha=0.7,
                linestyle=dashes,
            )
            if points:
                axes.plot(
                    points[-1].round,
                    points[-1].val_metric,
                    _style(index)[1],
                    color=_style(index)[0],
                    markersize=4,
                )
        axes.set(xlabel="round", title=f"layer {layer}")
    all_axes[0].set_ylabel("validation metric")
    _add_title(figure, data.name)
    names = {index: data.methods[index].name for index, _ in curves}
    _add_legend(figure, _make_legend_handles(names, "-"))
    return figure


def plot_bytes_by_layer_and_kind(data: DataSet, width: float) -> "Figure | None":
    """Plot mean bytes: a dot per kind, a line per layer, axes per method.

    Kinds differ by orders of magnitude, so the axis is logarithmic.
    """
    methods = [(method, _mean_bytes_by_layer(method.done)) for method in data.methods]
    shown = [(method, by_layer) for method, by_layer in methods if by_layer]
    entries = [entry for _, by_layer in shown for entry in by_layer]
    kinds = dict.fromkeys(kind for entry in entries for kind in entry)
    names = [kind for kind in kinds if any(entry.get(kind) for entry in entries)]
    if not names:
        return None
    lines = max(len(by_layer) for _, by_layer in shown)
    figure, all_axes = make_axes(len(shown), width, 0.9 + 0.3 * lines, share=True)
    for axes, (method, by_layer) in zip(all_axes, shown, strict=False):
        for index, kind in enumerate(names):
            sent = [(line, entry[kind]) for line, entry in enumerate(by_layer) if entry.get(kind)]
            shifted = [
                line + 0.6 * ((index + 0.5) / len(names) - 0.5) for line, _ in sent
            ]  # dots of a line lie apart
            colour, marker = _style(index)
            axes.plot(
                [count for _, count in sent],
                shifted,
                color=colour,
                marker=marker,
                markersize=5,
                linestyle="none",
            )
        axes.set_yticks(
            range(len(by_layer)),
            [*(f"layer {layer}" for layer in range(len(by_layer) - 1)), "whole run"],
        )
        axes.set_title(_wrap(method.name), fontsize=9)
    all_axes[0].set_ylim(lines - 0.5, -0.5)
    _set_log_bytes_axis(all_axes[0])
    for axes in all_axes:
        axes.tick_params(axis="x", labelsize=7, labelbottom=True)
    _add_title(figure, f"{data.name}: bytes by layer and kind (log)")
    _add_legend(figure, _make_legend_handles(names))
    return figure


def _mean_bytes_by_layer(runs: list[Run]) -> list[dict[str, float]]:
    """Return mean bytes by kind, per layer and for the whole run; empty without data."""
    tables = [run.bytes_by_layer_and_kind for run in runs if run.bytes_by_layer_and_kind]
    if not tables:
        return []
    return [
        {kind: fmean(table[layer].get(kind, 0) for table in tables) for kind in tables[0][layer]}
        for layer in range(min(map(len, tables)))
    ]


def plot_bytes_by_pair(data: DataSet, width: float) -> "Figure | None":
    """Plot mean bytes by sender and receiver: one heat map per method."""
    import numpy as np

    tables = [
        (method, [run.bytes_by_peer for run in method.done if run.bytes_by_peer])
        for method in data.methods
    ]
    shown = [(method, np.mean(found, axis=0)) for method, found in tables if found]
    parts = max((len(table) for _, table in shown), default=0)
    if parts < 2:
        return None
    figure, all_axes = make_axes(len(shown), width, 2.6 if parts <= MAX_NUMBERS else 3.0)
    for axes, (method, table) in zip(all_axes, shown, strict=False):
        own = np.eye(len(table), dtype=bool)
        pairs = table[~own]
        least, most = float(pairs.min()), float(pairs.max())
        low, high = (least, most) if least < most else (0.0, most or 1.0)
        image = axes.imshow(
            np.ma.masked_array(table, mask=own), cmap="cividis", vmin=low, vmax=high
        )
        axes.grid(False)
        axes.set_facecolor("0.9")
        axes.set(xlabel="receiver", ylabel="sender")
        axes.set_title(_wrap(method.name), fontsize=9)
        if len(table) <= MAX_NUMBERS:
            axes.set_xticks(range(len(table)))
            axes.set_yticks(range(len(table)))
            _write_numbers(axes, table, (low + high) / 2)
        above = f"\n+{high / low - 1:.2%}" if low else ""
        bar = figure.colorbar(image, ax=axes, shrink=0.8, ticks=[low, high])
        bar.ax.set_yticklabels([format_bytes(low, 4), format_bytes(high, 4) + above], fontsize=7)
    _add_title(figure, f"{data.name}: bytes by pair of partitions, each with its own scale")
    return figure


def _write_numbers(axes: "Axes", table: Any, middle: float) -> None:
    """Write the bytes of each pair into its cell, in black on bright cells."""
    size = 7 if len(table) <= 4 else 5
    for sender, row in enumerate(table):
        for receiver, count in enumerate(row):
            if sender != receiver:
                text, ink = (
                    format_bytes(count).replace(" ", "\n"),
                    "black" if count > middle else "white",
                )
                axes.text(
                    receiver, sender, text, ha="center", va="center", color=ink, fontsize=size
                )


FIGURES: dict[str, tuple[str, Callable[[DataSet, float], "Figure | None"]]] = {
    "accuracy-bytes": (
        "Score against bytes sent. Mark: mean; bars: standard deviations; dots: runs.",
        partial(plot_accuracy, measure="bytes total", label="bytes sent by all workers (log)"),
    ),
    "accuracy-seconds": (
        "Score against seconds of training. Mark: mean; bars: standard deviations; dots: runs.",
        partial(plot_accuracy, measure="seconds train", label="seconds of training"),
    ),
    "curves": (
        "Validation metric after each round; a mark is the last round. Dotted: unfinished runs.",
        plot_validation_curves,
    ),
    "layers": (
        "Mean bytes by layer and kind.",
        plot_bytes_by_layer_and_kind,
    ),
    "pairs": (
        (
            "Mean bytes from each partition (row) to each other one (column). The colour scale ends"
            " at the pairs with the fewest and the most bytes."
        ),
        plot_bytes_by_pair,
    ),
}
"""Name -> caption and drawing function."""


# --- what several figures need ----------


def make_axes(
    count: int, width: float, height: float, *, cell: float = 2.9, share: bool = False
) -> tuple["Figure", list["Axes"]]:
    """Make a grid of axes, each at least `cell` inches wide; `share` gives them one scale.

    Small grids take half of the page. The figure is made without pyplot, which keeps figures in
    global state.
    """
    from matplotlib.figure import Figure

    most = max(1, int(width // cell))
    rows = -(-count // most)
    columns = -(-count // rows)
    across = width / 2 if 2 * columns <= most else width
    figure = Figure(figsize=(across, 0.6 + height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).ravel())
    for left_over in axes[count:]:
        left_over.set_visible(False)
    return figure, axes


def _style(index: int) -> tuple[str, str]:
    """Return colour and marker of a method; the pairs differ for up to 49 methods."""
    turn = index // len(COLOURS)
    return COLOURS[index % len(COLOURS)], MARKERS[(index + turn) % len(MARKERS)]


def _make_legend_handles(names: Mapping[int, str] | Sequence[str], line: str = "none") -> list[Any]:
    """Return legend handles with the look of each method or kind."""
    from matplotlib.lines import Line2D

    names_by_index = names if isinstance(names, Mapping) else dict(enumerate(names))
    styles = {index: _style(index) for index in names_by_index}
    return [
        Line2D(
            [],
            [],
            color=colour,
            marker=marker,
            markersize=5,
            linestyle=line,
            label=_wrap(names_by_index[index]),
        )
        for index, (colour, marker) in styles.items()
    ]


def _add_legend(figure: "Figure", handles: list[Any]) -> None:
    """Add a legend below the axes; the figure grows by its height."""
    columns = min(len(handles), max(1, int(figure.get_figwidth() // LEGEND_COLUMN)))
    lines = max(handle.get_label().count("\n") + 1 for handle in handles) * -(
        -len(handles) // columns
    )
    figure.set_figheight(figure.get_figheight() + 0.2 + LEGEND_LINE * lines)
    figure.legend(handles=handles, loc="outside lower center", frameon=False, ncols=columns)


def _add_title(figure: "Figure", text: str) -> None:
    figure.suptitle(_wrap(text, int(13 * figure.get_figwidth())))


def _wrap(name: str, width: int = NAME_WIDTH) -> str:
    """Wrap a name to lines of `width` characters, with `$` escaped for matplotlib."""
    return "\n".join(textwrap.wrap(name.replace("$", "\\$"), width))
