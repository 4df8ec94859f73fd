"""What is kept of an episode, for the live view and the picture; lengths in m, table frame."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

Point = tuple[float, float]
"""x and y in the table's frame, m."""

Pose = tuple[float, float, float]
"""x and y, m, and the angle, rad, in the table's frame."""

MomentKind = Literal["reset", "interrupt", "resume", "fork", "select", "words"]
"""What happened at a moment of an episode."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to the execution.

    Attributes:
        kind: A verb.
        time_s: Since the demo's first episode began.
        position: Of the agent then.
    """

    kind: MomentKind
    time_s: float
    position: Point


@dataclass(frozen=True, slots=True)
class Saying:
    """Something said to the planner node while the robot moved.

    Attributes:
        text: The instruction.
        time_s: When, since the demo's first episode began.
        subgoals: The plan made of it.
        num_reached: Subgoals reached, in order, before something else was said.
    """

    text: str
    time_s: float
    subgoals: tuple[Point, ...]
    num_reached: int


@dataclass(slots=True)
class EpisodeTrace:
    """One episode as it went.

    Attributes:
        index: From 0; -1 for the one in words.
        seed: Of the episode.
        block: Pose of the T at its start.
        subgoal: Where the agent was sent, last.
        start_s: Since the demo's first episode began.
        times_s: One for each point of ``path``.
        path: Positions of the agent.
        detour: Subgoal of an interrupt, None where there was none.
        moments: In order.
        branches: Chunks of a fork, ``float[H, 2]`` each, empty where there was none.
        selected: Which of them won, -1 for none.
        block_end: Pose of the T at its end.
        ticks: Control ticks it took, an interrupt's detour left out.
        distance_m: From the subgoal, at its end.
        block_shift_m: How far the block was pushed.
        is_reached: Judged a success.
        sayings: What was said, in order; empty where subgoals came without words.
    """

    index: int
    seed: int
    block: Pose
    subgoal: Point
    start_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    path: list[Point] = field(default_factory=list)
    detour: Point | None = None
    moments: list[Moment] = field(default_factory=list)
    branches: list[Array] = field(default_factory=list)
    selected: int = -1
    block_end: Pose | None = None
    ticks: int = 0
    distance_m: float = 0.0
    block_shift_m: float = 0.0
    is_reached: bool = False
    sayings: list[Saying] = field(default_factory=list)

    def add(self, time_s: float, position: Point) -> None:
        """Append a point of the path."""
        self.times_s.append(time_s)
        self.path.append(position)

    def happened(self, kind: MomentKind, time_s: float, position: Point | None = None) -> None:
        """Append a moment, where the agent is unless told otherwise."""
        here = position or (self.path[-1] if self.path else self.subgoal)
        self.moments.append(Moment(kind, time_s, here))

    def seen(self, kind: MomentKind) -> bool:
        """Tell whether a verb was used in the episode."""
        return any(moment.kind == kind for moment in self.moments)
