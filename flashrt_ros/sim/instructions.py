"""Instructions about the table with the plans they mean: data of the planner's language model.

An instruction is drawn from templates, synonyms and positions; its plan follows from rules:

- Areas (``lower left``), sides, edges, corners and the centre are fixed points (:data:`PLACES`).
  Up, down, left and right are the camera's.
- ``left of the block``, ``right of``, ``above`` (or ``behind``) and ``below`` (or ``in front of``)
  lie :data:`BESIDE_MM` from its centre.
- ``round the block to P`` goes by a point beside the block first: the side that is named, else
  left where P is on the left, else right.
- ``round the block`` alone is a lap: left, above, right, below; or left, below, right, above.
- ``back`` is where the pusher is when the instruction comes.

A plan's text is what the model answers, see :mod:`flashrt_ros.models.planner_text`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from flashrt_ros.models.planner_text import scene_text, turn_text
from flashrt_ros.sim.phrases import (
    COUNTS,
    PLACE_NAMES,
    back_phrase,
    coordinate_phrase,
    decorate,
    join_steps,
    lap_phrase,
    place_noun,
    relation_phrase,
    reorder_phrase,
    round_phrase,
    shuttle_phrase,
    stay_phrase,
    tour_phrase,
    via_phrase,
    with_verb,
)

START = "start"
"""Target: where the pusher is when the instruction comes."""

BESIDE_MM = 110
"""Distance of a point beside the block from its centre: 33 mm or more from its outline."""

MOST_SUBGOALS = 9
"""No plan has more."""

_NEAR, _QUARTER, _MIDDLE, _THREE_QUARTERS, _FAR = 64, 128, 256, 384, 448
_COLUMNS = {"left": (_NEAR, _QUARTER), "right": (_FAR, _THREE_QUARTERS)}
_ROWS = {"upper": (_NEAR, _QUARTER), "lower": (_FAR, _THREE_QUARTERS)}

Point = tuple[int, int]
"""x and y in the table's frame, mm."""


def _places() -> dict[str, Point]:
    places: dict[str, Point] = {"centre": (_MIDDLE, _MIDDLE)}
    for row, (edge_y, inner_y) in _ROWS.items():
        places[f"{row} edge"] = (_MIDDLE, edge_y)
        places[f"{row} side"] = (_MIDDLE, inner_y)
        for column, (edge_x, inner_x) in _COLUMNS.items():
            places[f"{row} {column}"] = (inner_x, inner_y)
            places[f"{row} {column} corner"] = (edge_x, edge_y)
            places[f"{column} edge"] = (edge_x, _MIDDLE)
            places[f"{column} side"] = (inner_x, _MIDDLE)
    assert set(places) == set(PLACE_NAMES)
    return places


PLACES: dict[str, Point] = _places()
"""Named points of the table, mm."""

BESIDE: dict[str, Point] = {
    "left of block": (-BESIDE_MM, 0),
    "right of block": (BESIDE_MM, 0),
    "above block": (0, -BESIDE_MM),
    "below block": (0, BESIDE_MM),
}
"""Named points as seen from the block's centre, mm."""

Target = str | Point
"""A key of :data:`PLACES` or :data:`BESIDE`, :data:`START`, or a point."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where things are; mm in the table's frame.

    Attributes:
        block: Centre of gravity of the block.
        pusher: Position of the pusher.
    """

    block: Point
    pusher: Point

    @property
    def text(self) -> str:
        """The line that the model reads."""
        return scene_text(_metres(self.block), _metres(self.pusher))


@dataclass(frozen=True, slots=True)
class Instruction:
    """What somebody says, and what it means.

    Attributes:
        text: As it is said.
        core: The text without courtesies and full stop, in small letters.
        family: Kind of template, for figures by kind.
        targets: What the plan passes, in order.
        pairs: Steps of a sequence that follow each other, by name.
    """

    text: str
    core: str
    family: str
    targets: tuple[Target, ...]
    pairs: tuple[str, ...] = ()

    @property
    def needs_scene(self) -> bool:
        """Whether the plan depends on where block or pusher are."""
        return any(target == START or target in BESIDE for target in self.targets)

    @property
    def held_out(self) -> str | None:
        """Why training must not see it: "composition", "wording", or None where it may.

        One in ten pairs of steps is held out in whatever words, and of the rest one in ten
        texts, in whatever scene; which, a hash of them says.
        """
        if any(_is_tenth(f"pair {pair}") for pair in self.pairs):
            return "composition"
        return "wording" if _is_tenth(f"text {self.core}") else None

    def points(self, scene: Scene) -> tuple[Point, ...]:
        """Return the subgoals in a scene, mm."""
        return tuple(_resolve(target, scene) for target in self.targets)

    def plan(self, scene: Scene) -> str:
        """Return the answer that is right in a scene."""
        return plan_text(self.points(scene))


