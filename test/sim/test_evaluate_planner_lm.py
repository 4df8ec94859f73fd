"""The shipped planner on held-out instructions; untrained, it or another prompt must fail."""

from __future__ import annotations

import json
from random import Random

import pytest

from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_tokenizer import HybridTokenizer
from flashrt_ros.models.planner_lm import load_planner_lm
from flashrt_ros.models.planner_text import turn_text
from flashrt_ros.sim.evaluate_planner_lm import (
    POSITIONS,
    answer_turns,
    confidence,
    evaluate,
    main,
    open_session,
    sample_held_out,
    sample_held_out_outside,
    summarise,
)
from flashrt_ros.sim.instructions import START, Instruction, Turn, sample_scene

NUM_TURNS = 20

SPOKEN_OUTSIDE = (
    "go to the fridge",
    "bring me a beer from the kitchen",
    "could you please make some tea?",
    "What's the weather like today?",
    "drive to Berlin",
    "pick up the T and put it in the box",
    "push the block into the upper left corner",
    "don't touch anything",
    "move 5 cm to the left",
    "rotate the block by 45 degrees",
    "go to x 90 cm y 20 cm",
    "follow the red car",
    "switch the lights off",
    "tell me a story about a dragon",
    "go to the lower left and then take out the trash",
    "fahr nach links oben",
    "asdkjh qwe",
    "where am I",
    "thank you, that was great",
    "clean the windows, then go to the centre",
)
"""Sentences of somebody who did not look at the templates."""


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


def test_what_is_not_about_the_table_has_no_subgoal(
    planner: tuple[HybridLm, HybridTokenizer],
) -> None:
    summary = summarise(evaluate(*planner, sample_held_out_outside(40, seed=77)))
    assert summary.exact >= 0.9, summary.wrong


def test_sentences_that_no_template_made_have_no_subgoal(
    planner: tuple[HybridLm, HybridTokenizer],
) -> None:
    scene = sample_scene(Random(5)).text
    prompts = [turn_text(text, scene) for text in SPOKEN_OUTSIDE]
    with open_session(planner[0]) as session:
        answers = list(answer_turns(session, planner[1], prompts))
    followed = [
        text for text, answer in zip(SPOKEN_OUTSIDE, answers, strict=True) if answer != "done"
    ]
    assert len(followed) <= 2, followed


def test_stop_is_where_the_pusher_is(planner: tuple[HybridLm, HybridTokenizer]) -> None:
    """Refusing must not cost the word that ends a motion; without a scene it can't be done."""
    random = Random(6)
    scenes = [sample_scene(random) for _ in range(6)]
    stop = Instruction("stop", "stop", "stay", (START,))
    prompts = [turn_text("stop", scene.text) for scene in scenes]
    with open_session(planner[0]) as session:
        answers = list(answer_turns(session, planner[1], [*prompts, turn_text("stop")]))
    assert answers == [*(stop.plan(scene) for scene in scenes), "done"]


def test_held_out_turns_repeat_and_are_held_out() -> None:
    assert sample_held_out(9, 1) == sample_held_out(9, 1)
    assert sample_held_out(9, 1) != sample_held_out(9, 2)
    assert all(turn.instruction.held_out for turn in sample_held_out(50, 1))
    outside = sample_held_out_outside(50, 1)
    assert outside == sample_held_out_outside(50, 1)
    assert all(turn.instruction.held_out and turn.answer == "done" for turn in outside)


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
