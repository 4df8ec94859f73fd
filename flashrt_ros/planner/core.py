"""What the parts of a planner engine share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.store import CapsuleStore
from flashrt_ros.engine.core import NullSink
from flashrt_ros.engine.emitter import Emitter
from flashrt_ros.engine.served import Sink
from flashrt_ros.engine.stats import Stats
from flashrt_ros.engine.storage import Storage
from flashrt_ros.engine.timeline import Branch, Environment
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.planner.config import NO_HABITS, Habits, PlannerConfig
from flashrt_ros.planner.constraint import PlanConstraint
from flashrt_ros.planner.lane_session import LaneSession
from flashrt_ros.planner.scorers import Scorer
from flashrt_ros.planner.turn import Turn
from flashrt_ros.planner.vocabulary import Tokenizer
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.spec import ArenaLayout


@dataclass(slots=True)
class Unfinished:
    """A turn that was interrupted.

    Attributes:
        turn: Where it stands.
        capsule: What its lane held.
    """

    turn: Turn
    capsule: Capsule


@dataclass(slots=True, kw_only=True)
class TextEnvironment(Environment):
    """A text and the turn under way on it.

    What is committed is a capsule, :attr:`base`; the lane is where turns work. So a turn
    that ends early leaves nothing to undo.

    Attributes:
        session: Over the lane.
        base: Id of the capsule that holds the committed text.
        is_settled: Whether the lane holds the base.
        turn: Under way, or None.
        unfinished: Interrupted turns, newest last.
        seed: Of turns that name none; None takes the configuration's.
        is_short_of_slack: Whether plan nodes don't fit between the deadlines of other engines of
            the process.
        stats: Times of plan nodes.
    """

    session: LaneSession
    base: str = ""
    is_settled: bool = False
    turn: Turn | None = None
    unfinished: list[Unfinished] = field(default_factory=list)
    seed: int | None = None
    is_short_of_slack: bool = False
    stats: Stats = field(default_factory=Stats)


@dataclass(slots=True)
class PlannerCore(Emitter):
    """The parts a planner engine is assembled from.

    Attributes:
        epoch: New for every engine.
        builder: Session on a lane of its own, on which prefixes are built.
        pieces: What each token spells, by id.
        habits: Of the model, under the configuration.
        branches: Always empty: candidates are made on the lane of their turn.
        num_turns: Turns begun so far.
        prefix_ids: Capsules of the prefix library, which stay pinned.
    """

    epoch: int
    config: PlannerConfig
    model: HybridLm
    tokenizer: Tokenizer
    backend: Backend
    layout: ArenaLayout
    fingerprint: Fingerprint
    storage: Storage
    constraint: PlanConstraint
    pieces: list[bytes]
    scorers: dict[str, Scorer]
    environments: list[TextEnvironment]
    builder: LaneSession
    clock_ns: Callable[[], int]
    habits: Habits = NO_HABITS
    sink: Sink = field(default_factory=NullSink)
    branches: dict[int, Branch] = field(default_factory=dict)
    num_turns: int = 0
    prefix_ids: set[str] = field(default_factory=set)

    @property
    def store(self) -> CapsuleStore:
        """The capsules."""
        return self.storage.store
