"""The tables of the docs say what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec

from flashrt_ros.engine.config import RANGES, EngineConfig
from flashrt_ros.errors import ERRORS

DOCS = Path(__file__).parents[2] / "docs"


def _attribute_texts() -> dict[str, str]:
    """Read what the class docstring says of each parameter."""
    text = inspect.cleandoc(EngineConfig.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text, re.MULTILINE)
    return {name: " ".join(body.split()) for name, body in entries}


def _figure(value: float) -> str:
    is_power = isinstance(value, int) and value > 10**9 and value & (value - 1) == 0
    return f"2^{int(value).bit_length() - 1}" if is_power else f"{value:g}"


def parameter_rows() -> list[str]:
    """Build the table of the engine's parameters."""
    rows = []
    texts = _attribute_texts()
    for field in msgspec.structs.fields(EngineConfig):
        low, high = RANGES.get(field.name, (None, None))
        bounds = "" if low is None or high is None else f"{_figure(low)} to {_figure(high)}"
        default = "none" if field.default in ("", ()) else f"{field.default}"
        text = texts[field.name].replace("``", "`").rstrip(".")
        rows.append(f"| `{field.name}` | {default} | {bounds} | {text} |")
    return rows


def error_rows() -> list[str]:
    """Build the table of the errors."""
    return [
        f"| {code} | `{error.name}` | `{error.__name__}` | "
        f"{inspect.cleandoc(error.__doc__ or '').splitlines()[0].replace('``', '`')} |"
        for code, error in sorted(ERRORS.items())
    ]


def test_every_parameter_of_the_engine_is_in_the_docs() -> None:
    text = (DOCS / "engine.md").read_text(encoding="utf-8")
    missing = [row for row in parameter_rows() if row not in text]
    assert not missing, "\n".join(["docs/engine.md lacks:", *missing])


def test_every_error_is_in_the_docs() -> None:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    missing = [row for row in error_rows() if row not in text]
    assert not missing, "\n".join(["docs/errors.md lacks:", *missing])
