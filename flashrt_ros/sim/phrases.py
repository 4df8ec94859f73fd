"""English for instructions about the table: synonyms and ways to join them, drawn at random."""

from __future__ import annotations

from random import Random

Point = tuple[int, int]
"""x and y in the table's frame, mm."""

PLACE_NAMES: tuple[str, ...] = (
    "centre",
    *(
        f"{name} {kind}"
        for name in ("left", "right", "upper", "lower")
        for kind in ("edge", "side")
    ),
    *(f"{row} {column}" for row in ("upper", "lower") for column in ("left", "right")),
    *(f"{row} {column} corner" for row in ("upper", "lower") for column in ("left", "right")),
)
"""Names of the table's points that instructions have words for."""

COUNTS: dict[int, str] = {1: "", 2: " twice", 3: " three times"}
"""Words for how often, to be put after the rest."""

_VERBS = ("go", "go", "move", "drive", "head", "travel", "slide", "steer", "move the pusher")
_CIRCLE = "circle"  # the one verb that is part of a step's words
_BLOCKS = ("block", "block", "block", "T", "piece", "obstacle")
_SYNONYMS = {"upper": ("upper", "top"), "lower": ("lower", "bottom")}
_RELATIONS = {
    "left of block": ("left of", "to the left of", "to the left side of"),
    "right of block": ("right of", "to the right of", "to the right side of"),
    "above block": ("above", "behind", "to the far side of"),
    "below block": ("below", "in front of", "to the near side of"),
}
_SIDES = {
    "left of block": "left",
    "right of block": "right",
    "above block": "far side",
    "below block": "near side",
}
_ROUNDS = ("round", "around")
_AFTERTHOUGHTS = (" please", ", please", " now")
_COURTESIES = ("please ", "now ", "could you ", "I want you to ", "ok, ")
_MOST_MM = 480
_LEAST_MM = 30


def place_noun(random: Random, name: str) -> str:
    """Return words for a place of :data:`PLACE_NAMES`, with its article."""
    words = [random.choice(_SYNONYMS.get(word, (word,))) for word in name.split()]
    if name == "centre":
        noun = random.choice(("centre", "center", "middle"))
        return f"the {noun}{random.choice(('', ' of the table'))}"
    if words[-1] == "edge":
        words[-1] = random.choice(("edge", "edge", "border"))
    elif words[-1] == "side":
        kind = random.choice(("", "side of the table", "half", "half of the table"))
        if not kind:
            return f"the {_SYNONYMS.get(name.split()[0], (words[0],))[-1]}"
        words[-1] = kind
    elif words[-1] != "corner":
        words[-1] += random.choice(("", "", "", " area", " quarter"))
    if name.startswith(("upper left", "upper right", "lower left", "lower right")):
        joiner = "-" if random.random() < 0.15 else " "
        return f"the {joiner.join(words[:2])}{''.join(f' {word}' for word in words[2:])}"
    return f"the {' '.join(words)}"


def relation_phrase(random: Random, name: str) -> str:
    """Return words for a point beside the block, to be put after a verb."""
    return f"{random.choice(_RELATIONS[name])} {_block(random)}"


def coordinate_phrase(random: Random) -> tuple[str, Point]:
    """Draw a point and return it as somebody would say it, with its mm."""
    unit = random.choice(("m", "cm", "mm"))
    step = {"m": random.choice((1, 10)), "cm": random.choice((1, 10, 10)), "mm": 1}[unit]
    x, y = (random.randrange(_LEAST_MM, _MOST_MM + 1, step) for _ in range(2))
    first, second = _number(x, unit, step), _number(y, unit, step)
    short = "" if unit == "m" else f" {unit}"
    form = random.randrange(5)
    if form == 0:
        words = f"{first} {second}{short}"
    elif form == 1:
        words = f"({first}, {second}){short}"
    elif form == 2:
        words = f"x {first}{short} y {second}{short}"
    elif form == 3:
        words = f"{first} {unit}, {second} {unit}"
    else:
        words = f"{first} {unit} and {second} {unit}"
    return words, (x, y)


def via_phrase(random: Random, side: str, place: str) -> str:
    """Return words for a way to a place past a named side of the block."""
    name, block, round_ = _SIDES[side], _block(random), random.choice(_ROUNDS)
    return random.choice(
        (
            f"{round_} {block} on the {name} to {place}",
            f"{round_} {block} by the {name} to {place}",
            f"past {block} on the {name} to {place}",
            f"to {place} past the {name} of {block}",
            f"to {place}, passing {block} on the {name}",
        )
    )