def plan_text(points: tuple[Point, ...]) -> str:
    """Write subgoals (mm) as the model answers them."""
    steps = [f"go {x / 1000:.3f} {y / 1000:.3f}; " for x, y in points]
    return "".join(steps) + "done"


@dataclass(frozen=True, slots=True)
class Turn:
    """An instruction in a scene.

    Attributes:
        instruction: What is said.
        prompt: What the model takes in.
        answer: What it must answer.
    """

    instruction: Instruction
    prompt: str
    answer: str


def sample_turn(random: Random, *, held_out: bool, shares: Sequence[int] | None = None) -> Turn:
    """Draw a turn of one side of the split.

    Some instructions that need no scene come without one.

    Args:
        random: Source of chance; advanced.
        held_out: Whether to draw what training must not see.
        shares: How often each of :data:`FAMILIES` is drawn; None for :data:`SHARES`.
    """
    while True:
        instruction = sample_instruction(random, shares)
        if (instruction.held_out is not None) is held_out:
            break
    scene = sample_scene(random)
    is_shown = instruction.needs_scene or random.random() < 0.75
    prompt = turn_text(instruction.text, scene.text if is_shown else "")
    return Turn(instruction, prompt, instruction.plan(scene))


def sample_scene(random: Random) -> Scene:
    """Draw a scene as the episodes have them, the pusher clear of the block."""
    block = (random.randint(150, 362), random.randint(150, 362))
    while True:
        pusher = (random.randint(35, 477), random.randint(35, 477))
        if (pusher[0] - block[0]) ** 2 + (pusher[1] - block[1]) ** 2 >= BESIDE_MM**2:
            return Scene(block, pusher)


def sample_instruction(random: Random, shares: Sequence[int] | None = None) -> Instruction:
    """Draw an instruction of any family, whichever side of the split it is on.

    Args:
        random: Source of chance; advanced.
        shares: How often each of :data:`FAMILIES` is drawn; None for :data:`SHARES`.
    """
    while True:
        family = random.choices(FAMILIES, SHARES if shares is None else shares)[0]
        instruction = _FAMILIES[family][1](random, family)
        if len(instruction.targets) <= MOST_SUBGOALS:
            return instruction


@dataclass(frozen=True, slots=True)
class _Step:
    """Words after a verb, what they mean, and a name that is the same in all words."""

    words: str
    targets: tuple[Target, ...]
    name: str


def _place(random: Random) -> _Step:
    name = random.choice(PLACE_NAMES)
    return _Step(f"to {place_noun(random, name)}", (name,), name)


def _relation(random: Random) -> _Step:
    name = random.choice(list(BESIDE))
    return _Step(relation_phrase(random, name), (name,), name)


def _coordinates(random: Random) -> _Step:
    words, point = coordinate_phrase(random)
    return _Step(f"to {words}", (point,), "point")


def _via(random: Random) -> _Step:
    side, place = random.choice(list(BESIDE)), random.choice(PLACE_NAMES)
    words = via_phrase(random, side, place_noun(random, place))
    return _Step(words, (side, place), f"{side} {place}")


def _round(random: Random) -> _Step:
    place = random.choice(PLACE_NAMES)
    side = "left of block" if "left" in place else "right of block"
    words = round_phrase(random, place_noun(random, place))
    return _Step(words, (side, place), f"round {place}")


def _lap(random: Random) -> _Step:
    is_clockwise, count = random.random() < 0.6, random.choice((1, 1, 1, 2))
    one = ("left of block", "above block", "right of block", "below block")
    if not is_clockwise:
        one = ("left of block", "below block", "right of block", "above block")
    words = lap_phrase(random, is_clockwise=is_clockwise, count=count)
    return _Step(words, one * count, f"lap {is_clockwise} {count}")


