"""Timing peers side by side: warm-up, then rounds in random order until the time is up."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flashrt_ros.bench.result import Floats

NO_SAMPLE = object()
"""What a call returns whose timing does not count, for it did not do what is timed."""


class Sample(NamedTuple):
    """One timing.

    Attributes:
        device_ns: On the device, between two events; the host's on a host's device.
        host_ns: From the call to its return.
    """

    device_ns: float
    host_ns: float


Timer = Callable[[Callable[[], object]], "tuple[Sample, object]"]
"""Runs a call and times it; gives the timing and what the call returned."""


@dataclass(frozen=True, slots=True)
class Case:
    """One of the peers.

    Attributes:
        run: What is timed. If it returns :data:`NO_SAMPLE`, the sample does not count.
        timer: Times it.
        prepare: Called before, outside the timing.
    """

    run: Callable[[], object]
    timer: Timer
    prepare: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """Timings of one peer, in us, in the order of the rounds; NaN where one did not count.

    Attributes:
        device_us: On the device.
        host_us: On the host.
    """

    device_us: Floats
    host_us: Floats


def median(values: Floats) -> float:
    """Return the median of the samples that count; NaN of none."""
    counted = values[~np.isnan(values)]
    return float(np.median(counted)) if counted.size else float("nan")


def p99(values: Floats) -> float:
    """Return the 99th percentile of the samples that count; NaN of none."""
    counted = values[~np.isnan(values)]
    return float(np.percentile(counted, 99)) if counted.size else float("nan")


def lost(values: Floats) -> str:
    """Say how many samples do not count: "3 of 20 lost", "" for none."""
    count = int(np.isnan(values).sum())
    return f"{count} of {values.size} lost" if count else ""


class Budget:
    """Time that a bench may take, shared out among its parts.

    Args:
        seconds: From now on.
        clock: Seconds, monotonic.
    """

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, not below 0."""
        return max(0.0, self._end - self._clock())

    @property
    def spent(self) -> float:
        """Share that has gone, 0 to 1."""
        return min(1.0, 1.0 - self.left_s / self.seconds) if self.seconds else 1.0

    def share_s(self, num_left: int) -> float:
        """Seconds for the next of ``num_left`` parts."""
        return self.left_s / max(1, num_left)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to sample.

    Attributes:
        seconds: When the time is up, no further round begins.
        min_rounds: Rounds that run in any case.
        max_rounds: Rounds after which there is nothing more to learn.
        warm_up: Rounds that do not count, before.
        pace_s: Pause before each sample.
    """

    seconds: float
    min_rounds: int = 3
    max_rounds: int = 2000
    warm_up: int = 2
    pace_s: float = 0.0


def measure(
    cases: Mapping[str, Case],
    plan: Plan,
    rng: random.Random,
    tell: Callable[[float], None] = lambda share: None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Samples]:
    """Time peers interleaved: each round runs every one of them once, in random order.

    The garbage collector rests meanwhile. Not so in the warm-up, which comes before and does not
    count: it runs the peers in the order in which they are given, with the collector on.

    Args:
        cases: By name.
        plan: How long.
        rng: Shuffles.
        tell: Told the share of the time that has gone, now and then.
        clock: Seconds, monotonic.

    Returns:
        Samples by name, one a round, so that those of one round may be compared.
    """
    for _ in range(plan.warm_up):
        for case in cases.values():
            _sample(case, plan.pace_s)
    found: dict[str, list[Sample]] = {name: [] for name in cases}
    names = list(cases)
    with without_collector():
        begun = clock()
        for number in range(plan.max_rounds):
            elapsed = clock() - begun
            if number >= plan.min_rounds and elapsed >= plan.seconds:
                break
            tell(min(1.0, elapsed / plan.seconds) if plan.seconds else 1.0)
            rng.shuffle(names)
            for name in names:
                found[name].append(_sample(cases[name], plan.pace_s))
    return {
        name: Samples(
            np.array([sample.device_ns for sample in samples]) / 1e3,
            np.array([sample.host_ns for sample in samples]) / 1e3,
        )
        for name, samples in found.items()
    }


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect garbage once, and then not until the end."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _sample(case: Case, pace_s: float) -> Sample:
    if pace_s:
        time.sleep(pace_s)
    if case.prepare is not None:
        case.prepare()
    sample, answer = case.timer(case.run)
    return Sample(float("nan"), float("nan")) if answer is NO_SAMPLE else sample
