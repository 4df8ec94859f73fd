"""The capsule verbs, at committed boundaries: validate everything, then move."""

from __future__ import annotations

import msgspec

from flashrt_ros.capsule.capsule import HOME, Capsule
from flashrt_ros.capsule.store import home_name, is_home
from flashrt_ros.engine import protocol
from flashrt_ros.engine.branches import Branches
from flashrt_ros.engine.channels import WriterRing
from flashrt_ros.engine.core import Core, check_seed
from flashrt_ros.engine.moves import Moves, own_home, path_of
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.ticks import Ticks
from flashrt_ros.engine.timeline import Environment, EpisodeReset, Interruption
from flashrt_ros.engine.waits import Done
from flashrt_ros.errors import (
    CapsulePinnedError,
    DeviceLostError,
    FlashrtError,
    InterruptDepthError,
    NoBoundaryError,
    NothingToResumeError,
    SpecError,
)
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.spec import ChannelRole


class Verbs:
    """What moves an environment other than a tick.

    Every verb runs between two plan nodes. STATE and INPUT are whole there, because
    only the commit node writes them; a verb that moves the environment abandons the
    plan in flight, one that only reads leaves it alone. A refused verb changes nothing.

    Args:
        core: The engine's parts.
        ticks: Abandons plans.
        moves: Makes, fills and lets go.
        branches: Released by a reset.
    """

    def __init__(self, core: Core, ticks: Ticks, moves: Moves, branches: Branches) -> None:
        self._core = core
        self._ticks = ticks
        self._moves = moves
        self._branches = branches
        self._has_observations = bool(core.latches.named(ChannelRole.OBSERVATION))

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

    def restore(self, request: protocol.Restore, done: Done) -> None:
        """Bring a capsule back; with ``reset`` the episode begins anew.

        ``done`` gets the answer as soon as the environment stands there and nothing can be
        refused any more. What is left then is bookkeeping, which the caller of a reset does
        not wait for and nobody can look into: no message is served before it is done.
        """
        core, moves = self._core, self._moves
        env = core.environment(request.env_index)
        is_reset = request.reset
        # a reset has a default; a restore that names nothing is a mistake
        key = request.capsule or (HOME if is_reset else "")
        last = env.last_reset
        if last is not None and request.episode_id == last.episode_id:
            done(_answer_again(last, _asked(request, key), request.rid))
            return
        capsule = moves.find(env, key)
        if not capsule.residence.blocks:
            core.store.require_memory(capsule)
        brings_goal = not request.keep_goal and not is_reset
        if request.seed is not None:
            check_seed(request.seed)
        if brings_goal:
            core.goals.require_slot()
        started = core.clock_ns()
        left = moves.move(env, capsule)
        if request.seed is not None:
            core.reseed(env, request.seed, 0)
        # a restore that names no stamp leaves the bound; a reset lifts it, the clock may be new
        stamp_ns = request.stamp_ns if is_reset else request.stamp_ns or None
        if brings_goal:
            self._bring_goal(env, capsule, stamp_ns)
        env.is_held = False
        moved = protocol.Moved(
            request.rid,
            capsule.position.tick,
            env.generation,
            "copy" if left is None else "flip",
            core.clock_ns() - started,
            capsule.id,
            0,  # the interrupt stack is forgotten
            # what the books set: observations must have reached it
            core.latches.observation_bound_ns(env)
            if stamp_ns is None
            else stamp_ns * self._has_observations,
        )
        try:
            done(moved)
        finally:
            self._keep_books(env, request, moved, capsule, left, stamp_ns)
        if request.episode_id:
            env.last_reset = EpisodeReset(request.episode_id, _asked(request, key), moved)

    def _bring_goal(self, env: Environment, capsule: Capsule, stamp_ns: int | None) -> None:
        """Put a capsule's goal in force in place of whatever there is."""
        self._moves.clear_interruptions(env)  # it may set the bound that is set here
        self._core.latches.forget_goal(env, stamp_ns)
        self._core.goals.restore(env, capsule)

    def _keep_books(
        self,
        env: Environment,
        request: protocol.Restore,
        moved: protocol.Moved,
        capsule: Capsule,
        left: Lane | None,
        stamp_ns: int | None,
    ) -> None:
        """Do what goes with a restore and is not part of where the environment stands.

        Raises:
            DeviceLostError: The device's context is gone.
            RuntimeError: It failed otherwise, which it must not; the engine can't go on.
        """
        core, moves = self._core, self._moves
        try:
            moves.retire(left)
            core.store.require_memory(capsule)
            if env.interruptions:
                moves.clear_interruptions(env)
            if core.branches:
                moves.forget_branch_observations(env)
            core.latches.forget_observations(env, stamp_ns)
            if request.reset and not request.keep_goal:
                core.latches.forget_goal(env, stamp_ns)
            if env.boundaries:
                moves.clear_boundaries(env)
            if request.reset and core.branches:
                self._branches.release_all(env)
            core.emit(
                EventKind.RESET if request.reset else EventKind.RESTORE,
                env,
                capsule_id=moved.capsule_id,
                duration_ns=moved.duration_ns,
                detail=moved.path,
            )
        except DeviceLostError:
            raise
        except FlashrtError as error:
            # the answer has left: who asked can't be told, and what is kept by halves is no state
            raise RuntimeError("what follows an answered verb has failed") from error

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
        self._core.latches.forget_observations(env, None)
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
        goal = core.goals.in_force(env)
        bound_ns = core.latches.goal_bound_ns(env)
        env.interruptions.append(
            Interruption(capsule, goal, bound_ns, request.reason, was_held=was_held)
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
            core.latches.set_goal_bound(env, {ring.channel.spec.name: commit.stamp_ns})
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
            detail=f"{request.reason} hold=1" if request.hold else request.reason,
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
        self._core.latches.set_goal_bound(env, top.goal_bound_ns)
        if not request.keep_goal:
            self._core.latches.raise_goal_barrier(env)
            self._core.goals.replay(env, top.goal)
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


def _asked(request: protocol.Restore, key: str) -> tuple[str, bool, int | None]:
    return key, request.keep_goal, request.seed


def _answer_again(
    last: EpisodeReset, asked: tuple[str, bool, int | None], rid: int
) -> protocol.Moved:
    """Answer a repeated reset as the first one; refuse one that asks for something else."""
    if asked != last.asked:
        raise SpecError(
            f"episode '{last.episode_id}' was reset already, with other arguments",
            expected=f"capsule, keep_goal and seed {last.asked}",
            found=asked,
            fix="repeat the same request, or give the episode an id of its own",
        )
    return msgspec.structs.replace(last.answer, rid=rid)
