"""Instructions repeat, keep to their side of the split, and mean what their words say."""

from __future__ import annotations

import re
from random import Random

import pytest

from flashrt_ros.sim.episodes import AGENT_RANGE_M
from flashrt_ros.sim.instructions import (
    BESIDE,
    FAMILIES,
    MOST_SUBGOALS,
    PLACES,
    START,
    Instruction,
    Scene,
    Turn,
    plan_text,
    sample_instruction,
    sample_scene,
    sample_turn,
)
from flashrt_ros.sim.phrases import coordinate_phrase

SCENE = Scene(block=(243, 311), pusher=(104, 97))
ANSWER = re.compile(r"(go 0\.\d{3} 0\.\d{3}; ){1,9}done")


def turns(count: int, *, held_out: bool, seed: int = 0) -> list[Turn]:
    random = Random(seed)
    return [sample_turn(random, held_out=held_out) for _ in range(count)]


def say(text: str, *targets: str | tuple[int, int], pairs: tuple[str, ...] = ()) -> Instruction:
    return Instruction(text, text.lower(), "place", targets, pairs)


def test_equal_seeds_give_equal_turns() -> None:
    assert turns(50, held_out=True) == turns(50, held_out=True)
    assert turns(50, held_out=True) != turns(50, held_out=True, seed=1)


def test_sides_of_the_split_share_no_text() -> None:
    seen = {turn.instruction.core for turn in turns(5000, held_out=False)}
    held_out = {turn.instruction.core for turn in turns(2000, held_out=True)}
    assert seen
    assert held_out
    assert not seen & held_out


def test_a_held_out_pair_of_steps_is_seen_in_no_words() -> None:
    seen = {pair for turn in turns(5000, held_out=False) for pair in turn.instruction.pairs}
    kept = [turn.instruction for turn in turns(2000, held_out=True)]
    compositions = [each for each in kept if each.held_out == "composition"]
    assert compositions
    assert all(set(each.pairs) - seen for each in compositions)


def test_courtesies_do_not_change_the_side() -> None:
    plain = say("go to the centre", "centre")
    polite = Instruction("Please go to the centre.", plain.core, "place", plain.targets)
    assert plain.held_out == polite.held_out


def test_every_family_stands_on_both_sides() -> None:
    for held_out in (False, True):
        found = {turn.instruction.family for turn in turns(4000, held_out=held_out)}
        assert found == set(FAMILIES)


@pytest.mark.parametrize("held_out", [False, True])
def test_answers_keep_to_the_grammar_and_the_table(held_out: bool) -> None:
    for turn in turns(3000, held_out=held_out):
        assert ANSWER.fullmatch(turn.answer)
        numbers = [float(number) for number in re.findall(r"0\.\d{3}", turn.answer)]
        assert all(0.03 <= number <= 0.48 for number in numbers)
        assert turn.prompt[0] == turn.prompt[-1] == "\n"
        assert turn.prompt.count("\n") in (2, 3)


def test_what_needs_a_scene_comes_with_one() -> None:
    for turn in turns(2000, held_out=False):
        if turn.instruction.needs_scene:
            assert turn.prompt.startswith("\nblock at 0.")


def test_points_beside_the_block_are_where_the_policy_was_trained() -> None:
    low, high = AGENT_RANGE_M
    random = Random(3)
    for _ in range(1000):
        scene = sample_scene(random)
        for name in BESIDE:
            (point,) = say(name, name).points(scene)
            assert all(low <= value / 1000 <= high for value in point)


def test_targets_resolve_in_the_scene() -> None:
    plan = say("", "lower left", "left of block", "above block", (7, 480), START).plan(SCENE)
    assert plan == (
        "go 0.128 0.384; go 0.133 0.311; go 0.243 0.201; go 0.007 0.480; go 0.104 0.097; done"
    )


def test_scene_is_written_in_metres() -> None:
    assert SCENE.text == "block at 0.243 0.311; pusher at 0.104 0.097"


def test_places_are_mirrored() -> None:
    for name, (x, y) in PLACES.items():
        if "left" in name:
            assert PLACES[name.replace("left", "right")] == (512 - x, y)
        if "upper" in name:
            assert PLACES[name.replace("upper", "lower")] == (x, 512 - y)


def by_text(pattern: str, count: int = 20_000) -> list[Instruction]:
    random = Random(11)
    drawn = (sample_instruction(random) for _ in range(count))
    return [each for each in drawn if re.fullmatch(pattern, each.core)]


def test_round_the_block_goes_by_the_side_of_the_place() -> None:
    left = by_text(r"\w+ (round|around) the \w+ to the (lower|bottom) left")
    right = by_text(r"\w+ (round|around) the \w+ to the (upper|top) edge")
    assert left
    assert right
    assert {each.targets for each in left} == {("left of block", "lower left")}
    assert {each.targets for each in right} == {("right of block", "upper edge")}


def test_a_step_that_is_named_second_may_come_first() -> None:
    found = by_text(r"\w+ to the (?:centre|center|middle), but first .*")
    assert found
    assert {each.targets[-1] for each in found} == {"centre"}
    found = by_text(r"before you \w+ to the (?:centre|center|middle), \w+ .*")
    assert found
    assert {each.targets[-1] for each in found} == {"centre"}


def test_counts_repeat_and_back_returns() -> None:
    found = by_text(r"\w+ to the (?:lower|bottom) edge(?: and|, then) [a-z ]+ twice")
    assert found
    assert {each.targets for each in found} == {("lower edge", START) * 2}


def test_coordinates_are_what_the_words_say() -> None:
    random = Random(5)
    scale = {"mm": 1.0, "cm": 10.0, "m": 1000.0}
    for _ in range(500):
        words, point = coordinate_phrase(random)
        numbers = [float(number) for number in re.findall(r"[\d.]+", words)]
        unit = re.search(r"\b(mm|cm|m)\b", words)
        factor = scale[unit[1] if unit else "m"]
        assert tuple(round(number * factor) for number in numbers) == point


def test_no_plan_is_longer_than_said() -> None:
    random = Random(2)
    longest = max(len(sample_instruction(random).targets) for _ in range(5000))
    assert longest == MOST_SUBGOALS


def test_plan_without_points_is_done() -> None:
    assert plan_text(()) == "done"
