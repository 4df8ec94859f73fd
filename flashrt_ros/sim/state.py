"""The simulator's whole state as bytes, and its part in episodes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from flashrt_ros.episode.manifest import Part
from flashrt_ros.episode.participant import Taking
from flashrt_ros.errors import EpisodeError

KIND = "flashrt-sim/1"
"""Format and version of the bytes; another one is refused."""

NAME = "sim"
"""Name of the participant in episodes."""

Pair = tuple[float, float]
"""x and y."""

Triple = tuple[float, float, float]
"""x, y and an angle."""


class SimState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that decides how the simulated table goes on; lengths in m, table frame.

    Attributes:
        seed: Of the episode, which says all that was drawn for it.
        episode_id: As the reset gave it.
        agent: x, y.
        agent_velocity: m/s.
        block: x, y of the T's origin, angle in rad.
        target: Of the last command; None before any.
        is_due: Whether that command came while time stood still, and is yet to be obeyed.
    """

    seed: int
    episode_id: str
    agent: Pair
    agent_velocity: Pair
    block: Triple
    target: Pair | None
    is_due: bool


def encode_state(state: SimState) -> bytes:
    """Return a state as JSON, which keeps every bit of a float."""
    return msgspec.json.encode(state)


def decode_state(data: bytes) -> SimState:
    """Read a state.

    Raises:
        EpisodeError: It is no state, or damaged.
    """
    try:
        return msgspec.json.decode(data, type=SimState)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise EpisodeError(
            "the simulator's state can't be read", participant=NAME, found=error
        ) from error


class SimPart:
    """The simulator as a participant: time stands still from a hold to its release.

    Args:
        get: Returns the state, and has physics begin anew from it: then what follows is the
            same as what follows when it is put back, whatever the solver had cached.
        put: Takes a state over; nothing is published.
        go_on: Called when time runs again, with whether a state was put.

    Attributes:
        is_held: Whether time stands still.
    """

    name = NAME

    def __init__(
        self,
        get: Callable[[], SimState],
        put: Callable[[SimState], None],
        go_on: Callable[[bool], None],
    ) -> None:
        self._get = get
        self._put = put
        self._go_on = go_on
        self._replaced: SimState | None = None
        self._was_put = False
        self.is_held = False

    def hold(self) -> None:
        """Let no time pass."""
        self.is_held = True

    def take(self, taking: Taking) -> Part:
        """Return the state."""
        state = self._get()
        facts = {"seed": str(state.seed), "episode_id": state.episode_id}
        return Part(self.name, KIND, state=encode_state(state), facts=facts)

    def check(self, part: Part) -> None:
        """Refuse what is no state of this version.

        Raises:
            EpisodeError: It is not.
        """
        if part.kind != KIND:
            raise EpisodeError(
                "the state is of another kind",
                participant=NAME,
                expected=KIND,
                found=part.kind or "none",
            )
        decode_state(part.state)

    def put(self, part: Part) -> None:
        """Take a state over."""
        self.check(part)
        state = decode_state(part.state)
        self._replaced = self._get()
        self._put(state)
        self._was_put = True

    def release(self) -> None:
        """Let time pass; after a put, publish what is seen now."""
        was_put, self._was_put = self._was_put, False
        self.is_held = False
        self._go_on(was_put)

    def settle(self) -> None:
        """Forget what was replaced."""
        self._replaced = None

    def revert(self) -> None:
        """Bring back what was replaced, and let time pass."""
        replaced, self._replaced = self._replaced, None
        if replaced is not None:
            self._put(replaced)
            self._was_put = True
        if self.is_held or self._was_put:
            self.release()

    def drop(self, part: Part) -> None:
        """Do nothing: the state is in the episode."""
