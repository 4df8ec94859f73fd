"""Ticks: when they are due, and the plan and the pop that each is made of."""

from __future__ import annotations

from collections.abc import Callable

from flashrt_ros.engine.core import Core
from flashrt_ros.engine.jobs import StepDone, StepJob, answer_abandoned, ignore_answer
from flashrt_ros.engine.plans import Plans
from flashrt_ros.engine.protocol import EventKind, Step, format_detail
from flashrt_ros.engine.timeline import ENVIRONMENT, Environment, Timeline
from flashrt_ros.errors import (
    BusyError,
    FlashrtError,
    NotActiveError,
    StepTimeoutError,
    TickSourceError,
)
from flashrt_ros.runtime.spec import ChannelRole

FIRST_TICK_DELAY_NS = 1_000_000
"""From an activation to its first tick: time for the answer to leave."""


class Ticks:
    """Scheduler of an engine: the timer's ticks, and the steps that were asked for.

    Nothing here blocks. What is due is handed to :attr:`plans`.

    Args:
        core: The engine's parts.
        on_chunk: Called with a timeline at the tick boundary after each chunk, so
            that the rollback ring can keep it.
        on_tick: Called with an environment at every tick boundary, for the same.

    Attributes:
        plans: Runs what is due.
    """

    def __init__(
        self,
        core: Core,
        on_chunk: Callable[[Environment], None],
        on_tick: Callable[[Environment], None],
    ) -> None:
        self._core = core
        self._waiting: list[StepJob] = []
        self.plans = Plans(core, on_chunk, on_tick, self._take_back)

    # timer -------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """Return when :meth:`on_deadline` has something to do, engine clock."""
        nearest: int | None = None
        for env in self._core.environments:
            if env.is_active and env.tick_source == "timer":
                next_ns = env.next_tick_ns
                if nearest is None or next_ns < nearest:
                    nearest = next_ns
        for job in self._waiting:
            if nearest is None or job.expires_ns < nearest:
                nearest = job.expires_ns
        return nearest

    def on_deadline(self, now_ns: int) -> None:
        """Run the ticks that are due, and give up steps that waited too long."""
        for env in self._core.environments:
            if env.is_active and env.tick_source == "timer" and now_ns >= env.next_tick_ns:
                self._timer_tick(env, now_ns)
        for job in [job for job in self._waiting if now_ns >= job.expires_ns]:
            self._waiting.remove(job)
            job.done(self._timeout(job))

    def _timer_tick(self, env: Environment, now_ns: int) -> None:
        stats = self.plans.stats[env.env_index]
        missed = (now_ns - env.next_tick_ns) // env.period_ns
        stats.note_tick(now_ns, now_ns - env.next_tick_ns, missed)
        env.next_tick_ns += (missed + 1) * env.period_ns
        if self.plans.is_popping(env):
            stats.deadline_misses += 1
            return
        is_flying = self.plans.is_busy(env)
        if not is_flying and self._blocked(env):
            return
        # what is queued was made from what was fresh then, and is still popped
        is_due = self._core.is_due(env) and (is_flying or not self._is_stale(env))
        if env.position.queue_remaining > 0:
            try:
                self.plans.pop(env, None)
            except FlashrtError as error:
                self.plans.fail(env, None, error)
                return
            if not is_flying and is_due:
                self.plans.start(env, None, pops=False)
        elif is_flying:
            # served late rather than not at all, once for each plan
            stats.deadline_misses += not self.plans.pop_when_done(env)
        elif is_due:
            self.plans.start(env, None, pops=True)

    def hasten(self, env: Environment) -> None:
        """Begin the chunk that the timer's next tick would begin, so that it finds it made."""
        is_timed = env.is_active and env.tick_source == "timer"
        is_idle = env.position.queue_remaining == 0 and not self.plans.is_busy(env)
        if is_timed and is_idle and not self.waiting_for(env):
            self.plans.start(env, None, pops=False)

    def waiting_for(self, env: Environment) -> str:
        """Say what keeps an active environment from ticking, "" for nothing."""
        return self._blocked(env) or self._too_old(env)

    def _blocked(self, env: Environment) -> str:
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
        if self.plans.is_busy(timeline) or any(job.timeline is timeline for job in self._waiting):
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
        elif self.plans.holds(job):
            self.abandon(job.timeline)

    def wake(self) -> None:
        """Start waiting steps that have what they wait for; call after a commit or verb."""
        for job in tuple(self._waiting):
            if self._can_start(job):
                self._waiting.remove(job)
                self.plans.start(job.timeline, job, pops=True)

    def lacks(self, job: StepJob) -> str:
        """Name what a step waits for besides a newer observation, "" for nothing."""
        env = self._core.environments[job.timeline.env_index]
        if job.timeline is env:
            return self.waiting_for(env)
        return self._core.latches.missing(job.timeline, env) or self._too_old(job.timeline)

    def _can_start(self, job: StepJob) -> bool:
        env = self._core.environments[job.timeline.env_index]
        self._announce_age(job)
        if self.lacks(job):
            return False
        if not job.min_stamp_ns:
            return True
        return self._core.latches.newest_stamp_ns(env, ChannelRole.OBSERVATION) >= job.min_stamp_ns

    def _take_back(self, job: StepJob) -> None:
        """Let a step wait again for what it lost."""
        self._waiting.append(job)
        self._announce_age(job)

    def _too_old(self, timeline: Timeline) -> str:
        """Name what the plan that is due can't start from, "" for nothing."""
        env = self._core.environments[timeline.env_index]
        stale = self._core.ages.stale(timeline, env) if self._core.is_due(timeline) else None
        return stale.lack if stale else ""

    def _announce_age(self, job: StepJob) -> None:
        env = self._core.environments[job.timeline.env_index]
        if job.timeline is env and not self._blocked(env) and self._core.is_due(env):
            self._is_stale(env)

    def _is_stale(self, env: Environment) -> bool:
        """Tell whether an input is too old for the plan that is due; announce each spell once."""
        stale = self._core.ages.stale(env, env)
        channel = stale.channel if stale else ""
        if stale and channel != env.stale:
            detail = format_detail(
                stale.role.value,
                channel=None if stale.is_only else channel,
                age_ms=f"{stale.age_ns / 1e6:.1f}",
                max_age_ms=f"{stale.limit_ns / 1e6:.1f}",
            )
            self._core.emit(EventKind.STALE, env, detail=detail)
        env.stale = channel
        return stale is not None

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

    def abandon(self, timeline: Timeline) -> int:
        """Drop the plan and the steps of a timeline, waiting ones too.

        STATE and INPUT stay those of the last boundary.

        Returns:
            Index of the node before which the plan ended, -1 when none was in flight.
        """
        boundary = self.plans.abandon(timeline)
        if not self._waiting:
            return boundary
        for job in [job for job in self._waiting if job.timeline is timeline]:
            self._waiting.remove(job)
            answer_abandoned(job)
        return boundary
