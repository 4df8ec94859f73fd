"""The model that ships, in a planner engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("tokenizers", reason="pip install flashrt_ros[lm] would run it")

from flashrt_ros.engine import protocol
from flashrt_ros.errors import PayloadRangeError, UnknownModelError, UnsupportedError
from flashrt_ros.models.planner_text import HOLDS, PLANNER_PREFIX, scene_text, turn_text
from flashrt_ros.planner.config import PlannerConfig
from flashrt_ros.planner.engine import PlannerEngine
from flashrt_ros.planner.grammar import parse_plan
from flashrt_ros.planner.members import load_model

SCENE = scene_text(block=(0.243, 0.311), pusher=(0.104, 0.397))
WORDS = "go round the block to the lower left, then back"


@pytest.fixture(scope="module")
def engine() -> Iterator[PlannerEngine]:
    config = PlannerConfig()
    model, tokenizer, habits = load_model(config)
    with PlannerEngine(model, tokenizer, config, habits=habits) as engine:
        yield engine


def instruct(engine: PlannerEngine, text: str, context: str = "", **more: object) -> str:
    request = protocol.Instruct(
        0,
        0,
        text.encode(),
        context=context.encode(),
        **more,  # type: ignore[arg-type]
    )
    done = engine.handle(request)
    assert isinstance(done, protocol.TurnDone)
    return done.text


def test_the_plan_is_what_the_model_says_without_a_grammar(engine: PlannerEngine) -> None:
    builder, tokenizer = engine.core.builder, engine.core.tokenizer
    for words, scene in ((WORDS, SCENE), ("go to the upper left", ""), ("to the centre", SCENE)):
        builder.reset()
        builder.append(tokenizer.encode(PLANNER_PREFIX))
        builder.append(tokenizer.encode(turn_text(words, scene)))
        stop = engine.core.model.config.eos_token_ids
        free = tokenizer.decode(builder.decode(96, stop=stop))
        assert instruct(engine, words, scene) == free


def test_a_turn_goes_on_from_the_one_before(engine: PlannerEngine) -> None:
    instruct(engine, "go to the upper left", SCENE)
    assert instruct(engine, "go to the lower right", mode="append").startswith("go 0.384 0.384")


def test_text_that_it_was_not_made_for_still_gives_a_plan(engine: PlannerEngine) -> None:
    grammar = engine.core.constraint.grammar
    for text in ("go to 火", "\x00", "<|end|>", "done; go nine nine", "?" * 200):
        parse_plan(grammar, instruct(engine, text))


def test_what_can_not_be_followed_has_no_subgoal(engine: PlannerEngine) -> None:
    for text, scene in (("make me a coffee", SCENE), ("go to the fridge", SCENE), (WORDS, "")):
        assert instruct(engine, text, scene) == "done"
    assert instruct(engine, WORDS, SCENE) != "done"


@pytest.mark.parametrize(
    "text",
    [
        "move 5 cm to the left",
        "go to the left by 5 cm",
        "go to (900, 200) mm",
        "go to -5 cm, 20 cm",
        "go to the lower left, then to 90 cm 20 cm",
    ],
)
def test_what_is_off_the_table_is_refused_before_the_model_guesses(
    engine: PlannerEngine, text: str
) -> None:
    with pytest.raises((PayloadRangeError, UnsupportedError)):
        instruct(engine, text, SCENE)


def test_a_point_that_is_spelt_out_is_gone_to(engine: PlannerEngine) -> None:
    assert instruct(engine, "go to x 12.8 cm y 38 cm", SCENE).startswith("go 0.128 0.380; ")


@pytest.mark.parametrize("text", HOLDS)
def test_to_stand_still_is_to_hold_where_the_pusher_is(engine: PlannerEngine, text: str) -> None:
    hold = "go 0.104 0.397; done"
    assert instruct(engine, f"{text.capitalize()}!", SCENE) == hold
    assert instruct(engine, f"please {text}", SCENE) == hold


def test_without_its_habits_the_model_is_on_its_own() -> None:
    config = PlannerConfig(numbers="free", synonyms=("stand still = stand still",))
    model, tokenizer, habits = load_model(config)
    with PlannerEngine(model, tokenizer, config, habits=habits) as engine:
        assert instruct(engine, "go to (900, 200) mm", SCENE) == "go 0.090 0.200; done"
        assert instruct(engine, "stand still", SCENE) == "done"


def test_another_model_needs_a_checkpoint() -> None:
    with pytest.raises(UnknownModelError, match="'planner_lm', or a checkpoint"):
        load_model(PlannerConfig(model="large"))
    with pytest.raises(UnknownModelError, match="nothing:here"):
        load_model(PlannerConfig(), "nothing:here")
