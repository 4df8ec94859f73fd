"""Points and lengths in words: what is found, what is refused, and the plans that leave one out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.errors import FlashrtError, PayloadRangeError, UnsupportedError
from flashrt_ros.planner.grammar import PlanGrammar, parse_plan
from flashrt_ros.planner.reading import bare_words, check_numbers, read_numbers
from flashrt_ros.sim.instructions import sample_instruction, sample_scene
from flashrt_ros.sim.outside import sample_outside
from test.planner.conftest import Rig

TABLE = PlanGrammar(low=0.0, high=0.512, may_be_empty=True)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("go to 0.128 0.38", [(0.128, 0.38)]),
        ("go to (128, 380) mm, please", [(0.128, 0.38)]),
        ("x 12.8 cm y 38 cm", [(0.128, 0.38)]),
        ("x=0.1, y=0.2", [(0.1, 0.2)]),
        ("x0.1 y0.2", [(0.1, 0.2)]),
        ("y: 20 cm, x: 10 cm", [(0.1, 0.2)]),
        ("x 0.1 x 0.2", [(0.1, 0.2)]),
        ("12 x 38 cm", [(0.12, 0.38)]),
        ("12.8 centimetres and 38 centimeters", [(0.128, 0.38)]),
        ("12.8cm 38cm.", [(0.128, 0.38)]),
        ("100 mm, 20 cm", [(0.1, 0.2)]),
        ("x 12 cm y 38", [(0.12, 0.38)]),
        ("from (0.1, 0.2) to .3/.4", [(0.1, 0.2), (0.3, 0.4)]),
        ("visit 0.1 0.2, 0.3 0.4", [(0.1, 0.2), (0.3, 0.4)]),
        ("go to \u22125 cm, 20 cm", [(-0.05, 0.2)]),
        ("go round the block 2 times, I'm in a hurry", []),
        ("go to the left", []),
        ("1.2.3 4", []),
        ("go to b2 c3", []),
        ("max 5", []),
    ],
)
def test_points_are_found_in_metres(text: str, points: list[tuple[float, float]]) -> None:
    found = read_numbers(text, 2)
    assert found.lengths == ()
    assert [pytest.approx(point) for point in points] == list(found.points)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("move 5 cm to the left", UnsupportedError, "'5 cm'"),
        ("go five centimetres left", UnsupportedError, "'centimetres'"),
        ("an inch up", UnsupportedError, "'inch'"),
        ("3 ft to the right", UnsupportedError, "'3 ft'"),
        ("x 5 cm", UnsupportedError, "'5 cm'"),
        ("30 30 30 mm", UnsupportedError, "'30 mm'"),
        ("go to 90 cm 20 cm", PayloadRangeError, "0 to 0.512 m, found 0.9 0.2 m"),
        ("go to 128 380", PayloadRangeError, "without a unit are metres"),
        ("go to 0.1 -0.001", PayloadRangeError, "found 0.1 -0.001 m"),
        ("go to 0.513 0.1", PayloadRangeError, "found 0.513 0.1 m"),
        ("first to 0.1 0.2, then to 0.1 0.6", PayloadRangeError, "found 0.1 0.6 m"),
    ],
)
def test_what_can_not_be_followed_is_refused(
    text: str, error: type[FlashrtError], says: str
) -> None:
    with pytest.raises(error, match=says):
        check_numbers(text, TABLE)


def test_the_edges_are_in_the_range() -> None:
    assert check_numbers("go to 0 0.512", TABLE).points == ((0.0, 0.512),)
    (point,) = check_numbers("go to 51.2 cm 0 cm", TABLE).points
    assert point == pytest.approx((0.512, 0.0))


def test_nothing_about_the_table_is_refused_and_every_point_is_in_its_plan() -> None:
    random = Random(0)
    num_points = 0
    for _ in range(3000):
        instruction, scene = sample_instruction(random), sample_scene(random)
        said = check_numbers(instruction.text, TABLE)
        num_points += len(said.points)
        said.check(parse_plan(TABLE, instruction.plan(scene)))
    assert num_points > 500


def test_every_point_off_the_table_is_refused() -> None:
    random = Random(0)
    texts: list[str] = []
    while len(texts) < 200:
        turn = sample_outside(random, held_out=False)
        if turn.instruction.family == "beyond":
            texts.append(turn.instruction.text)
    for text in texts:
        with pytest.raises(PayloadRangeError):
            check_numbers(text, TABLE)


def test_a_plan_that_leaves_a_point_out_is_told_from_one_that_does_not() -> None:
    said = check_numbers("go to 31 279 mm, then to 0.1284 0.2", TABLE)
    plan = [(0.256, 0.256), (0.128, 0.2), (0.031, 0.279)]
    said.check(plan)
    assert said.missed_by(plan[:2]) == pytest.approx((0.031, 0.279))
    assert said.missed_by([(0.032, 0.279), plan[1]]) == pytest.approx((0.031, 0.279))
    with pytest.raises(PayloadRangeError, match=r"expected 0\.031 0\.279 m, found 0\.256 0"):
        said.check(plan[:2])
    said.check([])  # the instruction can't be followed


@pytest.mark.parametrize("part", ["9", "9.", "1 ", "1,", "(1,2)", "cm", "1cm ", "(", "1 (", "- "])
def test_a_long_text_is_read_once(part: str) -> None:
    """As long as a message may be; what goes back over it would take minutes."""
    text = part * (60_000 // len(part))
    read_numbers(text, 2)
    bare_words(text)


def test_bare_words_have_no_case_courtesies_nor_points() -> None:
    assert bare_words("  Ok, DON\u2019T move \u2014 please!") == "don't move"
    assert bare_words("?!") == ""


# in an engine --------------------------------------------------------------------------------


def test_a_plan_that_leaves_out_what_was_said_is_never_told(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(numbers="checked")
    before = rig.instruct("go left")
    rig.recorder.events.clear()
    with pytest.raises(PayloadRangeError, match=r"leaves out a point .*expected 0\.123 "):
        rig.instruct("go to 0.123 0.456")
    assert not rig.recorder.details(EventKind.SUBGOAL)
    failed = rig.recorder.details(EventKind.TURN)[-1]
    assert failed.startswith(f"failed turn={before.turn + 1} code={PayloadRangeError.code} ")
    assert ": the model's plan leaves out" in failed
    assert rig.instruct("go left").tokens == before.tokens
    free = make_rig(numbers="free")
    assert len(free.instruct("go to 0.123 0.456").subgoals) == len(
        free.recorder.details(EventKind.SUBGOAL)
    )


def test_a_refused_number_leaves_the_turn_under_way_alone(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(numbers="checked")
    answers = rig.begin("go left")
    rig.run(3)
    with pytest.raises(UnsupportedError, match="5 cm"):
        rig.begin("go 5 cm left")
    rig.run()
    assert answers[0].subgoals


def test_of_several_plans_one_that_goes_where_was_said_is_best(
    make_rig: Callable[..., Rig],
) -> None:
    grid = {"subgoal_decimals": 0, "subgoal_high": 1.0, "max_tokens": 14}
    seeds = tuple(range(12))
    rig = make_rig(numbers="checked", **grid)
    done = rig.instruct("go to 1 1", temperature=3.0, seeds=seeds)
    hits = [(1.0, 1.0) in parse_plan(grammar_of(rig), one.text) for one in done.candidates]
    assert True in hits
    assert False in hits
    best = max(one.score for one, is_hit in zip(done.candidates, hits, strict=True) if is_hit)
    chosen = done.candidates[seeds.index(done.seed)]
    assert (1.0, 1.0) in done.subgoals
    assert chosen.score == best
    free = make_rig(numbers="free", **grid).instruct("go to 1 1", temperature=3.0, seeds=seeds)
    assert [one.text for one in free.candidates] == [one.text for one in done.candidates]
    assert free.log_probability > done.log_probability, "else the score alone would have chosen it"
    assert len(rig.recorder.details(EventKind.SUBGOAL)) == len(done.subgoals)


def test_an_instruction_is_put_in_the_words_that_the_model_knows(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(synonyms=("stand still = go  left",))
    meant = rig.instruct("go left")
    assert rig.instruct("Please stand still!").tokens == meant.tokens
    assert rig.instruct("stand still there").num_prompt_tokens != meant.num_prompt_tokens


def grammar_of(rig: Rig) -> PlanGrammar:
    return rig.engine.core.constraint.grammar
