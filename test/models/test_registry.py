"""Models by name: what ships, and functions of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashrt_ros.errors import UnknownModelError
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.models.registry import MODELS, create

FACTORIES = """
from flashrt_ros.models.minimal import MinimalPolicy


class Mine(MinimalPolicy):
    def __init__(self, weights):
        self.weights = weights


def make_a_number(weights):
    return 7


def fail(weights):
    raise RuntimeError("mine")
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factories_of_mine.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_function_makes_a_model_of_ones_own() -> None:
    model = create("factories_of_mine:Mine", Path("some.safetensors"))
    assert isinstance(model, MinimalPolicy)
    assert getattr(model, "weights") == Path("some.safetensors")  # noqa: B009


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("factories_of_mine:make_a_number", "int"),
        ("factories_of_mine:absent", "absent"),
        ("no_such_module:make", "no_such_module"),
        ("factories_of_mine:", "''"),
        (":make", "module"),
    ],
)
def test_what_makes_no_model_is_refused(name: str, found: str) -> None:
    with pytest.raises(UnknownModelError, match=found):
        create(name)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownModelError, match="module:function") as caught:
        create("nothing")
    assert all(name in str(caught.value) for name in MODELS)


def test_what_the_function_raises_is_its_own() -> None:
    with pytest.raises(RuntimeError, match="mine"):
        create("factories_of_mine:fail")
