"""The tables of the docs say what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec

from flashrt_ros.planner.config import RANGES, PlannerConfig

DOCS = Path(__file__).parents[2] / "docs"


def _figure(value: float) -> str:
    is_power = isinstance(value, int) and value > 10**9 and value & (value - 1) == 0
    return f"2^{int(value).bit_length() - 1}" if is_power else f"{value:g}"


def parameter_rows() -> list[str]:
    """Build the table of the planner engine's parameters."""
    text = inspect.cleandoc(PlannerConfig.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(
        r"^    (\w+): (.*(?:\n        .*)*)", text.partition("\nRaises:")[0], re.MULTILINE
    )
    texts = {name: " ".join(body.split()).rstrip(".") for name, body in entries}
    rows = []
    for field in msgspec.structs.fields(PlannerConfig):
        low, high = RANGES.get(field.name, (None, None))
        bounds = "" if low is None or high is None else f"{_figure(low)} to {_figure(high)}"
        default = {"": "none", (): "none", "\n": "a line break"}.get(field.default, field.default)
        rows.append(f"| `{field.name}` | {default} | {bounds} | {texts[field.name]} |")
    return rows


def test_every_parameter_is_in_the_docs() -> None:
    text = (DOCS / "planner.md").read_text(encoding="utf-8")
    missing = [row for row in parameter_rows() if row not in text]
    assert not missing, "\n".join(["docs/planner.md lacks:", *missing])
