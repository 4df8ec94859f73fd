"""Compares what a graph does with what its program does, replay by replay."""

from __future__ import annotations

from flashrt_ros.proof.rig import Rig
from flashrt_ros.runtime.spec import ShapeKey


class EagerComparison:
    """Runs each program's Python on a second lane before its graph runs on the first.

    Args:
        rig: Of two lanes at least.

    Attributes:
        num_runs: Comparisons made.
        differences: Of each program that differs: buffers, and what was seen.
    """

    def __init__(self, rig: Rig) -> None:
        self.num_runs = 0
        self.differences: dict[ShapeKey, tuple[list[str], str]] = {}
        self._rig = rig
        self._error = ""

    def before(self, key: ShapeKey) -> None:
        """Run the program over a copy of the lane."""
        self._rig.copy_lane(1, 0)
        self._error = ""
        try:
            self._rig.run_eagerly(1, key)
        except Exception as error:  # noqa: BLE001 - a model's code may raise anything
            self._error = f"run again, it raised {type(error).__name__}: {error}"

    def after(self, key: ShapeKey) -> None:
        """Compare what the graph did with what the program did."""
        self.num_runs += 1
        if key in self.differences:
            return
        differing = self._rig.differing(0, 1)
        if differing or self._error:
            self.differences[key] = (differing, self._error or "other bytes")
