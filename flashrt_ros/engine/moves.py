"""How capsules are made, put under a lane, and let go; shared by all verbs."""

from __future__ import annotations

from dataclasses import replace

from flashrt_ros.capsule.capsule import HOME, Capsule
from flashrt_ros.capsule.store import home_name, is_home
from flashrt_ros.engine import protocol
from flashrt_ros.engine.core import Core
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.engine.ticks import Ticks
from flashrt_ros.engine.timeline import Environment, Timeline
from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.lanes import Lane


class Moves:
    """The steps that verbs are made of; none of them validates.

    Args:
        core: The engine's parts.
        ticks: Abandons plans.
    """

    def __init__(self, core: Core, ticks: Ticks) -> None:
        self._core = core
        self._ticks = ticks
        self._store = core.store
        self._homes = tuple(home_name(env.env_index) for env in core.environments)

    def create(
        self,
        env: Environment,
        *,
        name: str = "",
        labels: tuple[str, ...] = (),
        pinned: bool = False,
        persist: bool = False,
        replaces: bool = False,
        automatic: bool = False,
        tier: str = "",
    ) -> Capsule:
        """Freeze the timeline's boundary; see ``CapsuleStore.create``.

        A persisted one, and every home where there is a folder, is written in the background.

        Raises:
            LanePoisonedError: The lane has no boundary to freeze.
        """
        core = self._core
        env.lane.check_not_poisoned()
        num_bytes = core.layout.used_bytes(env.position.num_positions)

        def fill(block: Block) -> None:
            core.backend.copy_aside(block.address, env.lane.address, num_bytes)

        capsule, replaced = core.store.create(
            fill,
            position=env.position,
            fingerprint=core.fingerprint,
            parent=env.parent,
            num_bytes=num_bytes,
            name=name,
            labels=labels,
            pinned=pinned,
            persist=persist or (is_home(name) and core.storage.has_files),
            replace=replaces,
            automatic=automatic,
            tier=tier,
        )
        if replaced is not None:
            self.forget(replaced)
        self.note_home(capsule)
        if capsule.persist:
            core.storage.persist(capsule)
        return capsule

    def note_home(self, capsule: Capsule) -> None:
        """Have standby lanes filled with a capsule, if it is the home that they are kept for."""
        if capsule.name == home_name(0):
            capsule.residence.anchor = capsule.tier
            self._core.pool.set_home(capsule.block, capsule.id)

    def begin_at(self, env: Environment, capsule: Capsule) -> None:
        """Put an environment that has not run yet at a capsule, without its goal."""
        self.fill(env.lane, capsule)
        env.position = capsule.position
        env.parent = env.brought_back = capsule.id

    def find(self, env: Environment, key: str) -> Capsule:
        """Return a capsule that fits, by id or name; ``home`` is the environment's own.

        Raises:
            CapsuleNotFoundError: There is none.
            FingerprintMismatchError: It was taken under another fingerprint.
        """
        if key == HOME:
            key = self._homes[env.env_index]
        capsule = self._store.find(key) or self._store.get(key)
        if capsule.fingerprint is not self._core.fingerprint:
            self._core.fingerprint.require(capsule.fingerprint, capsule.id)
        return capsule

    def find_ready(self, env: Environment, key: str) -> Capsule:
        """Return a capsule that fits and whose bytes can be copied now; see :meth:`find`.

        Raises:
            CapsuleNotFoundError: There is none.
            FingerprintMismatchError: It was taken under another fingerprint.
            NotYet: Its bytes are on disk and being fetched.
        """
        capsule = self.find(env, key)
        self._core.store.require_memory(capsule)
        return capsule

    def move(self, env: Environment, capsule: Capsule, *, may_flip: bool = True) -> Lane | None:
        """Put a capsule's bytes under the environment; by flip where it may and a standby has them.

        Args:
            env: Moved.
            capsule: Its bytes are in memory.
            may_flip: Whether a standby is looked for; False where it is known that none has them.

        Returns:
            The lane that a flip has left, for :meth:`retire`; None after a copy.
        """
        self._ticks.abandon(env)
        env.generation += 1
        left = None
        standby = self._core.pool.take_standby(capsule.id) if may_flip else None
        if standby is None:
            self.fill(env.lane, capsule)
        else:
            left, env.lane = env.lane, standby
        env.position = capsule.position
        env.parent = env.brought_back = capsule.id
        env.last_reset = None
        return left

    def retire(self, lane: Lane | None) -> None:
        """Have the lane that a flip has left filled again, when there is time for it."""
        if lane is not None:
            core = self._core
            core.pool.retire(lane, core.clock_ns() + int(core.config.refill_delay_ms * 1e6))

    def flush(self, env: Environment) -> None:
        """Empty the queue: what is in it was meant for a moment that has gone."""
        if env.position.queue_remaining > 0 and not env.lane.is_poisoned:
            env.lane.replay(self._core.model.plan().flush)
            env.position = replace(env.position, queue_head=0, queue_length=0)

    def fill(self, lane: Lane, capsule: Capsule) -> None:
        """Copy a capsule into a lane, which is whole again."""
        self._core.backend.copy(lane.address, capsule.block.address, capsule.num_bytes)
        lane.clear_poison()

    def fill_aside(self, lane: Lane, capsule: Capsule) -> None:
        """Copy a capsule into a lane that nobody replays; a plan under way elsewhere goes on."""
        backend = self._core.backend
        backend.copy_aside(lane.address, capsule.block.address, capsule.num_bytes)
        lane.clear_poison()

    def moved(
        self,
        env: Environment,
        kind: EventKind,
        capsule_id: str,
        path: str,
        started_ns: int,
        rid: int,
    ) -> protocol.Moved:
        """Announce that the environment moved, and say where it stands."""
        duration_ns = self._core.clock_ns() - started_ns
        self._core.emit(kind, env, capsule_id=capsule_id, duration_ns=duration_ns, detail=path)
        return protocol.Moved(
            rid=rid,
            tick=env.position.tick,
            generation=env.generation,
            path=path,
            duration_ns=duration_ns,
            capsule_id=capsule_id,
            depth=len(env.interruptions),
            barrier_ns=self._core.latches.observation_bound_ns(env),
        )

    def clear_interruptions(self, env: Environment) -> None:
        """Forget the interrupt stack, and the bound on goals that it brought."""
        if env.interruptions:
            self._core.latches.set_goal_bounds(env, env.interruptions[0].goal_bounds)
        while env.interruptions:
            self.recycle(env.interruptions.pop().capsule)

    def clear_boundaries(self, env: Environment) -> None:
        """Forget the rollback ring."""
        while env.boundaries:
            self.recycle(env.boundaries.pop())

    def recycle(self, capsule: Capsule) -> None:
        """Take an automatic capsule back, unless something else still needs it."""
        if not self._is_used(capsule):
            gone = self._core.store.recycle(capsule)
            if gone is not None:
                self.forget(gone)

    def forget(self, gone: Capsule) -> None:
        """Let what descends from a capsule that is gone descend from its parent."""
        timelines: list[Timeline] = [*self._core.environments, *self._core.branches.values()]
        for timeline in timelines:
            if timeline.parent == gone.id:
                timeline.parent = gone.parent

    def truncate_boundaries(self, env: Environment) -> None:
        """Drop the boundaries that the environment's state does not descend from."""
        line = set(self._core.store.ancestors(env.parent))
        for capsule in [c for c in env.boundaries if c.id not in line]:
            env.boundaries.remove(capsule)
            self.recycle(capsule)

    def is_held(self, capsule: Capsule) -> bool:
        """Tell whether a rollback ring or an interrupt stack may bring a capsule back."""
        environments = self._core.environments
        held = [c.id for env in environments for c in env.boundaries]
        held += [i.capsule.id for env in environments for i in env.interruptions]
        return capsule.id in held

    def forget_branch_observations(self, env: Environment) -> None:
        """Drop what an environment's branches observed; their steps end."""
        for branch in self._core.branches.values():
            if branch.env_index == env.env_index:
                self._ticks.abandon(branch)
                self._core.latches.unlatch_observations(branch)

    def _is_used(self, capsule: Capsule) -> bool:
        branches = self._core.branches.values()
        sources = [b.source.id for b in branches if b.source is not None]
        return self.is_held(capsule) or capsule.id in sources


def path_of(left: Lane | None) -> str:
    """Say how an environment moved, by what :meth:`Moves.move` returned."""
    return "copy" if left is None else "flip"


def own_home(env: Environment, name: str) -> str:
    """Return what a name means for an environment: ``home`` is its own.

    Raises:
        SpecError: The name is the home of another environment.
    """
    name = home_name(env.env_index) if name == HOME else name
    if is_home(name) and name != home_name(env.env_index):
        raise SpecError(
            f"'{name}' is the home of another environment",
            expected=home_name(env.env_index),
            fix="name it through that environment",
        )
    return name
