"""Goals brought back: from a capsule, from an interruption, or for a branch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping

import msgspec

from flashrt_ros.capsule.capsule import Capsule, GoalOrigin, Origin
from flashrt_ros.engine.channels import SlotMeta
from flashrt_ros.engine.latches import NO_META, Latches
from flashrt_ros.engine.timeline import Environment, GoalCopies, Timeline
from flashrt_ros.errors import NoFreeSlotError
from flashrt_ros.runtime.backend import PASSED, Backend
from flashrt_ros.runtime.spec import ArenaLayout, ChannelRole


class Goals:
    """Puts goals in force that no writer has just committed, in slots of the engine's own.

    Args:
        latches: Owns the slots.
        layout: Of a lane, to find a goal in a capsule.
        inputs: INPUT buffer that keeps each ``"channel.field"``.
        backend: Copies.
        clock_ns: The engine's; the age of a goal brought back counts from then on.
    """

    def __init__(
        self,
        latches: Latches,
        layout: ArenaLayout,
        inputs: Mapping[str, str],
        backend: Backend,
        clock_ns: Callable[[], int],
    ) -> None:
        self._latches = latches
        self._backend = backend
        self._clock_ns = clock_ns
        self._parts = {
            name: tuple(
                (
                    latches.specs[name].field_offset(part.name),
                    layout.by_name[inputs[f"{name}.{part.name}"]].offset,
                    part.num_bytes,
                )
                for part in latches.specs[name].fields
            )
            for name in latches.named(ChannelRole.GOAL)
        }
        """Of each field of a goal: offset in its slot, offset in a capsule, bytes."""

    def in_force(self, timeline: Timeline) -> dict[str, tuple[bytes, SlotMeta]]:
        """Copy the goals that the timeline reads, with their metas, by channel."""
        copies: dict[str, tuple[bytes, SlotMeta]] = {}
        for name in self._latches.named(ChannelRole.GOAL):
            latched = timeline.latched.get(name)
            if latched is not None:
                payload = self._latches.payload(name, latched.slot, latched.filled)
                copies[name] = payload, latched.meta
        return copies

    def newest(self, env: Environment) -> dict[str, tuple[bytes, SlotMeta]]:
        """Copy the newest goals, committed or latched, by channel; moves nothing."""
        copies = self.in_force(env)
        for name in self._latches.named(ChannelRole.GOAL):
            channel = self._latches.channel(name)
            slot = channel.pending(env.env_index)
            if slot is not None:
                copies[name] = self._latches.payload(name, slot), channel.meta(slot)
        return copies

    def require_slot(self) -> None:
        """Check that a goal could be brought back.

        Waits for the device where verbs came faster than it let go of the goals before: for
        the nodes of a plan that was left, at most.

        Raises:
            NoFreeSlotError: The engine's own ring is used up.
        """
        self._latches.release_read()
        for name in self._latches.named(ChannelRole.GOAL):
            channel = self._latches.channel(name)
            try:
                slot = channel.engine_slot(NO_META)
            except NoFreeSlotError:
                self._latches.wait_for_read()
                slot = channel.engine_slot(NO_META)
            channel.release(slot)

    def restore(self, timeline: Timeline, capsule: Capsule) -> None:
        """Bring a capsule's goals back into slots of the engine's own; none if it has none."""
        sources = _sources_of(capsule.position.origin, self._parts, self._clock_ns())
        for name, parts in self._parts.items():
            self._latches.unlatch(timeline, name)
            if name not in sources:
                continue
            meta = sources[name]
            channel = self._latches.channel(name)
            slot = channel.engine_slot(meta)
            base = channel.slot_address(slot)
            source = capsule.block.address
            filled = PASSED
            for in_slot, in_capsule, num_bytes in parts:
                filled = self._backend.copy_aside(base + in_slot, source + in_capsule, num_bytes)
            timeline.latched[name] = self._latches.hold(name, slot, meta, filled)

    def replay(self, timeline: Timeline, goals: GoalCopies) -> None:
        """Put goals copied by :meth:`in_force` back in force, and no others."""
        for name in self._parts:
            self._latches.unlatch(timeline, name)
            if name not in goals:
                continue
            payload, meta = goals[name]
            meta = msgspec.structs.replace(meta, committed_ns=self._clock_ns())
            channel = self._latches.channel(name)
            slot = channel.engine_slot(meta)
            ctypes.memmove(channel.slot_address(slot), payload, len(payload))
            timeline.latched[name] = self._latches.hold(name, slot, meta)


def _sources_of(origin: Origin, channels: Iterable[str], committed_ns: int) -> dict[str, SlotMeta]:
    """Return what a capsule says of its goals, by channel; their ages are not among it."""
    if not origin.goal_sequence:
        return {}
    first = next(iter(channels), None)
    if first is None:
        return {}
    goal = GoalOrigin(
        first,
        origin.goal_sequence,
        origin.goal_source_sequence,
        origin.goal_stamp_ns,
        origin.goal_expires_ns,
    )
    return {
        one.channel: SlotMeta(
            sequence=one.sequence,
            source_sequence=one.source_sequence,
            stamp_ns=one.stamp_ns,
            expires_ns=one.expires_ns,
            committed_ns=committed_ns,
        )
        for one in (goal, *origin.other_goals)
    }
