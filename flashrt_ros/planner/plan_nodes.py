"""The plan nodes of a planner engine: which is next, submitted, and taken in once it is done."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from flashrt_ros.capsule.room import NotYet
from flashrt_ros.errors import DeviceLostError, FlashrtError
from flashrt_ros.planner.core import PlannerCore, TextEnvironment
from flashrt_ros.planner.prefixes import PrefixLibrary
from flashrt_ros.planner.turn import Turn
from flashrt_ros.planner.turns import Turns
from flashrt_ros.runtime.backend import Fence

BUILD = "build"
"""Kind of a node of the prefix library; a turn's are named by the turn."""

_REHEARSALS = 3
"""Times that a kind of node is timed; the longest counts."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A node under way.

    Attributes:
        fence: Done once the node is.
        env: Whose turn it belongs to; None for the prefix library's.
        turn: That turn, which may have left its environment since.
        submitted_ns: When it was submitted, engine clock.
    """

    fence: Fence
    env: TextEnvironment | None
    turn: Turn | None
    submitted_ns: int


class PlanNodes:
    """Runs the prefix library and the texts in turn, one node at a time.

    Nothing here blocks but :meth:`wait` and :meth:`rehearse`. A node is submitted only when
    the one before it is done, also one whose turn was left: what it reads is its own until
    then.

    Args:
        core: The engine's parts.
        prefixes: Builds prefixes.
        turns: Runs turns.
    """

    def __init__(self, core: PlannerCore, prefixes: PrefixLibrary, turns: Turns) -> None:
        self._core = core
        self._prefixes = prefixes
        self._turns = turns
        self._flight: _Flight | None = None
        self._next_env = 0
        self._is_prefix_due = False
        self._waits_for_room = False

    @property
    def has_work(self) -> bool:
        """Whether :meth:`advance` would do something now.

        Raises:
            DeviceLostError: The device's context is gone.
        """
        if self._flight is not None:
            return self._flight.fence.is_done
        return self._can_build or self._turns.next_env(self._next_env) is not None

    @property
    def is_waiting(self) -> bool:
        """Whether a node is under way on the device: ask :attr:`has_work` again soon."""
        return self._flight is not None

    @property
    def is_held_up(self) -> bool:
        """Whether something waits for bytes or room."""
        return self._waits_for_room or self._turns.are_held_up

    @property
    def next_kind(self) -> str:
        """Kind of the node that :meth:`advance` would submit; "" where it submits none."""
        if self._flight is not None:
            return ""
        env = self._turns.next_env(self._next_env)
        if self._builds_next(env):
            return BUILD
        return env.turn.next_kind if env is not None and env.turn is not None else ""

    def advance(self) -> None:
        """Take in the node that is done, else submit the next one.

        Where a node is done when its submission returns, it is taken in at once.

        Raises:
            DeviceLostError: Nothing can run any more.
        """
        if self._flight is None:
            self._submit()
        flight = self._flight
        if flight is not None and flight.fence.is_done:
            self._flight = None
            if flight.env is not None and flight.turn is not None:
                self._turns.take_in(flight.env, flight.turn, flight.submitted_ns)

    def wait(self) -> bool:
        """Return when the device has come further; False when nothing is under way."""
        if self._flight is None:
            return False
        self._flight.fence.wait()
        return True

    def try_again(self) -> None:
        """Let what waited for bytes or room try again: something may have been moved."""
        self._waits_for_room = False
        self._turns.try_again()

    def rehearse(self) -> dict[str, int]:
        """Run nodes on the lane that prefixes are built on, alone; say what they took, ns, by kind.

        For an engine that serves nobody yet, with every prefix built.
        """
        core, session = self._core, self._core.builder
        length = min(core.model.chunk_length, core.model.max_positions - 1)
        times = {"prefill": 0, "decode": 0}
        for _ in range(_REHEARSALS):
            session.reset()
            started_ns = core.clock_ns()
            session.append([0] * length)
            times["prefill"] = max(times["prefill"], self._end_of_node() - started_ns)
            token, _ = session.chosen()
            started_ns = core.clock_ns()
            session.submit_decode(token)
            times["decode"] = max(times["decode"], self._end_of_node() - started_ns)
        session.reset()
        return times

    def close(self) -> None:
        """Wait for the node under way, if there is one; idempotent."""
        with suppress(DeviceLostError):  # which does nothing any more
            self.wait()
        self._flight = None

    def _end_of_node(self) -> int:
        """Wait for a rehearsed node and its token; return when it was done."""
        self._core.builder.submit_reading()
        self._core.backend.fence().wait()
        return self._core.clock_ns()

    @property
    def _can_build(self) -> bool:
        return self._prefixes.is_building and not self._waits_for_room

    def _builds_next(self, env: TextEnvironment | None) -> bool:
        return self._can_build and (env is None or self._is_prefix_due)

    def _submit(self) -> None:
        started_ns = self._core.clock_ns()
        env = self._turns.next_env(self._next_env)
        turn = None
        if self._builds_next(env):
            env = None
            self._is_prefix_due = False
            if not self._build():
                return
        elif env is not None:
            self._is_prefix_due = True
            self._next_env = env.env_index + 1
            turn = env.turn
            if not self._turns.submit(env):
                return
        else:
            return
        self._flight = _Flight(self._core.backend.fence(), env, turn, started_ns)

    def _build(self) -> bool:
        """Submit a node of the prefix library; False where none was."""
        try:
            self._prefixes.advance()
        except NotYet:
            self._waits_for_room = self._core.storage.mover.next_ns() is not None
            return False
        except DeviceLostError:
            raise
        except FlashrtError as error:
            self._prefixes.fail(error)
            return False
        return True
