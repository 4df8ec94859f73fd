"""What a command needs is asked for before anything is started."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from flashrt_ros.cli.extras import require
from flashrt_ros.errors import ConfigError

Flashrt = Callable[..., tuple[int, str, str]]


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Have modules not be installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in missing else find(name)
    )


def test_what_is_installed_is_enough() -> None:
    require("a test", {"pytest": "test"})


def test_what_is_missing_is_named_with_what_installs_it() -> None:
    with pytest.raises(ConfigError, match=r"a test needs 'no_such'.*flashrt_ros\[lm\]'$"):
        require("a test", {"pytest": "test", "no_such": "lm"})
    with pytest.raises(ConfigError, match=r"flashrt_ros\[ros\]' on x86_64, or source"):
        require("a test", {"no_such": "ros"})


@pytest.mark.parametrize(
    ("missing", "words", "found"),
    [
        ("rclpy", [], "'up' needs 'rclpy'"),
        ("gym_pusht", ["--sim"], "the simulated robot needs 'gym_pusht'"),
    ],
)
def test_up_starts_nothing_without(
    flashrt: Flashrt, monkeypatch: pytest.MonkeyPatch, missing: str, words: list[str], found: str
) -> None:
    without(monkeypatch, missing)
    if missing != "rclpy":
        pytest.importorskip("rclpy")
    code, out, err = flashrt("up", *words)
    assert code == 1
    assert found in err
    assert not out
