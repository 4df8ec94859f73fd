"""Figures of an environment since its activation, over fixed windows."""

from __future__ import annotations

import numpy as np

WINDOW = 1024
"""Samples a percentile is taken over, the newest ones."""


class _Window:
    """The newest samples of one figure, in place."""

    def __init__(self) -> None:
        self._samples = np.zeros(WINDOW, dtype=np.float64)
        self._sorted = np.zeros(WINDOW, dtype=np.float64)
        self._count = 0
        self._num_sorted = 0

    def add(self, value: float) -> None:
        self._samples[self._count % WINDOW] = value
        self._count += 1

    def percentile(self, q: float) -> float:
        """Return a percentile of the window, linear between samples; 0 when it is empty.

        Not by ``numpy.percentile``, which is Python for the most part: a status, which is answered
        between ticks, took 0.2 ms for it in a loop and 0.8 ms out of cold caches.
        """
        count = min(self._count, WINDOW)
        if not count:
            return 0.0
        if self._num_sorted != self._count:
            self._sorted[:count] = self._samples[:count]
            self._sorted[:count].sort()
            self._num_sorted = self._count
        place = q / 100 * (count - 1)
        low = int(place)
        at_low, at_high = self._sorted.item(low), self._sorted.item(min(low + 1, count - 1))
        return at_low + (at_high - at_low) * (place - low)


class Stats:
    """Replay times, lateness and misses of one environment.

    Attributes:
        deadline_misses: Ticks that had no action at their deadline, or were skipped.
        replay_max_us: Longest chunk plan, us.
    """

    def __init__(self) -> None:
        self.deadline_misses = 0
        self.replay_max_us = 0.0
        self._replay_us = _Window()
        self._lateness_us = _Window()
        self._ticked_ns = np.zeros(WINDOW + 1, dtype=np.int64)
        self._num_ticks = 0

    def note_tick(self, now_ns: int, lateness_ns: int, missed: int) -> None:
        """Count a tick of the timer that started ``lateness_ns`` after its deadline."""
        self._lateness_us.add(lateness_ns / 1e3)
        self.deadline_misses += missed
        self._ticked_ns[self._num_ticks % len(self._ticked_ns)] = now_ns
        self._num_ticks += 1

    def note_replay(self, busy_ns: int) -> None:
        """Count a chunk plan whose nodes took ``busy_ns`` together."""
        self._replay_us.add(busy_ns / 1e3)
        self.replay_max_us = max(self.replay_max_us, busy_ns / 1e3)

    def replay_us(self, q: float) -> float:
        """Return a percentile of the chunk plan's time, us."""
        return self._replay_us.percentile(q)

    def lateness_us(self, q: float) -> float:
        """Return a percentile of the timer ticks' lateness, us."""
        return self._lateness_us.percentile(q)

    @property
    def rate_hz(self) -> float:
        """Measured rate of timer ticks, 0 before the second."""
        room = len(self._ticked_ns)
        num_intervals = min(self._num_ticks, room) - 1
        if num_intervals < 1:
            return 0.0
        newest = self._ticked_ns.item((self._num_ticks - 1) % room)
        oldest = self._ticked_ns.item((self._num_ticks - 1 - num_intervals) % room)
        return num_intervals * 1e9 / (newest - oldest) if newest > oldest else 0.0
