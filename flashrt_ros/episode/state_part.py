"""A simulator, or anything else in this process that can hand its state over, as a participant."""

from __future__ import annotations

from collections.abc import Callable

from flashrt_ros.episode.manifest import Part
from flashrt_ros.episode.participant import Taking
from flashrt_ros.errors import EpisodeError, SpecError


class StatePart:
    """Bytes that a function returns and another one takes back.

    Nothing moves it but its owner, so that there is nothing to hold.

    Args:
        name: In the episode.
        kind: Format of the bytes, version included: another one is refused.
        get: Returns the whole state.
        put: Takes a state over. Where it raises, the state of before is put again.
        check: Raises where ``put`` would; None where nothing can be said before.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        get: Callable[[], bytes],
        put: Callable[[bytes], None],
        *,
        check: Callable[[bytes], None] | None = None,
    ) -> None:
        self._name = name
        self._kind = kind
        self._get = get
        self._put = put
        self._check = check
        self._replaced: bytes | None = None

    @property
    def name(self) -> str:
        """Name in the episode."""
        return self._name

    def hold(self) -> None:
        """Do nothing."""

    def take(self, taking: Taking) -> Part:
        """Return the state.

        Raises:
            SpecError: ``get`` returned no bytes.
        """
        return Part(self._name, self._kind, state=self._state())

    def check(self, part: Part) -> None:
        """Refuse a state of another kind, or one that its owner refuses.

        Raises:
            EpisodeError: It is of another kind.
            FlashrtError: As the owner says.
        """
        if part.kind != self._kind:
            raise EpisodeError(
                "the state is of another kind", expected=self._kind, found=part.kind or "none"
            )
        if self._check is not None:
            self._check(part.state)

    def put(self, part: Part) -> None:
        """Take a state over."""
        self._replaced = self._state()  # before the first byte of the other one
        self._put(part.state)

    def release(self) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Forget what was replaced."""
        self._replaced = None

    def revert(self) -> None:
        """Bring back what was replaced."""
        replaced, self._replaced = self._replaced, None
        if replaced is not None:
            self._put(replaced)

    def drop(self, part: Part) -> None:
        """Do nothing: the state is in the manifest."""

    def _state(self) -> bytes:
        state = self._get()
        # bytes(8) would be eight zeros, and no word of it
        if not isinstance(state, bytes | bytearray | memoryview):
            raise SpecError(
                f"the state of '{self._name}' can't be kept",
                expected="bytes",
                found=type(state).__name__,
            )
        return bytes(state)
