"""What is said to the planner node, what it means, and what came of it; needs no process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flashrt_ros.demo.judge import SETTLE_TICKS
from flashrt_ros.demo.trace import Point, Pose
from flashrt_ros.engine.protocol import Detail, EventKind, parse_detail
from flashrt_ros.errors import UnsupportedError
from flashrt_ros.sim import instructions
from flashrt_ros.sim.episodes import REACH_M
from flashrt_ros.sim.table import block_center

Place = tuple[Pose, Point]
"""Pose of the block and position of the agent, m and rad."""

_SAME_M = 1e-6


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words, and the targets that they name by the rules of the table.

    Attributes:
        text: The instruction.
        targets: As :mod:`flashrt_ros.sim.instructions` names them; none for an instruction
            that must not be followed.
    """

    text: str
    targets: tuple[str, ...] = ()

    def meaning(self, place: Place) -> tuple[Point, ...]:
        """Return the subgoals that the words mean where things are so, m."""
        pose, agent = place
        scene = instructions.Scene(block=_mm(block_center(pose)), pusher=_mm(agent))
        said = instructions.Instruction(self.text, self.text, "", self.targets)
        return tuple((x / 1000, y / 1000) for x, y in said.points(scene))


@dataclass(frozen=True, slots=True)
class Told:
    """What the planner node told of a turn that has ended.

    Attributes:
        turn: Its number.
        plan: Its subgoals, m.
        is_refused: Whether the node said that the instruction can't be followed.
    """

    turn: int
    plan: tuple[Point, ...]
    is_refused: bool


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence, and what came of it at first.

    Attributes:
        sentence: What was said.
        told: The plan that was made of it.
        places: Where things were around then.
        num_goals: Goals made of words before it was said.
        num_ticks: Ticks of the episode before it was said.
        asked_ns: When, CLOCK_MONOTONIC.
    """

    sentence: Sentence
    told: Told
    places: tuple[Place, ...]
    num_goals: int
    num_ticks: int
    asked_ns: int

    @property
    def is_understood(self) -> bool:
        """Whether the plan is what the words mean, to a millimetre, in a place of then."""
        return any(is_same(self.told.plan, self.sentence.meaning(place)) for place in self.places)

    def first_goal(self, goals: Sequence[Sequence[float]]) -> int:
        """Return the index of the first goal made of the plan, the number of goals if none was.

        Args:
            goals: Every goal made of words, in order.
        """
        for index in range(self.num_goals, len(goals)):
            if self.told.plan and is_same([goals[index]], self.told.plan[:1]):
                return index
        return len(goals)


def read_turn(events: Iterable[Any]) -> Told | None:
    """Read the first turn that begins and ends in a planner node's events; None before.

    A plan without a subgoal counts once the node has said what it makes of it.

    Args:
        events: ``ExecutionEvent`` messages, or the like, in order.
    """
    turn, plan, is_whole = -1, [], False
    for event in events:
        said = parse_detail(event.detail)
        is_its = said.facts.get("turn") == str(turn)
        if event.kind == EventKind.TURN and said.word == "begun" and turn < 0:
            turn = int(said.facts["turn"])
        elif event.kind == EventKind.SUBGOAL and is_its:
            x, y = (float(value) for value in said.facts["values"].split())
            plan.append((x, y))
        elif event.kind == EventKind.TURN and said.word == "done" and is_its:
            is_whole = True
        elif is_whole and event.kind == EventKind.GOAL and _is_refusal(said):
            return Told(turn, (), True)
        if is_whole and plan:
            return Told(turn, tuple(plan), False)
    return None


def num_reached(path: Sequence[Point], subgoals: Sequence[Point], *, settles: bool) -> int:
    """Count the subgoals that a path comes within reach of, one after the other.

    Args:
        path: Positions of the agent, one a tick.
        subgoals: In the order in which they count.
        settles: Whether the last one counts only if the path stays there at its end.
    """
    at, count = 0, 0
    for number, subgoal in enumerate(subgoals):
        near = [math.dist(point, subgoal) <= REACH_M for point in path[at:]]
        if settles and number == len(subgoals) - 1:
            if len(near) < SETTLE_TICKS or not all(near[-SETTLE_TICKS:]):
                break
        elif True not in near:
            break
        else:
            at += near.index(True)
        count += 1
    return count


def is_same(some: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> bool:
    """Tell whether goals are the same, but for how a 32 bit float rounds."""
    return len(some) == len(others) and all(
        len(one) == len(other) and math.dist(one, other) <= _SAME_M
        for one, other in zip(some, others, strict=True)
    )


def num_strays(goals: Sequence[Sequence[float]], plan: Sequence[Point]) -> int:
    """Count goals that are none of a plan's."""
    return sum(not any(is_same([goal], [own]) for own in plan) for goal in goals)


def _is_refusal(said: Detail) -> bool:
    is_coded = said.facts.get("code") == str(UnsupportedError.code)
    return is_coded and said.word == "refused" and said.facts.get("topic") == "instruction"


def _mm(point: Point) -> tuple[int, int]:
    """Round as the scene's line does."""
    x, y = (round(float(f"{value:.3f}") * 1000) for value in point)
    return x, y
