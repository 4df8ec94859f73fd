"""What the demo shows while it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import textwrap
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from flashrt_ros.demo import minimap
from flashrt_ros.demo.report import Check, Control
from flashrt_ros.demo.trace import EpisodeTrace, Pose

_REFRESH_HZ = 3.0
_SAID = 64
_FACTS_COLUMNS = 68
_STATUS_LINES = 8
_LEAST_SAID = 4
_TIME_COLUMNS = 9
_PANEL_COLUMNS = 4


class Status(Protocol):
    """The figures shown of the engine; ``EngineStatus`` has them."""

    state: str
    waiting_for: str
    tick_source: str
    tick: int
    generation: int
    rate_hz: float
    replay_p50_us: float
    replay_p99_us: float
    lateness_p99_us: float
    deadline_misses: int
    goal_age_ns: int
    observation_age_ns: int
    lanes_used: int
    lanes_total: int
    interrupt_depth: int


@dataclass(slots=True)
class Board:
    """What is to be shown now; written by the demo, read by a view's thread.

    Attributes:
        phase: What the demo is doing.
        num_episodes: To be run.
        traces: Episodes so far, the running one last.
        block: Where the T is now, None before the first episode.
        status: The engine's newest figures.
        said: What happened, newest last, each with the time since the start in s.
        entries: Checks and controls so far.
    """

    phase: str = "starting"
    num_episodes: int = 0
    traces: list[EpisodeTrace] = field(default_factory=list)
    block: Pose | None = None
    status: Status | None = None
    said: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_SAID))
    entries: list[Check | Control] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)


class View:
    """Plain lines, one for each thing that happens; base of the live view.

    Args:
        board: Shared with the demo.
        console: Where it goes.
    """

    def __init__(self, board: Board, console: Console) -> None:
        self.board = board
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the screen as it is. Idempotent."""

    def say(self, text: str) -> None:
        """Tell what just happened."""
        elapsed = time.monotonic() - self.board.started
        self.board.said.append((elapsed, text))
        self._print(f"[dim]{elapsed:6.1f}s[/dim]  {escape(text)}")

    def phase(self, text: str) -> None:
        """Tell what begins."""
        self.board.phase = text
        elapsed = time.monotonic() - self.board.started
        self.board.said.append((elapsed, text))
        self._print(f"[dim]{elapsed:6.1f}s[/dim]  [bold]{escape(text)}[/bold]")

    def entry(self, entry: Check | Control) -> None:
        """Show a check or control."""
        self.board.entries.append(entry)
        elapsed = time.monotonic() - self.board.started
        self._print(f"[dim]{elapsed:6.1f}s[/dim]  " + _line(entry))

    def _print(self, markup: str) -> None:
        self.console.print(markup, highlight=False, soft_wrap=True)


class LiveView(View):
    """A table that redraws itself; needs a terminal."""

    def __init__(self, board: Board, console: Console) -> None:
        super().__init__(board, console)
        self._lock = threading.Lock()
        self._live = Live(
            get_renderable=self._render,
            console=console,
            refresh_per_second=_REFRESH_HZ,
            screen=True,
        )
        self._live.start()

    def close(self) -> None:
        """Give the terminal back. Idempotent."""
        with self._lock:
            self._live.stop()

    def _print(self, markup: str) -> None:
        """Say nothing: the table shows it."""

    def _render(self) -> RenderableType:
        return render(self.board, self.console.width, self.console.height)


def render(board: Board, width: int, height: int) -> RenderableType:
    """Lay a board out for a terminal of ``width`` columns and ``height`` lines."""
    root = Layout()
    map_columns = max(24, min(2 * (height - 4), 72, width - _FACTS_COLUMNS)) // 2 * 2
    root.split_row(
        Layout(_map_panel(board, map_columns), name="map", size=map_columns + _PANEL_COLUMNS),
        Layout(name="facts"),
    )
    facts_columns = width - map_columns - _PANEL_COLUMNS
    num_checks = len([entry for entry in board.entries if isinstance(entry, Check)])
    num_checks = max(0, min(num_checks, height - _STATUS_LINES - _LEAST_SAID - 5))
    root["facts"].split_column(
        Layout(_status_panel(board), name="status", size=_STATUS_LINES),
        Layout(
            _said_panel(
                board, height - _STATUS_LINES - num_checks - 5, facts_columns - _PANEL_COLUMNS
            ),
            name="said",
        ),
        Layout(_checks_panel(board, num_checks), name="checks", size=num_checks + 3),
    )
    return root


def summary(entries: list[Check | Control]) -> RenderableType:
    """Lay out all checks with their controls, for the end."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("", "check", "found", "expected", "its controls"):
        table.add_column(title, overflow="fold")
    controls = [entry for entry in entries if isinstance(entry, Control)]
    for entry in entries:
        if not isinstance(entry, Check):
            continue
        own = [control for control in controls if control.figure == entry.name]
        shown = [Text.from_markup(_control_line(control)) for control in own]
        table.add_row(
            _mark(entry.is_held), entry.name, short(entry.found), entry.expected, Group(*shown)
        )
    return table


def short(value: Any) -> str:
    """Show a figure in few characters."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {short(part)}" for key, part in value.items())
    return str(value)


