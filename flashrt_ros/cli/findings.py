"""What ``doctor`` finds, one row a fact."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Status(enum.Enum):
    """How a fact bears on running the package.

    ``FAIL``: something that the package can't do without. ``WARN``: it runs, and the
    row says what would go wrong.
    """

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Row:
    """One fact.

    Attributes:
        topic: Heading it stands under.
        name: What was looked at.
        status: How it bears on running.
        found: What is there.
        problem: What would go wrong, "" where nothing would.
        fix: What to do, "" where nothing need be done.
    """

    topic: str
    name: str
    status: Status
    found: str
    problem: str = ""
    fix: str = ""
