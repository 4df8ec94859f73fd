"""What an environment refuses since its last reset, channel by channel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flashrt_ros.errors import StaleGenerationError, StaleStampError


@dataclass(slots=True)
class _Barrier:
    """Bounds of one channel of one environment.

    Attributes:
        generation: Loans made before it are refused.
        stamp_ns: Stamps before it are refused, writers' clock.
        num_refused: Commits refused so far.
    """

    generation: int = 0
    stamp_ns: int = 0
    num_refused: int = 0


class Barriers:
    """The bounds of every channel of every environment.

    Args:
        channels: Names.
        num_environments: Each has bounds of its own.
    """

    def __init__(self, channels: tuple[str, ...], num_environments: int) -> None:
        self._barriers = [{name: _Barrier() for name in channels} for _ in range(num_environments)]

    def renew(
        self,
        env_index: int,
        channels: Iterable[str],
        generation: int,
        stamp_ns: int | None = None,
    ) -> None:
        """Refuse loans made before ``generation`` and stamps before ``stamp_ns`` from now on.

        None leaves the bound of the stamps where it is.
        """
        barriers = self._barriers[env_index]
        for name in channels:
            barrier = barriers[name]
            barrier.generation = generation
            if stamp_ns is not None:
                barrier.stamp_ns = stamp_ns

    def set_stamp(self, env_index: int, channel: str, stamp_ns: int) -> None:
        """Refuse what was stamped before ``stamp_ns`` from now on; a clock may have jumped back."""
        self._barriers[env_index][channel].stamp_ns = stamp_ns

    def generation(self, env_index: int, channel: str) -> int:
        """Return the generation before which loans are refused."""
        return self._barriers[env_index][channel].generation

    def stamp_ns(self, env_index: int, channel: str) -> int:
        """Return the stamp bound."""
        return self._barriers[env_index][channel].stamp_ns

    def num_refused(self, env_index: int, channel: str) -> int:
        """Return how many commits were refused."""
        return self._barriers[env_index][channel].num_refused

    def admit(self, env_index: int, channel: str, *, generation: int, stamp_ns: int) -> None:
        """Refuse a commit from before the barrier, and count it.

        Args:
            env_index: Environment committed to.
            channel: Channel committed to.
            generation: Under which the slot was loaned.
            stamp_ns: Writer's clock.

        Raises:
            StaleGenerationError: Loaned before the barrier.
            StaleStampError: Stamped before the barrier.
        """
        barrier = self._barriers[env_index][channel]
        if generation < barrier.generation:
            barrier.num_refused += 1
            raise StaleGenerationError(
                f"the slot of channel '{channel}' was loaned before the last reset",
                expected=f"generation {barrier.generation} or newer",
                found=f"generation {generation}",
                fix="loan again and write what is true now",
            )
        if stamp_ns < barrier.stamp_ns:
            barrier.num_refused += 1
            raise StaleStampError(
                f"the payload of channel '{channel}' is older than the last reset",
                expected=f"a stamp of {barrier.stamp_ns} ns or later",
                found=f"{stamp_ns} ns",
                fix="send what was made after the reset",
            )
