"""Rows, targets and what JSON has of them."""

from __future__ import annotations

import pytest

from flashrt_ros.bench.result import Result, Row, absent, at_least, at_most


@pytest.mark.parametrize(
    ("target", "row", "met"),
    [
        (at_most("median", 30), {"median": 30.0}, True),
        (at_most("median", 30), {"median": 30.1}, False),
        (at_most("p99", 200), {"median": 1.0, "p99": 201.0}, False),
        (at_least("ratio", 3.5), {"median": 1.0, "ratio": 3.5}, True),
        (at_least("ratio", 3.5), {"median": 1.0, "ratio": 3.4}, False),
        (at_most("ratio", 1.05), {"median": 1.0}, None),
        (None, {"median": 1.0}, None),
    ],
)
def test_targets(target: object, row: dict[str, float], met: bool | None) -> None:
    assert Row("row", "us", target=target, **row).met is met  # type: ignore[arg-type]


def test_nan_misses_a_target() -> None:
    assert Row("row", "us", float("nan"), target=at_most("median", 1)).met is False


def test_the_plain_form() -> None:
    row = Row("a copy", "us", 1.23456789, 2.0, 0.5, at_most("ratio", 1.05))
    result = Result("restore", "a GPU", {"torch": "2"}, (row, absent("b", "us", "no ROS")))
    assert result.plain() == {
        "bench": "restore",
        "device": "a GPU",
        "versions": {"torch": "2"},
        "rows": [
            {
                "name": "a copy",
                "unit": "us",
                "median": 1.23457,
                "p99": 2.0,
                "ratio": 0.5,
                "target": "ratio <= 1.05",
                "met": True,
            },
            {
                "name": "b (absent: no ROS)",
                "unit": "us",
                "median": None,
                "p99": None,
                "ratio": None,
                "target": None,
                "met": None,
            },
        ],
    }
    assert result.missed == []
