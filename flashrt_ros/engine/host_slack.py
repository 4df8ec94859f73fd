"""What fits before the next deadline: how long nodes take, and who may wait how long."""

from __future__ import annotations

from collections.abc import Mapping

_DECAY = 16
"""An estimate comes down by this part of what it is above the last node."""

_AVERAGED = 8
"""Nodes that an average is taken over, about."""

_FORGET_NS = 100_000_000
"""How long a node waits until most of what an estimate is above the average is forgotten."""


class Slack:
    """Says when a member that has no deadlines of its own may submit a node.

    A node fits if what nodes of its kind took, and a reserve, pass before the nearest
    deadline. The estimate of a kind is what the longest took. It comes down slowly with each that
    took less, and while a node waits to what its kind takes on average, so that one that was held
    up for once does not keep all others waiting. A kind that never ran counts as the longest of
    those that did.

    A node that does not fit waits, but no longer than the floor: then it is *owed*, and runs
    as soon as the others have nothing to submit, after as long again in any case. So a
    planner whose nodes never fit goes on slowly, and delays a tick each time.

    Args:
        reserve_ns: Left free before a deadline, ns.
        floor_ns: Longest wait for a node that does not fit, ns; 0 lets it wait for ever.
        estimates_ns: What nodes took in a rehearsal, by kind, ns.
    """

    def __init__(
        self, *, reserve_ns: int, floor_ns: int, estimates_ns: Mapping[str, int] | None = None
    ) -> None:
        self._reserve_ns = reserve_ns
        self._floor_ns = floor_ns
        self._estimates_ns = {kind: float(ns) for kind, ns in (estimates_ns or {}).items()}
        self._averages_ns = dict(self._estimates_ns)
        self._waiting_ns: int | None = None
        self._forgot_ns = 0
        self._largest_ns = 0

    @property
    def largest_ns(self) -> int:
        """Most slack that the node which waits has found, ns."""
        return self._largest_ns

    def needs_ns(self, kind: str) -> int:
        """Return how long before a deadline a node of a kind may still begin, ns."""
        estimate_ns = self._estimates_ns.get(kind)
        if estimate_ns is None:
            estimate_ns = max(self._estimates_ns.values(), default=0.0)
        return round(estimate_ns) + self._reserve_ns

    def fits(self, kind: str, now_ns: int, deadline_ns: int | None) -> bool:
        """Tell whether a node would be done before the nearest deadline; None for no deadline."""
        return deadline_ns is None or deadline_ns - now_ns >= self.needs_ns(kind)

    def wait(self, now_ns: int, deadline_ns: int | None) -> None:
        """Note that a node waits, and what slack it has found."""
        if self._waiting_ns is None:
            self._waiting_ns = self._forgot_ns = now_ns
        self._forget(now_ns)
        if deadline_ns is not None:
            self._largest_ns = max(self._largest_ns, deadline_ns - now_ns)

    def is_owed(self, now_ns: int, *, others_have_work: bool) -> bool:
        """Tell whether the node that waits has waited long enough."""
        if self._waiting_ns is None or not self._floor_ns:
            return False
        limit_ns = 2 * self._floor_ns if others_have_work else self._floor_ns
        return now_ns - self._waiting_ns >= limit_ns

    @property
    def owed_ns(self) -> int | None:
        """When the node that waits is owed, None where none waits or none ever is."""
        if self._waiting_ns is None or not self._floor_ns:
            return None
        return self._waiting_ns + self._floor_ns

    def rest(self) -> None:
        """Note that nothing waits any more: it was submitted, or is not wanted."""
        self._waiting_ns = None
        self._largest_ns = 0

    def note(self, kind: str, took_ns: int, *, was_owed: bool = False) -> None:
        """Take a node's time into its kind's estimate.

        One that was owed replaces it: the estimate may be what kept the others from fitting.
        """
        average_ns = self._averages_ns.get(kind, took_ns)
        self._averages_ns[kind] = average_ns + (took_ns - average_ns) / _AVERAGED
        before_ns = self._estimates_ns.get(kind, 0)
        if was_owed or took_ns >= before_ns:
            self._estimates_ns[kind] = took_ns
        else:
            self._estimates_ns[kind] = before_ns - (before_ns - took_ns) / _DECAY

    def _forget(self, now_ns: int) -> None:
        """Bring estimates down to the averages, as far as the time since the last call says."""
        part = min(1.0, (now_ns - self._forgot_ns) / _FORGET_NS)
        self._forgot_ns = now_ns
        for kind, average_ns in self._averages_ns.items():
            above_ns = self._estimates_ns[kind] - average_ns
            if above_ns > 0:
                self._estimates_ns[kind] -= above_ns * part
