"""``flashrt-ros prove``: exit codes, what is printed, what is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from flashrt_ros.models import registry
from flashrt_ros.models.base import Buffers, Program, Slots
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import BufferSpec, Role, ShapeKey

Flashrt = Callable[..., tuple[int, str, str]]


class Hiding(MinimalPolicy):
    """Carries state from chunk to chunk in SCRATCH."""

    name = "hiding"

    def buffers(self) -> tuple[BufferSpec, ...]:
        return (*super().buffers(), BufferSpec("hidden", (2,), "float32", Role.SCRATCH))

    def programs(self) -> Mapping[ShapeKey, Program]:
        programs = dict(super().programs())
        commit = programs[("commit",)]

        def leak(buffers: Buffers, slots: Slots) -> None:
            commit(buffers, slots)
            buffers["momentum"].add_(buffers["hidden"])
            buffers["hidden"].copy_(buffers["path"][0])

        return {**programs, ("commit",): leak}


def test_a_proved_model_exits_with_zero(flashrt: Flashrt, tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    code, out, _ = flashrt("prove", "minimal", "--ticks", "8", "--seed", "2", "--json", str(file))
    assert code == 0
    assert "proved" in out
    assert "momentum" in out
    plain = json.loads(file.read_text())
    assert (plain["proved"], plain["num_ticks"], plain["seed"]) == (True, 8, 2)


def test_hidden_state_exits_with_one_and_its_name(
    flashrt: Flashrt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.MODELS, "hiding", lambda weights: Hiding())
    file = tmp_path / "proof.json"
    code, out, _ = flashrt("prove", "hiding", "--json", str(file))
    assert code == 1
    assert "not proved" in out
    assert "hidden (poison)" in out
    plain = json.loads(file.read_text())
    assert plain["proved"] is False
    assert [finding["subject"] for finding in plain["findings"]] == ["hidden"]


def test_an_unknown_model_is_refused(flashrt: Flashrt) -> None:
    code, _, err = flashrt("prove", "unknown")
    assert code == 1
    assert "UNKNOWN_MODEL (505)" in err


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x"])
def test_an_unknown_device_is_refused(flashrt: Flashrt, device: str) -> None:
    code, _, err = flashrt("prove", "minimal", "--device", device)
    assert code == 1
    assert "CONFIG (500)" in err


def test_a_device_that_is_not_there_is_refused(flashrt: Flashrt) -> None:
    code, _, err = flashrt("prove", "minimal", "--device", "cuda:99")
    assert code == 1
    assert "BACKEND (105)" in err


def test_weights_that_are_missing_are_refused(flashrt: Flashrt, tmp_path: Path) -> None:
    code, _, err = flashrt("prove", "flow_policy", "--weights", str(tmp_path / "none"))
    assert code == 1
    assert "WEIGHTS (504)" in err


@pytest.mark.parametrize(
    "words", [("--ticks", "0"), ("--ticks", "4"), ("--seed", "-1"), ("--seed", str(1 << 32))]
)
def test_ranges_are_checked(flashrt: Flashrt, words: tuple[str, str]) -> None:
    code, _, err = flashrt("prove", "minimal", *words)
    assert code == 1
    assert "PARAMETER_RANGE (503)" in err


def test_wrong_usage_exits_with_two(flashrt: Flashrt) -> None:
    code, _, err = flashrt("prove", "minimal", "--ticks", "many")
    assert code == 2
    assert "--ticks" in err
