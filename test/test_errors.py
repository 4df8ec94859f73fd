"""The errors: codes that never change, messages in parts, one import name for all."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashrt_ros import errors
from flashrt_ros.errors import ERRORS, FlashrtError, from_wire

FOLDER = Path(errors.__file__).parent
FIRST_CODES = {
    "runtime": 100,
    "capsules": 200,
    "engine": 300,
    "payloads": 400,
    "configuration": 500,
}


def classes_of(module: str) -> list[type[FlashrtError]]:
    """Classes that a module defines, in its order."""
    found = vars(importlib.import_module(f"flashrt_ros.errors.{module}")).values()
    return [one for one in found if isinstance(one, type) and one.__module__.endswith(module)]


def descendants(base: type[FlashrtError]) -> Iterator[type[FlashrtError]]:
    for one in base.__subclasses__():
        if one.__module__.startswith("flashrt_ros."):
            yield one
            yield from descendants(one)


def test_every_class_has_a_code_and_a_name_of_its_own() -> None:
    known: list[type[FlashrtError]] = [FlashrtError, *descendants(FlashrtError)]
    for one in known:
        assert {"code", "name"} <= vars(one).keys(), one
    # the table keeps one class for a code: with two of a code it would lack one
    assert sorted(known, key=lambda one: one.code) == [ERRORS[code] for code in sorted(ERRORS)]
    assert len({one.name for one in known}) == len(known)


@pytest.mark.parametrize("module", FIRST_CODES)
def test_codes_of_a_module_grow_within_its_hundred(module: str) -> None:
    codes = [one.code for one in classes_of(module)]
    assert codes == sorted(codes)
    assert FIRST_CODES[module] <= codes[0]
    assert codes[-1] < FIRST_CODES[module] + 100


def test_no_module_is_forgotten() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")}
    assert modules == {"__init__", "base", *FIRST_CODES}


def test_everything_is_imported_from_one_name() -> None:
    names = {one.__name__ for one in ERRORS.values()}
    assert set(errors.__all__) == {*names, "ERRORS", "from_wire"}
    for name in names:
        assert isinstance(getattr(errors, name), type)


def test_nothing_but_the_standard_library_is_imported() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module is not None
                top = node.module.split(".")[0]
                assert top in sys.stdlib_module_names or node.module.startswith(
                    "flashrt_ros.errors."
                ), f"{path.name} imports {node.module}"
            elif isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "it broke"),
        ({"expected": 3}, "it broke: expected 3"),
        ({"found": "none"}, "it broke: found none"),
        ({"expected": 0, "found": False}, "it broke: expected 0, found False"),
        ({"fix": "mend it"}, "it broke; mend it"),
        (
            {"expected": "a", "found": "b", "fix": "mend it"},
            "it broke: expected a, found b; mend it",
        ),
    ],
)
def test_a_message_has_its_parts_in_order(parts: dict[str, str], message: str) -> None:
    error = FlashrtError("it broke", **parts)
    assert str(error) == message
    assert error.what == "it broke"
    for name in ("expected", "found", "fix"):
        assert getattr(error, name) == parts.get(name)


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_an_error_comes_back_from_the_wire(code: int) -> None:
    error = from_wire(code, "it broke: expected a, found b; mend it")
    assert type(error) is ERRORS[code]
    assert error.code == code
    assert str(error) == "it broke: expected a, found b; mend it"


@pytest.mark.parametrize("code", [0, 2, 199, 60_000])
def test_an_unknown_code_gives_the_base_class(code: int) -> None:
    assert code not in ERRORS
    assert type(from_wire(code, "of a newer engine")) is FlashrtError


@pytest.mark.parametrize(
    ("error", "fact", "value"),
    [
        (errors.CaptureError("no", op="aten::item", source="a.py:3"), "op", "aten::item"),
        (errors.CaptureError("no", op="aten::item", source="a.py:3"), "source", "a.py:3"),
        (errors.BackendError("no", is_torn=True), "is_torn", True),
        (errors.DeviceLostError("no"), "is_torn", False),
        (errors.CapsuleArchiveError("no", reason="header"), "reason", "header"),
        (errors.EpisodeError("no", participant="sim"), "participant", "sim"),
    ],
)
def test_facts_stay_readable(error: FlashrtError, fact: str, value: object) -> None:
    assert getattr(error, fact) == value
