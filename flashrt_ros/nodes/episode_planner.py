"""A hosted planner as a participant: its text, and the subgoals that wait for their turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from flashrt_ros.engine import protocol
from flashrt_ros.episode.engine_part import PLANNER, EnginePart, Link
from flashrt_ros.episode.manifest import Part
from flashrt_ros.episode.participant import Taking
from flashrt_ros.errors import BusyError, EpisodeError
from flashrt_ros.nodes.subgoals import SubgoalState, SubgoalThread

KIND = "hosted-planner/1"
"""Format of the state; another one is refused."""

_HEARD_S = 2.0
"""How long a turn's end may take from the engine to the node."""


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    waiting: tuple[tuple[float, ...], ...]
    goal: tuple[float, ...] | None
    elapsed_ns: int
    is_pending: bool
    scene: str


class Hosted(Protocol):
    """What the part needs of the node's session with a planner engine."""

    @property
    def thread(self) -> SubgoalThread:
        """Makes goals of subgoals."""

    @property
    def last_turn(self) -> int:
        """Number of the turn begun last, 0 for none."""

    @property
    def has_first_channel(self) -> bool:
        """Whether subgoals go to the policy's first goal channel."""

    scene: str
    """Line that instructions are read after."""

    is_held: bool
    """Whether instructions are refused."""


class PlannerPart:
    """Holds a planner between two turns and between two subgoals.

    Args:
        hosted: The session.
        link: Connection to the planner engine.
        env_index: Environment.
        on_moved: Told where the text stands each time it was moved.
    """

    name = PLANNER

    def __init__(
        self,
        hosted: Hosted,
        link: Link,
        *,
        env_index: Callable[[], int],
        on_moved: Callable[[protocol.Moved], None],
    ) -> None:
        self._hosted = hosted
        self._link = link
        self._env_index = env_index
        self._on_moved = on_moved
        self._engine = self._new_engine()
        self._replaced: _State | None = None
        self._generation = 0

    def hold(self) -> None:
        """Refuse instructions, wait for the end of the turn under way, make no goals.

        Raises:
            BusyError: The turn did not end in time.
            FlashrtError: The planner engine is gone.
        """
        if self._engine.env_index != self._env_index():  # else it knows what it still has to drop
            self._engine = self._new_engine()
        self._hosted.is_held = True
        self._engine.hold()
        if not self._hosted.thread.hold(self._hosted.last_turn, _HEARD_S):
            raise BusyError(
                "the end of the planner's turn was not heard of",
                expected=f"it within {_HEARD_S:g} s",
                fix="wait for it, or cancel it",
            )

    def take(self, taking: Taking) -> Part:
        """Freeze the text, and note the subgoals."""
        part = self._engine.take(taking)
        stands = self._hosted.thread.state()
        # Chunks number the goals of the first channel alone: on another one the subgoal in
        # force is given again in any case, which changes nothing where it was acted on.
        is_unread = stands.goal_sequence > taking.goal_sequence
        state = self._note(
            is_pending=stands.goal is not None and (is_unread or not self._hosted.has_first_channel)
        )
        facts = {
            **part.facts,
            "subgoals_waiting": str(len(stands.waiting)),
            "goal_sequence": str(stands.goal_sequence),
        }
        data = msgspec.json.encode(state)
        return Part(self.name, KIND, part.capsule_id, part.fingerprint, data, facts)

    def check(self, part: Part) -> None:
        """Refuse a state that can't be read, or a text that is gone or does not fit.

        Raises:
            EpisodeError: It is of another kind, or damaged.
            FlashrtError: As ``EnginePart.check``.
        """
        _decode(part)
        self._engine.check(_of_engine(part))

    def put(self, part: Part) -> None:
        """Bring text and subgoals back."""
        state = _decode(part)
        before = self._note(is_pending=False)
        self._engine.put(_of_engine(part))
        self._replaced = before
        self._bring_back(state)

    def release(self) -> None:
        """Go on; a subgoal that no chunk had been made under is given to the policy again."""
        self._engine.release()
        self._hosted.thread.release()
        self._hosted.is_held = False

    def settle(self) -> None:
        """Forget what was replaced."""
        self._replaced = None
        self._engine.settle()

    def revert(self) -> None:
        """Bring back what was replaced, and go on."""
        replaced, self._replaced = self._replaced, None
        try:
            self._engine.revert()
            if replaced is not None:
                self._bring_back(replaced)
        finally:
            self._hosted.thread.release()
            self._hosted.is_held = False

    def drop(self, part: Part) -> None:
        """Drop the text's capsule."""
        self._engine.drop(_of_engine(part))

    # inside ----------------------------------------------------------------------------------

    def _new_engine(self) -> EnginePart:
        return EnginePart(
            self._link, name=PLANNER, env_index=self._env_index(), on_moved=self._moved
        )

    def _moved(self, moved: protocol.Moved) -> None:
        self._generation = moved.generation
        self._on_moved(moved)

    def _note(self, *, is_pending: bool) -> _State:
        stands = self._hosted.thread.state()
        return _State(
            stands.waiting, stands.goal, stands.elapsed_ns, is_pending, self._hosted.scene
        )

    def _bring_back(self, state: _State) -> None:
        self._hosted.scene = state.scene
        self._hosted.thread.put_state(
            SubgoalState(state.waiting, state.goal, state.elapsed_ns),
            generation=self._generation,
            is_pending=state.is_pending,
        )


def _of_engine(part: Part) -> Part:
    return Part(part.name, PLANNER, part.capsule_id, part.fingerprint)


def _decode(part: Part) -> _State:
    if part.kind != KIND:
        raise EpisodeError(
            "the state is of another kind",
            participant=PLANNER,
            expected=KIND,
            found=part.kind or "none",
        )
    try:
        return msgspec.json.decode(part.state, type=_State)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise EpisodeError(
            "the planner's state can't be read", participant=PLANNER, found=error
        ) from error
