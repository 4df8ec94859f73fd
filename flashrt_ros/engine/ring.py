"""What one writer of a channel may do with its slots; imports without torch."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import msgspec

from flashrt_ros.engine.slots import SlotMemory
from flashrt_ros.errors import LoanError, NoFreeSlotError

if TYPE_CHECKING:
    from flashrt_ros.engine.channels import Channel


class SlotState(enum.Enum):
    """Who may touch a slot's bytes: nobody, its writer, nobody, its readers."""

    FREE = "free"
    LOANED = "loaned"
    COMMITTED = "committed"
    HELD = "held"


class SlotMeta(msgspec.Struct, frozen=True):  # a frozen dataclass takes far longer to make
    """What came with a commit.

    Attributes:
        sequence: The count of commits of channel and environment, from 1; 0 for none.
        source_sequence: The writer's own number.
        stamp_ns: On the writer's clock.
        committed_ns: On the engine's clock.
        generation: That of the environment when the slot was loaned.
        expires_ns: When its lifetime ends, on the writer's clock; 0 for never.
    """

    sequence: int = 0
    source_sequence: int = 0
    stamp_ns: int = 0
    committed_ns: int = 0
    generation: int = 0
    expires_ns: int = 0


class WriterRing:
    """The slots of one writer; made by ``Channel.open_ring`` alone.

    Slots count from the ring's start here, from the channel's in ``Channel``.

    Attributes:
        channel: The channel it is a part of.
        env_index: The environment it writes for.
        index: Place of the ring in the channel.
        first_slot: Index in the channel of the ring's slot 0.
        memory: The pages. Hand ``memory.fd`` over, then close ``memory``: the
            engine's mapping does not need it.
        is_open: False once ``Channel.close_ring`` was called.
        num_stale: Of several engines that read the channel, how many refused the last commit
            because it was loaned before their barrier, while others took it.
        states: Of the ring's slots, who may touch them.
        generation: The environment's when the last loan was made.
    """

    def __init__(
        self,
        channel: Channel,
        env_index: int,
        index: int,
        memory: SlotMemory,
        tickets: Iterator[int],
    ) -> None:
        self.channel = channel
        self.env_index = env_index
        self.index = index
        self.first_slot = index * channel.spec.num_ring_slots_padded
        self.memory = memory
        self.is_open = True
        self.num_stale = 0
        self.states = [SlotState.FREE] * channel.spec.num_ring_slots_padded
        self._free = deque(range(channel.spec.num_ring_slots))
        self._tickets = tickets
        self._loaned: int | None = None
        self._ticket = 0
        self.generation = 0

    @property
    def loaned_slot(self) -> int | None:
        """The slot that the writer holds, if it holds one."""
        return self._loaned

    def loan(self, generation: int) -> tuple[int, int]:
        """Lend the slot that has been free longest; the writer may hold one at a time.

        Args:
            generation: The environment's, kept with the loan.

        Returns:
            ``(slot, ticket)``.

        Raises:
            NoFreeSlotError: Every slot is committed or held. An answer, never a wait.
            LoanError: The writer holds a loan already, or the ring is closed.
        """
        name = self.channel.spec.name
        if not self.is_open:
            raise LoanError(f"a writer of channel '{name}' is closed")
        if self._loaned is not None:
            raise LoanError(
                f"the writer of channel '{name}' holds slot {self._loaned}",
                expected="one loan at a time",
                fix="commit or return it first",
            )
        if not self._free:
            raise NoFreeSlotError(
                f"channel '{name}' has no free slot for this writer",
                found=f"{self.channel.spec.num_ring_slots} committed or held",
                fix="write again after the next latch",
            )
        self._loaned = self._free.popleft()
        self._ticket = next(self._tickets)
        self.generation = generation
        self.states[self._loaned] = SlotState.LOANED
        return self._loaned, self._ticket

    def loan_generation(self, slot: int, ticket: int) -> int:
        """Return the generation a loan was made under.

        Raises:
            LoanError: Slot and ticket are not this writer's loan.
        """
        if self._loaned != slot or self._ticket != ticket:  # in line, for a commit asks twice
            self._refuse(slot, ticket)
        return self.generation

    def commit(
        self,
        slot: int,
        ticket: int,
        stamp_ns: int,
        source_sequence: int,
        now_ns: int,
        expires_ns: int = 0,
    ) -> int:
        """Hand a loaned slot over; it replaces a committed one that no latch has taken.

        Args:
            slot: The loaned one.
            ticket: That of the loan.
            stamp_ns: On the writer's clock.
            source_sequence: The writer's own number.
            now_ns: On the engine's clock.
            expires_ns: On the writer's clock; 0 for never.

        Returns:
            The commit's sequence, per channel and environment.

        Raises:
            LoanError: Slot and ticket are not this writer's loan. Nothing changes.
        """
        if self._loaned != slot or self._ticket != ticket:
            self._refuse(slot, ticket)
        self._loaned = None
        self.states[slot] = SlotState.COMMITTED
        return self.channel.accept(
            self,
            slot,
            stamp_ns=stamp_ns,
            source_sequence=source_sequence,
            now_ns=now_ns,
            generation=self.generation,
            expires_ns=expires_ns,
        )

    def return_loan(self, slot: int, ticket: int) -> None:
        """Give a loaned slot back unused.

        Raises:
            LoanError: Slot and ticket are not this writer's loan. Nothing changes.
        """
        self.loan_generation(slot, ticket)
        self._end_loan()

    def _refuse(self, slot: int, ticket: int) -> NoReturn:
        name = self.channel.spec.name
        if self._loaned != slot:
            raise LoanError(
                f"slot {slot} of channel '{name}' is not on loan to this writer",
                found="no loan" if self._loaned is None else f"a loan of slot {self._loaned}",
            )
        raise LoanError(
            f"slot {slot} of channel '{name}' was loaned under another ticket",
            expected=self._ticket,
            found=ticket,
        )

    def reclaim(self) -> bool:
        """Take the writer's loan back, if it holds one; True if it did."""
        if self._loaned is None:
            return False
        self._end_loan()
        return True

    def take_back(self, slot: int) -> None:
        """Let a slot be loaned again; the channel calls it once nobody reads the slot."""
        self.states[slot] = SlotState.FREE
        self._free.append(slot)

    @property
    def is_drained(self) -> bool:
        """Whether every slot is free."""
        return len(self._free) == self.channel.spec.num_ring_slots

    def _end_loan(self) -> None:
        slot = self._loaned
        assert slot is not None
        self._loaned = None
        self.take_back(slot)
