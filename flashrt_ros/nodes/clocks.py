"""Whether the node's clock was set back, as simulated time is when a simulation begins anew."""

from __future__ import annotations


class ClockWatch:
    """Compares readings of a clock.

    Args:
        tolerance_ns: By how much a reading may lie behind an earlier one.
    """

    def __init__(self, tolerance_ns: int = 0) -> None:
        self._tolerance_ns = tolerance_ns
        self._last_ns = 0

    def is_set_back(self, now_ns: int) -> bool:
        """Tell whether the clock is behind where it was; so it is until :meth:`accept`.

        Args:
            now_ns: The clock.
        """
        if now_ns < self._last_ns - self._tolerance_ns:
            return True
        self._last_ns = max(now_ns, self._last_ns)
        return False

    def accept(self, now_ns: int) -> None:
        """Take a reading for the time that counts from here on."""
        self._last_ns = now_ns
