"""Capsules and the tiers that they lie in: where they came from, and waiting until none moves."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from flashrt_ros.bench.failures import BenchError
from flashrt_ros.bench.sampling import Budget

QUIET_S = 60.0
"""Longest wait for what moves in the background."""


class Mover(Protocol):
    """Moves capsules in the background."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for the next move; False if there was none in time."""


def origin(tiers: Counter[str]) -> str:
    """Say where capsules came from: "all from host", "from host 20 %, disk 80 %".

    Args:
        tiers: How many came from each.
    """
    if len(tiers) == 1:
        return f"all from {next(iter(tiers))}"
    total = tiers.total()
    shares = (f"{tier} {100 * count / total:.0f} %" for tier, count in tiers.most_common())
    return f"from {', '.join(shares)}"


def wait_until_quiet(mover: Mover) -> None:
    """Let everything be moved that is to be moved.

    Raises:
        BenchError: It has no end.
    """
    end = Budget(QUIET_S)
    while mover.wait(QUIET_S):
        if not end.left_s:
            raise BenchError(
                f"capsules are still moved after {QUIET_S:g} s, though nobody asks for any: look "
                "whether the disk keeps up, or make the set smaller"
            )