def round_phrase(random: Random, place: str) -> str:
    """Return words for a way to a place round the block, no side named."""
    round_, block = random.choice(_ROUNDS), _block(random)
    return random.choice((f"{round_} {block} to {place}", f"to {place} {round_} {block}"))


def lap_phrase(random: Random, *, is_clockwise: bool, count: int) -> str:
    """Return words for one lap or two round the block."""
    way = random.choice(("", " clockwise")) if is_clockwise else _anticlockwise(random)
    start = random.choice(("", "all the way ", "right ", "once " if count == 1 else ""))
    round_ = random.choice((*_ROUNDS, _CIRCLE))
    if count == 2:
        often = random.choice((" twice", " two times"))
        return f"{round_} {_block(random)}{random.choice((way + often, often + way))}"
    if round_ == _CIRCLE:
        return f"{round_} {_block(random)}{way}"
    return f"{start}{round_} {_block(random)}{way}"


def tour_phrase(random: Random, *, is_clockwise: bool) -> str:
    """Return words for a visit to the four corners from the upper left on."""
    way = random.choice(("", " clockwise")) if is_clockwise else _anticlockwise(random)
    verb = random.choice(("visit", "go to", "drive to", "touch", "move to"))
    corners = random.choice(("all corners", "the four corners", "every corner", "all four corners"))
    return f"{verb} {corners}{random.choice(('', ' of the table'))}{way}"


def shuttle_phrase(random: Random, first: str, second: str, count: str) -> str:
    """Return words for going between two places, ``count`` times."""
    verb = random.choice((*_VERBS, "go back and forth", "shuttle"))
    return f"{verb} between {first} and {second}{count}"


def stay_phrase(random: Random) -> str:
    """Return words for not moving."""
    verb = random.choice(("stay", "wait", "stop", "remain", "hold still", "stand still"))
    place = random.choice(("", " where you are", " here", " there", " in place"))
    return f"{verb}{place}{random.choice(('', ' for now', ' for a moment'))}"


def back_phrase(random: Random, count: str) -> str:
    """Return words that send the pusher back to where it is now, ``count`` times."""
    joiner = random.choice((" and ", ", then ", " and then "))
    back = random.choice(
        ("back", "return", "come back", "go back", "go back to the start", "return to the start")
    )
    return f"{joiner}{back}{count}"


def reorder_phrase(random: Random, first: str, second: str) -> str:
    """Return words that name the second step before the first."""
    if random.random() < 0.5:
        return f"{with_verb(random, second)}, but first {_maybe_verb(random, first)}"
    return f"before you {with_verb(random, second)}, {with_verb(random, first)}"


def join_steps(random: Random, steps: list[str]) -> str:
    """Join two steps or more in their order; the first has a verb."""
    start = "first " if random.random() < 0.15 else ""
    words = start + with_verb(random, steps[0])
    for step in steps[1:]:
        joiner = random.choice((", then ", ", then ", " then ", " and then ", ", after that "))
        words += joiner + _maybe_verb(random, step)
    return words


def with_verb(random: Random, words: str) -> str:
    """Put a verb of motion before what follows one."""
    if words.startswith(_CIRCLE):
        return words
    return f"{random.choice(_VERBS)} {words}"


def decorate(random: Random, words: str) -> str:
    """Add courtesies, a capital and a full stop, or leave them out."""
    if random.random() < 0.2:
        words = random.choice(_COURTESIES) + words
    elif random.random() < 0.06:
        words += random.choice(_AFTERTHOUGHTS)
    if random.random() < 0.3:
        words = words[0].upper() + words[1:]
    return words + random.choice(("", "", "."))


def _maybe_verb(random: Random, words: str) -> str:
    return words if random.random() < 0.4 else with_verb(random, words)


def _anticlockwise(random: Random) -> str:
    return random.choice((" anticlockwise", " counterclockwise", " anti-clockwise"))


def _block(random: Random) -> str:
    return f"the {random.choice(_BLOCKS)}"


def _number(value: int, unit: str, step: int) -> str:
    if unit == "mm":
        return str(value)
    if unit == "cm":
        return str(value // 10) if step == 10 else f"{value / 10:.1f}"
    return f"{value / 1000:.2f}" if step == 10 else f"{value / 1000:.3f}"
