"""In which order, and when, the subgoals of plans become goals; needs no ROS."""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flashrt_ros.engine.protocol import Event, EventKind

LOOK_S = 0.02
"""How often it is looked whether the next subgoal is due, while there is one."""

_LEAVES = frozenset({"abandoned", "forgotten", "failed"})
_CLEARS = frozenset({EventKind.RESET, EventKind.RESTORE, EventKind.ROLLBACK})


def detail_fields(detail: str) -> dict[str, str]:
    """Read ``key=value`` pairs of an event; ``values`` takes the rest of the text."""
    head, sign, values = detail.partition("values=")
    pairs = (word.partition("=") for word in head.split())
    found = {key: value for key, equals, value in pairs if equals}
    return {**found, "values": values} if sign else found


@dataclass(slots=True)
class _Plan:
    """Subgoals of a turn that are not goals yet.

    Attributes:
        waiting: In order.
        has_begun: Whether a subgoal has come.
        is_whole: Whether the turn has ended, so that no more come.
    """

    waiting: list[tuple[float, ...]] = field(default_factory=list)
    has_begun: bool = False
    is_whole: bool = False


class SubgoalSequence:
    """Which subgoal is next, by what a planner engine tells of its turns.

    The first subgoal of a plan is due at once. The next one is due once the robot has
    reached the one before, or once that has been the goal for the dwell time. With its first
    subgoal a turn leaves the plans of turns that ended behind: one that has none, because the
    instruction can't be followed, changes nothing. A turn that was interrupted keeps what it
    has for its resumption. Not safe by itself from several threads.

    Args:
        dwell_ns: Longest time that a subgoal is the goal while another one waits.
        reached_m: Distance at which one is reached; 0 never asks.
    """

    def __init__(self, *, dwell_ns: int, reached_m: float) -> None:
        self._dwell_ns = dwell_ns
        self._reached_m = reached_m
        self._plans: dict[int, _Plan] = {}
        self._current: int | None = None
        self._goal: tuple[float, ...] | None = None
        self._goal_ns = 0

    @property
    def num_waiting(self) -> int:
        """Subgoals of the plan in force that are not goals yet."""
        plan = self._plans.get(-1 if self._current is None else self._current)
        return len(plan.waiting) if plan is not None else 0

    def note(self, event: Event) -> None:
        """Take note of an event of the planner engine."""
        fields = detail_fields(event.detail)
        if event.kind in _CLEARS:
            self.clear()
        elif event.kind == EventKind.SUBGOAL:
            turn = int(fields["turn"])
            values = tuple(float(value) for value in fields["values"].split())
            plan = self._plans.setdefault(turn, _Plan())
            plan.waiting.append(values)
            if not plan.has_begun:
                plan.has_begun = True
                self._follow(turn)
        elif event.kind == EventKind.TURN:
            self._note_turn(event.detail.partition(" ")[0], int(fields["turn"]))

    def clear(self) -> None:
        """Forget every plan; the goal in force stays what it is."""
        self._plans.clear()
        self._current = None
        self._goal = None

    def next(self, now_ns: int, position: Sequence[float] | None) -> tuple[float, ...] | None:
        """Return the subgoal that becomes the goal now, or None.

        Args:
            now_ns: The node's clock.
            position: Of the robot, m, in the coordinates of subgoals; None where unknown.
        """
        plan = self._plans.get(-1 if self._current is None else self._current)
        if plan is None or not plan.waiting or not self._is_due(now_ns, position):
            return None
        self._goal = plan.waiting.pop(0)
        self._goal_ns = now_ns
        return self._goal

    def _note_turn(self, word: str, turn: int) -> None:
        if word == "resumed" and turn in self._plans:
            self._follow(turn)
        elif word == "done" and turn in self._plans:
            self._plans[turn].is_whole = True
        elif word in _LEAVES:
            self._plans.pop(turn, None)
        if word in (*_LEAVES, "interrupted") and turn == self._current:
            self._current = None

    def _follow(self, turn: int) -> None:
        """Put a turn's plan in force; its next subgoal waits for nothing."""
        for number in [n for n, plan in self._plans.items() if plan.is_whole and n != turn]:
            del self._plans[number]
        self._current = turn
        self._goal = None

    def _is_due(self, now_ns: int, position: Sequence[float] | None) -> bool:
        goal = self._goal
        if goal is None:
            return True
        # A clock that was set back must not hold a plan up for as long as it was set back.
        if not 0 <= now_ns - self._goal_ns < self._dwell_ns:
            return True
        if position is None or not self._reached_m or len(position) != len(goal):
            return False
        return math.dist(position, goal) <= self._reached_m


class SubgoalThread:
    """Makes goals of subgoals as they fall due, in a thread of its own until :meth:`close`.

    Args:
        sequence: Owned from here on.
        now_ns: The node's clock.
        commit: Makes a goal of one; what it raises is told to ``on_error``.
        on_error: Told the traceback.
    """

    def __init__(
        self,
        sequence: SubgoalSequence,
        *,
        now_ns: Callable[[], int],
        commit: Callable[[tuple[float, ...]], None],
        on_error: Callable[[str], None],
    ) -> None:
        self._sequence = sequence
        self._now_ns = now_ns
        self._commit = commit
        self._on_error = on_error
        self._position: tuple[float, ...] | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="subgoals", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Subgoals that are not goals yet."""
        with self._changed:
            return self._sequence.num_waiting

    def note(self, event: Event) -> None:
        """Take note of an event of the planner engine."""
        with self._changed:
            self._sequence.note(event)
            self._changed.notify()

    def note_position(self, position: Sequence[float]) -> None:
        """Take note of where the robot is, in the coordinates of subgoals."""
        with self._changed:
            self._position = tuple(position)

    def clear(self) -> None:
        """Forget every plan."""
        with self._changed:
            self._sequence.clear()

    def close(self) -> None:
        """End the thread after the commit in progress; idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                due = self._sequence.next(self._now_ns(), self._position)
                if due is None:
                    # Time and position are looked at only while something waits for them.
                    self._changed.wait(LOOK_S if self._sequence.num_waiting else None)
                    continue
            try:
                self._commit(due)
            except Exception:  # noqa: BLE001 - the boundary of the thread
                if self._is_closed:
                    return
                self._on_error(f"a subgoal could not be committed\n{traceback.format_exc()}")
