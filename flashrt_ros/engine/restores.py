"""Restore and reset: validated, answered, carried out, in this order wherever nothing can fail."""

from __future__ import annotations

import msgspec

from flashrt_ros.capsule.capsule import HOME, Capsule
from flashrt_ros.engine import protocol
from flashrt_ros.engine.branches import Branches
from flashrt_ros.engine.core import Core, check_seed
from flashrt_ros.engine.moves import Moves
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.timeline import Environment, EpisodeReset
from flashrt_ros.engine.waits import Done
from flashrt_ros.errors import BackendError, DeviceLostError, FlashrtError, SpecError
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.spec import ChannelRole


class Restores:
    """The verb that brings a capsule back; with ``reset`` the episode begins anew.

    A trainer waits for it between any two episodes, and what it waits for is mostly
    Python that the processor has forgotten since the last one: about a microsecond for
    each function called. So the answer leaves as soon as nothing is left that could be
    refused or fail: of a flip before anything was moved, of a copy once the copy is on its
    way. What is left is done before :meth:`restore` returns, and no message is served
    before that, so that nobody can tell.

    Args:
        core: The engine's parts.
        moves: Makes, fills and lets go.
        branches: Released by a reset.
    """

    def __init__(self, core: Core, moves: Moves, branches: Branches) -> None:
        self._core = core
        self._moves = moves
        self._branches = branches
        self._room = core.store.room
        self._has_observations = bool(core.latches.named(ChannelRole.OBSERVATION))

    def restore(self, request: protocol.Restore, done: Done) -> None:
        """Carry a restore out; ``done`` gets the answer on the way.

        Raises:
            CapsuleNotFoundError: There is no such capsule; nothing changed.
            FingerprintMismatchError: It does not fit; nothing changed.
            PayloadRangeError: The seed is out of range; nothing changed.
            SpecError: The episode was reset already, otherwise; nothing changed.
            NoFreeSlotError: Its goal has no slot; nothing changed.
            BackendError: The device refused a copy; it was not answered. Where it refused seed
                or goal alone the environment has moved without, and an event says so.
            NotYet: Its bytes are on disk and being fetched; nothing changed.
            RuntimeError: What follows the answer failed, which it must not; the engine
                can't go on.
        """
        core = self._core
        index, environments = request.env_index, core.environments
        is_known = 0 <= index < len(environments)  # asked here to save a call
        env = environments[index] if is_known else core.environment(index)
        is_reset = request.reset
        # a reset has a default; a restore that names nothing is a mistake
        key = request.capsule or (HOME if is_reset else "")
        last = env.last_reset
        if last is not None and request.episode_id == last.episode_id:
            done(_answer_again(last, _asked(request, key), request.rid))
            return
        capsule = self._moves.find(env, key)
        if not capsule.residence.blocks:
            core.store.require_memory(capsule)
        if request.seed is not None:
            check_seed(request.seed)
        brings_goal = not request.keep_goal and not is_reset
        if brings_goal and capsule.position.origin.goal_sequence:
            core.goals.require_slot()
        started = core.clock_ns()
        # a restore that names no stamp leaves the bound; a reset lifts it, the clock may be new
        stamp_ns = request.stamp_ns if is_reset else request.stamp_ns or None
        generation = env.generation + 1
        is_flip = core.pool.has_standby(capsule.id)
        moves_later = is_flip and request.seed is None and not brings_goal
        left = None if moves_later else self._move(env, request, capsule, stamp_ns, is_flip)
        moved = protocol.Moved(
            request.rid,
            capsule.position.tick,
            generation,
            "flip" if is_flip else "copy",
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
            duration_ns = moved.duration_ns
            try:
                if moves_later:
                    left = self._move(env, request, capsule, stamp_ns, is_flip)
                    duration_ns = core.clock_ns() - started
                self._keep_books(env, request, capsule, left, stamp_ns)
                core.emit(
                    EventKind.RESET if is_reset else EventKind.RESTORE,
                    env,
                    capsule_id=capsule.id,
                    duration_ns=duration_ns,
                    detail=moved.path,
                )
            except DeviceLostError:
                raise
            except FlashrtError as error:
                # Who asked has an answer, and what is done by halves is no state.
                raise RuntimeError("what follows an answered verb has failed") from error
        if request.episode_id:
            env.last_reset = EpisodeReset(request.episode_id, _asked(request, key), moved)

    def _move(
        self,
        env: Environment,
        request: protocol.Restore,
        capsule: Capsule,
        stamp_ns: int | None,
        is_flip: bool,
    ) -> Lane | None:
        """Move the environment to a capsule, its noise and goal with it.

        Returns:
            The lane that is to be retired, None for none.
        """
        left = self._moves.move(env, capsule, may_flip=is_flip)
        env.is_held = False
        brings_goal = not request.keep_goal and not request.reset
        if request.seed is None and not brings_goal:
            return left
        if left is not None:
            self._moves.retire(left)  # what follows may fail, and the lane must not be lost
        try:
            if request.seed is not None:
                self._core.reseed(env, request.seed, 0)
            if brings_goal:
                if env.interruptions:
                    self._moves.clear_interruptions(env)  # it may set the bound that is set here
                self._core.latches.forget(env, stamp_ns, goals=True)
                self._core.goals.restore(env, capsule)
        except BackendError as error:
            # it stands there all the same: what was observed elsewhere must not act
            self._keep_books(env, request, capsule, None, stamp_ns)
            self._core.emit(EventKind.FAULT, env, detail=f"{error.name}: {error}")
            raise
        return None

    def _keep_books(
        self,
        env: Environment,
        request: protocol.Restore,
        capsule: Capsule,
        left: Lane | None,
        stamp_ns: int | None,
    ) -> None:
        """Do what goes with a restore and is not part of where the environment stands."""
        core, moves = self._core, self._moves
        if left is not None:
            moves.retire(left)
        else:  # a standby lane had the bytes of home, which no use keeps or loses
            self._room.use(capsule)  # what require_memory does, without its call
        if env.interruptions:
            moves.clear_interruptions(env)
        if core.branches:
            moves.forget_branch_observations(env)
        drops_goals = request.reset and not request.keep_goal
        core.latches.forget(env, stamp_ns, goals=drops_goals, observations=True)
        if env.boundaries:
            moves.clear_boundaries(env)
        if request.reset and core.branches:
            self._branches.release_all(env)


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
