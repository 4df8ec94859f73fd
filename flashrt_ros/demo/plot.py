"""The picture at the end: where the robot went, what happened to it, and how long verbs took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashrt_ros.demo.drawing import (
    COLOUR,
    FAINT,
    GOAL,
    INK,
    LINE,
    MARKER,
    MISSED,
    PAPER,
    PATH_COLOURS,
    SAID,
    TABLE,
    episode,
)
from flashrt_ros.demo.drawing import words as draw_words
from flashrt_ros.demo.trace import EpisodeTrace, MomentKind
from flashrt_ros.sim.episodes import REACH_M

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

_COLUMNS, _ROWS = 5, 4
_FEW_COLUMNS, _FEW_ROWS = 3, 2
_WIDTH_IN = 17.0
_SIDE_IN = 0.35
_TOP_IN = 1.25
_BOTTOM_IN = 0.65
_SMALL_IN = 2.3
_WORDS_IN = 3.1


def save(
    path: Path,
    traces: Sequence[EpisodeTrace],
    figures: Mapping[str, Any],
    *,
    host: Mapping[str, Any],
    is_passed: bool,
    words: EpisodeTrace | None = None,
) -> None:
    """Draw everything into a file; needs no display.

    Args:
        path: Its ending names the format (png, svg, pdf).
        traces: Episodes, one or more.
        figures: Of the report.
        host: Of the report; stands below the picture.
        is_passed: Whether every check held.
        words: The episode in words, None where there was none.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    with mpl.rc_context(_style()):
        figure = _draw(traces, figures, host, is_passed, words)
        figure.savefig(path, dpi=140, facecolor=PAPER)


def _style() -> Any:
    return {
        "font.family": "DejaVu Sans",
        "font.size": 8.5,
        "text.color": INK,
        "axes.edgecolor": LINE,
        "axes.labelcolor": FAINT,
        "axes.linewidth": 0.8,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "figure.facecolor": PAPER,
    }


