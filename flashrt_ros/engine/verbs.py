"""The capsule verbs, at committed boundaries: validate everything, then move."""

from __future__ import annotations

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.store import home_name, is_home
from flashrt_ros.engine import protocol
from flashrt_ros.engine.channels import WriterRing
from flashrt_ros.engine.core import Core
from flashrt_ros.engine.moves import Moves, own_home, path_of
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.ticks import Ticks
from flashrt_ros.engine.timeline import Environment, Interruption
from flashrt_ros.errors import (
    CapsulePinnedError,
    InterruptDepthError,
    NoBoundaryError,
    NothingToResumeError,
)


class Verbs:
    """What moves an environment other than a tick.

    Every verb runs between two plan nodes. STATE and INPUT are whole there, because
    only the commit node writes them; a verb that moves the environment abandons the
    plan in flight, one that only reads leaves it alone. A refused verb changes nothing.

    Args:
        core: The engine's parts.
        ticks: Abandons plans.
        moves: Makes, fills and lets go.
    """

    def __init__(self, core: Core, ticks: Ticks, moves: Moves) -> None:
        self._core = core
        self._ticks = ticks
        self._moves = moves

    # snapshot and ring -------------------------------------------------------------------

    def snapshot(self, env: Environment, request: protocol.Snapshot) -> Capsule:
        """Freeze the environment's last boundary under a name."""
        started = self._core.clock_ns()
        name = own_home(env, request.name)
        if request.persist:
            self._core.storage.require_folder("persist")
        capsule = self._moves.create(
            env,
            name=name,
            labels=request.labels,
            pinned=request.pinned or is_home(name),
            persist=request.persist,
            replaces=request.replace,
        )
        env.parent = capsule.id
        self._core.emit(
            EventKind.SNAPSHOT,
            env,
            capsule_id=capsule.id,
            duration_ns=self._core.clock_ns() - started,
            detail=name,
        )
        return capsule

    def take_home(self, env: Environment) -> None:
        """Take ``home`` unless the environment has one."""
        if not self._core.store.has(home_name(env.env_index)):
            self._moves.create(env, name=home_name(env.env_index), pinned=True)
            env.parent = self._core.store.get(home_name(env.env_index)).id

    def note_chunk(self, env: Environment) -> None:
        """Keep the boundary after a chunk, unless the ring goes by ticks."""
        if not self._core.config.rollback_every_ticks:
            self.keep_boundary(env)

    def note_tick(self, env: Environment) -> None:
        """Keep the boundary of every so many ticks, where the ring goes by them."""
        every = self._core.config.rollback_every_ticks
        if every and env.position.tick % every == 0:
            self.keep_boundary(env)

    def keep_boundary(self, env: Environment) -> None:
        """Add the environment's boundary to its rollback ring; the oldest makes room."""
        depth = self._core.config.rollback_depth
        if not depth:
            return
        while len(env.boundaries) >= depth:
            self._moves.recycle(env.boundaries.popleft())
        capsule = self._moves.create(
            env,
            automatic=True,
            labels=("automatic=boundary",),
            tier=self._core.config.rollback_tier,
        )
        env.boundaries.append(capsule)
        env.parent = capsule.id

    def drop(self, env: Environment, key: str) -> None:
        """Forget a capsule; what descends from it descends from its parent now."""
        capsule = self._moves.find(env, key)
        if self._moves.is_held(capsule):
            raise CapsulePinnedError(
                f"capsule '{capsule.name or capsule.id}' can't be dropped",
                found="one in a rollback ring or an interrupt stack",
                fix="reset or resume first",
            )
        self._moves.forget(self._core.store.drop(capsule.id))

    # moving ------------------------------------------------------------------------------

    def rollback(self, env: Environment, request: protocol.Rollback) -> protocol.Moved:
        """Go back in the ring, or to an ancestor by id or name."""
        if request.capsule:
            capsule = self._ancestor(env, request.capsule)
        else:
            earlier = [c for c in env.boundaries if c.position.tick < env.position.tick]
            if not 1 <= request.boundaries <= len(earlier):
                raise NoBoundaryError(
                    f"environment {env.env_index} can't go back {request.boundaries} boundaries",
                    expected=f"1 to {len(earlier)}" if earlier else "0, as no earlier one is kept",
                    found=request.boundaries,
                    fix="restore a capsule, or raise rollback_depth",
                )
            capsule = earlier[-request.boundaries]
        self._core.store.require_memory(capsule)
        self._core.goals.require_slot()
        started = self._core.clock_ns()
        left = self._moves.move(env, capsule)
        self._moves.retire(left)
        self._moves.forget_branch_observations(env)
        self._core.latches.forget(env, None, observations=True)
        self._core.latches.raise_goal_barrier(env)
        self._core.goals.restore(env, capsule)
        self._moves.truncate_boundaries(env)
        return self._moves.moved(
            env, EventKind.ROLLBACK, capsule.id, path_of(left), started, request.rid
        )

    def interrupt(
        self, env: Environment, request: protocol.Interrupt, ring: WriterRing | None
    ) -> protocol.Interrupted:
        """Stack the boundary, abandon the plan, empty the queue, and take the new goal."""
        core = self._core
        if len(env.interruptions) >= core.config.interrupt_depth:
            raise InterruptDepthError(
                f"the interrupt stack of environment {env.env_index} is full",
                expected=f"{core.config.interrupt_depth} at most",
                fix="resume or reset first, or raise interrupt_depth",
            )
        env.lane.check_not_poisoned()
        commit = request.commit
        if commit is not None and ring is not None:
            core.latches.check_goal_commit(
                env,
                ring,
                commit.slot,
                commit.ticket,
                stamp_ns=commit.stamp_ns,
                lifetime_ns=commit.lifetime_ns,
            )
        started = core.clock_ns()
        capsule = self._moves.create(env, automatic=True, labels=("automatic=interrupt",))
        was_held = env.is_held and not core.latches.has_new_goal(env)
        # the goal in force is the newest committed, whether or not a plan has latched it
        core.latches.promote_goal(env)
        goals = core.goals.in_force(env)
        bounds = core.latches.goal_bounds(env)
        env.interruptions.append(
            Interruption(capsule, goals, bounds, request.reason, was_held=was_held)
        )
        boundary = self._ticks.abandon(env)
        sequence = 0
        if commit is not None and ring is not None:
            sequence = core.latches.commit(
                ring,
                commit.slot,
                commit.ticket,
                stamp_ns=commit.stamp_ns,
                source_sequence=commit.source_sequence,
                lifetime_ns=commit.lifetime_ns,
                now_ns=started,
            )
            # a goal that was on its way when this one was given must not replace it
            core.latches.set_goal_bounds(env, {ring.channel.spec.name: commit.stamp_ns})
        env.parent = capsule.id
        env.generation += 1
        self._moves.flush(env)
        core.latches.raise_goal_barrier(env, keep_pending=commit is not None)
        env.is_held = request.hold
        core.emit(
            EventKind.INTERRUPT,
            env,
            capsule_id=capsule.id,
            duration_ns=core.clock_ns() - started,
            detail=protocol.format_detail(request.reason, hold=1)
            if request.hold
            else request.reason,
        )
        return protocol.Interrupted(
            rid=request.rid,
            capsule_id=capsule.id,
            depth=len(env.interruptions),
            boundary=boundary,
            generation=env.generation,
            goal_sequence=sequence,
            tick=env.position.tick,
        )

    def resume(self, env: Environment, request: protocol.Resume) -> protocol.Moved:
        """Restore the boundary on top of the stack, with its goal or under the live one.

        A pause that was interrupted goes on, unless the live goal is kept. A model that
        bridges seams has the queue begin where the robot is now.
        """
        if not env.interruptions:
            raise NothingToResumeError(f"environment {env.env_index} was not interrupted")
        if not request.keep_goal:
            self._core.goals.require_slot()
        top = env.interruptions[-1]
        self._core.store.require_memory(top.capsule)
        started = self._core.clock_ns()
        self._core.seams.keep(env.lane)
        left = self._moves.move(env, top.capsule)
        self._moves.retire(left)
        self._core.seams.bridge(env.lane)
        env.interruptions.pop()
        self._core.latches.set_goal_bounds(env, top.goal_bounds)
        if not request.keep_goal:
            self._core.latches.raise_goal_barrier(env)
            self._core.goals.replay(env, top.goals)
        # what was interrupted may have been a pause; a goal that is to be kept ends it
        env.is_held = top.was_held and not request.keep_goal
        self._moves.truncate_boundaries(env)
        moved = self._moves.moved(
            env, EventKind.RESUME, top.capsule.id, path_of(left), started, request.rid
        )
        self._moves.recycle(top.capsule)
        return moved

    def _ancestor(self, env: Environment, key: str) -> Capsule:
        capsule = self._moves.find(env, key)
        if capsule.id not in self._core.store.ancestors(env.parent):
            raise NoBoundaryError(
                f"capsule '{key}' is no ancestor of environment {env.env_index}",
                fix="use restore to go to a state of another line",
            )
        return capsule
