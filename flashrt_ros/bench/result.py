"""What a bench found: rows with figures and targets, and panels to draw them in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Figure = Literal["median", "p99", "ratio"]
"""Of a row: what a target is set for."""

Floats = npt.NDArray[np.float64]
"""``float64[n]``; NaN where a sample does not count."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one figure of a row.

    Attributes:
        figure: Which figure is bound.
        sign: "<=" or ">=".
        bound: In the row's unit; a ratio has none.
    """

    figure: Figure
    sign: Literal["<=", ">="]
    bound: float

    def __str__(self) -> str:
        """Say it as a comparison."""
        return f"{self.figure} {self.sign} {self.bound:g}"

    def is_met_by(self, value: float) -> bool:
        """Compare a value with the bound."""
        return value <= self.bound if self.sign == "<=" else value >= self.bound


def at_most(figure: Figure, bound: float) -> Target:
    """Bound a figure from above."""
    return Target(figure, "<=", bound)


def at_least(figure: Figure, bound: float) -> Target:
    """Bound a figure from below."""
    return Target(figure, ">=", bound)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a bench.

    Attributes:
        name: What was timed or counted.
        unit: Of ``median`` and ``p99``.
        median: None where the row is absent.
        p99: None where the figure is a single count.
        ratio: To the row that it is compared with, or None.
        target: What must hold, or None.
        note: Why a row is absent, or a target does not apply; "" for nothing to say.
    """

    name: str
    unit: str
    median: float | None = None
    p99: float | None = None
    ratio: float | None = None
    target: Target | None = None
    note: str = ""

    @property
    def title(self) -> str:
        """Name and note."""
        return f"{self.name} ({self.note})" if self.note else self.name

    @property
    def met(self) -> bool | None:
        """Whether the target holds; None where there is no target or no figure."""
        if self.target is None:
            return None
        value: float | None = getattr(self, self.target.figure)
        return None if value is None else self.target.is_met_by(value)

    def plain(self) -> dict[str, Any]:
        """Return the row as JSON has it."""
        return {
            "name": self.title,
            "unit": self.unit,
            "median": _rounded(self.median),
            "p99": _rounded(self.p99),
            "ratio": _rounded(self.ratio),
            "target": None if self.target is None else str(self.target),
            "met": self.met,
        }


def absent(name: str, unit: str, why: str) -> Row:
    """Make the row of something that could not be measured here, and why."""
    return Row(name, unit, note=f"absent: {why}")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a panel: one median, and perhaps one p99, for each ``x``.

    Attributes:
        label: For the legend.
        x: Ascending.
        median: As many.
        p99: As many, or empty.
        is_ours: Drawn in front of what it is compared with.
    """

    label: str
    x: Sequence[float]
    median: Sequence[float]
    p99: Sequence[float] = ()
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class LinePanel:
    """Lines over a quantity that was swept.

    Attributes:
        title: Above the panel.
        x_label: With its unit.
        lines: One or more.
        limit: A target drawn across, or None.
        log_y: Whether the values span decades.
        log_x: Whether ``x`` does, though it spans little; what spans much is drawn so anyway.
    """

    title: str
    x_label: str
    lines: Sequence[Line]
    limit: float | None = None
    log_y: bool = True
    log_x: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a panel.

    Attributes:
        label: Beside it.
        median: Its length.
        p99: Where its whisker ends, or None.
        is_ours: Coloured.
        text: Behind it, in place of the numbers; "" for the numbers.
    """

    label: str
    median: float
    p99: float | None = None
    is_ours: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class BarPanel:
    """Bars of one unit, the first one on top.

    Attributes:
        title: Above the panel, with the unit.
        bars: One or more.
        limit: A target drawn across, or None.
    """

    title: str
    bars: Sequence[Bar]
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Everything one bench found.

    Attributes:
        bench: Its name.
        device: What it ran on, in words.
        versions: Of what it ran with.
        rows: In order of reading.
        panels: To draw.
        summary: One line for people, above the picture.
    """

    bench: str
    device: str
    versions: Mapping[str, str]
    rows: Sequence[Row]
    panels: Sequence[LinePanel | BarPanel] = field(default=())
    summary: str = ""

    @property
    def missed(self) -> list[Row]:
        """Rows whose target was missed."""
        return [row for row in self.rows if row.met is False]

    def plain(self) -> dict[str, Any]:
        """Return what ``--json`` writes."""
        return {
            "bench": self.bench,
            "device": self.device,
            "versions": dict(self.versions),
            "rows": [row.plain() for row in self.rows],
        }


def _rounded(value: float | None) -> float | None:
    # JSON has no number for a median of nothing.
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
