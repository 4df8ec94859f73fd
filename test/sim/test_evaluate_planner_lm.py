"""The shipped planner on held-out instructions; untrained, it or another prompt must fail."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_tokenizer import HybridTokenizer
from flashrt_ros.models.planner_lm import load_planner_lm
from flashrt_ros.sim.evaluate_planner_lm import (
    POSITIONS,
    confidence,
    evaluate,
    main,
    sample_held_out,
    summarise,
)
from flashrt_ros.sim.instructions import Turn

NUM_TURNS = 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def planner() -> tuple[HybridLm, HybridTokenizer]:
    return load_planner_lm(max_positions=POSITIONS)


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    return sample_held_out(NUM_TURNS, seed=77)


def test_the_trained_planner_is_exact(
    planner: tuple[HybridLm, HybridTokenizer], turns: list[Turn]
) -> None:
    summary = summarise(evaluate(*planner, turns))
    assert summary.turns == NUM_TURNS
    assert summary.exact >= 0.9, summary.wrong


def test_another_turns_prompt_gives_another_plan(
    planner: tuple[HybridLm, HybridTokenizer], turns: list[Turn]
) -> None:
    assert summarise(evaluate(*planner, turns, is_shuffled=True)).exact <= 0.1


def test_untrained_weights_know_no_plan(
    planner: tuple[HybridLm, HybridTokenizer], turns: list[Turn]
) -> None:
    model, tokenizer = planner
    untrained = HybridLm.random(model.config, 0, max_positions=POSITIONS)
    assert summarise(evaluate(untrained, tokenizer, turns[:4])).exact == 0.0


def test_held_out_turns_repeat_and_are_held_out() -> None:
    assert sample_held_out(9, 1) == sample_held_out(9, 1)
    assert sample_held_out(9, 1) != sample_held_out(9, 2)
    assert all(turn.instruction.held_out for turn in sample_held_out(50, 1))


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (95, 100, 0.8882, 0.9785)],
)
def test_confidence_is_wilsons(count: int, total: int, low: float, high: float) -> None:
    assert confidence(count, total) == (low, high)


def test_command_line_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--turns", "2", "--untrained", "0"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["turns"] == 2
    assert printed["exact"] == 0.0
    assert len(printed["wrong"]) == 2
