"""The picture of a trace: when each goal was in force, and where its time went before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.cli.trace_records import GoalRecord, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER = "#fbfaf7"
INK = "#22303c"
FAINT = "#8a96a0"
LINE = "#dfe3e6"
WAIT = "#c4ccd3"
COMMIT = "#7fb0e6"
PLAN = "#1f62b5"
QUEUE = "#ef8a1d"
ACT = "#1f9d61"
MOVE = {"reset": "#cf3f3f", "interrupt": "#ef8a1d", "resume": "#7b4fc9", "safety": "#cf3f3f"}

STEPS = (
    ("written_ns", "committed_ns", COMMIT, "written to committed"),
    ("committed_ns", "latched_ns", PLAN, "committed to latched"),
    ("latched_ns", "acted_ns", QUEUE, "latched to first acted"),
)
"""Spans before a goal acts, in order."""

_SHOWN = 40
_LABELS = 12
_ROW_INCH = 0.34


def draw_trace(trace: Trace, path: Path, *, title: str) -> None:
    """Draw a trace into a file; the newest goals where there are too many.

    Args:
        trace: To be drawn.
        path: Image file; its suffix names the format.
        title: Above the picture.
    """
    from matplotlib.figure import Figure

    goals = list(trace.goals.values())[-_SHOWN:]
    figure = Figure(
        figsize=(11.5, 2.4 + _ROW_INCH * max(3, len(goals))), facecolor=PAPER, layout="constrained"
    )
    timeline, spans = figure.subplots(1, 2, sharey=True, width_ratios=(2.2, 1.0))
    figure.suptitle(title, x=0.012, ha="left", color=INK, fontsize=12, fontweight="bold")
    for axes in (timeline, spans):
        axes.set_facecolor(PAPER)
        axes.tick_params(colors=FAINT, labelcolor=INK, length=0, labelsize=8)
        axes.grid(axis="x", color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        for side in axes.spines.values():
            side.set_visible(False)
    _timeline(timeline, trace, goals)
    _spans(spans, goals)
    figure.legend(loc="outside lower right", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    timeline.set_yticks(range(len(goals)), [_name(goal) for goal in goals])
    timeline.set_ylim(max(len(goals), 1) - 0.4, -1.1)
    figure.savefig(path, dpi=150, facecolor=PAPER)


def _timeline(axes: Axes, trace: Trace, goals: list[GoalRecord]) -> None:
    """When each goal was on its way, and when it was acted on."""
    for row, goal in enumerate(goals):
        first_ns = goal.first_ns
        if first_ns is None:
            continue
        start = _s(first_ns, trace)
        acted = goal.acted_ns if goal.acted_ns is not None else goal.latched_ns
        begin = _s(acted, trace) if acted is not None else start
        axes.barh(row, begin - start, left=start, height=0.34, color=WAIT)
        if goal.last_acted_ns is not None:
            end = _s(goal.last_acted_ns, trace)
            axes.barh(row, end - begin, left=begin, height=0.56, color=ACT)
            axes.annotate(
                f"{goal.num_actions}",
                (end, row),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                color=FAINT,
                fontsize=7,
            )
        axes.plot(start, row, marker="|", color=INK, markersize=9)
    for number, move in enumerate(trace.moves):
        colour = MOVE.get(move.kind, FAINT)
        at = _s(move.at_ns, trace)
        axes.axvline(at, color=colour, linewidth=1.0, alpha=0.7, zorder=0.5)
        if number < _LABELS:
            axes.annotate(
                move.kind,
                (at, -0.75),
                xytext=(3, 0),
                textcoords="offset points",
                color=colour,
                fontsize=7,
                va="center",
            )
    axes.set_xlim(0.0, max(_s(trace.ended_ns, trace), 0.1))
    axes.set_xlabel("s since the trace began", color=INK, fontsize=8)
    axes.set_title(
        "on its way (grey), acted on (green, with the number of actions)",
        loc="left",
        color=INK,
        fontsize=9,
    )


def _spans(axes: Axes, goals: list[GoalRecord]) -> None:
    """Where the time went until the first action, ms."""
    longest = 0.0
    for row, goal in enumerate(goals):
        moments = [getattr(goal, STEPS[0][0]), *(getattr(goal, step[1]) for step in STEPS)]
        known = [moment for moment in moments if moment is not None]
        if len(known) < 2 or goal.acted_ns is None:
            continue
        place = known[0]
        for (_, end, colour, _), moment in zip(STEPS, moments[1:], strict=True):
            if moment is None or moment < place:  # the planner node hears late of a commit
                continue
            if end == "latched_ns" and goal.committed_ns is None:
                colour = WAIT
            axes.barh(
                row,
                (moment - place) / 1e6,
                left=(place - known[0]) / 1e6,
                height=0.56,
                color=colour,
            )
            place = moment
        total = (known[-1] - known[0]) / 1e6
        longest = max(longest, total)
        axes.annotate(
            f"{total:.1f}",
            (total, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=FAINT,
            fontsize=7,
        )
    axes.set_xlim(0.0, longest * 1.15 or 1.0)
    axes.set_xlabel("ms", color=INK, fontsize=8)
    axes.set_title("until the first action", loc="left", color=INK, fontsize=9)
    for colour, label in (*((step[2], step[3]) for step in STEPS), (WAIT, "written to latched")):
        axes.barh(-9, 0, color=colour, label=label)


def _s(moment_ns: int, trace: Trace) -> float:
    return (moment_ns - trace.began_ns) / 1e9


def _name(goal: GoalRecord) -> str:
    return f"{goal.planner or 'goal'} {goal.sequence}"