def _map_panel(board: Board, columns: int) -> RenderableType:
    if not board.traces or board.block is None:
        return Panel(Text("waiting for the robot", style="dim"), title="table", border_style="dim")
    trace = board.traces[-1]
    legend = Text.assemble(
        ("● agent ", _rgb(minimap.AGENT)),
        ("○ subgoal ", _rgb(minimap.SUBGOAL)),
        ("○ interrupt", _rgb(minimap.DETOUR)),
    )
    return Panel(
        minimap.draw(trace, board.block, columns),
        title=f"{_episode(trace, board)} · seed {trace.seed}",
        subtitle=legend,
        border_style="dim",
    )


def _episode(trace: EpisodeTrace, board: Board) -> str:
    return "in words" if trace.index < 0 else f"episode {trace.index + 1}/{board.num_episodes}"


def _status_panel(board: Board) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for _ in range(4):
        grid.add_column(no_wrap=True)
    status = board.status
    done = [trace for trace in board.traces if trace.block_end is not None]
    reached = sum(trace.is_reached for trace in done)
    rows = [("reached", f"{reached} of {len(done)}", "", "")]
    if status is not None:
        late = f"p99 {status.lateness_p99_us / 1e3:.2f} ms, {status.deadline_misses} missed"
        rows = [
            ("rate", f"{status.rate_hz:.1f} Hz, {status.tick_source}", "tick", f"{status.tick}"),
            (
                "replay",
                f"p50 {status.replay_p50_us / 1e3:.1f} ms, p99 {status.replay_p99_us / 1e3:.1f} ms",
                "generation",
                f"{status.generation}",
            ),
            ("late", late, "interrupts", f"{status.interrupt_depth} stacked"),
            (
                "goal age",
                _age(status.goal_age_ns),
                "lanes",
                f"{status.lanes_used} of {status.lanes_total}",
            ),
            ("image age", _age(status.observation_age_ns), "reached", f"{reached} of {len(done)}"),
            (
                "state",
                f"waits for {status.waiting_for}" if status.waiting_for else status.state,
                "",
                "",
            ),
        ]
    for row in rows:
        grid.add_row(f"[dim]{row[0]}[/dim]", row[1], f"[dim]{row[2]}[/dim]", row[3])
    elapsed = time.monotonic() - board.started
    return Panel(
        grid, title=f"[bold]{escape(board.phase)}[/bold] · {elapsed:.0f} s", border_style="blue"
    )


def _said_panel(board: Board, count: int, columns: int) -> RenderableType:
    lines: list[str] = []
    for when, said in list(board.said)[-count:]:
        # figures stand at the end of a line, so that none may be cut
        first, *rest = textwrap.wrap(said, max(1, columns - _TIME_COLUMNS)) or [""]
        lines.append(f"[dim]{when:6.1f}s[/dim]  {escape(first)}")
        lines.extend(" " * _TIME_COLUMNS + escape(part) for part in rest)
    lines = lines[-count:]
    text = Text.from_markup("\n".join(lines), overflow="ellipsis")
    text.no_wrap = True
    return Panel(text, title="what just happened", border_style="dim")


def _checks_panel(board: Board, count: int) -> RenderableType:
    checks = [entry for entry in board.entries if isinstance(entry, Check)]
    controls = [entry for entry in board.entries if isinstance(entry, Control)]
    if len(checks) > count:  # those that failed stay in sight, then the newest
        checks.reverse()
        checks = sorted(checks, key=lambda check: check.is_held)[:count]
    lines = [_line(entry) for entry in checks]
    held = sum(control.is_held for control in controls)
    lines.append(f"[dim]{held} of {len(controls)} controls noticed what was broken[/dim]")
    text = Text.from_markup("\n".join(lines), overflow="ellipsis")
    text.no_wrap = True
    return Panel(text, title="checks", border_style="dim")


def _line(entry: Check | Control) -> str:
    found = escape(short(entry.found))
    if isinstance(entry, Control):
        return f"{_mark(entry.is_held)}   [dim]control: {escape(entry.what)}: {found}[/dim]"
    return (
        f"{_mark(entry.is_held)} {escape(entry.name)} [bold]{found}[/bold] "
        f"[dim]({escape(entry.expected)})[/dim]"
    )


def _control_line(control: Control) -> str:
    found = escape(short(control.found))
    return f"{_mark(control.is_held)} [dim]{escape(control.what)}: {found}[/dim]"


def _mark(is_held: bool) -> str:
    return "[green]✓[/green]" if is_held else "[bold red]✗[/bold red]"


def _age(age_ns: int) -> str:
    return "none yet" if age_ns < 0 else f"{age_ns / 1e9:.2f} s"


def _rgb(colour: minimap.Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
