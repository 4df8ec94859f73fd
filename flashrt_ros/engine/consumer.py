"""One engine's end of a channel that several engines read; imports without torch."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Protocol

from flashrt_ros.engine.readable import Readable
from flashrt_ros.engine.ring import SlotMeta, SlotState, WriterRing
from flashrt_ros.errors import NoFreeSlotError

if TYPE_CHECKING:
    from flashrt_ros.engine.shared import SharedChannel


class Reader(Protocol):
    """What a channel asks of an engine that reads it; see ``latches.Latches``."""

    def bound(self, env_index: int, channel: str) -> int:
        """Return the generation before which loans are refused now."""

    def admit(self, env_index: int, channel: str, *, bound: int, stamp_ns: int) -> None:
        """Refuse what was loaned under an older bound, or is stamped before the barrier."""

    def now_ns(self) -> int:
        """Read the engine's clock."""

    def wake(self) -> None:
        """Start what waited for a commit."""

    def release_read(self) -> None:
        """Give the slots back that nothing reads any more."""


class Consumer(Readable):
    """One engine's end of a shared channel: what ``Latches`` needs of a channel.

    Slots are counted as in the channel. What others hold of a slot does not concern it.

    Args:
        channel: Shared.
        reader: The engine's.
        num_environments: Of the engine.
    """

    def __init__(self, channel: SharedChannel, reader: Reader, num_environments: int) -> None:
        super().__init__(num_environments)
        self.channel = channel
        self.reader = reader
        self.num_environments = num_environments
        self.spec = channel.spec
        self.address = channel.address
        self.num_slots = channel.num_slots
        self.slot_bytes = channel.slot_bytes
        self.payload_bytes = channel.payload_bytes
        self._references: Counter[int] = Counter()
        self._metas: dict[int, SlotMeta] = {}
        self._rings: deque[WriterRing] = deque()
        self._is_closed = False

    # what there is ---------------------------------------------------------------------------

    def meta(self, slot: int) -> SlotMeta:
        """Return what came with the slot's last commit; its age counts on this engine's clock."""
        return self._metas[slot]

    def state(self, slot: int) -> SlotState:
        """Say who may touch a slot, as far as this engine knows."""
        if self._references[slot]:
            return SlotState.HELD
        return SlotState.COMMITTED if slot in self._pending else SlotState.FREE

    def slot_address(self, slot: int) -> int:
        """Return the address of a slot's first byte; the same for every consumer."""
        return self.channel.slot_address(slot)

    # writers ---------------------------------------------------------------------------------

    def open_ring(self, env_index: int) -> WriterRing:
        """Open a writer's ring through this engine; see ``SharedChannel.open_ring``."""
        ring = self.channel.open_ring(env_index)
        self._rings = deque(one for one in self._rings if one.is_open)
        self._rings.append(ring)
        return ring

    def bound(self, env_index: int) -> int:
        """Return the generation before which the engine refuses loans now."""
        return self.reader.bound(env_index, self.spec.name)

    def admit(self, env_index: int, bound: int, stamp_ns: int) -> None:
        """Refuse what the engine's barrier refuses; see ``Reader.admit``."""
        self.reader.admit(env_index, self.spec.name, bound=bound, stamp_ns=stamp_ns)

    def offer(self, env_index: int, slot: int, meta: SlotMeta) -> None:
        """Take a slot, held once for this call, as the newest; what it replaces goes back."""
        self._put(env_index, slot)
        self._metas[slot] = SlotMeta(
            meta.sequence,
            meta.source_sequence,
            meta.stamp_ns,
            self.reader.now_ns(),
            meta.generation,
            meta.expires_ns,
        )

    # readers ---------------------------------------------------------------------------------

    def latch(self, env_index: int) -> int:
        """Take the newest slot, held once for the caller; see ``Readable.latch``."""
        slot = self._take(env_index)
        self._references[slot] += 1
        return slot

    def acquire(self, slot: int) -> None:
        """Hold a held slot once more.

        Raises:
            LoanError: The slot is not held by this engine.
        """
        self._check_held(slot)
        self._hold(slot)
        self._references[slot] += 1

    def release(self, slot: int) -> None:
        """Give a hold back; with the last one of all consumers the slot is free again.

        Raises:
            LoanError: The slot is not held by this engine.
        """
        self._check_held(slot)
        self._references[slot] -= 1
        if not self._references[slot]:
            del self._references[slot]
        self._let_go(slot)

    def engine_slot(self, meta: SlotMeta) -> int:
        """Take a slot of the engine's part of the channel's own ring, held once.

        Raises:
            NoFreeSlotError: All are held.
        """
        if sum(map(self.channel.is_own, self._references)) >= self.channel.num_consumer_slots:
            raise NoFreeSlotError(
                f"the engine's own part of channel '{self.spec.name}' has no free slot",
                fix="release branches",
            )
        slot = self.channel.engine_slot(meta)
        self._references[slot] = 1
        self._metas[slot] = meta
        return slot

    def close(self) -> None:
        """Give back what it holds, and leave the channel. Idempotent.

        Writers opened through it end. No graph of the engine may run after it.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for ring in self._rings:
            self.channel.close_ring(ring)
        for env_index in range(self.num_environments):
            self.drop_pending(env_index)
        for slot in list(self._references.elements()):
            self.release(slot)
        self.channel.detach(self)

    # inside ----------------------------------------------------------------------------------

    def _hold(self, slot: int) -> None:
        self.channel.acquire(slot)

    def _let_go(self, slot: int) -> None:
        self.channel.release(slot)
