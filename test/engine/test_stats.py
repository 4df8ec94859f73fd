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
            stats.note_tick(0, int(late_ns), 0)
            late_us.append(int(late_ns) / 1e3)
        expected = np.percentile(late_us[-WINDOW:], q) if late_us else 0.0
        assert stats.lateness_us(q) == pytest.approx(expected, rel=1e-12)
        assert stats.lateness_us(q) == stats.lateness_us(q)
