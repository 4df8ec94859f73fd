"""Chunk plans and pops: submitted node by node, taken in when the device is done."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from flashrt_ros.engine.core import Core
from flashrt_ros.engine.flights import Flight, Pop
from flashrt_ros.engine.handover import Handover
from flashrt_ros.engine.jobs import StepJob, answer_abandoned
from flashrt_ros.engine.protocol import ActionRecord, ChunkRecord, EventKind, OutputKind
from flashrt_ros.engine.stats import Stats
from flashrt_ros.engine.timeline import ENVIRONMENT, Environment, Timeline, origin_of, origin_under
from flashrt_ros.errors import DeviceLostError, FlashrtError
from flashrt_ros.models.base import ACTION, CHUNK, ELAPSED, GOAL_SEQUENCE_IN, NOISE_SLOT
from flashrt_ros.runtime.backend import PASSED, Fence
from flashrt_ros.runtime.plan import PlanRun


class Plans:
    """Runs what ticks and steps ask for: at most one plan in flight, others wait their turn.

    Nothing here blocks but :meth:`wait`. :meth:`advance` submits one plan node; between
    two calls the owner serves whatever it likes. The host's counters move on when a node is
    submitted, outputs go out when the device has come past it, in the order of their numbers.

    No plan begins while the device still has nodes of one that was left: it could not begin
    before them, and what they read (slots, drawn noise, bindings) is theirs until then.

    Args:
        core: The engine's parts.
        on_chunk: Called with an environment at the tick boundary after each chunk, so
            that the rollback ring can keep it.
        on_tick: Called with an environment at every tick boundary, for the same.
        on_lack: Takes a step back whose goal or observation is gone, or too old.

    Attributes:
        stats: By environment.
    """

    def __init__(
        self,
        core: Core,
        on_chunk: Callable[[Environment], None],
        on_tick: Callable[[Environment], None],
        on_lack: Callable[[StepJob], None],
    ) -> None:
        self._core = core
        self._on_chunk = on_chunk
        self._on_tick = on_tick
        self._on_lack = on_lack
        self._flight: Flight | None = None
        self._left: Fence = PASSED
        self._handover = Handover(core)
        self._pops: deque[Pop] = deque()
        self._pops_beside = core.plan.shares_nothing_with(core.model.plan().pop)
        self._ready: deque[tuple[Timeline, StepJob | None, bool]] = deque()
        self.stats = [Stats() for _ in core.environments]

    def start(self, timeline: Timeline, step: StepJob | None, *, pops: bool) -> None:
        """Make the chunk that is due, as soon as its turn comes; ``pops`` an action after it."""
        self._ready.append((timeline, step, pops))

    def pop_when_done(self, timeline: Timeline) -> bool:
        """Pop an action after the timer's plan under way; False if one is popped already."""
        flight = self._flight
        if flight is not None and flight.timeline is timeline and not flight.pops:
            flight.pops = True
            return True
        entry = (timeline, None, False)
        if entry not in self._ready:
            return False
        self._ready[self._ready.index(entry)] = (timeline, None, True)
        return True

    def holds(self, step: StepJob) -> bool:
        """Tell whether a step is under way or waits its turn here."""
        flight = self._flight
        return (
            any(entry[1] is step for entry in self._ready)
            or any(pop.step is step for pop in self._pops)
            or (flight is not None and flight.step is step)
        )

    @property
    def has_work(self) -> bool:
        """Tell whether :meth:`advance` would do something now.

        Raises:
            DeviceLostError: The device's context is gone.
        """
        if self._pops and self._can_land_pop:  # what each asks first saves a call in every turn
            return True
        flight = self._flight
        if flight is None:
            return bool(self._ready) and self._can_begin
        flight.settle(self._core.clock_ns())
        return flight.can_submit or flight.is_landed

    @property
    def is_waiting(self) -> bool:
        """Tell whether something is under way on the device; ask :attr:`has_work` again soon."""
        return self._flight is not None or bool(self._pops) or bool(self._ready)

    def wait(self) -> bool:
        """Return when the device has come further; False when nothing is under way."""
        if self._flight is not None:
            self._flight.next_fence.wait()
        elif self._pops:
            self._pops[0].fence.wait()
        elif self._ready:
            self._left.wait()
        else:
            return False
        return True

    def advance(self) -> bool:
        """Submit one plan node, or take in what is done; returns whether work remains.

        Raises:
            DeviceLostError: The device's context is gone.
        """
        flight = self._flight
        if flight is None:
            self._land_pops()
            if self._can_begin:
                timeline, step, pops = self._ready.popleft()
                try:
                    self._begin(timeline, step, pops)
                except FlashrtError as error:
                    self.fail(timeline, step, error)
            return self.has_work
        flight.settle(self._core.clock_ns())
        if flight.can_submit:
            bends = flight.can_bend and self._core.latches.can_take_goal(flight.timeline)
            if not (self._bend(flight) if bends else self._submit(flight)):
                return self.has_work
        if flight.is_landed:
            self._land_pops()
            self._handover.commit(flight)
            self._land()
            try:
                self._finish(flight)
            except FlashrtError as error:
                self.fail(flight.timeline, flight.step, error)
        self._land_pops()
        return self.has_work

    def abandon(self, timeline: Timeline) -> int:
        """Drop the plan, the pops and the steps of a timeline.

        STATE and INPUT stay those of the last boundary.

        Returns:
            Index of the node before which the plan ended, -1 when none was in flight.
        """
        flight, boundary = self._flight, -1
        if flight is None and not self._pops and not self._ready:
            return boundary
        if flight is not None and flight.timeline is timeline:
            boundary = flight.run.index
            flight.run.abandon()
            self._land()
            answer_abandoned(flight.step)
        for pop in [pop for pop in self._pops if pop.timeline is timeline]:
            # popped, and never published: what comes next begins elsewhere
            self._pops.remove(pop)
            answer_abandoned(pop.step)
        for entry in [entry for entry in self._ready if entry[0] is timeline]:
            self._ready.remove(entry)
            answer_abandoned(entry[1])
        return boundary

    def is_busy(self, timeline: Timeline) -> bool:
        """Tell whether a plan or a pop of a timeline is under way or waits its turn."""
        flight = self._flight
        return (
            (flight is not None and flight.timeline is timeline)
            or any(entry[0] is timeline for entry in self._ready)
            or self.is_popping(timeline)
        )

    def is_popping(self, timeline: Timeline) -> bool:
        """Tell whether an action of a timeline is on its way.

        One at a time: the next would be written where the host has yet to read this one.
        """
        return any(pop.timeline is timeline for pop in self._pops)

    def pop(self, timeline: Timeline, step: StepJob | None) -> None:
        """Submit the pop of one action, and count the tick; none may be on its way.

        Raises:
            LanePoisonedError: The lane is poisoned.
            BackendError: The pop failed.
        """
        core, position = self._core, timeline.position
        timeline.lane.replay(core.model.plan().pop, beside=self._pops_beside)
        fence, index = core.backend.fence(), position.queue_head
        timeline.position = replace(position, tick=position.tick + 1, queue_head=index + 1)
        flight = self._flight
        if flight is not None and flight.timeline is timeline and not flight.run.is_done:
            flight.elapsed = timeline.position.tick - flight.origin.latched_tick
            core.bindings.write_one(timeline.lane, ELAPSED, flight.elapsed)
        behind = flight if flight is not None and flight.run.is_done else None
        self._pops.append(Pop(timeline, step, index, core.provenance(timeline), fence, behind))
        self._land_pops()

    def fail(self, timeline: Timeline, step: StepJob | None, error: FlashrtError) -> None:
        """Announce that a plan or pop failed, and answer its step.

        Raises:
            DeviceLostError: That was the failure: the engine can't go on.
        """
        if isinstance(error, DeviceLostError):
            raise error
        env = self._core.environments[timeline.env_index]
        self._core.emit(EventKind.FAULT, env, detail=f"{error.name}: {error}")
        if step is not None:
            step.done(error)

    def _submit(self, flight: Flight) -> bool:
        """Submit the next node; returns whether the flight goes on."""
        if not self._submit_graph(flight, flight.run.submit_next):
            return False
        if flight.run.is_done:
            self._note_commit(flight)
        flight.settle(self._core.clock_ns())
        return True

    def _bend(self, flight: Flight) -> bool:
        """Latch the newest goal for the chunk in the making; returns whether the flight goes on."""
        core, timeline = self._core, flight.timeline
        env = core.environments[timeline.env_index]

        def latch_again() -> None:
            flight.bent_at = flight.run.index
            bindings = core.latches.take_goal(env, node=flight.bent_at)
            flight.origin = origin_under(flight.origin, core.latches.goals_of(env))
            bindings[GOAL_SEQUENCE_IN] = flight.origin.goal_sequence
            for name, value in bindings.items():
                core.bindings.write_one(timeline.lane, name, value)
            if core.fed_plans:
                flight.run.go_on_as(core.plan_of(timeline))
            flight.run.submit_between()

        if not self._submit_graph(flight, latch_again):
            return False
        core.latches.note_goal_read(env, flight.last_fence)
        flight.settle(core.clock_ns())
        return True

    def _submit_graph(self, flight: Flight, submit: Callable[[], object]) -> bool:
        before = self._core.clock_ns()
        try:
            submit()
        except FlashrtError as error:
            self._land()
            self.fail(flight.timeline, flight.step, error)
            return False
        flight.submit(self._core.backend.fence(), before)
        return True

    def _land(self) -> None:
        """End the flight; a branch holds its environment's observation no longer than that."""
        assert self._flight is not None
        timeline = self._flight.timeline
        self._left = self._flight.last_fence
        self._handover.take_back(self._flight.rows)
        self._flight = None
        if timeline.branch != ENVIRONMENT:
            self._core.latches.unlatch_observations(timeline)

    @property
    def _can_begin(self) -> bool:
        """Whether what waits its turn may have it."""
        if not self._ready:
            return False
        timeline, _, pops = self._ready[0]
        return self._left.is_done or (pops and not self._core.is_due(timeline))

    def _begin(self, timeline: Timeline, step: StepJob | None, pops: bool) -> None:
        if pops and not self._core.is_due(timeline):
            self._after_plan(timeline, step)
            return
        core, env = self._core, self._core.environments[timeline.env_index]
        core.check_threads()
        if core.latches.missing(timeline, env) or core.ages.stale(timeline, env):
            # a verb took away what was there when this was found ready, or it grew old
            if step is not None:
                self._on_lack(step)
            return
        timeline.lane.check_not_poisoned()
        with self._handover.lent(timeline) as rows:
            bindings = core.latches.latch(timeline, env)
            env.is_held = env.is_held and timeline is not env
            latches, tick = core.latches, timeline.position.tick
            origin = origin_of(latches.goals_of(timeline), latches.observation_of(timeline), tick)
            bindings[GOAL_SEQUENCE_IN] = origin.goal_sequence
            bindings[ELAPSED] = 0
            if core.noise is not None:
                position = timeline.position
                bindings[NOISE_SLOT] = core.noise.draw(position.noise_seed, position.noise_counter)
            core.bindings.write(timeline.lane, bindings | self._handover.bindings(rows))
            run = PlanRun(core.plan_of(timeline), timeline.lane)
            flight = Flight(timeline, run, origin, step, pops, rows=rows)
        self._flight = flight
        # the latch node is submitted before anyone can write: what was bound is what is read
        before = core.clock_ns()
        try:
            flight.run.submit_next()
        except FlashrtError:
            self._land()
            raise
        flight.submit(core.backend.fence(), before)
        core.latches.note_read(timeline, flight.last_fence)
        flight.settle(core.clock_ns())

    def _note_commit(self, flight: Flight) -> None:
        """Move the host's counters on: what is submitted next finds STATE as of the commit."""
        timeline, position = flight.timeline, flight.timeline.position
        length = self._core.model.execute_horizon
        timeline.position = replace(
            position,
            queue_head=min(flight.elapsed, length),
            queue_length=length,
            noise_counter=position.noise_counter + (self._core.noise is not None),
            origin=flight.origin,
        )
        flight.provenance = self._core.provenance(timeline)

    def _finish(self, flight: Flight) -> None:
        core, timeline, provenance = self._core, flight.timeline, flight.provenance
        assert provenance is not None
        self.stats[timeline.env_index].note_replay(flight.busy_ns)
        payload = core.read_output(timeline.lane, CHUNK)
        core.output(OutputKind.CHUNK, timeline, provenance, 0, payload)
        if flight.step is not None:
            score = self._score(timeline) if timeline.branch != ENVIRONMENT else math.nan
            flight.step.chunks.append(ChunkRecord(provenance, payload, score))
        if flight.pops:
            self._after_plan(timeline, flight.step)
        if timeline.branch == ENVIRONMENT:
            self._on_chunk(core.environments[timeline.env_index])

    def _score(self, timeline: Timeline) -> float:
        views = timeline.lane.views
        with self._core.backend.ordered():
            return self._core.model.score(views[CHUNK], views)

    def _after_plan(self, timeline: Timeline, step: StepJob | None) -> None:
        if step is not None and step.plan_only:
            self._answer(step)
        elif self.is_popping(timeline):
            # a later tick came first, between the commit and its end: this one was missed
            self.stats[timeline.env_index].deadline_misses += 1
        else:
            self.pop(timeline, step)

    def _answer(self, step: StepJob) -> None:
        step.finish(self._core.environments[step.timeline.env_index].generation)

    @property
    def _can_land_pop(self) -> bool:
        """Whether the oldest action is there, and no chunk has to be published before it."""
        if not self._pops:
            return False
        pop = self._pops[0]
        return (pop.behind is None or pop.behind is not self._flight) and pop.fence.is_done

    def _land_pops(self) -> None:
        """Publish the actions that are there; go on with the steps they are part of."""
        while self._can_land_pop:
            pop = self._pops.popleft()
            try:
                self._publish(pop)
            except FlashrtError as error:
                self.fail(pop.timeline, pop.step, error)

    def _publish(self, pop: Pop) -> None:
        core, timeline, step = self._core, pop.timeline, pop.step
        payload = core.read_output(timeline.lane, ACTION)
        core.output(OutputKind.ACTION, timeline, pop.provenance, pop.index, payload)
        if step is not None:
            step.actions.append(ActionRecord(pop.provenance, pop.index, payload))
        if timeline.branch == ENVIRONMENT:
            self._on_tick(core.environments[timeline.env_index])
        if step is not None:
            step.remaining -= 1
            if step.remaining > 0:
                self._ready.append((timeline, step, True))
            else:
                self._answer(step)
