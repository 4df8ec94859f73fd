"""What timelines read: channels, their barriers, and the slots latched."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

import torch

from flashrt_ros.engine.ages import end_of_life
from flashrt_ros.engine.barriers import Barriers
from flashrt_ros.engine.channels import Channel, SlotMeta, WriterRing
from flashrt_ros.engine.inbox import Inbox
from flashrt_ros.engine.staging import Staging
from flashrt_ros.engine.timeline import Branch, Environment, Latched, Timeline
from flashrt_ros.errors import FlashrtError, LoanError, UnknownChannelError
from flashrt_ros.models.base import PolicyModel, slot_binding
from flashrt_ros.runtime.backend import PASSED, Backend, Fence
from flashrt_ros.runtime.spec import ChannelRole

NO_META = SlotMeta(sequence=0, source_sequence=0, stamp_ns=0, committed_ns=0, generation=0)
"""Of a slot nobody committed."""


class Latches(Inbox):
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
    ) -> None:
        specs = model.channels()
        names = [spec.name for spec in specs]
        unknown = [name for name in staged if name not in names]
        if unknown:
            raise UnknownChannelError(
                f"staged channel '{unknown[0]}' is none of the model's",
                expected=", ".join(names),
            )
        with ExitStack() as undo:
            channels = {
                spec.name: undo.enter_context(
                    Channel(
                        spec,
                        num_environments=num_environments,
                        # a goal brought back for each timeline, one that is about to take its
                        # place, and one that the device has yet to read for a plan that was left
                        num_engine_slots=num_environments + num_branches + 2,
                        locker=None
                        if backend.device.type == "cpu" or spec.name in staged
                        else backend,  # which reads the rings in place, from another memory
                    )
                )
                for spec in specs
            }
            self._staging = Staging(channels, staged, backend)
            undo.pop_all()
        super().__init__(channels)
        self.on_goal: Callable[[Environment, str, SlotMeta, int], None] = _ignore
        """Called when an environment latches a goal it has not read before: on which channel,
        and before which node of its plan, 0 at the beginning of one, or between plans."""
        self.num_latches = 0
        self.torn_reads = 0
        self._detect_torn = detect_torn
        self._leaving: list[tuple[str, Latched]] = []
        self._barriers = Barriers(tuple(self.specs), num_environments)

    def num_dropped(self, env_index: int, role: ChannelRole) -> int:
        """Count the commits of a role's channels that a barrier refused."""
        return sum(self._barriers.num_refused(env_index, name) for name in self.named(role))

    def slots(self) -> dict[str, torch.Tensor]:
        """Return the tensors that graphs read, ``"channel.field"`` → ``[num_slots, *shape]``."""
        return self._staging.views()

    # writers -----------------------------------------------------------------------------

    def open_writer(self, channel: str, env_index: int) -> WriterRing:
        """Give a writer a ring of its own.

        Raises:
            UnknownChannelError: The model has no such channel.
            NoWriterRingError: Every ring is taken.
        """
        self.release_read()
        return self.channel(channel).open_ring(env_index)

    def close_writer(self, ring: WriterRing) -> None:
        """Take a ring back, with its loan; what it committed stays handed over."""
        ring.channel.close_ring(ring)

    def loan(self, ring: WriterRing, generation: int) -> tuple[int, int]:
        """Loan a slot under a generation; returns slot and ticket.

        Raises:
            NoFreeSlotError: None is free.
        """
        self.release_read()
        return ring.loan(generation)

    def commit(
        self,
        ring: WriterRing,
        slot: int,
        ticket: int,
        *,
        stamp_ns: int,
        source_sequence: int,
        now_ns: int,
        lifetime_ns: int = 0,
    ) -> int:
        """Take a loaned slot over as the newest of its channel; returns its sequence.

        Args:
            ring: The writer's.
            slot: From the ring's start.
            ticket: Of the loan.
            stamp_ns: Writer's clock.
            source_sequence: Writer's own number.
            now_ns: Engine's clock.
            lifetime_ns: How long it may be acted on, from its stamp; 0 for ever.

        Raises:
            LoanError: Not this writer's loan.
            PayloadRangeError: The lifetime is negative. The slot goes back.
            StaleGenerationError: Loaned before the barrier. The slot goes back.
            StaleStampError: Stamped before the barrier. The slot goes back.
        """
        loaned = ring.loan_generation(slot, ticket)
        try:
            expires_ns = end_of_life(stamp_ns, lifetime_ns)
            self._barriers.admit(
                ring.env_index,
                ring.channel.spec.name,
                generation=loaned,
                stamp_ns=stamp_ns,
            )
        except FlashrtError:
            ring.return_loan(slot, ticket)
            raise
        return ring.commit(slot, ticket, stamp_ns, source_sequence, now_ns, expires_ns)

    def check_goal_commit(
        self,
        env: Environment,
        ring: WriterRing,
        slot: int,
        ticket: int,
        *,
        stamp_ns: int,
        lifetime_ns: int,
    ) -> None:
        """Refuse what :meth:`commit` would refuse, and what is no goal of the environment.

        Raises:
            LoanError: Not this writer's loan, or no goal of this environment.
            PayloadRangeError: The lifetime is negative.
            StaleGenerationError: Loaned before the barrier.
            StaleStampError: Stamped before the barrier.
        """
        spec = ring.channel.spec
        if spec.role is not ChannelRole.GOAL or ring.env_index != env.env_index:
            raise LoanError(
                "an interrupt can't hand this slot over",
                expected=f"one of a goal writer of environment {env.env_index}",
                found=f"one of channel '{spec.name}' of environment {ring.env_index}",
            )
        generation = ring.loan_generation(slot, ticket)
        end_of_life(stamp_ns, lifetime_ns)
        self._barriers.admit(ring.env_index, spec.name, generation=generation, stamp_ns=stamp_ns)

    # barriers ----------------------------------------------------------------------------

    def raise_goal_barrier(self, env: Environment, *, keep_pending: bool = False) -> None:
        """Drop loaned and, unless told otherwise, committed goals; the latched one stays."""
        for name in self.named(ChannelRole.GOAL):
            self._barriers.raise_generation(env.env_index, name, env.generation)
            if not keep_pending:
                self.channel(name).drop_pending(env.env_index)

    def forget_goal(self, env: Environment, stamp_ns: int | None) -> None:
        """Drop every goal of an environment, and refuse those stamped before ``stamp_ns``.

        None leaves the bound where it is.
        """
        self.raise_goal_barrier(env)
        for name in self.named(ChannelRole.GOAL):
            if stamp_ns is not None:
                self._barriers.set_stamp(env.env_index, name, stamp_ns)
            self.unlatch(env, name)

    def forget_observations(self, env: Environment, stamp_ns: int | None) -> None:
        """Drop every observation, and refuse those stamped before ``stamp_ns``.

        None leaves the bound where it is.
        """
        for name in self.named(ChannelRole.OBSERVATION):
            self._barriers.raise_generation(env.env_index, name, env.generation)
            if stamp_ns is not None:
                self._barriers.set_stamp(env.env_index, name, stamp_ns)
            self.channel(name).drop_pending(env.env_index)
            self.unlatch(env, name)

    def observation_bound_ns(self, env: Environment) -> int:
        """Return the stamp that observations must have reached, 0 where any does."""
        bounds = [self._barriers.stamp_ns(env.env_index, name) for name in self._observations]
        return max(bounds, default=0)

    def goal_bound_ns(self, env: Environment) -> dict[str, int]:
        """Return the stamp that goals must have reached, by channel, 0 where any does."""
        return {name: self._barriers.stamp_ns(env.env_index, name) for name in self._goals}

    def set_goal_bound(self, env: Environment, stamp_ns: int | Mapping[str, int]) -> None:
        """Refuse goals stamped before ``stamp_ns`` from now on, by channel or on every one."""
        if isinstance(stamp_ns, int):
            stamp_ns = dict.fromkeys(self._goals, stamp_ns)
        for name, bound_ns in stamp_ns.items():
            self._barriers.set_stamp(env.env_index, name, bound_ns)

    # latching ----------------------------------------------------------------------------

    def latch(self, timeline: Timeline, env: Environment) -> dict[str, int]:
        """Take the newest committed slots for a timeline, for the plan that starts now.

        A branch reads the observation that its environment would, and its own goal.

        Returns:
            What each slot binding is to hold.
        """
        bindings: dict[str, int] = {}
        for name, channel in self._channels.items():
            if timeline is env or self.specs[name].role is ChannelRole.OBSERVATION:
                self._take_pending(env, name, channel)
            if timeline is not env and self.specs[name].role is ChannelRole.OBSERVATION:
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
        channel = self.channel(name)
        return ctypes.string_at(channel.slot_address(slot), channel.payload_bytes)

    def close(self) -> None:
        """Unmap every ring. Graphs over the slots must not be replayed any more. Idempotent."""
        for channel in self._channels.values():
            channel.close()
        self._staging.close()

    def _take_pending(self, env: Environment, name: str, channel: Channel, node: int = 0) -> None:
        if channel.pending(env.env_index) is None:
            return
        self.unlatch(env, name)
        slot = channel.latch(env.env_index)
        env.latched[name] = self.hold(name, slot, channel.meta(slot))
        if self.specs[name].role is ChannelRole.GOAL:
            self.on_goal(env, name, channel.meta(slot), node)


def _ignore(env: Environment, channel: str, meta: SlotMeta, node: int) -> None:
    """Tell nobody."""
