"""What the planner must not act on: instructions that are none about the table.

The right answer to them is the plan without a subgoal, ``done`` at once. Kinds:

- deeds and places that are not the table's (``make me a coffee``, ``go to the fridge``);
- questions, negations, distances and turns (``move 5 cm left``), and points off the table;
- what the pusher can't do to the block (``push the T to the left``);
- an instruction about the table with one of these beside it;
- talk and letters without a meaning;
- an instruction that needs a scene, without one (:data:`BLIND`).

Open places in a sentence take words of :mod:`flashrt_ros.sim.outside_words`, or such as
nobody knows. One word in ten is held out, in whatever sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from flashrt_ros.models.planner_text import turn_text
from flashrt_ros.sim.instructions import (
    FAMILIES,
    Instruction,
    Turn,
    sample_instruction,
    sample_scene,
)
from flashrt_ros.sim.outside_words import (
    BODY_DEEDS,
    CHATTER,
    DEEDS,
    FRAMES,
    HANDLINGS,
    MOTIONS,
    PREPOSITIONS,
    QUESTIONS,
    QUESTIONS_ABOUT,
    THINGS,
    TURNS,
    WHERES,
)
from flashrt_ros.sim.phrases import decorate

BLIND = "blind"
"""Kind: an instruction about the table that needs a scene and comes without one."""

_UNKNOWN_SHARE = 0.3
_SHOWN_SHARE = 0.75
_ONSETS = (*"bcdfghjklmnprstvwz", "br", "cl", "dr", "fl", "gr", "pl", "sh", "st", "th", "tr")
_VOWELS = (*"aeiou", "ai", "ea", "oo", "ou")
_CODAS = ("", "", *"nrstlm", "ck", "p", "g")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,?!-"
_SINGLES = ("place", "relation", "coordinates", "via", "round")
_SINGLE_SHARES = tuple(int(family in _SINGLES) for family in FAMILIES)


@dataclass(frozen=True, slots=True)
class _Said:
    """Words, and those among them that stand in an open place."""

    words: str
    open_words: tuple[str, ...] = ()


def sample_outside(random: Random, *, held_out: bool) -> Turn:
    """Draw a turn whose right answer is no subgoal.

    Args:
        random: Source of chance; advanced.
        held_out: Whether to draw what training must not see.
    """
    while True:
        kind = random.choices(KINDS, _SHARES)[0]
        instruction = _blind(random) if kind == BLIND else _outside(random, kind)
        if (instruction.held_out is not None) is held_out:
            break
    scene = sample_scene(random)
    is_shown = kind != BLIND and random.random() < _SHOWN_SHARE
    prompt = turn_text(instruction.text, scene.text if is_shown else "")
    return Turn(instruction, prompt, instruction.plan(scene))


def _outside(random: Random, kind: str) -> Instruction:
    said = _MAKERS[kind][1](random)
    text = decorate(random, said.words)
    pairs = tuple(f"word {word}" for word in said.open_words)
    return Instruction(text, said.words.lower(), kind, (), pairs)


def _blind(random: Random) -> Instruction:
    while True:
        instruction = sample_instruction(random)
        if instruction.needs_scene:
            return replace(instruction, family=BLIND, targets=())


def _deed(random: Random) -> _Said:
    if random.random() < 0.2:
        return _Said(random.choice(BODY_DEEDS))
    deed, thing = _word(random, DEEDS), _word(random, THINGS)
    words = f"{deed} {_article(random)} {thing}"
    if random.random() < 0.25:
        words = f"{deed} me {_article(random)} {thing}"
    if random.random() < 0.35:
        other = _word(random, THINGS)
        return _Said(f"{words} {random.choice(PREPOSITIONS)} the {other}", (deed, thing, other))
    return _Said(words, (deed, thing))


def _elsewhere(random: Random) -> _Said:
    place = _word(random, THINGS + WHERES)
    words = f"{random.choice(MOTIONS)} {random.choice(PREPOSITIONS)} the {place}"
    if random.random() < 0.3:
        other = _word(random, THINGS + WHERES)
        joiner = random.choice((" to the ", ", then to the ", " and the ", " and back from the "))
        return _Said(words + joiner + other, (place, other))
    return _Said(words, (place,))


def _question(random: Random) -> _Said:
    mark = random.choice(("", "?"))
    if random.random() < 0.5:
        return _Said(random.choice(QUESTIONS) + mark)
    thing = random.choice(("block", "pusher", "table", "lower left", _word(random, THINGS)))
    return _Said(random.choice(QUESTIONS_ABOUT).format(thing) + mark, (thing,))


def _negation(random: Random) -> _Said:
    if random.random() < 0.3:
        return _Said(f"{random.choice(('avoid', 'leave', 'forget', 'ignore'))} {_part(random)}")
    never = random.choice(("don't", "do not", "never", "you must not", "dont"))
    return _Said(f"{never} {_inside(random)}")


def _distance(random: Random) -> _Said:
    if random.random() < 0.2:
        return _Said(random.choice(TURNS).format(random.randint(5, 360)))
    amount = random.choice(
        (
            f"{random.randint(1, 60)} cm",
            f"{random.randint(1, 300)} mm",
            f"0.{random.randint(1, 9)} m",
            "a bit",
            "a little",
            "two steps",
            "an inch",
            "half way",
        )
    )
    way = random.choice(("left", "right", "up", "down", "forward", "back", "backwards", "away"))
    if way in ("left", "right"):
        way = random.choice((way, f"to the {way}", f"to the {way} side"))
    words = random.choice((f"{amount} {way}", f"{way} {amount}", f"{way} by {amount}"))
    return _Said(f"{random.choice(MOTIONS)} {words}")


def _beyond(random: Random) -> _Said:
    """Return a point with a coordinate off the table, 512 mm wide."""
    point = [random.randint(30, 480), _far(random)]
    random.shuffle(point)
    if random.random() < 0.3:
        point = [_far(random), _far(random)]
    unit = random.choice(("m", "cm", "mm"))
    scale = {"m": 1000, "cm": 10, "mm": 1}[unit]
    x, y = (f"{value / scale:.{random.choice((1, 2)) if unit == 'm' else 0}f}" for value in point)
    short = "" if unit == "m" else f" {unit}"
    words = random.choice(
        (
            f"{x} {y}{short}",
            f"({x}, {y}){short}",
            f"x {x}{short} y {y}{short}",
            f"{x} {unit}, {y} {unit}",
            f"{x} {unit} and {y} {unit}",
        )
    )
    return _Said(f"{random.choice(MOTIONS)} to {words}")


def _far(random: Random) -> int:
    return random.randint(550, 999) if random.random() < 0.6 else random.randint(1000, 3000)


def _handling(random: Random) -> _Said:
    handling = random.choice(HANDLINGS)
    block = random.choice(("block", "T", "piece", "obstacle"))
    end = random.choice(("", "", f" to {_part(random)}", " away", " over", " upside down"))
    return _Said(f"{handling} the {block}{end}")


def _mixed(random: Random) -> _Said:
    inside, said = _inside(random), random.choice((_deed, _elsewhere))(random)
    joiner = random.choice((", then ", " then ", " and then ", ", after that ", " and "))
    if random.random() < 0.5:
        return replace(said, words=f"{inside}{joiner}{said.words}")
    return replace(said, words=f"{said.words}{joiner}{inside}")


def _talk(random: Random) -> _Said:
    draw = random.random()
    if draw < 0.5:
        return _Said(random.choice(CHATTER))
    if draw < 0.65:
        thing = _word(random, THINGS)
        return _Said(random.choice(FRAMES).format(thing, thing), (thing,))
    if draw < 0.8:
        return _Said(" ".join(_unknown(random) for _ in range(random.randint(1, 6))))
    letters = "".join(random.choices(_LETTERS, k=random.randint(1, 30))).strip()
    return _Said(letters or "?")


def _inside(random: Random) -> str:
    return sample_instruction(random, _SINGLE_SHARES).core


def _part(random: Random) -> str:
    return random.choice(
        ("the lower left", "the upper right corner", "the middle", "the left edge", "the block")
    )


def _article(random: Random) -> str:
    return random.choice(("a", "the", "the", "my", "some", "that"))


def _word(random: Random, words: tuple[str, ...]) -> str:
    return _unknown(random) if random.random() < _UNKNOWN_SHARE else random.choice(words)


def _unknown(random: Random) -> str:
    """Return a word that nobody knows."""
    return "".join(
        random.choice(_ONSETS) + random.choice(_VOWELS) + random.choice(_CODAS)
        for _ in range(random.choice((1, 2, 2, 3)))
    )


_MAKERS: dict[str, tuple[int, Callable[[Random], _Said]]] = {
    "deed": (20, _deed),
    "elsewhere": (20, _elsewhere),
    "question": (8, _question),
    "negation": (8, _negation),
    "distance": (12, _distance),
    "beyond": (14, _beyond),
    "handling": (8, _handling),
    "mixed": (14, _mixed),
    "talk": (12, _talk),
}

KINDS: tuple[str, ...] = (*_MAKERS, BLIND)
"""Kinds of sentences."""

_SHARES = (*(share for share, _ in _MAKERS.values()), 14)
