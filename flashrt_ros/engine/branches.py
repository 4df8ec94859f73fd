"""Fork, select, release: timelines beside an environment."""

from __future__ import annotations

import hashlib

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.engine import protocol
from flashrt_ros.engine.core import Core, check_seed
from flashrt_ros.engine.moves import Moves
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.ticks import Ticks
from flashrt_ros.engine.timeline import ENVIRONMENT, Branch, Environment
from flashrt_ros.errors import BranchNotFoundError, NoFreeLaneError, SpecError


class Branches:
    """The verbs over branches; refused ones change nothing.

    Args:
        core: The engine's parts.
        ticks: Abandons plans.
        moves: Makes and fills.
    """

    def __init__(self, core: Core, ticks: Ticks, moves: Moves) -> None:
        self._core = core
        self._ticks = ticks
        self._moves = moves
        self._next_branch = 0

    def fork(self, env: Environment, request: protocol.Fork) -> protocol.Forked:
        """Fill lanes of their own from a capsule, one for each seed; all or none."""
        core = self._core
        if request.count < 1 or (request.seeds and len(request.seeds) != request.count):
            raise SpecError(
                "a fork needs as many seeds as branches, or none",
                expected=f"count of 1 or more, and 0 or {max(request.count, 1)} seeds",
                found=f"count {request.count}, {len(request.seeds)} seeds",
            )
        for seed in request.seeds:
            check_seed(seed)
        if request.count > core.pool.num_free:
            raise NoFreeLaneError(
                f"environment {env.env_index} can't fork {request.count} branches",
                expected=f"{core.pool.num_free} at most",
                found=f"{len(core.branches)} of {core.config.num_branch_lanes} branches in use",
                fix="select one and release the others, or raise num_branch_lanes",
            )
        source = self._moves.find_ready(env, request.capsule) if request.capsule else None
        core.goals.require_slot()
        started = core.clock_ns()
        capsule = source or self._moves.create(env, automatic=True, labels=("automatic=fork",))
        seeds = request.seeds or tuple(
            derive_seed(capsule.position.noise_seed, index) for index in range(request.count)
        )
        indices: list[int] = []
        lanes = [core.pool.acquire() for _ in seeds]
        for lane in lanes:  # all of them first: the device copies while the host keeps books
            self._moves.fill_aside(lane, capsule)
        for seed, lane in zip(seeds, lanes, strict=True):
            branch = Branch(
                env_index=env.env_index,
                branch=self._next_branch,
                lane=lane,
                position=capsule.position,
                parent=capsule.id,
                brought_back=capsule.id,
                source=capsule,
            )
            self._next_branch += 1
            core.reseed(branch, seed, 0, beside=True)
            self._give_goal(env, branch, source, indices)
            core.branches[branch.branch] = branch
            indices.append(branch.branch)
        core.emit(
            EventKind.FORK,
            env,
            capsule_id=capsule.id,
            duration_ns=core.clock_ns() - started,
            detail=protocol.format_detail("", branches=",".join(map(str, indices))),
        )
        return protocol.Forked(
            rid=request.rid, capsule_id=capsule.id, branches=tuple(indices), seeds=tuple(seeds)
        )

    def select(self, env: Environment, request: protocol.Select) -> protocol.Moved:
        """Make a branch's lane the environment's: a flip, no copy.

        :data:`ENVIRONMENT` chooses the environment as it is, which moves nothing and
        only releases the others where that is asked for.
        """
        core = self._core
        started = core.clock_ns()
        if request.branch == ENVIRONMENT:
            if request.release_others:
                self.release_all(env)
            return self._moves.moved(env, EventKind.SELECT, env.parent, "", started, request.rid)
        chosen = self.get(request.branch, env.env_index)
        chosen.lane.check_not_poisoned()
        self._ticks.abandon(env)
        self._ticks.abandon(chosen)
        env.generation += 1
        old = env.lane
        env.lane, env.position = chosen.lane, chosen.position
        env.parent, env.brought_back = chosen.parent, chosen.brought_back
        env.last_reset = None
        core.latches.raise_goal_barrier(env)
        core.latches.share_goal(chosen, env)
        core.latches.unlatch_all(chosen)
        core.pool.release(old)
        del core.branches[chosen.branch]
        self._recycle_source(chosen)
        if request.release_others:
            self.release_all(env)
        self._moves.truncate_boundaries(env)
        return self._moves.moved(env, EventKind.SELECT, env.parent, "flip", started, request.rid)

    def release_all(self, env: Environment) -> None:
        """End every branch of an environment and free its lanes."""
        for branch in [b for b in self._core.branches.values() if b.env_index == env.env_index]:
            self._ticks.abandon(branch)
            self._core.latches.unlatch_all(branch)
            self._core.pool.release(branch.lane)
            del self._core.branches[branch.branch]
            self._recycle_source(branch)

    def get(self, index: int, env_index: int) -> Branch:
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

    def _give_goal(
        self,
        env: Environment,
        branch: Branch,
        source: Capsule | None,
        siblings: list[int],
    ) -> None:
        """Give a branch its capsule's goal, or a copy of the live one where it has none."""
        goals = self._core.goals
        if siblings:
            self._core.latches.share_goal(self._core.branches[siblings[0]], branch)
        elif source is not None and source.position.origin.goal_sequence:
            goals.restore(branch, source)
        else:
            goals.replay(branch, goals.newest(env))

    def _recycle_source(self, branch: Branch) -> None:
        source = branch.source
        if source is not None and source.is_automatic:
            self._moves.recycle(source)


def derive_seed(seed: int, index: int) -> int:
    """Return the seed of branch ``index`` of a capsule with ``seed``; 63 bits, fixed for ever."""
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
