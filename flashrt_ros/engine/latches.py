"""What timelines read: channels, their barriers, and the slots latched."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

import torch

from flashrt_ros.engine.intake import Intake
from flashrt_ros.engine.opening import check_names, open_channels
from flashrt_ros.engine.outlet import Outlet
from flashrt_ros.engine.readable import Readable
from flashrt_ros.engine.ring import SlotMeta
from flashrt_ros.engine.shared import SharedChannel
from flashrt_ros.engine.staging import Staging
from flashrt_ros.engine.timeline import Branch, Environment, Latched, Timeline
from flashrt_ros.models.base import PolicyModel, slot_binding
from flashrt_ros.runtime.backend import PASSED, Backend, Fence
from flashrt_ros.runtime.spec import ChannelRole

NO_META = SlotMeta(sequence=0, source_sequence=0, stamp_ns=0, committed_ns=0, generation=0)
"""Of a slot nobody committed."""


class Latches(Intake):
    """Owner of every channel of the engine.

    A channel named in ``staged`` is copied to private memory at the latch, and the
    graph reads the copy: what a device does that can't map a ring.

    Args:
        model: Declares the channels.
        backend: Copies, and gives graphs a view of the slots.
        num_environments: Each gets rings of its own.
        num_branches: Branches that may live at once, each with a restored goal.
        staged: Channels forced through a copy.
        detect_torn: Keep a copy of a goal at its latch and compare when it is given back.
        shared: Channels that other engines read too, by name; left as soon as this is closed.
        feeds: Outlets of other models that feed channels too, by name.
        clock_ns: The engine's, for the ages of what is shared.

    Raises:
        UnknownChannelError: The model has no such channel to stage, share or feed.
        ConfigError: A shared channel or an outlet is not what the model expects, or has no
            place left.
    """

    def __init__(
        self,
        model: PolicyModel,
        backend: Backend,
        *,
        num_environments: int,
        num_branches: int = 0,
        staged: tuple[str, ...] = (),
        detect_torn: bool = False,
        shared: Mapping[str, SharedChannel] | None = None,
        feeds: Mapping[str, Outlet] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        shared, feeds, specs = shared or {}, feeds or {}, model.channels()
        goals = [spec for spec in specs if spec.role is ChannelRole.GOAL]
        check_names("staged", staged, specs)
        check_names("shared", shared, specs)
        check_names("fed", feeds, goals)
        is_host = backend.device.type == "cpu"
        with ExitStack() as undo:
            channels = open_channels(
                specs,
                self,
                undo,
                num_environments=num_environments,
                num_branches=num_branches,
                lockers={} if is_host else {s.name: backend for s in specs if s.name not in staged},
                device=backend.device,
                shared=shared,
                feeds=feeds,
            )
            self._staging = Staging(channels, staged, backend)
            undo.callback(self._staging.close)
            self._owned = undo.pop_all()
        super().__init__(channels, num_environments=num_environments, clock_ns=clock_ns)
        self.on_goal: Callable[[Environment, str, SlotMeta, int], None] = _ignore
        """Called when an environment latches a goal it has not read before: on which channel,
        and before which node of its plan, 0 at the beginning of one, or between plans."""
        self.num_latches = 0
        self.torn_reads = 0
        self._detect_torn = detect_torn
        self._leaving: list[tuple[str, Latched]] = []

    def slots(self) -> dict[str, torch.Tensor]:
        """Return the tensors that graphs read, ``"channel.field"`` → ``[num_slots, *shape]``."""
        return self._staging.views()

    # barriers ----------------------------------------------------------------------------

    def raise_goal_barrier(self, env: Environment, *, keep_pending: bool = False) -> None:
        """Drop loaned and, unless told otherwise, committed goals; the latched one stays."""
        self._barriers.renew(env.env_index, self._goals, env.generation)
        if not keep_pending:
            for name in self._goals:
                self._channels[name].drop_pending(env.env_index)

    def forget(
        self,
        env: Environment,
        stamp_ns: int | None,
        *,
        goals: bool = False,
        observations: bool = False,
    ) -> None:
        """Drop what an environment has been given, and refuse what is stamped before ``stamp_ns``.

        Args:
            env: Whose.
            stamp_ns: On the writers' clock; None leaves the bound where it is.
            goals: Drop these.
            observations: Drop these.
        """
        env_index, latched, channels = env.env_index, env.latched, self._channels
        for names in (self._goals if goals else (), self._observations if observations else ()):
            self._barriers.renew(env_index, names, env.generation, stamp_ns)
            for name in names:
                channels[name].drop_pending(env_index)
                if name in latched:
                    self._leaving.append((name, latched.pop(name)))
        self.release_read()

    # latching ----------------------------------------------------------------------------

    def latch(self, timeline: Timeline, env: Environment) -> dict[str, int]:
        """Take the newest committed slots for a timeline, for the plan that starts now.

        A branch reads the observation that its environment would, and its own goal.

        Returns:
            What each slot binding is to hold.
        """
        bindings: dict[str, int] = {}
        for name, channel in self._channels.items():
            if timeline is env:
                self._take_pending(env, name, channel)
            elif name in self._observations:
                self._take_pending(env, name, channel)
                self.share(env, timeline, name)
            bindings[slot_binding(name)] = self._staging.row(name, timeline.latched[name].slot)
        self.num_latches += 1
        return bindings

    def note_read(self, timeline: Timeline, fence: Fence) -> None:
        """Keep what a timeline has latched from its writers until a fence is done."""
        for latched in timeline.latched.values():
            latched.fence = fence

    def can_take_goal(self, timeline: Timeline) -> bool:
        """Tell whether a plan under way may go on under a goal committed since its latch.

        Only once the device has read the goal that it has: then nothing reads the binding.
        """
        return (
            not isinstance(timeline, Branch)
            and any(self._has_pending(timeline, name) for name in self._goals)
            and all(timeline.latched[name].fence.is_done for name in self._goals)
        )

    def take_goal(self, env: Environment, *, node: int) -> dict[str, int]:
        """Take the newest goal for the plan under way, as :meth:`latch` did at its beginning.

        Args:
            env: Whose.
            node: Of the plan, that runs next.

        Returns:
            What the goal's slot binding is to hold.
        """
        bindings: dict[str, int] = {}
        for name in self._goals:
            self._take_pending(env, name, self._channels[name], node)
            bindings[slot_binding(name)] = self._staging.row(name, env.latched[name].slot)
        self.num_latches += 1
        return bindings

    def note_goal_read(self, env: Environment, fence: Fence) -> None:
        """Keep the goal that was taken last from its writer until a fence is done."""
        for name in self._goals:
            env.latched[name].fence = fence

    def share(self, source: Timeline, target: Timeline, name: str) -> None:
        """Let one timeline read the slot that another has latched."""
        latched = source.latched.get(name)
        old = target.latched.get(name)
        if latched is None or (old is not None and old.slot == latched.slot):
            return
        self.channel(name).acquire(latched.slot)
        self.unlatch(target, name)
        target.latched[name] = replace(latched)

    def share_goal(self, source: Timeline, target: Timeline) -> None:
        """Let one timeline read the goal that another reads."""
        for name in self.named(ChannelRole.GOAL):
            self.share(source, target, name)

    def unlatch(self, timeline: Timeline, name: str) -> None:
        """Give the timeline's slot of a channel back, if it has one."""
        latched = timeline.latched.pop(name, None)
        if latched is None:
            return
        self._leaving.append((name, latched))
        self.release_read()

    def release_read(self) -> None:
        """Give the slots back that were let go of, as far as the device has read them."""
        if not self._leaving:
            return
        leaving, self._leaving = self._leaving, []
        for name, latched in leaving:
            if not latched.is_idle:
                self._leaving.append((name, latched))
                continue
            if latched.check and latched.check != self.payload(name, latched.slot):
                self.torn_reads += 1
            self.channel(name).release(latched.slot)

    def wait_for_read(self) -> None:
        """Give every slot back that was let go of, once the device has done with it."""
        for _, latched in self._leaving:
            latched.fence.wait()
            latched.filled.wait()
        self.release_read()

    def unlatch_observations(self, timeline: Timeline) -> None:
        """Give the timeline's observations back."""
        for name in self.named(ChannelRole.OBSERVATION):
            self.unlatch(timeline, name)

    def unlatch_all(self, timeline: Timeline) -> None:
        """Give every slot back."""
        for name in tuple(timeline.latched):
            self.unlatch(timeline, name)

    def promote_goal(self, env: Environment) -> None:
        """Latch the newest goal now, so that it can be copied or shared."""
        for name in self.named(ChannelRole.GOAL):
            self._take_pending(env, name, self.channel(name))

    # what is read ------------------------------------------------------------------------

    def hold(self, name: str, slot: int, meta: SlotMeta, filled: Fence = PASSED) -> Latched:
        """Describe a slot that a timeline is to read, with a copy where torn reads count."""
        is_checked = self._detect_torn and self.specs[name].role is ChannelRole.GOAL
        check = self.payload(name, slot, filled) if is_checked else b""
        return Latched(slot, meta, check, filled=filled)

    def payload(self, name: str, slot: int, filled: Fence = PASSED) -> bytes:
        """Copy a slot's payload out, once it is ``filled``."""
        filled.wait()
        return self._staging.read(name, slot)

    def close(self) -> None:
        """Unmap every ring. Graphs over the slots must not be replayed any more. Idempotent.

        Where one fails the others are closed nevertheless, and the last failure is raised.
        """
        self._owned.close()

    def _take_pending(self, env: Environment, name: str, channel: Readable, node: int = 0) -> None:
        if channel.pending(env.env_index) is None:
            return
        self.unlatch(env, name)
        slot = channel.latch(env.env_index)
        env.latched[name] = self.hold(name, slot, channel.meta(slot))
        if name in self._goals:
            self.on_goal(env, name, channel.meta(slot), node)


def _ignore(env: Environment, channel: str, meta: SlotMeta, node: int) -> None:
    """Tell nobody."""
