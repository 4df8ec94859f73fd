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

Copy = Callable[[int, int, int], None]
"""Copies ``(to address, from address, bytes)``, ordered as the backend orders."""


@dataclass(slots=True, eq=False)
class CopyJob:
    """A copy under way; whoever starts it holds the capsule until it ends.

    Attributes:
        capsule: Whose payload it is.
        source: Where it lies.
        target: Where it goes.
        tier: Of the target.
        num_copied: Bytes submitted so far.
        fence: Marks the last of them.
    """

    capsule: Capsule
    source: Block
    target: Block
    tier: MemoryTier
    num_copied: int = 0
    fence: Fence | None = None

    def advance(self, max_bytes: int, copy: Copy, fence: Callable[[], Fence]) -> bool:
        """Submit one slice; True once all have ended. A dropped capsule's copy ends early."""
        if self.fence is None:
            left = self.capsule.num_bytes - self.num_copied
            count = 0 if self.capsule.residence.is_gone else min(max_bytes, left)
            if count:
                start = self.num_copied
                copy(self.target.address + start, self.source.address + start, count)
                self.num_copied += count
            if count < left and not self.capsule.residence.is_gone:
                return False
            self.fence = fence()
        return self.fence.is_done
