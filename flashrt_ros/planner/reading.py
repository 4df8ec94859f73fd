"""What an instruction says in numbers, judged before and after a model has read it; no torch.

A small model guesses where a point lies beyond what it knows, and drops a digit now and then.
What is spelt out needs no guess: a point has to lie in the range of subgoals, and its plan has
to go there; a length that is no point, ``5 cm left``, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flashrt_ros.errors import PayloadRangeError, UnsupportedError
from flashrt_ros.planner.grammar import PlanGrammar, Subgoal

_METRES: Mapping[str, float] = {"m": 1.0, "dm": 0.1, "cm": 0.01, "mm": 0.001}
_UNIT = r"(?:[dcm]?m|(?:deci|centi|milli)?met(?:er|re)s?)\b"
# Bounded, so that no text takes longer than its length; a line has single blanks alone.
_DIGITS = r"[-+\u2212]?(?:\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})"
_NUMBER = re.compile(
    rf"(?<![\w.])(?:(?P<axis>[xyz]) ?[=:]? ?)?(?P<number>{_DIGITS})(?!\d)"
    rf"(?: ?\)? ?(?P<unit>{_UNIT}))?"
)
# What may stand between the coordinates of one point, or between two points.
_BETWEEN = re.compile(r" ?\)? ?(?:[,;/]|and|by)? ?\(? ?")
_OTHERS = r"(?:inch(?:es)?|feet|foot|ft|yards?|yd)\b"
_WORDS = r"(?:[cm]m|(?:deci|centi|milli)?met(?:er|re)s?|inch(?:es)?|feet|foot|yards?)\b"
# What nothing made a point of; "m" alone is often an apostrophe's rest.
_LENGTH = re.compile(rf"(?<![\w.]){_DIGITS} ?(?:{_UNIT}|{_OTHERS})|\b{_WORDS}")
_EDGE_M = 1e-6  # what a decimal fraction may be off
_COURTESIES = frozenset({"please", "now", "ok", "okay", "just"})
_WORD = re.compile(r"[\w']+")


@dataclass(frozen=True, slots=True)
class Numbers:
    """What an instruction spells out.

    Attributes:
        points: Where it says to go, m, in the order of the words.
        lengths: Lengths that belong to no point, as they are written.
    """

    points: tuple[Subgoal, ...]
    lengths: tuple[str, ...]


def read_numbers(text: str, num_coordinates: int) -> Numbers:
    """Find points and lengths in an instruction.

    A point is as many numbers as it has coordinates, side by side, in brackets or behind x
    and y. A unit counts for the numbers beside it that have none; without any they are metres.

    Args:
        text: One line.
        num_coordinates: Of a point.
    """
    line = text.casefold()
    points: list[Subgoal] = []
    rest: list[str] = []
    end = 0
    for run in _runs(line):
        if not len(run) % num_coordinates:
            points += _points(run, num_coordinates)
            rest.append(line[end : run[0].start()])
            end = run[-1].end()
    rest.append(line[end:])
    lengths = [found.group().strip() for part in rest for found in _LENGTH.finditer(part)]
    return Numbers(tuple(points), tuple(lengths))


@dataclass(frozen=True, slots=True)
class SaidPoints:
    """Points that an instruction spells out, to which its plan has to go.

    Attributes:
        points: In the range of subgoals, m; none says nothing.
        decimals: Of a plan's numbers, to which a point is rounded.
    """

    points: tuple[Subgoal, ...] = ()
    decimals: int = 0

    def __bool__(self) -> bool:
        return bool(self.points)

    def missed_by(self, subgoals: Sequence[Subgoal]) -> Subgoal | None:
        """Return the first point that a plan leaves out, None where it goes to all.

        Args:
            subgoals: Of the plan, whatever their order: ``A, but first B`` goes to B first.
                A plan without one says that the instruction can't be followed, and leaves
                nothing out.
        """
        most_m = 0.5 * 10**-self.decimals + _EDGE_M
        for point in self.points if subgoals else ():
            if not any(
                all(abs(a - b) <= most_m for a, b in zip(point, subgoal, strict=True))
                for subgoal in subgoals
            ):
                return point
        return None

    def check(self, subgoals: Sequence[Subgoal]) -> None:
        """Refuse a plan that leaves a point out.

        Raises:
            PayloadRangeError: It does.
        """
        missed = self.missed_by(subgoals)
        if missed is not None:
            raise PayloadRangeError(
                "the model's plan leaves out a point of the instruction",
                expected=f"{_written(missed)} m",
                found="; ".join(map(_written, subgoals)) + " m",
                fix="say it in other words",
            )


NO_POINTS = SaidPoints()
"""Of an instruction that spells out none."""


def check_numbers(text: str, grammar: PlanGrammar) -> SaidPoints:
    """Refuse an instruction whose numbers can't be followed.

    Args:
        text: One line.
        grammar: Says which subgoals there are.

    Returns:
        What its plan has to go to.

    Raises:
        PayloadRangeError: A point is out of the range of subgoals.
        UnsupportedError: A length is no coordinate.
    """
    numbers = read_numbers(text, grammar.num_coordinates)
    if numbers.lengths:
        raise UnsupportedError(
            "an instruction names a length that belongs to no point",
            expected=f"{grammar.num_coordinates} coordinates side by side, in m, cm or mm",
            found=repr(numbers.lengths[0]),
        )
    for point in numbers.points:
        if any(not grammar.low - _EDGE_M <= value <= grammar.high + _EDGE_M for value in point):
            raise PayloadRangeError(
                "an instruction names a point that is out of the range of subgoals",
                expected=f"{grammar.low:g} to {grammar.high:g} m",
                found=f"{_written(point)} m",
                fix="numbers without a unit are metres",
            )
    return SaidPoints(numbers.points, grammar.decimals)


def bare_words(text: str) -> str:
    """Return an instruction without case, punctuation and courtesies, to be compared."""
    words = _WORD.findall(text.casefold().replace("\u2019", "'"))
    return " ".join(word for word in words if word not in _COURTESIES)


def _runs(line: str) -> Iterator[list[re.Match[str]]]:
    """Yield the numbers of a line that stand side by side."""
    run: list[re.Match[str]] = []
    for found in _NUMBER.finditer(line):
        if run and not _BETWEEN.fullmatch(line, run[-1].end(), found.start()):
            yield run
            run = []
        run.append(found)
    if run:
        yield run


def _points(run: Sequence[re.Match[str]], num_coordinates: int) -> Iterator[Subgoal]:
    values = _in_metres(run)
    names = "xyz"[:num_coordinates]
    for first in range(0, len(run), num_coordinates):
        places = range(first, first + num_coordinates)
        by_name = {run[at]["axis"]: values[at] for at in places}
        if by_name.keys() == set(names):  # "y 20 cm, x 10 cm"
            yield tuple(by_name[name] for name in names)
        else:
            yield tuple(values[at] for at in places)


def _in_metres(run: Sequence[re.Match[str]]) -> list[float]:
    units = [found["unit"] for found in run]
    for at in reversed(range(len(units) - 1)):  # "12 38 cm"
        units[at] = units[at] or units[at + 1]
    for at in range(1, len(units)):  # "x 12 cm y 38"
        units[at] = units[at] or units[at - 1]
    return [
        float(found["number"].replace("\u2212", "-")) * _metres(unit)
        for found, unit in zip(run, units, strict=True)
    ]


def _metres(unit: str | None) -> float:
    if not unit:
        return 1.0
    prefix, is_long, _ = unit.partition("met")
    return _METRES[f"{prefix[:1]}m" if is_long else unit]


def _written(point: Subgoal) -> str:
    return " ".join(f"{value:g}" for value in point)
