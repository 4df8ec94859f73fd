"""Restore: by copy beside one raw copy of the same bytes, by flip beside a plain replay."""

from __future__ import annotations

from flashrt_ros.bench import restore_copy, restore_flip
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.result import LinePanel, Result, Row

_FLIP_SHARE = 0.5


def run(context: Context) -> Result:
    """Restore by copy and by flip, beside raw copies and peers, size by size.

    Args:
        context: Device, budget and chance.

    Returns:
        Rows of restores by copy and by flip, and their panels.

    Raises:
        WrongResultError: A restore brings back other bytes than were snapshot.
        BenchError: A reset with a standby lane filled did not flip, or the refill has no end.
    """
    rows: list[Row] = []
    panels: list[LinePanel] = []
    for part in (
        restore_copy.run(context, (1 - _FLIP_SHARE) * context.budget.seconds),
        restore_flip.run(context),
    ):
        rows += part[0]
        panels += part[1]
    summary = "a restore is one copy, and a reset to home is none at all"
    return context.result("restore", rows, panels, summary)
