"""Ticks: when they are due, and the plan and the pop that each is made of."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import torch

from flashrt_ros.engine.core import Core
from flashrt_ros.engine.jobs import Flight, StepDone, StepJob, ignore_answer
from flashrt_ros.engine.protocol import (
    ActionRecord,
    ChunkRecord,
    EventKind,
    OutputKind,
    Step,
    Stepped,
)
from flashrt_ros.engine.stats import Stats
from flashrt_ros.engine.timeline import ENVIRONMENT, Environment, Timeline, origin_of
from flashrt_ros.errors import (
    AbandonedError,
    BusyError,
    ConfigError,
    FlashrtError,
    NotActiveError,
    StepTimeoutError,
    TickSourceError,
)
from flashrt_ros.models.base import ACTION, CHUNK, ELAPSED, GOAL_SEQUENCE_IN, NOISE_SLOT
from flashrt_ros.runtime.plan import PlanRun
from flashrt_ros.runtime.spec import ChannelRole

FIRST_TICK_DELAY_NS = 1_000_000
"""From an activation to its first tick: time for the answer to leave."""


class Ticks:
    """Scheduler of an engine: at most one plan in flight, others wait their turn.

    Nothing here blocks. :meth:`advance` submits one plan node; between two calls the
    owner serves whatever it likes.

    Args:
        core: The engine's parts.
        on_chunk: Called with a timeline at the tick boundary after each chunk, so
            that the rollback ring can keep it.
        on_tick: Called with an environment at every tick boundary, for the same.
    """

    def __init__(
        self,
        core: Core,
        on_chunk: Callable[[Environment], None],
        on_tick: Callable[[Environment], None],
    ) -> None:
        self._core = core
        self._on_chunk = on_chunk
        self._on_tick = on_tick
        self._flight: Flight | None = None
        self._ready: deque[tuple[Timeline, StepJob | None, bool]] = deque()
        self._waiting: list[StepJob] = []
        self.stats = [Stats() for _ in core.environments]

    # timer -------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """Return when :meth:`on_deadline` has something to do, engine clock."""
        times = [
            env.next_tick_ns
            for env in self._core.environments
            if env.is_active and env.tick_source == "timer"
        ]
        times += [job.expires_ns for job in self._waiting]
        return min(times, default=None)

    def on_deadline(self, now_ns: int) -> None:
        """Run the ticks that are due, and give up steps that waited too long."""
        for env in self._core.environments:
            if env.is_active and env.tick_source == "timer" and now_ns >= env.next_tick_ns:
                self._timer_tick(env, now_ns)
        for job in [job for job in self._waiting if now_ns >= job.expires_ns]:
            self._waiting.remove(job)
            job.done(self._timeout(job))

    def _timer_tick(self, env: Environment, now_ns: int) -> None:
        stats = self.stats[env.env_index]
        missed = (now_ns - env.next_tick_ns) // env.period_ns
        stats.note_tick(now_ns, now_ns - env.next_tick_ns, missed)
        env.next_tick_ns += (missed + 1) * env.period_ns
        is_flying = self._is_busy(env)
        if not is_flying and self.waiting_for(env):
            return
        is_due = self._is_due(env)
        if env.position.queue_remaining > 0:
            try:
                self._pop(env, None)
            except FlashrtError as error:
                self._fail(env, None, error)
                return
            if not is_flying and is_due:
                self._ready.append((env, None, False))
        elif is_flying:
            stats.deadline_misses += 1
        else:
            self._ready.append((env, None, True))

    def waiting_for(self, env: Environment) -> str:
        """Say what keeps an active environment from ticking, "" for nothing."""
        if env.is_held and not self._core.latches.has_new_goal(env):
            return "resume"
        if env.lane.is_poisoned:
            return "restore"
        return self._core.latches.missing(env, env)

    # steps -------------------------------------------------------------------------------

    def begin_step(self, timeline: Timeline, request: Step, now_ns: int, done: StepDone) -> StepJob:
        """Queue a step; ``done`` is called from a later :meth:`advance` or deadline.

        Raises:
            NotActiveError: The environment is not active.
            TickSourceError: The environment is ticked by a timer.
            BusyError: A step of the same timeline is under way.
        """
        env = self._core.environments[timeline.env_index]
        if timeline.branch == ENVIRONMENT:
            if not env.is_active:
                raise NotActiveError(
                    f"environment {env.env_index} can't be stepped",
                    expected="an active one",
                    found="inactive",
                    fix="activate it first",
                )
            if env.tick_source != "step":
                raise TickSourceError(
                    f"environment {env.env_index} can't be stepped",
                    expected="tick source 'step'",
                    found=f"'{env.tick_source}'",
                    fix="deactivate it and activate it with tick source 'step'",
                )
        if self._is_busy(timeline) or any(job.timeline is timeline for job in self._waiting):
            raise BusyError("a step of this timeline is under way", fix="wait for its answer")
        job = StepJob(
            timeline=timeline,
            remaining=request.count,
            min_stamp_ns=request.min_observation_stamp_ns,
            expires_ns=now_ns + request.timeout_ns,
            done=done,
            plan_only=request.count == 0,
        )
        self._waiting.append(job)
        self.wake()
        return job

    def cancel(self, job: StepJob) -> None:
        """Forget a step whose caller is gone; a plan in flight for it is abandoned."""
        job.done = ignore_answer
        if job in self._waiting:
            self._waiting.remove(job)
        elif any(entry[1] is job for entry in self._ready) or (
            self._flight is not None and self._flight.step is job
        ):
            self.abandon(job.timeline)

    def wake(self) -> None:
        """Start waiting steps that have what they wait for; call after a commit or verb."""
        for job in tuple(self._waiting):
            if self._can_start(job):
                self._waiting.remove(job)
                self._ready.append((job.timeline, job, True))

    def lacks(self, job: StepJob) -> str:
        """Name what a step waits for besides a newer observation, "" for nothing."""
        env = self._core.environments[job.timeline.env_index]
        if job.timeline is env:
            return self.waiting_for(env)
        return self._core.latches.missing(job.timeline, env)

    def _can_start(self, job: StepJob) -> bool:
        env = self._core.environments[job.timeline.env_index]
        if self.lacks(job):
            return False
        if not job.min_stamp_ns:
            return True
        return self._core.latches.newest_stamp_ns(env, ChannelRole.OBSERVATION) >= job.min_stamp_ns

    def _timeout(self, job: StepJob) -> StepTimeoutError:
        env = self._core.environments[job.timeline.env_index]
        waiting = self.lacks(job)
        newest = self._core.latches.newest_stamp_ns(env, ChannelRole.OBSERVATION)
        return StepTimeoutError(
            f"a step of {job.timeline.title} did not start in time",
            expected=f"{waiting}"
            if waiting
            else f"an observation of {job.min_stamp_ns} ns or later",
            found="none" if waiting else f"newest {newest} ns",
            fix="commit what it waits for, or allow more time",
        )

    # plans -------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Tell whether :meth:`advance` would do something."""
        return self._flight is not None or bool(self._ready)

    def advance(self) -> bool:
        """Submit one plan node, or run one pop; returns whether work remains."""
        flight = self._flight
        if flight is None:
            if not self._ready:
                return False
            timeline, step, pops = self._ready.popleft()
            try:
                self._begin(timeline, step, pops)
            except FlashrtError as error:
                self._fail(timeline, step, error)
            return self.has_work
        before = self._core.clock_ns()
        try:
            is_done = flight.run.submit_next()
        except FlashrtError as error:
            self._land()
            self._fail(flight.timeline, flight.step, error)
            return self.has_work
        flight.busy_ns += self._core.clock_ns() - before
        if is_done:
            self._land()
            try:
                self._finish(flight)
            except FlashrtError as error:
                self._fail(flight.timeline, flight.step, error)
        return self.has_work

    def abandon(self, timeline: Timeline) -> int:
        """Drop the plan and the steps of a timeline, waiting ones too.

        STATE and INPUT stay those of the last boundary.

        Returns:
            Index of the node before which the plan ended, -1 when none was in flight.
        """
        boundary = -1
        flight = self._flight
        if flight is not None and flight.timeline is timeline:
            boundary = flight.run.index
            flight.run.abandon()
            self._land()
            self._answer_abandoned(flight.step)
        for entry in [entry for entry in self._ready if entry[0] is timeline]:
            self._ready.remove(entry)
            self._answer_abandoned(entry[1])
        for job in [job for job in self._waiting if job.timeline is timeline]:
            self._waiting.remove(job)
            self._answer_abandoned(job)
        return boundary

    def _land(self) -> None:
        """End the flight; a branch holds its environment's observation no longer than that."""
        assert self._flight is not None
        timeline = self._flight.timeline
        self._flight = None
        if timeline.branch != ENVIRONMENT:
            self._core.latches.unlatch_observations(timeline)

    def _answer_abandoned(self, step: StepJob | None) -> None:
        if step is not None:
            step.done(
                AbandonedError(
                    "the step was ended by a verb that moved or stopped its timeline",
                    fix="step again from where the environment stands now",
                )
            )

    def _is_busy(self, timeline: Timeline) -> bool:
        flight = self._flight
        return (flight is not None and flight.timeline is timeline) or any(
            entry[0] is timeline for entry in self._ready
        )

    def _is_due(self, timeline: Timeline) -> bool:
        return timeline.position.queue_remaining <= self._core.config.replan_threshold

    def _begin(self, timeline: Timeline, step: StepJob | None, pops: bool) -> None:
        if pops and not self._is_due(timeline):
            self._after_plan(timeline, step)
            return
        core = self._core
        env = core.environments[timeline.env_index]
        if torch.get_num_threads() != core.config.num_threads:
            raise ConfigError(
                "the process's intra-op thread count was changed, which changes the bytes",
                expected=core.config.num_threads,
                found=torch.get_num_threads(),
                fix="torch.set_num_threads back, or configure num_threads",
            )
        if core.latches.missing(timeline, env):
            # a verb took away what the step had when it was found ready
            if step is not None:
                self._waiting.append(step)
            return
        core.latches.latch(timeline, env)
        env.is_held = env.is_held and timeline is not env
        goal = core.latches.goal_of(timeline)
        origin = origin_of(goal, core.latches.observation_of(timeline), timeline.position.tick)
        views = timeline.lane.views
        views[GOAL_SEQUENCE_IN].fill_(origin.goal_sequence)
        views[ELAPSED].fill_(0)
        if core.noise is not None:
            position = timeline.position
            slot = core.noise.draw(position.noise_seed, position.noise_counter)
            views[NOISE_SLOT].fill_(slot)
        self._flight = Flight(
            timeline=timeline,
            run=PlanRun(core.plan, timeline.lane),
            origin=origin,
            started_ns=core.clock_ns(),
            busy_ns=0,
            step=step,
            pops=pops,
        )
        # the latch node runs before anyone can write: what was bound is what is read
        self._submit_latch(self._flight)

    def _submit_latch(self, flight: Flight) -> None:
        before = self._core.clock_ns()
        try:
            flight.run.submit_next()
        except FlashrtError:
            self._land()
            raise
        flight.busy_ns += self._core.clock_ns() - before

    def _finish(self, flight: Flight) -> None:
        core, timeline = self._core, flight.timeline
        position = timeline.position
        elapsed = int(timeline.lane.views[ELAPSED][0])
        length = core.model.execute_horizon
        timeline.position = replace(
            position,
            queue_head=min(elapsed, length),
            queue_length=length,
            noise_counter=position.noise_counter + (core.noise is not None),
            origin=flight.origin,
        )
        self.stats[timeline.env_index].note_replay(flight.busy_ns)
        provenance = core.provenance(timeline)
        payload = core.read(timeline.lane, CHUNK)
        core.output(OutputKind.CHUNK, timeline, provenance, 0, payload)
        if flight.step is not None:
            chunk = timeline.lane.views[CHUNK]
            score = (
                core.model.score(chunk, timeline.lane.views) if timeline.branch >= 0 else math.nan
            )
            flight.step.chunks.append(ChunkRecord(provenance, payload, score))
        if flight.pops:
            self._after_plan(timeline, flight.step)
        if timeline.branch == ENVIRONMENT:
            self._on_chunk(core.environments[timeline.env_index])

    def _after_plan(self, timeline: Timeline, step: StepJob | None) -> None:
        if step is None:
            self._pop(timeline, None)
            return
        if not step.plan_only:
            self._pop(timeline, step)
            step.remaining -= 1
            if step.remaining > 0:
                self._ready.append((timeline, step, True))
                return
        env = self._core.environments[timeline.env_index]
        step.done(
            Stepped(
                rid=0,
                tick=timeline.position.tick,
                generation=env.generation,
                chunks=tuple(step.chunks),
                actions=tuple(step.actions),
            )
        )

    def _pop(self, timeline: Timeline, step: StepJob | None) -> None:
        core = self._core
        timeline.lane.replay(core.model.plan().pop)
        position = timeline.position
        index = position.queue_head
        timeline.position = replace(position, tick=position.tick + 1, queue_head=index + 1)
        flight = self._flight
        if flight is not None and flight.timeline is timeline:
            timeline.lane.views[ELAPSED].fill_(timeline.position.tick - flight.origin.latched_tick)
        provenance = core.provenance(timeline)
        payload = core.read(timeline.lane, ACTION)
        core.output(OutputKind.ACTION, timeline, provenance, index, payload)
        if step is not None:
            step.actions.append(ActionRecord(provenance, index, payload))
        if timeline.branch == ENVIRONMENT:
            self._on_tick(core.environments[timeline.env_index])

    def _fail(self, timeline: Timeline, step: StepJob | None, error: FlashrtError) -> None:
        env = self._core.environments[timeline.env_index]
        self._core.emit(EventKind.FAULT, env, detail=f"{error.name}: {error}")
        if step is not None:
            step.done(error)
