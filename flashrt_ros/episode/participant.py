"""What takes part in an episode, and what the coordinator asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flashrt_ros.episode.manifest import Part


@dataclass(frozen=True, slots=True)
class Taking:
    """What a participant is told when its state is taken.

    Attributes:
        episode: Name of the episode, for labels.
        persist: Keep what belongs to the state where a restarted engine finds it.
        goal_sequence: The policy engine's number of the goal that it acts on; 0 for none. A
            goal with a higher one is on its way and in no capsule.
    """

    episode: str
    persist: bool = False
    goal_sequence: int = 0


class Participant(Protocol):
    """One that can stand still at a boundary, hand its state over, and take one back.

    Calls come in this order: :meth:`hold`; then :meth:`take`, or :meth:`check` and
    :meth:`put`; then :meth:`release` and :meth:`settle`, or :meth:`revert`. Each is all or
    nothing by itself and raises what went wrong. :meth:`drop` comes at any time.
    """

    @property
    def name(self) -> str:
        """Unique within an episode."""

    def hold(self) -> None:
        """Let nothing happen from here on, at a boundary.

        Where it fails :meth:`revert` follows, which must do no harm where nothing is held.
        """

    def take(self, taking: Taking) -> Part:
        """Return the state at the boundary, and keep what belongs to it until :meth:`drop`."""

    def check(self, part: Part) -> None:
        """Refuse a state that :meth:`put` would refuse; change nothing."""

    def put(self, part: Part) -> None:
        """Take a state over; nothing happens with it before :meth:`release`.

        What it replaces is kept until :meth:`settle` or :meth:`revert`.
        """

    def release(self) -> None:
        """Go on from here; what a :meth:`put` replaced is still kept."""

    def settle(self) -> None:
        """Forget what was replaced. Does nothing where nothing was."""

    def revert(self) -> None:
        """Bring back what was replaced, if anything was, and go on; also after a release."""

    def drop(self, part: Part) -> None:
        """Forget what :meth:`take` kept for a state; one that is gone already is no error."""


class PolicyParticipant(Participant, Protocol):
    """The one whose ticks move everything else: it goes back first, and goes on last."""

    def undo(self) -> None:
        """Bring back what was replaced, if anything was; held until the :meth:`revert` after it."""
