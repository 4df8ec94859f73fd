"""A turn of a text: the prompt is taken in, then a plan is written; one plan node at a time."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from flashrt_ros.engine.waits import Done
from flashrt_ros.models.hybrid_borders import SessionCapsule, split_at_borders
from flashrt_ros.models.hybrid_lm import BIAS
from flashrt_ros.planner.grammar import Subgoal
from flashrt_ros.planner.lane_session import LaneSession
from flashrt_ros.planner.reading import NO_POINTS, SaidPoints
from flashrt_ros.planner.scorers import Plan, Scorer, judge
from flashrt_ros.planner.writing import Writing


@dataclass(frozen=True, slots=True)
class TurnSpec:
    """What a turn was asked to be.

    Attributes:
        tokens: Appended before the plan; at least one.
        max_tokens: Most tokens of the plan.
        temperature: Of sampling.
        seeds: One for each plan that is made.
        scorer: Chooses between them.
        points: What the plan has to go to. Where there is one, no subgoal is told before the
            plan is whole.
    """

    tokens: tuple[int, ...]
    max_tokens: int
    temperature: float
    seeds: tuple[int, ...]
    scorer: Scorer
    points: SaidPoints = NO_POINTS


class _Outcome(enum.Enum):
    """What a node that was submitted leaves to be taken in."""

    NOTHING = enum.auto()
    TOKEN = enum.auto()
    WHOLE_PLAN = enum.auto()


@dataclass(slots=True, eq=False)
class Turn:
    """A turn, from the message that asked for it to its commit.

    Everything here is the host's; what the device holds of it is the lane. A turn can
    leave its lane at any node, also with one under way, and go on once the lane holds what
    it held then.

    Attributes:
        number: In the engine.
        spec: What was asked.
        base: Id of the capsule that it begins from; "" for the prefix library's end.
        new_writing: Begins a plan with a seed.
        done: Takes the answer; None where nobody waits.
        rid: Of the request that is answered.
        received_ns: When it was asked for, engine clock.
        num_nodes: Plan nodes that ran.
        num_told: Subgoals that were told.
        first_token_ns: When the first token was chosen; 0 before.
        first_subgoal_ns: When the first subgoal was complete; 0 before.
        scored: Plans that are whole, with their scores, in the order of the seeds.
        waits_for_bytes: Its next node waits for a capsule that is fetched.
    """

    number: int
    spec: TurnSpec
    base: str
    new_writing: Callable[[int], Writing]
    done: Done | None
    rid: int
    received_ns: int
    num_nodes: int = 0
    num_told: int = 0
    first_token_ns: int = 0
    first_subgoal_ns: int = 0
    scored: list[tuple[Plan, float]] = field(default_factory=list)
    waits_for_bytes: bool = False
    _outcome: _Outcome = _Outcome.NOTHING
    _is_started: bool = False
    _must_choose: bool = False
    _pieces: deque[list[int]] = field(default_factory=deque)
    _writing: Writing | None = None
    _fork: SessionCapsule | None = None
    _best: SessionCapsule | None = None
    _best_index: int = 0

    @property
    def is_started(self) -> bool:
        """Whether its lane has been prepared."""
        return self._is_started

    @property
    def is_done(self) -> bool:
        """Whether every plan is made and the lane holds the chosen one."""
        return len(self.scored) == len(self.spec.seeds)

    @property
    def phase(self) -> str:
        """What the next node does: "prefill" or "decode"."""
        return "prefill" if self._pieces or not self._is_started else "decode"

    @property
    def next_kind(self) -> str:
        """Kind of the next node, of those that take about as long as each other."""
        if not self._is_started:
            return "begin"
        if self._pieces:
            return "prefill"
        if self._must_choose:
            return "choose"
        return "end" if self._writing is not None and self._writing.is_whole else "decode"

    @property
    def num_tokens(self) -> int:
        """Tokens chosen of the plan in the making."""
        return len(self._writing.tokens) if self._writing is not None else 0

    @property
    def chosen(self) -> tuple[Plan, float]:
        """The best plan and its score; the first of equals."""
        return self.scored[self._best_index]

    def start(self, session: LaneSession) -> None:
        """Plan the nodes, over a session that holds the base; nothing runs."""
        pending = session.pending
        tokens = [*pending, *self.spec.tokens]
        start = session.position
        pieces = [
            tokens[first - start : end - start]
            for first, end in split_at_borders(start, len(tokens), session.model.chunk_length)
        ]
        # The session puts what is pending before the first by itself. That is shorter than
        # a border, and so than a first piece with something after it.
        pieces[0] = pieces[0][len(pending) :]
        self._pieces = deque(pieces)
        self._begin_writing(session, self.spec.seeds[0])
        self._is_started = True

    def resume(self, session: LaneSession) -> None:
        """Go on, over a session that was restored to where the turn left its lane."""
        assert self._writing is not None
        self._prepare(session, self._writing)

    def submit(self, session: LaneSession) -> None:
        """Submit one node; :meth:`take_in` follows once it is done.

        Raises:
            FlashrtError: The node failed; the turn can't go on.
        """
        assert self._writing is not None
        if self._outcome is not _Outcome.NOTHING:
            # it was left with a node under way, which what it was resumed from holds
            session.submit_reading()
            return
        self.num_nodes += 1
        self._outcome = _Outcome.TOKEN
        if self._pieces:
            session.append(self._pieces.popleft())
            if self._pieces:
                self._outcome = _Outcome.NOTHING
                return
            # The last of them chooses the first token.
            if len(self.spec.seeds) > 1:
                self._fork = session.snapshot(any_position=True)
        elif self._must_choose:
            session.submit_choose()
            self._must_choose = False
        else:
            session.submit_decode(self._writing.tokens[-1])
            if self._writing.is_whole:
                self._outcome = _Outcome.WHOLE_PLAN
                return
        session.submit_reading()

    def take_in(self, session: LaneSession, clock_ns: Callable[[], int]) -> list[Subgoal]:
        """Note what the node that is done gave; return the subgoals that may be told now, in order.

        Raises:
            FlashrtError: It gave what can't be; the turn can't go on.
            Exception: The scorer failed; likewise.
        """
        outcome, self._outcome = self._outcome, _Outcome.NOTHING
        if outcome is _Outcome.TOKEN:
            return self._take(session, clock_ns)
        if outcome is _Outcome.WHOLE_PLAN:
            return self._finish(session, clock_ns)
        return []

    def close(self) -> None:
        """Free what it keeps beside the lane; idempotent."""
        for kept in (self._fork, self._best):
            if kept is not None:
                kept.close()
        self._fork = self._best = None

    def _begin_writing(self, session: LaneSession, seed: int) -> None:
        self._writing = self.new_writing(seed)
        self._prepare(session, self._writing)

    def _prepare(self, session: LaneSession, writing: Writing) -> None:
        session.set_sampling(temperature=self.spec.temperature, seed=writing.seed)
        session.write(BIAS, writing.bias())

    def _take(self, session: LaneSession, clock_ns: Callable[[], int]) -> list[Subgoal]:
        """Note the token that the node chose."""
        assert self._writing is not None
        found = self._writing.take(*session.chosen())
        session.write(BIAS, self._writing.bias())
        self.first_token_ns = self.first_token_ns or clock_ns()
        if len(self.spec.seeds) > 1 or self.spec.points:
            return []
        return self._tell(found, clock_ns)

    def _finish(self, session: LaneSession, clock_ns: Callable[[], int]) -> list[Subgoal]:
        """Score the plan that is whole; begin the next one, or end with the best."""
        assert self._writing is not None
        plan = self._writing.plan()
        score = judge(self.spec.scorer, plan)
        # One that leaves out what was said is worse than any other, whatever its score.
        is_best = not self.scored or self._rank(plan, score) > self._rank(*self.chosen)
        index = len(self.scored)
        if self._fork is not None and is_best:
            if self._best is not None:
                self._best.close()
            self._best = session.snapshot(any_position=True)
        self.scored.append((plan, score))
        if is_best:
            self._best_index = index
        if self._fork is None:
            return self._tell_chosen(clock_ns) if self.spec.points else []
        if not self.is_done:
            session.restore(self._fork)
            self._begin_writing(session, self.spec.seeds[index + 1])
            self._must_choose = True
            return []
        if not is_best:
            assert self._best is not None
            session.restore(self._best)
        return self._tell_chosen(clock_ns)

    def _rank(self, plan: Plan, score: float) -> tuple[bool, float]:
        return self.spec.points.missed_by(plan.subgoals) is None, score

    def _tell_chosen(self, clock_ns: Callable[[], int]) -> list[Subgoal]:
        plan, _ = self.chosen
        self.spec.points.check(plan.subgoals)
        return self._tell(list(plan.subgoals), clock_ns)

    def _tell(self, found: list[Subgoal], clock_ns: Callable[[], int]) -> list[Subgoal]:
        if found:
            self.first_subgoal_ns = self.first_subgoal_ns or clock_ns()
        return found
