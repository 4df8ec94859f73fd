"""``flashrt-ros doctor``: what is there, what would go wrong, and what to do about it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import flashrt_ros
from flashrt_ros.cli.consoles import make_console
from flashrt_ros.cli.doctor_device import check_device
from flashrt_ros.cli.doctor_engines import check_engines
from flashrt_ros.cli.doctor_machine import check_kernel, check_limits, check_machine
from flashrt_ros.cli.doctor_software import check_ros, check_software
from flashrt_ros.cli.findings import Row, Status

CHECKS: tuple[Callable[[], list[Row]], ...] = (
    check_software,
    check_ros,
    check_machine,
    check_limits,
    check_kernel,
    check_device,
    check_engines,
)
"""In the order they are shown."""

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``doctor``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Look at everything and print it; changes nothing.

    Returns:
        0, or 1 if something fails that the package can't do without.
    """
    rows = [row for check in CHECKS for row in check()]
    if arguments.json:
        sys.stdout.write(to_json(rows))
    else:
        show(rows, make_console())
    return 1 if any(row.status is Status.FAIL for row in rows) else 0


def to_json(rows: Sequence[Row]) -> str:
    """Return rows as JSON, with ``ok`` and the package's version beside them."""
    plain = {
        "version": flashrt_ros.__version__,
        "ok": not any(row.status is Status.FAIL for row in rows),
        "rows": [{**asdict(row), "status": row.status.value} for row in rows],
    }
    return json.dumps(plain, indent=2) + "\n"


def show(rows: Sequence[Row], console: Console) -> None:
    """Print a table, and below it what to do."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for overflow in ("fold", "fold", "fold"):
        table.add_column(overflow=overflow)
    topic = ""
    for row in rows:
        if row.topic != topic:
            topic = row.topic
            table.add_row(Text(topic, style="bold"))
        # Text, not str: what was found may look like markup
        table.add_row(
            Text(f"  {row.status.value}", style=_STYLES[row.status]),
            Text(row.name),
            Text(row.found),
        )
    console.print(table)
    troubled = [row for row in rows if row.status is not Status.OK]
    for row in troubled:
        style = _STYLES[row.status]
        console.print(Text.assemble("\n", (row.status.value, style), f" {row.name}: {row.problem}"))
        console.print(Padding.indent(Text(f"→ {row.fix}"), 5))
    counts = {status: sum(row.status is status for row in rows) for status in Status}
    console.print(
        f"\n{counts[Status.OK]} ok, {counts[Status.WARN]} warnings, {counts[Status.FAIL]} failures"
    )
