"""Writing goals and observations in place, from another process than the engine's."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from flashrt_ros.engine import protocol
from flashrt_ros.engine.payload import check_payload, field_views, write_payload
from flashrt_ros.errors import (
    LoanError,
    NoFreeSlotError,
    StaleGenerationError,
    StaleStampError,
)


class WriterPort(Protocol):
    """The client's side of loans, one message each."""

    def loan(self, writer: int) -> protocol.Loaned:
        """Take a slot."""

    def commit(self, commit: protocol.Commit) -> protocol.Committed:
        """Hand a slot over; the port sets the ``rid``."""

    def return_loan(self, writer: int, slot: int, ticket: int) -> None:
        """Give a slot back."""


class Loan(msgspec.Struct, frozen=True, eq=False):  # as SlotMeta, one with each commit
    """A slot that may be written, until it is committed or returned.

    Attributes:
        slot: Counts from the ring's start.
        ticket: Goes back with the commit.
        generation: The environment's when the slot was loaned.
        fields: Views of the slot's memory by field name, of the channel's shapes and
            dtypes, with what the slot held before. They turn read-only at the commit;
            views that a caller derived from them do not, and must not be written.
    """

    slot: int
    ticket: int
    generation: int
    fields: Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A validated payload in its slot, not handed over yet; for ``EngineClient.interrupt``.

    Attributes:
        writer: Holds the loan until then.
        loan: Holds the payload.
        stamp_ns: When the payload was true, on the writer's clock.
        source_sequence: The writer's own number.
        lifetime_ns: How long it may be acted on, from its stamp; 0 for as long as nothing
            newer comes.
    """

    writer: Writer
    loan: Loan
    stamp_ns: int
    source_sequence: int
    lifetime_ns: int = 0


class Writer:
    """Writes one channel of one environment, through a ring of its own.

    Made by ``EngineClient.open_writer``. One thread, one loan at a time. The ring is
    given back when the client is closed.

    Args:
        port: Carries loans and commits.
        opened: The engine's answer.
        memory: The ring, writable; owned.
    """

    def __init__(self, port: WriterPort, opened: protocol.WriterOpened, memory: mmap.mmap) -> None:
        self.channel = opened.channel
        self.env_index = opened.env_index
        self.first_slot = opened.first_slot
        """Index in the channel of the ring's slot 0."""
        self.identity = (opened.device, opened.inode)
        """Device and inode of the ring's memory."""
        self._port = port
        self._writer = opened.writer
        self._memory: mmap.mmap | None = memory
        self._loan: Loan | None = None
        # Slot, ticket and generation that came with a commit's answer; a loan once it is asked for.
        self._granted: tuple[int, int, int] | None = None
        # Views of each slot that was on loan, which stay as they are; a loan has views of these.
        self._fields: dict[int, dict[str, npt.NDArray[np.generic]]] = {}

    # slots -----------------------------------------------------------------------------------

    def loan(self) -> Loan:
        """Return the slot on loan, taking one first if there is none.

        Raises:
            NoFreeSlotError: Every slot of the ring waits to be read, or is.
            LoanError: The writer is closed.
            EngineGoneError: The connection ended.
        """
        if self._loan is None:
            granted, self._granted = self._granted, None
            if granted is None:
                self._require_open()
                answer = self._port.loan(self._writer)
                granted = answer.slot, answer.ticket, answer.generation
            self._loan = self._view(*granted)
        return self._loan

    def commit(
        self,
        loan: Loan,
        *,
        stamp_ns: int,
        source_sequence: int = 0,
        loan_next: bool = False,
        lifetime_ns: int = 0,
    ) -> protocol.Committed:
        """Hand a loan over to the engine; its bytes must not change from here on.

        Not validated: see :meth:`write`.

        Args:
            loan: From :meth:`loan`.
            stamp_ns: When the payload was true, on the writer's clock.
            source_sequence: The writer's own number.
            loan_next: Take the next slot in the same message, where one is free.
            lifetime_ns: How long the payload may be acted on, from its stamp; 0 for as
                long as nothing newer comes.

        Raises:
            StaleGenerationError: A reset, restore or interrupt came between. The loan is gone.
            StaleStampError: The stamp is older than the reset. The loan is gone.
            LoanError: Not the loan this writer holds.
            EngineGoneError: The connection ended.
        """
        message = self.hand_over(
            loan,
            stamp_ns=stamp_ns,
            source_sequence=source_sequence,
            loan_next=loan_next,
            lifetime_ns=lifetime_ns,
        )
        answer = self._port.commit(message)
        if answer.next_slot >= 0:
            self._granted = answer.next_slot, answer.next_ticket, answer.generation
        return answer

    def hand_over(
        self,
        loan: Loan,
        *,
        stamp_ns: int,
        source_sequence: int = 0,
        loan_next: bool = False,
        lifetime_ns: int = 0,
    ) -> protocol.Commit:
        """End a loan on this side and return the message that ends it on the engine's.

        Whatever the engine answers to it, the slot is not this writer's any more.

        Raises:
            LoanError: Not the loan this writer holds.
        """
        self._end(loan)
        return protocol.Commit(
            0,
            self._writer,
            loan.slot,
            loan.ticket,
            stamp_ns,
            source_sequence,
            loan_next,
            lifetime_ns,
        )

    def return_loan(self, loan: Loan) -> None:
        """Give a loan back unused.

        Raises:
            LoanError: Not the loan this writer holds.
            EngineGoneError: The connection ended.
        """
        self._end(loan)
        self._port.return_loan(self._writer, loan.slot, loan.ticket)

    # payloads --------------------------------------------------------------------------------

    def prepare(
        self,
        *,
        stamp_ns: int,
        source_sequence: int = 0,
        lifetime_ns: int = 0,
        **fields: npt.ArrayLike,
    ) -> Prepared:
        """Validate a payload and write it into a slot; nothing is handed over.

        Arrays must have the declared dtype; lists of numbers are converted.

        Args:
            stamp_ns: When the payload was true, on the writer's clock.
            source_sequence: The writer's own number.
            lifetime_ns: How long it may be acted on, from its stamp; 0 for as long as
                nothing newer comes.
            **fields: A value for each field of the channel.

        Raises:
            PayloadShapeError: A field is missing, unknown, or of another shape.
            PayloadTypeError: A field is of another dtype.
            NonFiniteError: NaN or Inf.
            PayloadRangeError: A field leaves the channel's range.
            NoFreeSlotError: Every slot of the ring waits to be read, or is.
            EngineGoneError: The connection ended.
        """
        check_payload(self.channel, fields)
        loan = self.loan()
        write_payload(loan.fields, fields)
        return Prepared(self, loan, stamp_ns, source_sequence, lifetime_ns)

    def renew(self, stale: Prepared) -> Prepared:
        """Put a payload whose loan has gone stale into a slot loaned now.

        The old slot is read for it: no other writer has this ring.

        Raises:
            NoFreeSlotError: Every slot of the ring waits to be read, or is.
            EngineGoneError: The connection ended.
        """
        values = {name: view.copy() for name, view in stale.loan.fields.items()}
        loan = self.loan()
        write_payload(loan.fields, values)
        return dataclasses.replace(stale, loan=loan)

    def write(
        self,
        *,
        stamp_ns: int,
        source_sequence: int = 0,
        lifetime_ns: int = 0,
        **fields: npt.ArrayLike,
    ) -> int:
        """Validate, write and hand over in one call; takes the next slot along.

        A loan that a reset, restore or interrupt made stale is replaced once, of several
        engines that share the channel also where one alone refuses it.

        Args:
            stamp_ns: When the payload was true, on the writer's clock.
            source_sequence: The writer's own number.
            lifetime_ns: As for :meth:`prepare`.
            **fields: As for :meth:`prepare`.

        Returns:
            The engine's sequence of the commit.

        Raises:
            StaleStampError: The stamp is older than the reset.
            StaleGenerationError: A second reset came between.
            FlashrtError: As for :meth:`prepare`; nothing was handed over.
        """
        prepared = self.prepare(
            stamp_ns=stamp_ns,
            source_sequence=source_sequence,
            lifetime_ns=lifetime_ns,
            **fields,
        )
        try:
            committed = self._commit(prepared)
        except StaleGenerationError:
            return self._commit(self.renew(prepared)).sequence
        if committed.num_stale:
            # the others have it already, whatever becomes of this
            with contextlib.suppress(NoFreeSlotError, StaleGenerationError, StaleStampError):
                committed = self._commit(self.renew(prepared))
        return committed.sequence

    # end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the loan back and let go of the memory. Idempotent.

        Views that the caller still has stay valid; the last one unmaps the memory.
        """
        if self._memory is None:
            return
        try:
            if self._loan is not None or self._granted is not None:
                self.return_loan(self.loan())
        finally:
            self.unmap()

    def unmap(self) -> None:
        """Let go of the memory without a word to the engine. Idempotent."""
        memory, self._memory = self._memory, None
        self._loan = self._granted = None
        self._fields.clear()
        if memory is not None:
            # Refused while views live; then the mapping ends with the last of them.
            with contextlib.suppress(BufferError):
                memory.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # inside ----------------------------------------------------------------------------------

    def _require_open(self) -> mmap.mmap:
        if self._memory is None:
            raise LoanError(f"the writer of channel '{self.channel.name}' is closed")
        return self._memory

    def _commit(self, prepared: Prepared) -> protocol.Committed:
        return self.commit(
            prepared.loan,
            stamp_ns=prepared.stamp_ns,
            source_sequence=prepared.source_sequence,
            loan_next=True,
            lifetime_ns=prepared.lifetime_ns,
        )

    def _view(self, slot: int, ticket: int, generation: int) -> Loan:
        fields = self._fields.get(slot)
        if fields is None:
            start = slot * self.channel.slot_bytes
            memory = memoryview(self._require_open())[start : start + self.channel.slot_bytes]
            fields = self._fields[slot] = field_views(memory, self.channel)
        return Loan(
            slot, ticket, generation, {name: field.view() for name, field in fields.items()}
        )

    def _end(self, loan: Loan) -> None:
        if self._loan is not loan:
            self._require_open()  # says so where that is why
            raise LoanError(
                f"slot {loan.slot} of channel '{self.channel.name}' is not on loan to this writer",
                fix="ask for a loan, and commit it once",
            )
        for view in loan.fields.values():
            view.flags.writeable = False
        self._loan = None