_SINGLE: dict[str, Callable[[Random], _Step]] = {
    "place": _place,
    "relation": _relation,
    "coordinates": _coordinates,
    "via": _via,
    "round": _round,
    "lap": _lap,
}


def _any_step(random: Random) -> _Step:
    return random.choices(list(_SINGLE.values()), (8, 5, 3, 2, 2, 1))[0](random)


def _single(random: Random, family: str) -> Instruction:
    step = _SINGLE[family](random)
    words = step.words if random.random() < 0.08 else with_verb(random, step.words)
    return _said(random, words, family, step.targets)


def _tour(random: Random, family: str) -> Instruction:
    is_clockwise = random.random() < 0.6
    corners = [
        f"{row} corner" for row in ("upper left", "upper right", "lower right", "lower left")
    ]
    if not is_clockwise:
        corners = [corners[0], *reversed(corners[1:])]
    words = tour_phrase(random, is_clockwise=is_clockwise)
    return _said(random, words, family, tuple(corners))


def _back(random: Random, family: str) -> Instruction:
    step, count = _any_step(random), random.choice((1, 1, 1, 2, 3))
    words = with_verb(random, step.words) + back_phrase(random, COUNTS[count])
    return _said(random, words, family, (*step.targets, START) * count)


def _sequence(random: Random, family: str) -> Instruction:
    steps = [_any_step(random) for _ in range(int(family[-1]))]
    is_return = random.random() < 0.3
    words = join_steps(random, [step.words for step in steps])
    if is_return:
        words += back_phrase(random, "")
    targets = sum((step.targets for step in steps), ()) + ((START,) if is_return else ())
    return _said(random, words, family, targets, _pairs(steps))


def _reorder(random: Random, family: str) -> Instruction:
    first, second = _any_step(random), _any_step(random)
    words = reorder_phrase(random, first.words, second.words)
    return _said(random, words, family, first.targets + second.targets, _pairs([first, second]))


def _shuttle(random: Random, family: str) -> Instruction:
    names = random.sample(PLACE_NAMES, 2)
    count = random.choice((1, 2, 3))
    nouns = [place_noun(random, name) for name in names]
    words = shuttle_phrase(random, nouns[0], nouns[1], COUNTS[count])
    return _said(random, words, family, tuple(names) * count, (" / ".join(names),))


def _stay(random: Random, family: str) -> Instruction:
    return _said(random, stay_phrase(random), family, (START,))


def _said(
    random: Random,
    words: str,
    family: str,
    targets: tuple[Target, ...],
    pairs: tuple[str, ...] = (),
) -> Instruction:
    return Instruction(decorate(random, words), words.lower(), family, targets, pairs)


def _pairs(steps: list[_Step]) -> tuple[str, ...]:
    named = [(a.name, b.name) for a, b in itertools.pairwise(steps)]
    return tuple(f"{a} / {b}" for a, b in named)


def _resolve(target: Target, scene: Scene) -> Point:
    if isinstance(target, tuple):
        return target
    if target == START:
        return scene.pusher
    if target in PLACES:
        return PLACES[target]
    x, y = BESIDE[target]
    return scene.block[0] + x, scene.block[1] + y


_FAMILIES: dict[str, tuple[int, Callable[[Random, str], Instruction]]] = {
    "place": (8, _single),
    "relation": (8, _single),
    "coordinates": (12, _single),
    "via": (7, _single),
    "round": (7, _single),
    "lap": (4, _single),
    "tour": (3, _tour),
    "back": (16, _back),
    "sequence 2": (18, _sequence),
    "sequence 3": (8, _sequence),
    "reorder": (5, _reorder),
    "shuttle": (4, _shuttle),
    "stay": (2, _stay),
}
"""Share and maker of each kind of template."""

FAMILIES: tuple[str, ...] = tuple(_FAMILIES)
"""Kinds of templates."""

SHARES: tuple[int, ...] = tuple(share for share, _ in _FAMILIES.values())
"""How often each of :data:`FAMILIES` is said."""


def _is_tenth(key: str) -> bool:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little") % 10 == 0


def _metres(point: Point) -> tuple[float, float]:
    return point[0] / 1000, point[1] / 1000
