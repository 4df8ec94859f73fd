"""How long a goal may be acted on: its own lifetime where one is known, else the node's."""

from __future__ import annotations

import threading
from collections import OrderedDict

_KEPT = 64


class GoalLifetimes:
    """Lifetimes of goals by what an action says of its goal; thread-safe, bounded.

    Args:
        default_ns: For goals of which no lifetime is known; 0 means no end.
    """

    def __init__(self, default_ns: int) -> None:
        self._default_ns = default_ns
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, int], int] = OrderedDict()

    def remember(self, *, stamp_ns: int, sequence: int, lifetime_ns: int) -> None:
        """Keep a goal's own lifetime; the oldest of many is forgotten.

        Args:
            stamp_ns: Of the goal.
            sequence: The planner's own number.
            lifetime_ns: From the stamp on; 0 says that it has none of its own.
        """
        if lifetime_ns <= 0:
            return
        with self._lock:
            self._known[stamp_ns, sequence] = lifetime_ns
            self._known.move_to_end((stamp_ns, sequence))
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)

    def end_ns(self, *, stamp_ns: int, sequence: int) -> int | None:
        """Return the node's time after which a goal must not be acted on; None for never."""
        with self._lock:
            lifetime_ns = self._known.get((stamp_ns, sequence), self._default_ns)
        return stamp_ns + lifetime_ns if lifetime_ns > 0 else None
