"""What plans leave for other models: a row of each outlet, handed over when a plan has landed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from flashrt_ros.engine.core import Core
from flashrt_ros.engine.flights import Flight
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.timeline import ENVIRONMENT, Timeline
from flashrt_ros.errors import FlashrtError


class Handover:
    """Loans rows to plans that begin, and commits those of plans that came to their end.

    Args:
        core: The engine's parts.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._outlets = core.outlets

    def loan(self, timeline: Timeline) -> dict[str, int]:
        """Take a row of each outlet for the plan that begins, by name; all or none.

        Raises:
            NoFreeSlotError: Those who read an outlet have yet to let go of its rows.
        """
        rows: dict[str, int] = {}
        try:
            for name, outlet in self._outlets.items():
                rows[name] = outlet.loan(timeline.lane.index, timeline.env_index)
        except FlashrtError:
            self.take_back(rows)
            raise
        return rows

    @contextmanager
    def lent(self, timeline: Timeline) -> Iterator[dict[str, int]]:
        """Loan rows as :meth:`loan` does, and take them back should the block fail."""
        rows = self.loan(timeline)
        try:
            yield rows
        except BaseException:
            self.take_back(rows)
            raise

    def bindings(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return what the bindings of the rows are to hold."""
        outlets = self._outlets
        return {
            outlets[name].spec.binding: outlets[name].row_in_lane(row) for name, row in rows.items()
        }

    def commit(self, flight: Flight) -> None:
        """Offer what an environment's plan has left; a branch's is seen by nobody.

        Call it once the device is done with the plan. A row is as old as the observation that it
        was made from, or the goal where there is none, and lives no longer than that goal. One
        that no writer could have committed is taken back, and an event says why.
        """
        if not flight.rows or flight.timeline.branch != ENVIRONMENT:
            return
        made, origin = flight.provenance, flight.origin
        assert made is not None
        core, timeline = self._core, flight.timeline
        rows, flight.rows = flight.rows, {}
        for name, row in rows.items():
            outlet = self._outlets[name]
            try:
                outlet.check(core.read_output(timeline.lane, outlet.spec.extremes))
            except FlashrtError as error:
                outlet.return_loan(row)
                env = core.environments[timeline.env_index]
                core.emit(EventKind.FAULT, env, detail=f"{error.name}: {error}")
                continue
            outlet.commit(
                row,
                timeline.env_index,
                stamp_ns=origin.observation_stamp_ns or origin.goal_stamp_ns,
                source_sequence=made.sequence,
                expires_ns=made.goal_expires_ns,
            )

    def take_back(self, rows: dict[str, int]) -> None:
        """Take rows back that were not handed over."""
        for name, row in rows.items():
            self._outlets[name].return_loan(row)
        rows.clear()
