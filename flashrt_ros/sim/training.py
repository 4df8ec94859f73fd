"""What the training commands have in common: how they show progress, and what they note of it."""

from __future__ import annotations

import time

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def training_progress(more: str = "") -> Progress:
    """Return a display of steps; the caller enters it.

    Args:
        more: Shown behind the count of steps, with fields of the task in rich's format.
    """
    return Progress(
        TextColumn("{task.description:>14}"),
        BarColumn(),
        TextColumn(f"{{task.completed}}/{{task.total}}{more}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )


def training_cost(began_s: float) -> dict[str, object]:
    """Return what is noted with weights of how they came about.

    Args:
        began_s: When it began, ``time.monotonic()``.
    """
    return {
        "seconds": round(time.monotonic() - began_s),
        "cpu_seconds": round(time.process_time()),
        "torch": torch.__version__,
    }
