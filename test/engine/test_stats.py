"""Figures of an environment, beside numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.engine.stats import WINDOW, Stats


@settings(deadline=None, max_examples=100)
@given(
    counts=st.lists(st.integers(0, 2 * WINDOW), min_size=1, max_size=3),
    q=st.sampled_from([0.0, 1.0, 50.0, 99.0, 99.9, 100.0]),
    seed=st.integers(0, 1 << 32),
)
def test_percentiles_are_those_of_the_newest_samples(
    counts: list[int], q: float, seed: int
) -> None:
    """Asked in between too, and twice."""
    stats, rng = Stats(), np.random.default_rng(seed)
    late_us: list[float] = []
    for count in counts:
        for late_ns in rng.integers(0, 1 << 40, count):
            stats.note_tick(int(late_ns), int(late_ns), 0)
            late_us.append(int(late_ns) / 1e3)
        expected = np.percentile(late_us[-WINDOW:], q) if late_us else 0.0
        assert stats.lateness_us(q) == pytest.approx(expected, rel=1e-12)
        assert stats.lateness_us(q) == stats.lateness_us(q)


@settings(deadline=None, max_examples=60)
@given(count=st.integers(0, 3 * WINDOW), seed=st.integers(0, 1 << 32))
def test_the_rate_is_that_of_the_newest_intervals(count: int, seed: int) -> None:
    """Also where the first tick is at 0 of its clock."""
    stats = Stats()
    times_ns = np.cumsum(np.random.default_rng(seed).integers(1, 1 << 32, count))
    times_ns -= times_ns[:1].sum()
    for now_ns in times_ns:
        stats.note_tick(int(now_ns), 0, 0)
    intervals_ns = np.diff(times_ns)[-WINDOW:]
    expected = 1e9 / intervals_ns.mean() if len(intervals_ns) else 0.0
    assert stats.rate_hz == pytest.approx(expected, rel=1e-12)
