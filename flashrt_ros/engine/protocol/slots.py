"""Rings and their slots: loan, commit, return."""

from __future__ import annotations

import msgspec

from flashrt_ros.engine.protocol.records import ChannelInfo


class OpenWriter(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """Ask for a ring of a channel → :class:`WriterOpened`, with one descriptor."""

    rid: int
    channel: str
    env_index: int


class Loan(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Take a slot of one's ring → :class:`Loaned`."""

    rid: int
    writer: int


class Commit(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """Hand a loaned slot over, newest wins → :class:`Committed`.

    ``source_sequence`` is the writer's own number. ``loan_next`` takes the next slot in
    the same message. A refusal (stale generation or stamp) gives the slot back to the
    ring; it is not loaned any more. ``lifetime_ns`` says how long the payload may be acted
    on, from its stamp; 0 for until something newer comes.
    """

    rid: int
    writer: int
    slot: int
    ticket: int
    stamp_ns: int
    source_sequence: int
    loan_next: bool
    lifetime_ns: int = 0


class Return(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """Give a loaned slot back unused → :class:`Ack`."""

    rid: int
    writer: int
    slot: int
    ticket: int


class WriterOpened(msgspec.Struct, array_like=True, tag=67, frozen=True):
    """A ring of ``ring_bytes`` is the client's to map; ``writer`` names it from here on.

    ``first_slot`` is the ring's first index in the channel, ``inode`` and ``device``
    identify the memory for the copy count.
    """

    rid: int
    writer: int
    channel: ChannelInfo
    env_index: int
    first_slot: int
    inode: int
    device: int


class Loaned(msgspec.Struct, array_like=True, tag=68, frozen=True):
    """``slot`` counts from the ring's start; ``ticket`` must come back with the commit."""

    rid: int
    slot: int
    ticket: int
    generation: int


class Committed(msgspec.Struct, array_like=True, tag=69, frozen=True):
    """``sequence`` is the engine's number of the commit, per channel and environment.

    ``next_slot`` is -1 when none was asked for or none was free. ``num_stale`` counts the
    engines that read the channel too and did without, because the slot was loaned before their
    last reset: the payload reaches them if it is committed again.
    """

    rid: int
    sequence: int
    generation: int
    next_slot: int
    next_ticket: int
    num_stale: int = 0
