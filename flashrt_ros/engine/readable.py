"""What an engine reads goals and observations from; imports without torch."""

from __future__ import annotations

import abc
from collections import Counter
from types import TracebackType
from typing import Self

from flashrt_ros.engine.ring import SlotMeta, SlotState, WriterRing
from flashrt_ros.errors import LoanError
from flashrt_ros.runtime.spec import ChannelSpec


class Readable(abc.ABC):
    """A channel of an engine's own, or its end of one that several engines read.

    Each environment has one newest slot, until a latch takes it; a slot that was latched is held
    until its last hold is released. One thread.

    Args:
        num_environments: Each has a newest slot of its own.

    Attributes:
        spec: What a slot holds.
        address: Of slot 0; constant.
        num_slots: At a pitch of ``slot_bytes`` from there.
        slot_bytes: As the spec says.
        payload_bytes: As the spec says.
        skipped: Per environment: committed slots replaced by newer ones before a latch.
    """

    spec: ChannelSpec
    address: int
    num_slots: int
    slot_bytes: int
    payload_bytes: int
    _references: list[int] | Counter[int]

    def __init__(self, num_environments: int) -> None:
        self.skipped = [0] * num_environments
        self._pending: list[int | None] = [None] * num_environments

    # the newest ------------------------------------------------------------------------------

    def pending(self, env_index: int) -> int | None:
        """Return the newest committed slot that no latch has taken yet, if there is one."""
        return self._pending[env_index]

    def drop_pending(self, env_index: int) -> bool:
        """Discard the committed slot that no latch has taken; True if there was one."""
        slot = self._pending[env_index]
        if slot is None:
            return False
        self._pending[env_index] = None
        self._let_go(slot)
        return True

    @abc.abstractmethod
    def latch(self, env_index: int) -> int:
        """Take the newest committed slot, held once for the caller.

        The slot latched before stays held; release it once the last replay that read it
        has completed.

        Raises:
            LoanError: Nothing is committed.
        """

    # what is held ----------------------------------------------------------------------------

    @abc.abstractmethod
    def state(self, slot: int) -> SlotState:
        """Say who may touch a slot."""

    @abc.abstractmethod
    def meta(self, slot: int) -> SlotMeta:
        """Return what came with the slot's last commit."""

    @abc.abstractmethod
    def slot_address(self, slot: int) -> int:
        """Return the address of a slot's first byte; constant."""

    @abc.abstractmethod
    def acquire(self, slot: int) -> None:
        """Hold a held slot once more.

        Raises:
            LoanError: The slot is not held, so its bytes may change.
        """

    @abc.abstractmethod
    def release(self, slot: int) -> None:
        """Give a hold back; with the last one the slot is free again.

        Raises:
            LoanError: The slot is not held.
        """

    @abc.abstractmethod
    def engine_slot(self, meta: SlotMeta) -> int:
        """Take a slot of the engine's own, for a restored goal; held once.

        The caller writes it before anything reads it.

        Raises:
            NoFreeSlotError: All are held.
        """

    # coming and going ------------------------------------------------------------------------

    @abc.abstractmethod
    def open_ring(self, env_index: int) -> WriterRing:
        """Give a writer a ring of fresh sealed memory.

        Raises:
            NoWriterRingError: Every ring has a writer, or one whose last slot is in use.
            SharedMemoryError: The kernel has no memory or descriptor left.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is held and mapped. Idempotent; no graph may read it any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # inside ----------------------------------------------------------------------------------

    @abc.abstractmethod
    def _let_go(self, slot: int) -> None:
        """Give back a slot that was the newest, or held."""

    def _put(self, env_index: int, slot: int) -> None:
        """Make a slot the newest; what it replaces goes back, and is counted."""
        replaced, self._pending[env_index] = self._pending[env_index], slot
        if replaced is not None:
            self.skipped[env_index] += 1
            self._let_go(replaced)

    def _take(self, env_index: int) -> int:
        slot = self._pending[env_index]
        if slot is None:
            raise LoanError(
                f"channel '{self.spec.name}' of environment {env_index} has nothing to latch",
                expected="a committed slot",
            )
        self._pending[env_index] = None
        return slot

    def _check_held(self, slot: int) -> None:
        if not self._references[slot]:
            raise LoanError(
                f"slot {slot} of channel '{self.spec.name}' is not held",
                found=self.state(slot).value,
            )
