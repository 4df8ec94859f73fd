"""In which order, and when, the subgoals of plans become goals; needs no ROS."""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flashrt_ros.engine.protocol import Event, EventKind, parse_detail

LOOK_S = 0.02
"""How often it is looked whether the next subgoal is due, while there is one."""

_RESTORED = 0
_LEAVES = frozenset({"abandoned", "forgotten", "failed"})
_CLEARS = frozenset({EventKind.RESET, EventKind.RESTORE, EventKind.ROLLBACK})


@dataclass(frozen=True, slots=True)
class SubgoalState:
    """Where a plan stands between two of its subgoals.

    Attributes:
        waiting: Subgoals that are not goals yet, in order.
        goal: The one that is; None before the first.
        elapsed_ns: For how long it has been.
        goal_sequence: The policy engine's number of it; 0 where it was refused.
    """

    waiting: tuple[tuple[float, ...], ...] = ()
    goal: tuple[float, ...] | None = None
    elapsed_ns: int = 0
    goal_sequence: int = 0


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
        self._goal_sequence = 0
        self._last_settled = 0
        self._cleared_until = 0

    @property
    def num_waiting(self) -> int:
        """Subgoals of the plan in force that are not goals yet."""
        plan = self._plans.get(-1 if self._current is None else self._current)
        return len(plan.waiting) if plan is not None else 0

    def note(self, event: Event) -> None:
        """Take note of an event of the planner engine."""
        if event.kind in _CLEARS:
            if event.generation > self._cleared_until:
                self.clear()
        elif event.kind == EventKind.SUBGOAL:
            facts = parse_detail(event.detail).facts
            turn = int(facts["turn"])
            values = tuple(float(value) for value in facts["values"].split())
            plan = self._plans.setdefault(turn, _Plan())
            plan.waiting.append(values)
            if not plan.has_begun:
                plan.has_begun = True
                self._follow(turn)
        elif event.kind == EventKind.TURN:
            said = parse_detail(event.detail)
            self._note_turn(said.word, int(said.facts["turn"]))

    def clear(self) -> None:
        """Forget every plan; the goal in force stays what it is."""
        self._plans.clear()
        self._current = None
        self._goal = None
        self._goal_sequence = 0

    def is_settled(self, turn: int) -> bool:
        """Tell whether all has been heard of a turn and of those before it, and none is under way.

        Args:
            turn: The last one that was begun; 0 for none.
        """
        plan = self._plans.get(-1 if self._current is None else self._current)
        return self._last_settled >= turn and (plan is None or plan.is_whole)

    def note_sequence(self, sequence: int) -> None:
        """Take note of the number that the policy's engine gave to the goal in force."""
        self._goal_sequence = sequence

    def shift(self, duration_ns: int) -> None:
        """Leave a time in which nothing happened out of the dwell time."""
        self._goal_ns += duration_ns

    def state(self, now_ns: int) -> SubgoalState:
        """Return where the plan in force stands; interrupted plans are no part of it."""
        plan = self._plans.get(-1 if self._current is None else self._current)
        return SubgoalState(
            tuple(plan.waiting) if plan is not None else (),
            self._goal,
            max(0, now_ns - self._goal_ns) if self._goal is not None else 0,
            self._goal_sequence,
        )

    def put_state(self, state: SubgoalState, now_ns: int, *, generation: int) -> None:
        """Take a plan over in place of every other.

        Args:
            state: As :meth:`state` returned it.
            now_ns: The node's clock.
            generation: Of the move that brought the text back: its own event clears nothing.
        """
        self.clear()
        self._cleared_until = generation
        # no turn has this number, whatever the engine counts from now on
        self._plans[_RESTORED] = _Plan(list(state.waiting), is_whole=True)
        self._current = _RESTORED
        self._goal = state.goal
        self._goal_ns = now_ns - state.elapsed_ns
        self._goal_sequence = state.goal_sequence

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
        if word in (*_LEAVES, "interrupted", "done"):
            self._last_settled = max(self._last_settled, turn)

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
        commit: Makes a goal of one and returns the policy engine's number of it, 0 where it
            was refused; what it raises is told to ``on_error``.
        on_error: Told the traceback.
    """

    def __init__(
        self,
        sequence: SubgoalSequence,
        *,
        now_ns: Callable[[], int],
        commit: Callable[[tuple[float, ...]], int],
        on_error: Callable[[str], None],
    ) -> None:
        self._sequence = sequence
        self._now_ns = now_ns
        self._commit = commit
        self._on_error = on_error
        self._position: tuple[float, ...] | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_committing = False
        self._held_ns: int | None = None
        self._pending: tuple[float, ...] | None = None
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
            self._changed.notify_all()

    def note_position(self, position: Sequence[float]) -> None:
        """Take note of where the robot is, in the coordinates of subgoals."""
        with self._changed:
            self._position = tuple(position)

    def clear(self) -> None:
        """Forget every plan."""
        with self._changed:
            self._sequence.clear()

    # standing still --------------------------------------------------------------------------

    def hold(self, turn: int, timeout_s: float) -> bool:
        """Make no goals from here on, once all has been heard of the turns begun.

        Args:
            turn: The last one that was begun; 0 for none.
            timeout_s: How long to wait for that.

        Returns:
            Whether it stands still; :meth:`release` is owed then.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: (
                    self._is_closed or (self._sequence.is_settled(turn) and not self._is_committing)
                ),
                timeout_s,
            ):
                return False
            self._held_ns = self._now_ns()
            return not self._is_closed

    def state(self) -> SubgoalState:
        """Return where the plan in force stood when it was held."""
        with self._changed:
            return self._sequence.state(self._now_ns() if self._held_ns is None else self._held_ns)

    def put_state(self, state: SubgoalState, *, generation: int, is_pending: bool) -> None:
        """Take a plan over while held.

        Args:
            state: As :meth:`state` returned it.
            generation: As for ``SubgoalSequence.put_state``.
            is_pending: The goal in force has to be given to the policy again at the release.
        """
        with self._changed:
            now_ns = self._now_ns() if self._held_ns is None else self._held_ns
            self._sequence.put_state(state, now_ns, generation=generation)
            self._pending = state.goal if is_pending else None

    def release(self) -> None:
        """Go on; a goal that is pending is committed before this returns."""
        with self._changed:
            pending, self._pending = self._pending, None
        if pending is not None:
            sequence = self._commit(pending)
            with self._changed:
                self._sequence.note_sequence(sequence)
        with self._changed:
            if self._held_ns is not None:
                self._sequence.shift(self._now_ns() - self._held_ns)
                self._held_ns = None
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread after the commit in progress; idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                due = None
                if self._held_ns is None:
                    due = self._sequence.next(self._now_ns(), self._position)
                if due is None:
                    # Time and position are looked at only while something waits for them.
                    is_awaited = self._held_ns is None and self._sequence.num_waiting
                    self._changed.wait(LOOK_S if is_awaited else None)
                    continue
                self._is_committing = True
            try:
                sequence = self._commit(due)
                with self._changed:
                    self._sequence.note_sequence(sequence)
            except Exception:  # noqa: BLE001 - the boundary of the thread
                if self._is_closed:
                    return
                self._on_error(f"a subgoal could not be committed\n{traceback.format_exc()}")
            finally:
                with self._changed:
                    self._is_committing = False
                    self._changed.notify_all()
