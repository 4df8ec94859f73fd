"""Who owns which slot of a channel, on the engine's side; imports without torch.

A slot is, at any time, one of: free, loaned to its ring's writer, committed (the
newest of its environment, waiting for a latch) or held (read by whoever latched or
acquired it). Only a loaned slot may be written, only a held one is read, so nothing
is read while it is written. Everything here runs on the engine's one thread.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from typing import Protocol

from flashrt_ros.engine import linux
from flashrt_ros.engine.readable import Readable
from flashrt_ros.engine.ring import SlotMeta, SlotState, WriterRing
from flashrt_ros.engine.slots import SlotMemory
from flashrt_ros.errors import NoFreeSlotError, NoWriterRingError
from flashrt_ros.runtime.spec import PAGE_BYTES, ChannelSpec, round_up

__all__ = ["Channel", "SlotMeta", "SlotState", "WriterRing"]


class Locker(Protocol):
    """Locks mapped memory for a device; see ``runtime.backend.Backend``."""

    def register(self, address: int, num_bytes: int) -> None:
        """Lock a range, so that the device reads it in place."""

    def unregister(self, address: int) -> None:
        """Unlock the range at an address; waits for the device."""


class Channel(Readable):
    """A channel of every environment: one address range that graphs read, and its slots.

    The range holds ``num_slots`` slots at a constant pitch and stays at one address from
    construction to :meth:`close`. It holds ``spec.num_rings`` rings per environment, then
    the engine's own. A writer's ring is a memfd mapped into its place while the writer is
    there, private zero pages otherwise.

    Args:
        spec: What a slot holds, how many a ring has.
        num_environments: Each gets rings of its own.
        num_engine_slots: Slots of the engine's own ring, 0 for a ring's worth per
            environment.
        locker: Locks the memory for a device that reads it in place, or None. Unlocking
            waits for the device, so that rings are made before their writers come.

    Raises:
        SharedMemoryError: The range can't be reserved.
        BackendError: The memory can't be locked.
    """

    def __init__(
        self,
        spec: ChannelSpec,
        *,
        num_environments: int = 1,
        num_engine_slots: int = 0,
        locker: Locker | None = None,
    ) -> None:
        super().__init__(num_environments)
        num_rings = spec.num_rings * num_environments
        num_own = num_engine_slots or spec.num_ring_slots * num_environments
        self.spec = spec
        # computed by the spec at every look; constant here
        self.slot_bytes = spec.slot_bytes
        self._ring_slots = spec.num_ring_slots_padded
        self._own_first = num_rings * self._ring_slots
        self.payload_bytes = spec.payload_bytes
        self.num_bytes = round_up((self._own_first + num_own) * spec.slot_bytes, PAGE_BYTES)
        self.num_slots = self.num_bytes // spec.slot_bytes
        self.reclaimed = [0] * num_environments
        """Per environment: loans taken back from writers that went away."""
        self.address = linux.map_private(self.num_bytes)
        self._is_closed = False
        self._rings: list[WriterRing | None] = [None] * num_rings
        self._own_free = deque(range(self._own_first, self._own_first + num_own))
        self._references: list[int] = [0] * self.num_slots
        self._metas = [SlotMeta()] * self.num_slots
        self._sequences = [0] * num_environments
        self._tickets = itertools.count(1)
        self._locker = locker
        self._locked: set[int] = set()
        self._spare: dict[int, SlotMemory] = {}
        if locker is not None:
            self._prepare(num_rings)

    # what there is ---------------------------------------------------------------------------

    def is_own(self, slot: int) -> bool:
        """Tell whether a slot is of the engine's own ring, which no writer has."""
        return self._own_first <= slot < self.num_slots

    def state(self, slot: int) -> SlotState:
        """Say who may touch a slot; without a writer, a ring's slots are free."""
        if self.is_own(slot):
            return SlotState.HELD if self._references[slot] else SlotState.FREE
        place, in_ring = divmod(slot, self._ring_slots)
        ring = self._rings[place]
        return SlotState.FREE if ring is None else ring.states[in_ring]

    def meta(self, slot: int) -> SlotMeta:
        """Return what came with the slot's last commit."""
        return self._metas[slot]

    def slot_address(self, slot: int) -> int:
        """Return the address of a slot's first byte; constant."""
        return self.address + slot * self.slot_bytes

    def view(self, slot: int) -> memoryview:
        """Return the slot's payload bytes, writable; must not outlive the channel."""
        kind = ctypes.c_char * self.payload_bytes
        return memoryview(kind.from_address(self.slot_address(slot))).cast("B")

    def identity(self, slot: int) -> tuple[int, int, int]:
        """Return ``(device, inode, offset)`` of a slot by the books; inode 0 is private memory.

        ``linux.locate`` asks the kernel instead.
        """
        place, in_ring = divmod(slot, self._ring_slots)
        ring = self._rings[place] if place < len(self._rings) else None
        if ring is None:
            return 0, 0, 0
        return ring.memory.device, ring.memory.inode, in_ring * self.slot_bytes

    # writers ---------------------------------------------------------------------------------

    def open_ring(self, env_index: int) -> WriterRing:
        """Make a ring of fresh sealed memory and map it into its place.

        Raises:
            NoWriterRingError: Every ring has a writer, or one whose last slot is in use.
            SharedMemoryError: The kernel has no memory or descriptor left.
        """
        first = env_index * self.spec.num_rings
        rings = self._rings[first : first + self.spec.num_rings]
        if None not in rings:
            num_open = sum(ring is not None and ring.is_open for ring in rings)
            raise NoWriterRingError(
                f"channel '{self.spec.name}' of environment {env_index} takes no more writers",
                expected=f"at most {self.spec.num_rings}",
                found=f"{num_open} open, {len(rings) - num_open} closed but still read",
                fix="close a writer",
            )
        index = first + rings.index(None)
        ring = self._new_ring(env_index, index)
        self._rings[index] = ring
        return ring

    def close_ring(self, ring: WriterRing) -> None:
        """End a writer: its loan comes back, what it committed stays handed over.

        A mapping can't be revoked, so the ring's pages are never lent again: once its
        committed and held slots have been given back the pages are replaced, at the same
        address, and the place admits a new writer. Idempotent.
        """
        if not ring.is_open:
            return
        ring.is_open = False
        ring.memory.close()
        if ring.reclaim():
            self.reclaimed[ring.env_index] += 1
        self._retire_if_drained(ring)

    def accept(
        self,
        ring: WriterRing,
        slot: int,
        *,
        stamp_ns: int,
        source_sequence: int,
        now_ns: int,
        generation: int,
        expires_ns: int,
    ) -> int:
        """Make a ring's slot the newest committed one; :meth:`WriterRing.commit` calls it."""
        env_index = ring.env_index
        index = ring.first_slot + slot
        sequence = self._sequences[env_index] + 1
        self._sequences[env_index] = sequence
        self._metas[index] = SlotMeta(
            sequence, source_sequence, stamp_ns, now_ns, generation, expires_ns
        )
        self._put(env_index, index)
        return sequence

    # readers ---------------------------------------------------------------------------------

    def latch(self, env_index: int) -> int:
        """Take the newest committed slot, held once for the caller; see ``Readable.latch``."""
        slot = self._take(env_index)
        ring = self._ring_of(slot)
        ring.states[slot - ring.first_slot] = SlotState.HELD
        self._references[slot] = 1
        return slot

    def acquire(self, slot: int) -> None:
        """Hold a held slot once more.

        Raises:
            LoanError: The slot is not held, so its bytes may change.
        """
        self._check_held(slot)
        self._references[slot] += 1

    def release(self, slot: int) -> None:
        """Give a hold back; with the last one the slot is free again.

        Raises:
            LoanError: The slot is not held.
        """
        self._check_held(slot)
        self._references[slot] -= 1
        if self._references[slot] == 0:
            self._let_go(slot)

    def engine_slot(self, meta: SlotMeta) -> int:
        """Take a slot of the engine's own ring, for a restored goal; held once.

        The caller writes it before anything reads it.

        Raises:
            NoFreeSlotError: All are held.
        """
        if not self._own_free:
            raise NoFreeSlotError(
                f"the engine's own ring of channel '{self.spec.name}' has no free slot",
                fix="release branches",
            )
        slot = self._own_free.popleft()
        self._references[slot] = 1
        self._metas[slot] = meta
        return slot

    def close(self) -> None:
        """Close every ring and unmap the range. Idempotent; no graph may run after it."""
        if self._is_closed:
            return
        self._is_closed = True
        for ring in self._rings:
            if ring is not None:
                ring.is_open = False
                ring.memory.close()
        for memory in self._spare.values():
            memory.close()
        for address in tuple(self._locked):
            self._unlock(address)
        linux.unmap(self.address, self.num_bytes)

    # inside ----------------------------------------------------------------------------------

    def _prepare(self, num_rings: int) -> None:
        """Make every ring and lock it, and the engine's own."""
        assert self._locker is not None
        try:
            for index in range(num_rings):
                self._spare[index] = self._make_ring(index)
            own = self.address + num_rings * self.spec.ring_bytes
            self._lock(own, self.address + self.num_bytes - own)
        except BaseException:
            self.close()
            raise

    def _new_ring(self, env_index: int, index: int) -> WriterRing:
        memory = self._spare.pop(index, None) or self._make_ring(index)
        return WriterRing(self, env_index, index, memory, self._tickets)

    def _make_ring(self, index: int) -> SlotMemory:
        """Map fresh sealed memory into a ring's place, in exchange for what is there."""
        address, num_bytes = self._ring_address(index), self.spec.ring_bytes
        memory = SlotMemory(f"flashrt-{self.spec.name}", num_bytes)
        try:
            memory.seal()
            self._unlock(address)
            linux.remap_shared(address, num_bytes, memory.fd)
            self._lock(address, num_bytes)
        except BaseException:
            memory.close()
            raise
        return memory

    def _lock(self, address: int, num_bytes: int) -> None:
        if self._locker is not None:
            self._locker.register(address, num_bytes)
            self._locked.add(address)

    def _unlock(self, address: int) -> None:
        if self._locker is not None and address in self._locked:
            self._locked.discard(address)
            self._locker.unregister(address)

    def _ring_address(self, index: int) -> int:
        return self.address + index * self.spec.ring_bytes

    def _ring_of(self, slot: int) -> WriterRing:
        ring = self._rings[slot // self._ring_slots]
        assert ring is not None
        return ring

    def _let_go(self, slot: int) -> None:
        if slot >= self._own_first:
            self._own_free.append(slot)
            return
        ring = self._ring_of(slot)
        ring.take_back(slot - ring.first_slot)
        self._retire_if_drained(ring)

    def _retire_if_drained(self, ring: WriterRing) -> None:
        if not ring.is_open and ring.is_drained and not self._is_closed:
            if self._locker is None:
                linux.remap_private(self._ring_address(ring.index), self.spec.ring_bytes)
            # else its pages stay, locked and lent to nobody, until the place has a new writer
            self._rings[ring.index] = None
