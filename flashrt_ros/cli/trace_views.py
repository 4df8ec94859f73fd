"""How a trace looks in a terminal."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flashrt_ros.cli.trace_records import GoalRecord, Trace

_NONE = "\u2013"


def trace_view(trace: Trace) -> RenderableType:
    """Show goals, one a line, with the time from step to step; below them what moved."""
    if not trace.goals:
        return Group(Text("no goal was on its way"), *_moves(trace))
    table = Table(box=None, pad_edge=False)
    for heading in (
        "goal",
        "planner",
        "number",
        "written",
        "committed",
        "latched",
        "at tick",
        "chunk",
        "first acted",
        "at tick",
        "actions",
    ):
        is_text = heading in ("planner", "written")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for goal in trace.goals.values():
        start_ns = goal.first_ns
        table.add_row(
            f"{goal.channel} {goal.sequence}".strip(),
            goal.planner or _NONE,
            str(goal.source_sequence),
            _clock(goal),
            _after(goal.committed_ns, start_ns),
            _after(goal.latched_ns, start_ns),
            _number(goal.latched_tick),
            _after(goal.chunk_ns, start_ns),
            _after(goal.acted_ns, start_ns),
            _number(goal.acted_tick),
            str(goal.num_actions),
        )
    return Group(table, *_moves(trace))


def _moves(trace: Trace) -> list[RenderableType]:
    return [
        Text(f"{_time(move.at_ns)}  {move.kind}  tick {move.tick}  {move.detail}", style="dim")
        for move in trace.moves
    ]


def _clock(goal: GoalRecord) -> str:
    if goal.written_ns is None:
        return f"{goal.stamp_ns / 1e9:.3f} s, another clock"
    return _time(goal.written_ns)


def _after(moment_ns: int | None, start_ns: int | None) -> str:
    if moment_ns is None or start_ns is None:
        return _NONE
    return f"+{(moment_ns - start_ns) / 1e6:.2f} ms"


def _number(value: int | None) -> str:
    return _NONE if value is None else str(value)


def _time(moment_ns: int) -> str:
    return datetime.fromtimestamp(moment_ns / 1e9).astimezone().strftime("%H:%M:%S.%f")[:-3]
