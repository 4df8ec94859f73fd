"""The capsule verbs, at committed boundaries: validate everything, then move."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.store import home_name, is_home
from flashrt_ros.engine import protocol
from flashrt_ros.engine.channels import SlotMeta, WriterRing
from flashrt_ros.engine.core import Core
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.ticks import Ticks
from flashrt_ros.engine.timeline import Branch, Environment, Interruption, Timeline
from flashrt_ros.errors import (
    BranchNotFoundError,
    InterruptDepthError,
    NoBoundaryError,
    NoFreeLaneError,
    NothingToResumeError,
    SpecError,
)
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.lanes import Lane


class Verbs:
    """What moves an environment other than a tick.

    Every verb runs between two plan nodes. STATE and INPUT are whole there, because
    only the commit node writes them; a verb that moves the environment abandons the
    plan in flight, one that only reads leaves it alone. A refused verb changes nothing.

    Args:
        core: The engine's parts.
        ticks: Abandons plans.
    """

    def __init__(self, core: Core, ticks: Ticks) -> None:
        self._core = core
        self._ticks = ticks
        self._next_branch = 0

    # snapshot and ring -------------------------------------------------------------------

    def snapshot(self, env: Environment, request: protocol.Snapshot) -> Capsule:
        """Freeze the environment's last boundary under a name."""
        started = self._core.clock_ns()
        name = home_name(env.env_index) if request.name == "home" else request.name
        if is_home(name) and name != home_name(env.env_index):
            raise SpecError(
                f"'{name}' is the home of another environment",
                expected=home_name(env.env_index),
                fix="snapshot it through that environment",
            )
        capsule = self._create(
            env,
            name=name,
            labels=request.labels,
            pinned=request.pinned or is_home(name),
            replace=request.replace,
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
            self._create(env, name=home_name(env.env_index), pinned=True)
            env.parent = self._core.store.get(home_name(env.env_index)).id

    def keep_boundary(self, env: Environment) -> None:
        """Add the environment's boundary to its rollback ring; the oldest makes room."""
        depth = self._core.config.rollback_depth
        if not depth:
            return
        while len(env.boundaries) >= depth:
            self._recycle(env.boundaries.popleft())
        capsule = self._create(env, automatic=True, labels=("automatic=boundary",))
        env.boundaries.append(capsule)
        env.parent = capsule.id

    def drop(self, key: str) -> None:
        """Forget a capsule; what descends from it descends from its parent now."""
        self._forget(self._core.store.drop(key))

    # moving ------------------------------------------------------------------------------

    def restore(self, env: Environment, request: protocol.Restore) -> protocol.Moved:
        """Bring a capsule back; with ``reset`` the episode begins anew."""
        if request.episode_id and env.last_reset and env.last_reset[0] == request.episode_id:
            return env.last_reset[1]
        capsule = self._find(env, request.capsule or "home")
        if not request.keep_goal and not request.reset:
            self._core.latches.require_engine_slot()
        started = self._core.clock_ns()
        path = self._move(env, capsule)
        if request.seed is not None:
            self._core.reseed(env, request.seed, 0)
        self._core.latches.forget_observations(env, request.stamp_ns)
        if not request.keep_goal:
            self._core.latches.forget_goal(env, request.stamp_ns)
            if not request.reset:
                self._core.latches.restore_goal(env, capsule)
        self._clear_interruptions(env)
        self._clear_boundaries(env)
        env.is_held = False
        kind = EventKind.RESET if request.reset else EventKind.RESTORE
        moved = self._moved(env, kind, capsule.id, path, started)
        if request.episode_id:
            env.last_reset = (request.episode_id, moved)
        return moved

    def rollback(self, env: Environment, request: protocol.Rollback) -> protocol.Moved:
        """Go back in the ring, or to an ancestor by id or name."""
        if request.capsule:
            capsule = self._ancestor(env, request.capsule)
        else:
            earlier = [c for c in env.boundaries if c.position.tick < env.position.tick]
            if not 1 <= request.boundaries <= len(earlier):
                raise NoBoundaryError(
                    f"environment {env.env_index} can't go back {request.boundaries} boundaries",
                    expected=f"1 to {len(earlier)}",
                    found=request.boundaries,
                    fix="restore a capsule, or raise rollback_depth",
                )
            capsule = earlier[-request.boundaries]
        self._core.latches.require_engine_slot()
        started = self._core.clock_ns()
        path = self._move(env, capsule)
        self._core.latches.forget_observations(env, 0)
        self._core.latches.raise_goal_barrier(env)
        self._core.latches.restore_goal(env, capsule)
        while env.boundaries and env.boundaries[-1].position.tick > capsule.position.tick:
            self._recycle(env.boundaries.pop())
        env.parent = capsule.id
        return self._moved(env, EventKind.ROLLBACK, capsule.id, path, started)

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
        started = core.clock_ns()
        sequence = 0
        previous = self._live_goal(env)
        if request.commit is not None and ring is not None:
            sequence = core.latches.commit(
                ring,
                request.commit.slot,
                request.commit.ticket,
                stamp_ns=request.commit.stamp_ns,
                source_sequence=request.commit.source_sequence,
                now_ns=started,
                is_new=True,
            )
        boundary = self._ticks.abandon(env)
        capsule = self._create(env, automatic=True, labels=("automatic=interrupt",))
        env.interruptions.append(Interruption(capsule, previous, request.reason))
        env.parent = capsule.id
        env.generation += 1
        env.lane.replay(core.model.plan().flush)
        env.position = replace(env.position, queue_head=0, queue_length=0)
        core.latches.raise_goal_barrier(env, keep_pending=request.commit is not None)
        env.is_held = request.hold
        core.emit(
            EventKind.INTERRUPT,
            env,
            capsule_id=capsule.id,
            duration_ns=core.clock_ns() - started,
            detail=request.reason,
        )
        return protocol.Interrupted(
            rid=request.rid,
            capsule_id=capsule.id,
            depth=len(env.interruptions),
            boundary=boundary,
            generation=env.generation,
            goal_sequence=sequence,
        )

    def resume(self, env: Environment, request: protocol.Resume) -> protocol.Moved:
        """Restore the boundary on top of the stack, with its goal or under the live one."""
        if not env.interruptions:
            raise NothingToResumeError(f"environment {env.env_index} was not interrupted")
        if not request.keep_goal:
            self._core.latches.require_engine_slot()
        started = self._core.clock_ns()
        top = env.interruptions[-1]
        path = self._move(env, top.capsule)
        env.interruptions.pop()
        if not request.keep_goal:
            self._core.latches.raise_goal_barrier(env)
            self._core.latches.replay_goal(env, top.goal)
        env.is_held = False
        env.parent = top.capsule.parent
        while env.boundaries and env.boundaries[-1].position.tick > env.position.tick:
            self._recycle(env.boundaries.pop())
        moved = self._moved(env, EventKind.RESUME, top.capsule.id, path, started)
        self._recycle(top.capsule)
        return moved

    # branches ----------------------------------------------------------------------------

    def fork(self, env: Environment, request: protocol.Fork) -> protocol.Forked:
        """Fill lanes of their own from a capsule, one for each seed; all or none."""
        core = self._core
        if request.count < 1 or (request.seeds and len(request.seeds) != request.count):
            raise SpecError(
                "a fork needs as many seeds as branches, or none",
                expected=f"count of 1 or more, and 0 or {max(request.count, 1)} seeds",
                found=f"count {request.count}, {len(request.seeds)} seeds",
            )
        if request.count > core.pool.num_free:
            raise NoFreeLaneError(
                f"environment {env.env_index} can't fork {request.count} branches",
                expected=f"{core.pool.num_free} at most",
                found=f"{core.pool.num_used} of {core.config.num_branch_lanes} lanes for branches used",
                fix="select or release branches, or raise num_branch_lanes",
            )
        source = self._find(env, request.capsule) if request.capsule else None
        if source is not None:
            core.latches.require_engine_slot()
        started = core.clock_ns()
        if source is None:
            core.latches.promote_goal(env)
            capsule = self._create(env, automatic=True, labels=("automatic=fork",))
        else:
            capsule = source
        seeds = request.seeds or tuple(
            derive_seed(capsule.position.noise_seed, index) for index in range(request.count)
        )
        indices: list[int] = []
        for seed in seeds:
            lane = core.pool.acquire()
            self._fill(lane, capsule)
            branch = Branch(
                env_index=env.env_index,
                branch=self._next_branch,
                lane=lane,
                position=capsule.position,
                parent=capsule.id,
                source=capsule,
            )
            self._next_branch += 1
            core.reseed(branch, seed, 0)
            self._give_goal(env, branch, capsule, indices, is_live=source is None)
            core.branches[branch.branch] = branch
            indices.append(branch.branch)
        core.emit(
            EventKind.FORK,
            env,
            capsule_id=capsule.id,
            duration_ns=core.clock_ns() - started,
            detail=f"branches={','.join(map(str, indices))}",
        )
        return protocol.Forked(
            rid=request.rid, capsule_id=capsule.id, branches=tuple(indices), seeds=tuple(seeds)
        )

    def select(self, env: Environment, request: protocol.Select) -> protocol.Moved:
        """Make a branch's lane the environment's: a flip, no copy."""
        core = self._core
        started = core.clock_ns()
        chosen = self.branch(request.branch, env.env_index)
        self._ticks.abandon(env)
        self._ticks.abandon(chosen)
        self._ticks.abandon_waiting(chosen)
        env.generation += 1
        old = env.lane
        env.lane, env.position = chosen.lane, chosen.position
        env.parent = chosen.parent
        core.latches.raise_goal_barrier(env)
        core.latches.share_goal(chosen, env)
        core.latches.unlatch_all(chosen)
        core.pool.release(old)
        del core.branches[chosen.branch]
        self._recycle_source(chosen)
        if request.release_others:
            self.release_branches(env)
        while env.boundaries and env.boundaries[-1].position.tick > env.position.tick:
            self._recycle(env.boundaries.pop())
        return self._moved(env, EventKind.SELECT, env.parent, "flip", started)

    def release_branches(self, env: Environment) -> None:
        """End every branch of an environment and free its lanes."""
        for branch in [b for b in self._core.branches.values() if b.env_index == env.env_index]:
            self._ticks.abandon(branch)
            self._ticks.abandon_waiting(branch)
            self._core.latches.unlatch_all(branch)
            self._core.pool.release(branch.lane)
            del self._core.branches[branch.branch]
            self._recycle_source(branch)

    def branch(self, index: int, env_index: int) -> Branch:
        """Return a branch of an environment.

        Raises:
            BranchNotFoundError: There is none, or it belongs to another environment.
        """
        found = self._core.branches.get(index)
        if found is None or found.env_index != env_index:
            known = [b.branch for b in self._core.branches.values() if b.env_index == env_index]
            raise BranchNotFoundError(
                f"environment {env_index} has no branch {index}", expected=known or "none"
            )
        return found

    # parts -------------------------------------------------------------------------------

    def _create(
        self,
        env: Environment,
        *,
        name: str = "",
        labels: tuple[str, ...] = (),
        pinned: bool = False,
        replace: bool = False,
        automatic: bool = False,
    ) -> Capsule:
        core = self._core
        if env.lane.is_poisoned:
            env.lane.replay(core.model.plan().pop)  # raises, naming the lane
        capsule_bytes = core.layout.capsule_bytes

        def fill(block: Block) -> None:
            core.backend.copy(block.address, env.lane.address, capsule_bytes)

        old = core.store.find(name) if name and replace else None
        capsule = core.store.create(
            fill,
            position=env.position,
            fingerprint=core.fingerprint,
            parent=env.parent,
            name=name,
            labels=labels,
            pinned=pinned,
            replace=replace,
            automatic=automatic,
        )
        if old is not None:
            self._forget(old)
        if name == home_name(0):
            core.pool.set_home(capsule.block, capsule.id)
        return capsule

    def _find(self, env: Environment, key: str) -> Capsule:
        capsule = self._core.store.get(home_name(env.env_index) if key == "home" else key)
        self._core.fingerprint.require(capsule.fingerprint, capsule.id)
        return capsule

    def _ancestor(self, env: Environment, key: str) -> Capsule:
        capsule = self._find(env, key)
        if capsule.id not in self._core.store.ancestors(env.parent):
            raise NoBoundaryError(
                f"capsule '{key}' is no ancestor of environment {env.env_index}",
                fix="use restore to go to a state of another line",
            )
        return capsule

    def _move(self, env: Environment, capsule: Capsule) -> str:
        """Put a capsule's bytes under the environment; by flip where a standby has them."""
        core = self._core
        self._ticks.abandon(env)
        env.generation += 1
        standby = core.pool.take_standby(capsule.id)
        if standby is None:
            self._fill(env.lane, capsule)
        else:
            delay_ns = int(core.config.refill_delay_ms * 1e6)
            core.pool.retire(env.lane, core.clock_ns() + delay_ns)
            env.lane = standby
        env.position = capsule.position
        env.parent = capsule.id
        return "copy" if standby is None else "flip"

    def _fill(self, lane: Lane, capsule: Capsule) -> None:
        self._core.backend.copy(lane.address, capsule.block.address, capsule.num_bytes)
        lane.clear_poison()

    def _moved(
        self, env: Environment, kind: EventKind, capsule_id: str, path: str, started_ns: int
    ) -> protocol.Moved:
        duration_ns = self._core.clock_ns() - started_ns
        self._core.emit(kind, env, capsule_id=capsule_id, duration_ns=duration_ns, detail=path)
        return protocol.Moved(
            rid=0,
            tick=env.position.tick,
            generation=env.generation,
            path=path,
            duration_ns=duration_ns,
            capsule_id=capsule_id,
            depth=len(env.interruptions),
        )

    def _live_goal(self, env: Environment) -> tuple[bytes, SlotMeta] | None:
        self._core.latches.promote_goal(env)
        return self._core.latches.goal_payload(env)

    def _give_goal(
        self,
        env: Environment,
        branch: Branch,
        capsule: Capsule,
        siblings: list[int],
        *,
        is_live: bool,
    ) -> None:
        latches = self._core.latches
        if is_live:
            latches.share_goal(env, branch)
        elif siblings:
            latches.share_goal(self._core.branches[siblings[0]], branch)
        else:
            latches.restore_goal(branch, capsule)

    def _clear_interruptions(self, env: Environment) -> None:
        while env.interruptions:
            self._recycle(env.interruptions.pop().capsule)

    def _clear_boundaries(self, env: Environment) -> None:
        while env.boundaries:
            self._recycle(env.boundaries.pop())

    def _recycle_source(self, branch: Branch) -> None:
        source = branch.source
        if source is not None and source.is_automatic:
            self._recycle(source)

    def _recycle(self, capsule: Capsule) -> None:
        if not self._is_used(capsule):
            self._core.store.recycle(capsule)
            self._forget(capsule)

    def _is_used(self, capsule: Capsule) -> bool:
        kept = [c.id for env in self._core.environments for c in env.boundaries]
        kept += [i.capsule.id for env in self._core.environments for i in env.interruptions]
        kept += [b.source.id for b in self._core.branches.values() if b.source is not None]
        return capsule.id in kept

    def _forget(self, gone: Capsule) -> None:
        timelines: list[Timeline] = [*self._core.environments, *self._core.branches.values()]
        for timeline in timelines:
            if timeline.parent == gone.id:
                timeline.parent = gone.parent


def derive_seed(seed: int, index: int) -> int:
    """Return the seed of branch ``index`` of a capsule with ``seed``; 63 bits, fixed for ever."""
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