def _draw(
    traces: Sequence[EpisodeTrace],
    figures: Mapping[str, Any],
    host: Mapping[str, Any],
    is_passed: bool,
    words: EpisodeTrace | None,
) -> Figure:
    from matplotlib.figure import Figure

    shown = list(traces)[: _COLUMNS * _ROWS]
    is_few = len(shown) <= _FEW_COLUMNS * _FEW_ROWS
    columns = _FEW_COLUMNS if is_few else _COLUMNS
    rows = _FEW_ROWS if is_few else math.ceil(len(shown) / columns)
    tables, strip = rows * _SMALL_IN, 1.9
    said = _WORDS_IN + 0.55 if words is not None else 0.0
    height = _TOP_IN + tables + said + 0.75 + strip + _BOTTOM_IN
    figure = Figure(figsize=(_WIDTH_IN, height))
    _title(figure, traces, figures, is_passed, height)

    def part(left: float, right: float, top: float, size: float) -> GridSpec:
        """Return a grid over inches from the upper left corner."""
        return figure.add_gridspec(
            1,
            1,
            left=left / _WIDTH_IN,
            right=right / _WIDTH_IN,
            top=1 - top / height,
            bottom=1 - (top + size) / height,
        )

    if is_few:
        split = _SIDE_IN + 2 * tables + 0.25
        heroes = part(_SIDE_IN, split, _TOP_IN, tables)[0].subgridspec(1, 2, wspace=0.05)
    else:
        split = _SIDE_IN + (tables - 0.35) / 2
        heroes = part(_SIDE_IN, split, _TOP_IN, tables)[0].subgridspec(2, 1, hspace=0.15)
    _hero(figure.add_subplot(heroes[0]), _best(traces, "interrupt"), "interrupt")
    _hero(figure.add_subplot(heroes[1]), _best(traces, "fork"), "fork")
    right = part(split + 0.3, _WIDTH_IN - _SIDE_IN, _TOP_IN, tables)
    small = right[0].subgridspec(rows, columns, hspace=0.06, wspace=0.04)
    for number, trace in enumerate(shown):
        axes = figure.add_subplot(small[number // columns, number % columns])
        episode(axes, trace, is_small=True)
    if words is not None:
        top = _TOP_IN + tables + 0.5
        at = part(_SIDE_IN, _SIDE_IN + _WORDS_IN, top, _WORDS_IN)
        _words(figure.add_subplot(at[0]), words)
        at = part(_SIDE_IN + _WORDS_IN + 0.4, _WIDTH_IN - _SIDE_IN, top, _WORDS_IN)
        _transcript(figure.add_subplot(at[0]), words, figures)
    middle = _WIDTH_IN * 0.66
    below = _TOP_IN + tables + said + 0.55
    _timeline(figure.add_subplot(part(_SIDE_IN + 0.3, middle, below, strip)[0]), traces)
    durations = part(middle + 2.0, _WIDTH_IN - _SIDE_IN, below, strip)
    _durations(figure.add_subplot(durations[0]), figures)
    line = f"{host['cpu']}, {host['num_cpus']} CPUs · Python {host['python']} · "
    line += f"flashrt_ros {host['flashrt_ros']} · {host['date']}"
    figure.text(
        1 - _SIDE_IN / _WIDTH_IN, 0.12 / height, line, color=FAINT, fontsize=7.5, ha="right"
    )
    return figure


def _title(
    figure: Figure,
    traces: Sequence[EpisodeTrace],
    figures: Mapping[str, Any],
    is_passed: bool,
    height: float,
) -> None:
    reached = sum(trace.is_reached for trace in traces)
    top = 1 - 0.42 / height
    left, right = _SIDE_IN / _WIDTH_IN, 1 - _SIDE_IN / _WIDTH_IN
    figure.text(left, top, "flashrt_ros", fontsize=22, fontweight="bold", va="center")
    interrupts = sum(trace.seen("interrupt") for trace in traces)
    forks = sum(trace.seen("fork") for trace in traces)
    facts = [
        f"{reached} of {len(traces)} subgoals reached",
        f"{interrupts} interrupted and resumed",
        f"{forks} forked into {figures.get('branches', 0)} branches",
        f"{len(traces)} resets, {figures.get('stale_after_reset', 'unknown')} stale actions",
    ]
    figure.text(
        left + 2.15 / _WIDTH_IN,
        top - 0.02 / height,
        "a captured policy drives a robot over ROS 2",
        fontsize=13.5,
        va="center",
    )
    figure.text(left, 1 - 0.82 / height, "   ·   ".join(facts), color=FAINT, fontsize=10.5)
    figure.text(
        right,
        top,
        "all checks held" if is_passed else "not all checks held",
        color=GOAL if is_passed else MISSED,
        fontsize=13,
        fontweight="bold",
        ha="right",
        va="center",
    )


def _best(traces: Sequence[EpisodeTrace], kind: MomentKind) -> EpisodeTrace:
    """Choose the episode that shows a verb best, else the longest of all.

    That is the one whose branches differ most for a fork, otherwise the longest.
    """
    with_verb = [trace for trace in traces if trace.seen(kind) and trace.is_reached]
    with_verb = with_verb or [trace for trace in traces if trace.seen(kind)]
    forked = [trace for trace in with_verb if trace.branches]
    if kind == "fork" and forked:
        return max(forked, key=_spread)
    return max(with_verb or traces, key=lambda trace: len(trace.path))


def _spread(trace: EpisodeTrace) -> float:
    return float(np.ptp(np.array(trace.branches), axis=0).max())


def _hero(axes: Axes, trace: EpisodeTrace, kind: MomentKind) -> None:
    episode(axes, trace, is_small=False)
    title = f"episode {trace.index + 1}"
    if kind == "interrupt" and trace.seen(kind):
        title += ": interrupted in the middle of a chunk, then resumed"
    elif kind == "fork" and trace.seen(kind):
        title += f": {len(trace.branches)} branches from one boundary, the best selected"
    axes.set_title(title, loc="left", fontsize=9.5, color=INK, pad=5)


def _words(axes: Axes, trace: EpisodeTrace) -> None:
    draw_words(axes, trace)
    axes.set_title("in words", loc="left", fontsize=9.5, color=INK, pad=5)


def _transcript(axes: Axes, trace: EpisodeTrace, figures: Mapping[str, Any]) -> None:
    """Write what was said, what was made of it, and what was reached."""
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(1, 0))
    axes.set_title(
        "words, planner, goals, policy, robot: what was said to a robot that moves, and its plans",
        loc="left",
        fontsize=9.5,
        color=INK,
        pad=5,
    )
    for number, saying in enumerate(trace.sayings):
        top = (number + 0.18) / max(3, len(trace.sayings))
        colour = SAID[number % len(SAID)]
        axes.text(
            0.0,
            top,
            f"{number + 1}   {saying.time_s:.1f} s   \u201c{saying.text}\u201d",
            color=colour,
            fontsize=12,
            weight="bold",
            va="center",
        )
        parts = [
            f"{number + 1}{'abcdefghi'[index]} ({x * 1e3:.0f}, {y * 1e3:.0f}) mm "
            + ("reached" if index < saying.num_reached else "left")
            for index, (x, y) in enumerate(saying.subgoals)
        ]
        text = "   ·   ".join(parts) or "refused: it is nothing about the table; the plan goes on"
        axes.text(0.034, top + 0.13, text, color=INK, fontsize=10, va="center")
    if "words_to_goal_ms" in figures:
        quick = " and ".join(f"{value:.0f}" for value in figures["words_to_goal_ms"])
        text = f"from words to the first goal: {quick} ms"
        axes.text(0.034, 0.99, text, color=FAINT, fontsize=8.5, va="center")


def _timeline(axes: Axes, traces: Sequence[EpisodeTrace]) -> None:
    """Draw the distance left over time; every verb is a mark on it."""
    seen: set[MomentKind] = set()
    for trace in traces:
        if len(trace.path) < 2:
            continue
        times = np.array(trace.times_s)
        left = np.hypot(*(np.array(trace.path) - np.array(trace.subgoal)).T) * 1e3
        axes.plot(times, left, color=PATH_COLOURS[1], lw=1.3, solid_capstyle="round", zorder=3)
        axes.fill_between(times, left, color=PATH_COLOURS[0], alpha=0.3, lw=0, zorder=2)
        for moment in trace.moments:
            at = float(np.interp(moment.time_s, times, left))
            if moment.kind == "reset":
                axes.axvline(moment.time_s, color=FAINT, lw=0.9, ls=(0, (1, 3)), zorder=1)
                continue
            if moment.kind == "select":
                continue
            axes.plot(
                moment.time_s,
                at,
                marker=MARKER[moment.kind],
                ms=6.5,
                mfc=COLOUR[moment.kind],
                mec=TABLE,
                mew=0.9,
                ls="",
                label=moment.kind if moment.kind not in seen else None,
                zorder=5,
            )
            seen.add(moment.kind)
    axes.axhspan(0, REACH_M * 1e3, color=GOAL, alpha=0.13, lw=0, zorder=1)
    axes.set_xlim(0, max(trace.times_s[-1] for trace in traces if trace.times_s))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("s, dotted lines are resets", labelpad=2)
    axes.set_title("distance to the subgoal, mm", loc="left", fontsize=9.5, pad=5)
    _open(axes)
    if seen:
        axes.legend(
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            frameon=False,
            fontsize=8,
            ncols=3,
            handletextpad=0.1,
            borderpad=0,
        )


def _durations(axes: Axes, figures: Mapping[str, Any]) -> None:
    """Draw p50 and p99 of the timed verbs."""
    names = {
        "ping_us": "client: ping",
        "client_reset_us": "client: reset",
        "trigger_us": "service: empty Trigger",
        "reset_service_us": "service: reset",
    }
    timed = [(label, figures[name]) for name, label in names.items() if name in figures]
    for row, (label, figure) in enumerate(timed):
        p50, p99 = figure["p50"], figure["p99"]
        colour = GOAL if "reset" in label else FAINT
        axes.plot([p50, p99], [row, row], color=colour, lw=5, alpha=0.3, solid_capstyle="round")
        axes.plot(p50, row, marker="o", ms=7, mfc=colour, mec=TABLE, mew=1.1)
        axes.text(p99 * 1.25, row, f"{_time(p50)}, p99 {_time(p99)}", va="center", fontsize=7.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(timed)), [label for label, _ in timed], color=INK)
    if timed:
        axes.set_xlim(
            min(figure["p50"] for _, figure in timed) / 1.6,
            max(figure["p99"] for _, figure in timed) * 9,
        )
        axes.set_ylim(-0.6, len(timed) - 0.4)
    axes.set_title("what a reset costs, µs, p50 to p99", loc="left", fontsize=9.5, pad=5)
    _open(axes)


def _open(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=2.5, width=0.6)


def _time(us: float) -> str:
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1e3:.1f} ms"
