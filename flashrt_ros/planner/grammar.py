"""What a plan may be: subgoals in metres, then ``done``; imports without torch.

::

    plan    = { subgoal } "done"
    subgoal = "go " number { " " number } "; "
    number  = [ "-" ] digits [ "." digits ]     exactly so many decimals, within the range

A plan without a subgoal says that the instruction can't be followed; where that may not be
said, a plan begins with a subgoal.

The grammar is regular, so that it is an automaton over bytes with a state for each
beginning of a number: what comes next is known from the state alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from flashrt_ros.errors import ConfigError, PayloadRangeError

Subgoal = tuple[float, ...]
"""Coordinates of one subgoal, m."""

START = 0
"""State before the first byte."""

DONE = 1
"""State after ``done``; nothing follows."""

_MOST_NUMBERS = 100_000


@dataclass(frozen=True, slots=True)
class PlanGrammar:
    """Which plans there are.

    Attributes:
        num_coordinates: Numbers in a subgoal.
        low: Smallest coordinate, m.
        high: Largest coordinate, m.
        decimals: Of every number.
        may_be_empty: Whether there is a plan without a subgoal.

    Raises:
        ConfigError: No number lies in the range, or too many do.
    """

    num_coordinates: int = 2
    low: float = -1.0
    high: float = 1.0
    decimals: int = 3
    may_be_empty: bool = False

    def __post_init__(self) -> None:
        if self.num_coordinates < 1 or not 0 <= self.decimals <= 6:
            raise ConfigError(
                "no plan can be written so",
                expected="1 coordinate or more, 0 to 6 decimals",
                found=f"{self.num_coordinates} coordinates, {self.decimals} decimals",
            )
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ConfigError(
                "the range of subgoals is not finite", found=f"{self.low} to {self.high} m"
            )
        first, last = self._bounds()
        if not 0 < last - first + 1 <= _MOST_NUMBERS:
            raise ConfigError(
                f"the range of subgoals can't be written with {self.decimals} decimals",
                expected=f"1 to {_MOST_NUMBERS} numbers in it",
                found=f"{self.low} to {self.high} m: {max(0, last - first + 1)} numbers",
            )

    def numbers(self) -> Iterator[str]:
        """Yield every number, smallest first, as it is written."""
        first, last = self._bounds()
        scale = 10**self.decimals
        for step in range(first, last + 1):
            whole, part = divmod(abs(step), scale)
            sign = "-" if step < 0 else ""
            yield f"{sign}{whole}" + (f".{part:0{self.decimals}d}" if self.decimals else "")

    def write(self, subgoals: list[Subgoal]) -> str:
        """Return a plan's text, coordinates rounded to its decimals."""
        # Adding zero makes a zero of -0.0, which has no number of its own.
        parts = [
            "go " + " ".join(f"{round(x, self.decimals) + 0.0:.{self.decimals}f}" for x in subgoal)
            for subgoal in subgoals
        ]
        return "; ".join([*parts, "done"])

    def _bounds(self) -> tuple[int, int]:
        """Return the first and the last number, in units of the last decimal."""
        scale = 10**self.decimals
        # A bound that has these decimals counts, however its binary fraction rounds.
        slack = 1e-9 * scale
        return math.ceil(self.low * scale - slack), math.floor(self.high * scale + slack)


def automaton(grammar: PlanGrammar) -> list[dict[int, int]]:
    """Compile a grammar to an automaton over bytes.

    Returns:
        For each state the next one by byte; :data:`START` and :data:`DONE` are the first
        two. Every state is on a way to :data:`DONE`.
    """
    states: list[dict[int, int]] = [{}, {}]

    def step(state: int, byte: int) -> int:
        if byte not in states[state]:
            states[state][byte] = len(states)
            states.append({})
        return states[state][byte]

    def chain(state: int, text: str, end: int) -> None:
        *head, last = text.encode()
        for byte in head:
            state = step(state, byte)
        states[state][last] = end

    numbers = [number.encode() for number in grammar.numbers()]
    following = len(states)  # after one subgoal: another one, or the end
    states.append({})
    number = len(states)
    states.append({})
    chain(START, "go ", number)
    chain(following, "go ", number)
    chain(following, "done", DONE)
    if grammar.may_be_empty:
        chain(START, "done", DONE)
    for place in range(grammar.num_coordinates):
        ends = set()
        for text in numbers:
            state = number
            for byte in text:
                state = step(state, byte)
            ends.add(state)
        if place + 1 < grammar.num_coordinates:
            number = len(states)
            states.append({})
            for end in ends:
                states[end][ord(" ")] = number
        else:
            blank = len(states)
            states.append({ord(" "): following})
            for end in ends:
                states[end][ord(";")] = blank
    return states


class PlanParser:
    """Reads a plan as it is written, and tells each subgoal once it is complete.

    Args:
        grammar: Of the plan.
    """

    def __init__(self, grammar: PlanGrammar) -> None:
        part = rf"\.\d{{{grammar.decimals}}}" if grammar.decimals else ""
        number = rf"(-?(?:0|[1-9]\d*){part})"
        self._pattern = re.compile("go " + " ".join([number] * grammar.num_coordinates) + "; ")
        self._numbers = frozenset(grammar.numbers())
        self._grammar = grammar
        self._text = ""
        self._read = 0
        self.is_done = False

    @property
    def text(self) -> str:
        """Everything that was fed."""
        return self._text

    def feed(self, text: str) -> list[Subgoal]:
        """Take more of the plan; return the subgoals that it completes.

        Raises:
            PayloadRangeError: It is no plan; the parser can't be used any more.
        """
        self._text += text
        found: list[Subgoal] = []
        while match := self._pattern.match(self._text, self._read):
            if not self._numbers.issuperset(match.groups()):
                raise self._refusal()
            found.append(tuple(float(number) for number in match.groups()))
            self._read = match.end()
        rest = self._text[self._read :]
        if rest == "done" and (self._read or self._grammar.may_be_empty):
            self.is_done = True
        elif ";" in rest[:-1] or (self.is_done and rest != "done"):
            raise self._refusal()
        return found

    def _refusal(self) -> PayloadRangeError:
        grammar = self._grammar
        return PayloadRangeError(
            "a text is no plan",
            expected=f"'go' and {grammar.num_coordinates} numbers of {grammar.decimals} decimals "
            f"from {grammar.low:g} to {grammar.high:g} m, each followed by '; ', then 'done'",
            found=repr(self._text[self._read : self._read + 80]),
        )


def parse_plan(grammar: PlanGrammar, text: str) -> list[Subgoal]:
    """Read a whole plan.

    Raises:
        PayloadRangeError: It is none.
    """
    parser = PlanParser(grammar)
    subgoals = parser.feed(text)
    if not parser.is_done:
        raise PayloadRangeError(
            "a text is no plan", expected="'done' at its end", found=repr(text[-80:])
        )
    return subgoals
