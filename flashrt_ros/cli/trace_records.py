"""What became of each goal, from what an engine or the nodes tell; times in wall-clock ns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flashrt_ros.engine.protocol import (
    Event,
    EventKind,
    GoalSource,
    OutputKind,
    Provenance,
    parse_detail,
)

Key = tuple[int, int] | tuple[int, int, str]
"""The engine's epoch, its number of a goal, and the channel unless it is the first for goals."""

_OTHER_CLOCK_NS = 3600 * 1_000_000_000
"""A stamp further from the wall clock than this is on a clock of its own, as simulated time is."""

_MOVES = {
    int(kind): kind.name.lower()
    for kind in EventKind
    if kind not in (EventKind.GOAL, EventKind.SNAPSHOT, EventKind.FORK)
}


@dataclass(slots=True)
class GoalRecord:
    """One goal on its way; what was not seen is None.

    Attributes:
        sequence: The engine's number, on its channel.
        source_sequence: The planner's own number.
        planner: Its name, "" where only the engine was asked.
        stamp_ns: The planner's stamp, on its own clock.
        written_ns: The same on the wall clock; None where the two differ.
        committed_ns: When the engine had it, as it says or as the planner node heard.
        latched_ns: When a plan began to read it.
        latched_tick: Tick of that plan.
        chunk_ns: First chunk made from it.
        acted_ns: First action made from it.
        acted_tick: Tick of that action.
        last_acted_ns: Last action seen.
        num_actions: Actions seen.
        channel: Goal channel, "" for the model's first.
    """

    sequence: int
    source_sequence: int
    stamp_ns: int
    planner: str = ""
    written_ns: int | None = None
    committed_ns: int | None = None
    latched_ns: int | None = None
    latched_tick: int | None = None
    chunk_ns: int | None = None
    acted_ns: int | None = None
    acted_tick: int | None = None
    last_acted_ns: int | None = None
    num_actions: int = 0
    channel: str = ""

    @property
    def first_ns(self) -> int | None:
        """The earliest moment known."""
        return min(self._moments(), default=None)

    @property
    def last_ns(self) -> int | None:
        """The latest moment known."""
        return max(self._moments(), default=None)

    def _moments(self) -> list[int]:
        moments = (
            self.written_ns,
            self.committed_ns,
            self.latched_ns,
            self.chunk_ns,
            self.acted_ns,
            self.last_acted_ns,
        )
        return [moment for moment in moments if moment is not None]


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """Something that moved or stopped the execution.

    Attributes:
        kind: Kind of the event, in lower case.
        at_ns: When it was heard of.
        tick: Control tick.
        detail: As the event says.
    """

    kind: str
    at_ns: int
    tick: int
    detail: str


