"""Who gets which outputs and events, at its own pace, without holding the loop up."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from flashrt_ros.engine.connection import Connection
from flashrt_ros.engine.protocol import (
    MAX_INLINE_BYTES,
    Event,
    ModelInfo,
    Output,
    OutputKind,
    Provenance,
    Subscribe,
    Subscribed,
    encode,
)
from flashrt_ros.engine.slots import SlotMemory
from flashrt_ros.errors import BusyError, ProtocolError, UnknownEnvironmentError
from flashrt_ros.runtime.spec import PAGE_BYTES, round_up

MAX_HELD_NS = 500_000_000
"""An output that waited longer than this for its credit is missed, not sent."""

MAX_RING_SUBSCRIBERS = 16
"""Subscribers of one environment whose outputs need slots."""

_MAX_DETAIL_CHARACTERS = 2000
"""A reason that a client gave may be long; an event has to fit a message."""


class OutputRing:
    """Slots for outputs too large for a message; only the engine can write them.

    Each slot counts the subscribers that may still read it.

    Args:
        slot_bytes: Size of a slot, whole pages.
    """

    def __init__(self, slot_bytes: int) -> None:
        # Each subscriber may own one slot a kind; the newest may wait for all; one is new.
        self.num_slots = len(OutputKind) * (MAX_RING_SUBSCRIBERS + 2)
        self.slot_bytes = slot_bytes
        self.memory = SlotMemory("flashrt-output", slot_bytes * self.num_slots)
        self._map = mmap.mmap(self.memory.fd, self.memory.num_bytes)
        self.memory.seal(readers_only=True)
        self._free = list(range(self.num_slots))
        self._references = [0] * self.num_slots

    def write(self, payload: bytes) -> int:
        """Copy a payload into a free slot, held once for the caller."""
        slot = self._free.pop()
        self._references[slot] = 1
        start = slot * self.slot_bytes
        self._map[start : start + len(payload)] = payload
        return slot

    def acquire(self, slot: int) -> None:
        """Hold a slot once more."""
        self._references[slot] += 1

    def release(self, slot: int) -> None:
        """Give a hold back; with the last one the slot is free."""
        self._references[slot] -= 1
        if not self._references[slot]:
            self._free.append(slot)

    @property
    def num_free(self) -> int:
        """Slots nobody reads."""
        return len(self._free)

    def close(self) -> None:
        """Unmap and close. Idempotent."""
        self._map.close()
        self.memory.close()


@dataclass(frozen=True, slots=True)
class _Item:
    """An output on its way; ``slot`` is -1 when ``payload`` rides inline."""

    kind: OutputKind
    provenance: Provenance
    index: int
    slot: int
    payload: bytes
    produced_ns: int


@dataclass(slots=True)
class _Lane:
    """One kind of output of one subscription.

    Attributes:
        has_credit: The client has released the last one.
        owed: Slot it has yet to release, -1 for none or inline.
        held: The newest output, waiting for credit or room.
        missed: Outputs that were replaced while they waited.
    """

    has_credit: bool = True
    owed: int = -1
    held: _Item | None = None
    missed: int = 0


@dataclass(slots=True, eq=False)
class _Subscription:
    connection: Connection
    env_index: int
    wants_events: bool
    lanes: dict[OutputKind, _Lane] = field(default_factory=dict)


class Outputs:
    """The engine's sink: gives outputs to subscribers with credit, events to all.

    Outputs: one unreleased output a kind and subscriber; what comes meanwhile replaces
    what waits, and is counted. Events: every one, in order. Neither ever blocks.

    Args:
        info: The model's, for sizes and environments.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(self, info: ModelInfo, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        chunk_bytes = 4 * info.horizon * info.action_dim
        self._slot_bytes = (
            round_up(chunk_bytes, PAGE_BYTES) if chunk_bytes > MAX_INLINE_BYTES else 0
        )
        self._clock_ns = clock_ns
        self._subscriptions: list[list[_Subscription]] = [[] for _ in range(info.num_environments)]
        self._rings: dict[int, OutputRing] = {}
        self._missed = [0] * info.num_environments
        self._events: list[tuple[int, bytes]] = []

    def missed(self, env_index: int) -> int:
        """Return how many outputs of an environment subscribers missed so far."""
        return self._missed[env_index]

    # subscribers -----------------------------------------------------------------------------

    def subscribe(self, connection: Connection, request: Subscribe) -> None:
        """Add a connection to an environment's subscribers, or change what it gets; replies.

        Raises:
            UnknownEnvironmentError: No environment has this index.
            BusyError: No more subscribers fit.
        """
        env_index = request.env_index
        if not 0 <= env_index < len(self._subscriptions):
            raise UnknownEnvironmentError(
                f"there is no environment {env_index}",
                expected=f"0 to {len(self._subscriptions) - 1}",
            )
        subscription = self._find(connection, env_index)
        ring = self._ring(env_index)
        if subscription is None:
            if ring is not None and len(self._subscriptions[env_index]) >= MAX_RING_SUBSCRIBERS:
                raise BusyError(
                    f"environment {env_index} takes no more subscribers",
                    expected=f"at most {MAX_RING_SUBSCRIBERS}",
                )
            subscription = _Subscription(connection, env_index, request.events)
            self._subscriptions[env_index].append(subscription)
        subscription.wants_events = request.events
        wanted = {OutputKind.ACTION: request.actions, OutputKind.CHUNK: request.chunks}
        for kind, is_wanted in wanted.items():
            if is_wanted:
                subscription.lanes.setdefault(kind, _Lane())
            elif kind in subscription.lanes:
                self._forget_lane(subscription.lanes.pop(kind), env_index)
        if ring is None:
            connection.reply(encode(Subscribed(request.rid, 0, 0)))
        else:
            reply = Subscribed(request.rid, ring.slot_bytes, ring.num_slots)
            connection.reply(encode(reply), [ring.memory.fd])

    def unsubscribe(self, connection: Connection) -> None:
        """Forget a connection, and take back the slots it read."""
        for env_index, subscriptions in enumerate(self._subscriptions):
            for subscription in [s for s in subscriptions if s.connection is connection]:
                subscriptions.remove(subscription)
                for lane in subscription.lanes.values():
                    self._forget_lane(lane, env_index)

    def release(self, connection: Connection, env_index: int, kind: int, slot: int) -> None:
        """Return the credit of one output; the newest that waits follows at once.

        Raises:
            ProtocolError: The client owes no such release.
        """
        subscription = self._find(connection, env_index)
        if subscription is None or kind not in set(OutputKind):
            raise ProtocolError(
                "a release names what was not subscribed to",
                found=f"kind {kind} of environment {env_index}",
            )
        lane = subscription.lanes.get(OutputKind(kind))
        if lane is None:
            return  # it crossed a Subscribe that ended this kind
        if lane.has_credit or lane.owed != slot:
            raise ProtocolError(
                "a release without an output",
                expected="nothing" if lane.has_credit else f"slot {lane.owed}",
                found=f"slot {slot}",
            )
        lane.has_credit = True
        lane.owed = -1
        self._release_slot(env_index, slot)
        self._retry(subscription, lane)

    def retry(self, connection: Connection) -> None:
        """Send what waited for room in the connection's socket."""
        for subscriptions in self._subscriptions:
            for subscription in subscriptions:
                if subscription.connection is connection:
                    for lane in subscription.lanes.values():
                        self._retry(subscription, lane)

    # sink ------------------------------------------------------------------------------------

    def output(self, kind: OutputKind, provenance: Provenance, index: int, payload: bytes) -> None:
        """Give an output to the environment's subscribers."""
        env_index = provenance.env_index
        takers = [
            (subscription, subscription.lanes[kind])
            for subscription in self._subscriptions[env_index]
            if kind in subscription.lanes
        ]
        if not takers:
            return
        for _, lane in takers:
            self._discard_held(lane, env_index)
        now_ns = self._clock_ns()
        ring = self._ring(env_index) if len(payload) > MAX_INLINE_BYTES else None
        if ring is None:
            item = _Item(kind, provenance, index, -1, bytes(payload), now_ns)
        else:
            item = _Item(kind, provenance, index, ring.write(payload), b"", now_ns)
        for subscription, lane in takers:
            if not (lane.has_credit and self._deliver(subscription, lane, item)):
                lane.held = item
                self._acquire_slot(env_index, item.slot)
        self._release_slot(env_index, item.slot)

    def event(self, event: Event) -> None:
        """Keep an event for :meth:`deliver_events`; older outputs no longer follow."""
        if len(event.detail) > _MAX_DETAIL_CHARACTERS:
            cut = event.detail[:_MAX_DETAIL_CHARACTERS] + "…"
            event = msgspec.structs.replace(event, detail=cut)
        self._events.append((event.env_index, encode(event)))
        for subscription in self._subscriptions[event.env_index]:
            for lane in subscription.lanes.values():
                if lane.held and lane.held.provenance.generation < event.generation:
                    self._discard_held(lane, event.env_index)

    def deliver_events(self) -> None:
        """Give the events kept since the last call to every connection that wants them.

        The server calls it once an answer has left: each event wakes processes that
        would otherwise compete with the caller for the cores.
        """
        for env_index, message in self._events:
            for subscription in self._subscriptions[env_index]:
                if subscription.wants_events:
                    subscription.connection.event(message)
        self._events.clear()

    def close(self) -> None:
        """Forget every subscriber and close the rings. Idempotent."""
        for subscriptions in self._subscriptions:
            subscriptions.clear()
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    # inside ----------------------------------------------------------------------------------

    def _find(self, connection: Connection, env_index: int) -> _Subscription | None:
        if not 0 <= env_index < len(self._subscriptions):
            return None
        for subscription in self._subscriptions[env_index]:
            if subscription.connection is connection:
                return subscription
        return None

    def _ring(self, env_index: int) -> OutputRing | None:
        if not self._slot_bytes:
            return None
        if env_index not in self._rings:
            self._rings[env_index] = OutputRing(self._slot_bytes)
        return self._rings[env_index]

    def _deliver(self, subscription: _Subscription, lane: _Lane, item: _Item) -> bool:
        message = Output(
            int(item.kind),
            item.provenance,
            item.index,
            item.slot,
            item.payload,
            lane.missed,
            item.produced_ns,
        )
        if not subscription.connection.try_output(encode(message)):
            return False
        lane.has_credit = False
        lane.owed = item.slot
        lane.missed = 0
        self._acquire_slot(subscription.env_index, item.slot)
        return True

    def _retry(self, subscription: _Subscription, lane: _Lane) -> None:
        item = lane.held
        if item is None or not lane.has_credit:
            return
        if self._clock_ns() - item.produced_ns > MAX_HELD_NS:
            self._discard_held(lane, subscription.env_index)
        elif self._deliver(subscription, lane, item):
            lane.held = None
            self._release_slot(subscription.env_index, item.slot)

    def _discard_held(self, lane: _Lane, env_index: int) -> None:
        if lane.held is not None:
            slot = lane.held.slot
            lane.held = None
            lane.missed += 1
            self._missed[env_index] += 1
            self._release_slot(env_index, slot)

    def _forget_lane(self, lane: _Lane, env_index: int) -> None:
        if lane.held is not None:
            self._release_slot(env_index, lane.held.slot)
        self._release_slot(env_index, lane.owed)

    def _acquire_slot(self, env_index: int, slot: int) -> None:
        if slot >= 0:
            self._rings[env_index].acquire(slot)

    def _release_slot(self, env_index: int, slot: int) -> None:
        if slot >= 0:
            self._rings[env_index].release(slot)
