"""What the parts of an engine share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from flashrt_ros.capsule.capsule import Origin
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.store import CapsuleStore
from flashrt_ros.engine.ages import Ages
from flashrt_ros.engine.bindings import Bindings
from flashrt_ros.engine.channels import SlotMeta
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.emitter import Emitter
from flashrt_ros.engine.goals import Goals
from flashrt_ros.engine.latches import Latches
from flashrt_ros.engine.outlet import Outlet
from flashrt_ros.engine.protocol import (
    Event,
    EventKind,
    GoalSource,
    OutputKind,
    Provenance,
    format_detail,
)
from flashrt_ros.engine.seams import Seams
from flashrt_ros.engine.served import Sink
from flashrt_ros.engine.storage import Storage
from flashrt_ros.engine.timeline import (
    ENVIRONMENT,
    Branch,
    Environment,
    Timeline,
    environment_of,
)
from flashrt_ros.errors import ConfigError, PayloadRangeError
from flashrt_ros.models.base import NOISE_COUNTER, NOISE_SEED, PolicyModel
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.lanes import Lane, LanePool
from flashrt_ros.runtime.noise import NoiseRing
from flashrt_ros.runtime.plan import Plan
from flashrt_ros.runtime.spec import BUFFER_ALIGNMENT_BYTES, ArenaLayout

MAX_SEED = 2**63 - 1


class NullSink:
    """Drops everything; the sink of an engine nobody listens to."""

    def output(self, kind: OutputKind, provenance: Provenance, index: int, payload: bytes) -> None:
        """Drop an output."""

    def event(self, event: Event) -> None:
        """Drop an event."""


@dataclass(slots=True)
class Core(Emitter):
    """The parts an engine is assembled from, and the few facts they all need.

    Attributes:
        epoch: New for every engine.
        sequence: Outputs made so far.
        branches: By branch index.
        fed_plans: Variants of the plan, by the channels that are read from another model's
            outlet; none where nothing is fed.
        outlets: Of the model, by name.
    """

    epoch: int
    config: EngineConfig
    model: PolicyModel
    backend: Backend
    layout: ArenaLayout
    fingerprint: Fingerprint
    plan: Plan
    pool: LanePool
    noise: NoiseRing | None
    storage: Storage
    latches: Latches
    goals: Goals
    ages: Ages
    bindings: Bindings
    seams: Seams
    environments: list[Environment]
    clock_ns: Callable[[], int]
    sink: Sink = field(default_factory=NullSink)
    branches: dict[int, Branch] = field(default_factory=dict)
    sequence: int = 0
    fed_plans: Mapping[frozenset[str], Plan] = field(default_factory=dict)
    outlets: Mapping[str, Outlet] = field(default_factory=dict)

    @property
    def store(self) -> CapsuleStore:
        """The capsules."""
        return self.storage.store

    def plan_of(self, timeline: Timeline) -> Plan:
        """Return the plan that reads what a timeline has latched from where it lies."""
        return self.fed_plans[self.latches.fed(timeline)] if self.fed_plans else self.plan

    def environment(self, env_index: int) -> Environment:
        """Return an environment.

        Raises:
            UnknownEnvironmentError: There is none of this index.
        """
        return environment_of(self.environments, env_index)

    def is_due(self, timeline: Timeline) -> bool:
        """Tell whether the next chunk is to be made: few actions are queued, or a goal is new."""
        if timeline.position.queue_remaining <= self.config.replan_threshold:
            return True
        if not self.config.replan_on_goal or not isinstance(timeline, Environment):
            return False
        return self.latches.has_new_goal(timeline)

    def check_threads(self) -> None:
        """Refuse to go on where the bytes would be others than were captured.

        Raises:
            ConfigError: The process's intra-op thread count was changed.
        """
        if torch.get_num_threads() != self.config.num_threads:
            raise ConfigError(
                "the process's intra-op thread count was changed, which changes the bytes",
                expected=self.config.num_threads,
                found=torch.get_num_threads(),
                fix="torch.set_num_threads back, or configure num_threads",
            )

    def read_output(self, lane: Lane, buffer: str) -> bytes:
        """Copy an OUTPUT buffer's bytes; the graph that writes it must have completed."""
        num_bytes = self.layout.by_name[buffer].spec.num_bytes
        return ctypes.string_at(lane.host_address(buffer), num_bytes)

    def read_section(self, lane: Lane) -> bytes:
        """Copy a lane's STATE and INPUT out; waits for the device."""
        return self.backend.read(lane.address, self.layout.capsule_bytes)

    def provenance(self, timeline: Timeline) -> Provenance:
        """Say what the timeline's queued chunk was made from, and number the output."""
        self.sequence += 1
        origin = timeline.position.origin
        others = origin.other_goals
        return Provenance(
            engine_epoch=self.epoch,
            env_index=timeline.env_index,
            branch=timeline.branch,
            generation=self.environments[timeline.env_index].generation,
            sequence=self.sequence,
            tick=timeline.position.tick,
            latched_tick=origin.latched_tick,
            goal_sequence=origin.goal_sequence,
            goal_source_sequence=origin.goal_source_sequence,
            goal_stamp_ns=origin.goal_stamp_ns,
            observation_sequence=origin.observation_sequence,
            observation_stamp_ns=origin.observation_stamp_ns,
            capsule_id=timeline.brought_back,
            goal_expires_ns=_first_end(origin) if others else origin.goal_expires_ns,
            other_goals=tuple(
                GoalSource(g.channel, g.sequence, g.source_sequence, g.stamp_ns, g.expires_ns)
                for g in others
            )
            if others
            else (),
        )

    def output(
        self,
        kind: OutputKind,
        timeline: Timeline,
        provenance: Provenance,
        index: int,
        payload: bytes,
    ) -> None:
        """Publish an output of an environment; a branch's stay with who stepped it."""
        if timeline.branch == ENVIRONMENT:
            self.sink.output(kind, provenance, index, payload)

    def announce_goal(self, env: Environment, channel: str, goal: SlotMeta, node: int) -> None:
        """Publish that an environment latched a goal it had not read before.

        ``node`` is the plan's node before which that was, 0 at its beginning. The channel is
        told unless it is the model's first one for goals.
        """
        detail = format_detail(
            "",
            channel=channel if channel != self.latches.first_goal else None,
            sequence=goal.sequence,
            source_sequence=goal.source_sequence,
            stamp_ns=goal.stamp_ns,
            committed_ns=goal.committed_ns,
            latched_ns=self.clock_ns(),
            node=node or None,
        )
        self.emit(EventKind.GOAL, env, detail=detail)

    def reseed(self, timeline: Timeline, seed: int, counter: int, *, beside: bool = False) -> None:
        """Write seed and counter into STATE and the host's copy; at a boundary only.

        ``beside`` is for a lane that no plan runs over; see ``Backend.write``.
        """
        first = self.layout.by_name[NOISE_SEED].offset
        second = self.layout.by_name[NOISE_COUNTER].offset
        address = timeline.lane.address
        head, tail = seed.to_bytes(8, "little"), counter.to_bytes(8, "little")
        if second - first == BUFFER_ALIGNMENT_BYTES:  # side by side: one write
            data = head + bytes(second - first - 8) + tail
            self.backend.write(address + first, data, beside=beside)
        else:
            self.backend.write(address + first, head, beside=beside)
            self.backend.write(address + second, tail, beside=beside)
        timeline.position = replace(timeline.position, noise_seed=seed, noise_counter=counter)


def _first_end(origin: Origin) -> int:
    """Return when the first of several goals must not be acted on any more, 0 for never."""
    ends = (origin.goal_expires_ns, *(goal.expires_ns for goal in origin.other_goals))
    return min(filter(None, ends), default=0)


def check_seed(value: int, what: str = "seed") -> None:
    """Refuse a seed (or ``what`` else) that the noise generator does not take.

    Raises:
        PayloadRangeError: It is not within 0 to 2**63 - 1.
    """
    if not 0 <= value <= MAX_SEED:
        raise PayloadRangeError(
            f"the {what} is out of range", expected="0 to 2**63 - 1", found=value
        )