@dataclass(slots=True)
class Trace:
    """Goals and moves in the order in which they were heard of.

    A goal that was in force before the trace began has no first action: the first one
    seen is not the first there was.

    Attributes:
        began_ns: When listening began.
        ended_ns: When it ended.
        goals: By the engine's epoch and number.
        moves: In order.
    """

    began_ns: int
    ended_ns: int = 0
    goals: dict[Key, GoalRecord] = field(default_factory=dict)
    moves: list[MoveRecord] = field(default_factory=list)
    _old: set[Key] = field(default_factory=set)
    _named: dict[Key, tuple[str, int]] = field(default_factory=dict)

    def event(self, event: Event, at_ns: int, *, monotonic_to_wall_ns: int | None = None) -> None:
        """Take an event in.

        Args:
            event: The engine's or a node's own.
            at_ns: When it happened, as far as is known.
            monotonic_to_wall_ns: What the engine's clock lacks to the wall clock; None
                where that is not known, as it may be another machine's.
        """
        if event.kind != EventKind.GOAL:
            if event.kind in _MOVES:
                kind = _MOVES[event.kind]
                self.moves.append(MoveRecord(kind, at_ns, event.tick, event.detail))
            return
        detail = parse_detail(event.detail)
        said = detail.facts
        if detail.word == "accepted" and "engine_sequence" in said:
            self._accepted(event.engine_epoch, said, at_ns)
        elif {"sequence", "source_sequence", "stamp_ns"} <= said.keys():
            goal = self._goal(
                _key(event.engine_epoch, int(said["sequence"]), said.get("channel", "")),
                int(said["source_sequence"]),
                int(said["stamp_ns"]),
            )
            if goal.latched_ns is None:
                goal.latched_ns, goal.latched_tick = at_ns, event.tick
            if monotonic_to_wall_ns is not None and "committed_ns" in said:
                goal.committed_ns = int(said["committed_ns"]) + monotonic_to_wall_ns
            if monotonic_to_wall_ns is not None and "latched_ns" in said:
                goal.latched_ns = int(said["latched_ns"]) + monotonic_to_wall_ns

    def output(self, made: Provenance, kind: OutputKind, at_ns: int) -> None:
        """Take in what an action or chunk was made from.

        Args:
            made: Its provenance.
            kind: Which of the two.
            at_ns: When it was made.
        """
        first = GoalSource("", made.goal_sequence, made.goal_source_sequence, made.goal_stamp_ns, 0)
        for source in (first, *made.other_goals):
            if source.sequence:
                self._acted(source, made, kind, at_ns)

    def _acted(self, source: GoalSource, made: Provenance, kind: OutputKind, at_ns: int) -> None:
        number = _key(made.engine_epoch, source.sequence, source.channel)
        if number not in self.goals:
            self._old.add(number)
        goal = self._goal(number, source.source_sequence, source.stamp_ns)
        if kind == OutputKind.CHUNK:
            if goal.chunk_ns is None and number not in self._old:
                goal.chunk_ns = at_ns
            return
        goal.num_actions += 1
        goal.last_acted_ns = at_ns
        if goal.acted_ns is None and number not in self._old:
            goal.acted_ns, goal.acted_tick = at_ns, made.tick

    def last(self, seconds: float) -> Trace:
        """Return what happened in the last seconds: goals still on their way, and moves."""
        since_ns = self.ended_ns - round(seconds * 1e9)
        if since_ns <= self.began_ns:
            return self
        goals = {
            number: goal
            for number, goal in self.goals.items()
            if goal.last_ns is not None and goal.last_ns >= since_ns
        }
        moves = [move for move in self.moves if move.at_ns >= since_ns]
        return Trace(since_ns, self.ended_ns, goals, moves)

    def plain(self) -> dict[str, Any]:
        """Return everything by name, for JSON."""
        return {
            "began_ns": self.began_ns,
            "ended_ns": self.ended_ns,
            "goals": [asdict(goal) for goal in self.goals.values()],
            "moves": [asdict(move) for move in self.moves],
        }

    def _accepted(self, epoch: int, said: Mapping[str, str], at_ns: int) -> None:
        """Take in what a planner node says: it knows the sender, and when the engine answered."""
        number = _key(epoch, int(said["engine_sequence"]), said.get("channel", ""))
        self._named[number] = (said.get("planner", ""), at_ns)
        while len(self._named) > 1000:
            del self._named[next(iter(self._named))]
        if number in self.goals:
            self._name(number, self.goals[number])

    def _goal(self, number: Key, source_sequence: int, stamp_ns: int) -> GoalRecord:
        goal = self.goals.get(number)
        if goal is None:
            goal = self.goals[number] = GoalRecord(number[1], source_sequence, stamp_ns)
            goal.channel = number[2] if len(number) == 3 else ""
            if abs(stamp_ns - self.began_ns) < _OTHER_CLOCK_NS:
                goal.written_ns = stamp_ns
            self._name(number, goal)
        return goal

    def _name(self, number: Key, goal: GoalRecord) -> None:
        planner, at_ns = self._named.get(number, ("", 0))
        if planner or at_ns:
            goal.planner = planner
            goal.committed_ns = goal.committed_ns or at_ns


def _key(epoch: int, sequence: int, channel: str) -> Key:
    return (epoch, sequence, channel) if channel else (epoch, sequence)
