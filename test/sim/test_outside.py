"""What must not be followed is drawn from both sides of a split, and means no subgoal."""

from __future__ import annotations

from random import Random

import pytest

from flashrt_ros.sim.instructions import Turn, sample_instruction
from flashrt_ros.sim.outside import BLIND, KINDS, sample_outside
from flashrt_ros.sim.phrases import PLACE_NAMES


def turns(count: int, *, held_out: bool, seed: int = 0) -> list[Turn]:
    random = Random(seed)
    return [sample_outside(random, held_out=held_out) for _ in range(count)]


def test_equal_seeds_give_equal_turns() -> None:
    assert turns(50, held_out=True) == turns(50, held_out=True)
    assert turns(50, held_out=True) != turns(50, held_out=True, seed=1)


@pytest.mark.parametrize("held_out", [False, True])
def test_nothing_is_to_be_done_of_any_kind(held_out: bool) -> None:
    drawn = turns(3000, held_out=held_out)
    assert {turn.answer for turn in drawn} == {"done"}
    assert {turn.instruction.family for turn in drawn} == set(KINDS)
    for turn in drawn:
        assert turn.prompt[0] == turn.prompt[-1] == "\n"
        assert turn.instruction.text.strip()


def test_sides_of_the_split_share_neither_texts_nor_words() -> None:
    seen, kept = turns(4000, held_out=False), turns(1500, held_out=True)
    texts = {turn.instruction.core for turn in seen}
    assert not texts & {turn.instruction.core for turn in kept}
    words = {pair for turn in seen for pair in turn.instruction.pairs}
    composed = [turn for turn in kept if turn.instruction.held_out == "composition"]
    assert composed
    assert all(set(turn.instruction.pairs) - words for turn in composed)


def test_what_needs_a_scene_and_has_none_is_not_followed() -> None:
    blind = [turn for turn in turns(2000, held_out=False) if turn.instruction.family == BLIND]
    assert blind
    assert not any("block at 0." in turn.prompt for turn in blind)


def test_no_sentence_is_one_about_the_table() -> None:
    """But for those that lack a scene, nothing that must be followed is to be refused."""
    random = Random(3)
    inside = {sample_instruction(random).core for _ in range(20_000)}
    outside = {
        turn.instruction.core
        for turn in turns(6000, held_out=False)
        if turn.instruction.family != BLIND
    }
    assert not inside & outside
    named = {f"go to the {name}" for name in PLACE_NAMES}
    assert not named & outside
