"""One payload on its way from one memory tier to another, a slice at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.tiers import MemoryTier

if TYPE_CHECKING:
    from flashrt_ros.runtime.arena import Block
    from flashrt_ros.runtime.backend import Fence

Copy = Callable[[int, int, int], "Fence"]
"""Copies ``(to address, from address, bytes)``, and tells when that is done."""


@dataclass(slots=True, eq=False)
class CopyJob:
    """A copy under way; whoever starts it holds the capsule until it ends.

    Attributes:
        capsule: Whose payload it is.
        source: Where it lies.
        target: Where it goes.
        tier: Of the target.
        num_copied: Bytes submitted so far.
        fence: Marks the last of them, the only ones under way; None before the first.
    """

    capsule: Capsule
    source: Block
    target: Block
    tier: MemoryTier
    num_copied: int = 0
    fence: Fence | None = None

    def advance(self, max_bytes: int, copy: Copy) -> bool:
        """Submit a slice once the one before has ended; True once all have.

        What else is asked of the device waits for one slice at most. A dropped capsule's copy
        ends early.
        """
        if self.fence is not None and not self.fence.is_done:
            return False
        left = 0 if self.capsule.residence.is_gone else self.capsule.num_bytes - self.num_copied
        if left:
            count, start = min(max_bytes, left), self.num_copied
            self.fence = copy(self.target.address + start, self.source.address + start, count)
            self.num_copied += count
            if count < left:
                return False
        return self.fence is None or self.fence.is_done

    def wait(self) -> None:
        """Return when what was submitted has ended."""
        if self.fence is not None:
            self.fence.wait()
