"""Draws what a bench found; the only module here that needs matplotlib, and only when called."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.bench.result import BarPanel, Line, LinePanel, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER, INK, FAINT, EDGE = "#fbfaf7", "#22303c", "#8a96a0", "#dfe3e6"
GOOD, BAD = "#1f9d61", "#cf3f3f"
OURS = ("#123a78", "#3f86d8", "#7b4fc9", "#1f9d61")
THEIRS = ("#8a96a0", "#ef8a1d", "#d25f9b", "#b5a26a")
MARKERS = ("o", "s", "D", "^")

_PANEL_IN = 5.4
_HEIGHT_IN = 3.4
_TOP_IN = 1.4
_BOTTOM_IN = 0.85
_COLUMNS = 3
_SPAN = 20.0
"""Bars whose values span more than this factor are drawn on a logarithmic scale."""

_LABEL_CHARACTERS = 26
"""Of a line of a bar's label: as many as stand beside the axes."""

_LEGEND_ROWS, _SHORT_CHARACTERS = 4, 20
"""More entries than these stand in two columns, if none is longer."""

_LEGEND_ROW = 0.062
"""Of the height of a panel, for one row of its legend."""


def save(path: Path, result: Result) -> None:
    """Draw a result into a file; needs no display.

    Args:
        path: Its ending names the format (png, svg, pdf).
        result: With one panel at least.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    with mpl.rc_context(_style()):
        figure = _draw(result)
        figure.savefig(path, dpi=130, facecolor=PAPER)


def _style() -> Any:
    return {
        "font.family": "DejaVu Sans",
        "font.size": 9.0,
        "text.color": INK,
        "axes.edgecolor": EDGE,
        "axes.labelcolor": FAINT,
        "axes.facecolor": "#ffffff",
        "axes.linewidth": 0.8,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "figure.facecolor": PAPER,
    }


def _draw(result: Result) -> Any:
    from matplotlib.figure import Figure

    count = len(result.panels)
    columns = min(_COLUMNS, count)
    rows = math.ceil(count / columns)
    width = max(2, columns) * _PANEL_IN
    height = _TOP_IN + rows * (_HEIGHT_IN + _BOTTOM_IN)
    figure = Figure(figsize=(width, height))
    _title(figure, result, width, height)
    # Labels of bars stand left of their axes.
    has_bars = any(isinstance(panel, BarPanel) for panel in result.panels)
    grid = figure.add_gridspec(
        rows,
        columns,
        left=(2.3 if has_bars else 0.85) / width,
        right=1 - 0.35 / width,
        top=1 - _TOP_IN / height,
        bottom=_BOTTOM_IN / height,
        wspace=0.55 if has_bars else 0.22,
        hspace=(_BOTTOM_IN + 0.25) / _HEIGHT_IN,
    )
    for number, panel in enumerate(result.panels):
        axes = figure.add_subplot(grid[number // columns, number % columns])
        if isinstance(panel, LinePanel):
            _lines(axes, panel)
        else:
            _bars(axes, panel)
        axes.set_title(panel.title, loc="left", fontsize=10.5, color=INK, pad=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=2.5, width=0.6)
    return figure


def _title(figure: Any, result: Result, width: float, height: float) -> None:
    left, right = 0.35 / width, 1 - 0.35 / width
    top = 1 - 0.38 / height
    figure.text(left, top, result.bench, fontsize=19, fontweight="bold", va="center")
    figure.text(left, 1 - 0.76 / height, result.summary, color=FAINT, fontsize=10.5, va="center")
    judged = [row for row in result.rows if row.met is not None]
    if judged:
        held = len(judged) - len(result.missed)
        colour = BAD if result.missed else GOOD
        text = f"{held} of {len(judged)} targets met"
        figure.text(
            right,
            top,
            text,
            color=colour,
            fontsize=11.5,
            fontweight="bold",
            ha="right",
            va="center",
        )
    parts = [result.device, *(f"{name} {version}" for name, version in result.versions.items())]
    figure.text(right, 0.14 / height, " · ".join(parts), color=FAINT, fontsize=7.5, ha="right")
    if any(_has_p99(panel) for panel in result.panels):
        legend = "medians; whiskers and bands reach to p99"
        figure.text(left, 0.14 / height, legend, color=FAINT, fontsize=7.5)


def _has_p99(panel: LinePanel | BarPanel) -> bool:
    if isinstance(panel, LinePanel):
        return any(line.p99 for line in panel.lines)
    return any(bar.p99 is not None for bar in panel.bars)


def _lines(axes: Axes, panel: LinePanel) -> None:
    ours, theirs = 0, 0
    for line in panel.lines:
        if line.is_ours:
            colour, marker = OURS[ours % len(OURS)], MARKERS[ours % len(MARKERS)]
            ours += 1
        else:
            colour, marker = THEIRS[theirs % len(THEIRS)], MARKERS[theirs % len(MARKERS)]
            theirs += 1
        _line(axes, line, colour, marker)
    if panel.limit is not None:
        axes.axhline(panel.limit, color=BAD, lw=1.0, ls=(0, (4, 3)), zorder=1, label="target")
    values = [x for line in panel.lines for x in line.x]
    if min(values) > 0 and (panel.log_x or max(values) / min(values) > _SPAN):
        axes.set_xscale("log", base=2)
        ticks = sorted(set(values))
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    if panel.log_y and all(value > 0 for line in panel.lines for value in line.median):
        axes.set_yscale("log")
    axes.grid(axis="y", color=EDGE, lw=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.set_xlabel(panel.x_label, labelpad=3)
    _legend(axes)


def _legend(axes: Axes) -> None:
    """Make room above the lines, and put the legend there."""
    labels = axes.get_legend_handles_labels()[1]
    count = len(labels)
    is_short = max(map(len, labels), default=0) <= _SHORT_CHARACTERS
    columns = 2 if count > _LEGEND_ROWS and is_short else 1
    share = 1 / (1 - _LEGEND_ROW * math.ceil(count / columns) - 0.02)
    low, high = axes.get_ylim()
    top = low * (high / low) ** share if axes.get_yscale() == "log" else low + (high - low) * share
    axes.set_ylim(low, top)
    axes.legend(frameon=False, fontsize=8.2, loc="upper left", handlelength=1.8, ncols=columns)


def _line(axes: Axes, line: Line, colour: str, marker: str) -> None:
    front = 4 if line.is_ours else 3
    axes.plot(
        line.x,
        line.median,
        color=colour,
        lw=2.2 if line.is_ours else 1.5,
        marker=marker,
        ms=5.5 if len(line.x) <= 20 else 0,
        mec="#ffffff",
        mew=0.8,
        label=line.label,
        zorder=front,
    )
    if line.p99:
        axes.fill_between(
            line.x, line.median, line.p99, color=colour, alpha=0.13, lw=0, zorder=front - 2
        )


def _bars(axes: Axes, panel: BarPanel) -> None:
    bars = list(panel.bars)
    ends = [max(bar.median, bar.p99 or 0) for bar in bars]
    lows = [bar.median for bar in bars if bar.median > 0]
    is_log = bool(lows) and max(ends) / min(lows) > _SPAN
    start = min(lows) / 3 if is_log else 0.0
    for row, bar in enumerate(bars):
        colour = OURS[1] if bar.is_ours else THEIRS[0]
        axes.barh(row, bar.median - start, left=start, color=colour, height=0.55, zorder=3)
        if bar.p99 is not None:
            axes.plot([bar.median, bar.p99], [row, row], color=colour, lw=2.2, alpha=0.55, zorder=2)
            axes.plot(bar.p99, row, marker="|", color=colour, ms=9, mew=1.6, zorder=2)
        text = bar.text or _text(bar.median, bar.p99)
        axes.annotate(
            text,
            (ends[row], row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )
    if panel.limit is not None:
        axes.axvline(panel.limit, color=BAD, lw=1.0, ls=(0, (4, 3)), zorder=1)
    if is_log:
        axes.set_xscale("log")
    far = max([*ends, panel.limit or 0.0, 1e-9])
    axes.set_xlim(start, far * (8 if is_log else 1.55))
    axes.set_ylim(len(bars) - 0.4, -0.6)
    labels = [textwrap.fill(bar.label, _LABEL_CHARACTERS) for bar in bars]
    axes.set_yticks(range(len(bars)), labels, color=INK)


def _text(middle: float, high: float | None) -> str:
    return _number(middle) if high is None else f"{_number(middle)}, p99 {_number(high)}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
