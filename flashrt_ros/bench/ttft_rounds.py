"""How often each peer is sampled where some take a thousand times as long as others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flashrt_ros.bench.sampling import NO_SAMPLE, Case

MOST = 40
"""Samples of one peer, at most."""

FEW = 3
"""Samples of one peer, as long as there is time for them."""


def share_out(estimates_s: Mapping[str, float], seconds: float) -> dict[str, int]:
    """Say how often each peer is sampled: the most expensive ones give way first.

    Args:
        estimates_s: What one sample of each takes.
        seconds: For all together.

    Returns:
        Samples of each: 40 down to 3, then 1 where there is no time for 3.
    """
    counts = dict.fromkeys(estimates_s, MOST)

    def reduce_to(floor: int) -> None:
        while sum(counts[name] * estimates_s[name] for name in counts) > seconds:
            able = [name for name in counts if counts[name] > floor]
            if not able:
                return
            dearest = max(able, key=lambda name: counts[name] * estimates_s[name])
            counts[dearest] = max(floor, counts[dearest] * 2 // 3)

    reduce_to(FEW)
    reduce_to(1)
    return counts


@dataclass(slots=True)
class Sparse:
    """A call that does its work in ``count`` of ``rounds`` calls, spread evenly.

    Attributes:
        run: The work.
        count: At least one, at most ``rounds``.
        rounds: Calls that are to come.
        num_calls: So far.
    """

    run: Callable[[], object]
    count: int
    rounds: int
    num_calls: int = 0

    def __call__(self) -> object:
        """Do the work if it is due.

        Returns:
            What the work returns; :data:`~flashrt_ros.bench.sampling.NO_SAMPLE` without it.
        """
        done, self.num_calls = self.num_calls, self.num_calls + 1
        is_due = (done + 1) * self.count // self.rounds > done * self.count // self.rounds
        return self.run() if is_due else NO_SAMPLE


def spread(cases: Mapping[str, Case], counts: Mapping[str, int]) -> dict[str, Case]:
    """Have cases sampled so often in as many rounds as the most frequent one takes.

    Args:
        cases: By name; their calls are wrapped.
        counts: Samples of each, one at least.

    Returns:
        Cases of the same names, each to be run once a round.
    """
    rounds = max(counts.values())
    return {
        name: Case(Sparse(case.run, counts[name], rounds), case.timer, case.prepare)
        for name, case in cases.items()
    }
