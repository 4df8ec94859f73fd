"""What a capsule file says about itself: canonical JSON, one class per version of the format."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
import xxhash

from flashrt_ros.capsule.archive_format import (
    MAGIC,
    MAX_HEADER_BYTES,
    PREAMBLE_BYTES,
    SIZES,
    USE_A_COPY,
    VERSION,
    Preamble,
    Section,
    check_zero,
    payload_digest,
)
from flashrt_ros.capsule.capsule import GoalOrigin, Origin, Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.record import SECTIONS, CapsuleRecord, LayoutRow, check_record
from flashrt_ros.errors import CapsuleArchiveError, CapsuleNameError, SpecError
from flashrt_ros.runtime.spec import PAGE_BYTES, round_up

_HEX = re.compile(r"[0-9a-f]{32}")


class _Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    channel: str
    sequence: int
    source_sequence: int
    stamp_ns: int
    expires_ns: int


class _Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    goal_sequence: int
    goal_source_sequence: int
    goal_stamp_ns: int
    observation_sequence: int
    observation_stamp_ns: int
    latched_tick: int
    goal_expires_ns: int = 0
    """Left out where it is zero, as files written before there were lifetimes have it."""
    other_goals: tuple[_Goal, ...] = ()
    """Left out where the model has one goal channel."""


class _Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tick: int
    queue_head: int
    queue_length: int
    noise_seed: int
    noise_counter: int
    num_positions: int
    origin: _Origin


class _Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    fields: tuple[tuple[str, str], ...]


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    offset: int
    used_bytes: int
    grows: bool


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    offset: int
    num_bytes: int
    xxh3_128: str


class _HeaderV1(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Version 1. What a later version adds goes into a class of its own."""

    id: str
    name: str
    parent: str
    labels: tuple[str, ...]
    created_ns: int
    pinned: bool
    is_automatic: bool
    position: _Position
    fingerprint: _Fingerprint
    layout: tuple[_Row, ...]
    sections: tuple[_Section, ...]


def encode_head(record: CapsuleRecord, digests: Sequence[str]) -> bytes:
    """Return all that comes before the payload; its length doesn't depend on ``digests``.

    Args:
        record: A record that ``check_record`` accepts.
        digests: Of each section, 32 hex digits.

    Raises:
        CapsuleArchiveError: The header would be longer than 1 MiB, or text in it can't be
            written.
    """
    sections = _section_rows(record, digests)
    try:
        header = msgspec.json.encode(_header_of(record, sections))
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError) as error:
        raise CapsuleArchiveError(
            f"capsule '{record.id}' can't be written", reason="header", found=error
        ) from error
    if len(header) > MAX_HEADER_BYTES:
        raise CapsuleArchiveError(
            f"capsule '{record.id}' says too much about itself",
            reason="header",
            expected=f"{MAX_HEADER_BYTES} bytes at most",
            found=len(header),
            fix="give it fewer labels",
        )
    payload_offset = round_up(PREAMBLE_BYTES + len(header), PAGE_BYTES)
    file_bytes = payload_offset + sections[-1].offset + sections[-1].num_bytes
    start = SIZES.pack(MAGIC, VERSION, len(header), file_bytes)
    head = start + xxhash.xxh3_128_digest(start + header) + header
    return head + bytes(payload_offset - len(head))


def decode_head(
    preamble: Preamble, head: bytes, label: str
) -> tuple[CapsuleRecord, tuple[Section, ...]]:
    """Read and check all that comes before the payload.

    Args:
        preamble: Of the same file.
        head: ``payload_offset`` bytes.
        label: What the file is called in messages.

    Returns:
        The record, its digest and size filled in, and the sections in order.

    Raises:
        CapsuleArchiveError: A digest is wrong, or what is said is impossible.
    """
    end = PREAMBLE_BYTES + preamble.header_bytes
    header = head[PREAMBLE_BYTES:end]
    if xxhash.xxh3_128_digest(head[: SIZES.size] + header) != preamble.digest:
        raise CapsuleArchiveError(
            f"{label} is damaged in its header", reason="header", fix=USE_A_COPY
        )
    check_zero(head[end:], end, label)
    try:
        record, sections = _DECODERS[preamble.version](header, preamble.payload_offset)
        check_record(record)
    except (SpecError, CapsuleNameError, msgspec.MsgspecError, OverflowError, ValueError) as error:
        raise CapsuleArchiveError(
            f"{label} has an impossible header", reason="header", found=error, fix=USE_A_COPY
        ) from error
    _check_sections(record, sections, preamble, label)
    return record, sections


def _section_rows(record: CapsuleRecord, digests: Sequence[str]) -> tuple[_Section, ...]:
    rows, offset = [], 0
    for name, length, digest in zip(SECTIONS, record.section_bytes, digests, strict=True):
        offset = round_up(offset, PAGE_BYTES)
        rows.append(_Section(name, offset, length, digest))
        offset += length
    return tuple(rows)


def _header_of(record: CapsuleRecord, sections: tuple[_Section, ...]) -> _HeaderV1:
    position, origin = record.position, record.position.origin
    return _HeaderV1(
        id=record.id,
        name=record.name,
        parent=record.parent,
        labels=record.labels,
        created_ns=record.created_ns,
        pinned=record.pinned,
        is_automatic=record.is_automatic,
        position=_Position(
            tick=position.tick,
            queue_head=position.queue_head,
            queue_length=position.queue_length,
            noise_seed=position.noise_seed,
            noise_counter=position.noise_counter,
            num_positions=position.num_positions,
            origin=_Origin(
                goal_sequence=origin.goal_sequence,
                goal_source_sequence=origin.goal_source_sequence,
                goal_stamp_ns=origin.goal_stamp_ns,
                observation_sequence=origin.observation_sequence,
                observation_stamp_ns=origin.observation_stamp_ns,
                latched_tick=origin.latched_tick,
                goal_expires_ns=origin.goal_expires_ns,
                other_goals=tuple(
                    _Goal(g.channel, g.sequence, g.source_sequence, g.stamp_ns, g.expires_ns)
                    for g in origin.other_goals
                ),
            ),
        ),
        fingerprint=_Fingerprint(record.fingerprint.digest, record.fingerprint.fields),
        layout=tuple(
            _Row(r.name, r.shape, r.dtype, r.role, r.offset, r.used_bytes, r.grows)
            for r in record.layout
        ),
        sections=sections,
    )


def _decode_v1(header: bytes, payload_offset: int) -> tuple[CapsuleRecord, tuple[Section, ...]]:
    said = msgspec.json.decode(header, type=_HeaderV1)
    if msgspec.json.encode(said) != header:
        raise ValueError("JSON that is not canonical")
    fingerprint = Fingerprint.of(dict(said.fingerprint.fields))
    if (fingerprint.digest, fingerprint.fields) != (
        said.fingerprint.digest,
        said.fingerprint.fields,
    ):
        raise ValueError("a fingerprint with another digest than its fields have")
    position = msgspec.structs.asdict(said.position)
    origin = msgspec.structs.asdict(position.pop("origin"))
    goals = [GoalOrigin(**msgspec.structs.asdict(goal)) for goal in origin.pop("other_goals")]
    sections = tuple(
        Section(s.name, payload_offset + s.offset, s.num_bytes, s.xxh3_128) for s in said.sections
    )
    if not all(_HEX.fullmatch(section.digest) for section in sections):
        raise ValueError("a digest that is not 32 hexadecimal digits")
    record = CapsuleRecord(
        id=said.id,
        name=said.name,
        parent=said.parent,
        labels=said.labels,
        created_ns=said.created_ns,
        position=Position(**position, origin=Origin(**origin, other_goals=tuple(goals))),
        pinned=said.pinned,
        is_automatic=said.is_automatic,
        fingerprint=fingerprint,
        layout=tuple(LayoutRow(**msgspec.structs.asdict(row)) for row in said.layout),
        num_bytes=sum(section.num_bytes for section in sections),
        digest=payload_digest([section.digest for section in sections]),
    )
    return record, sections


_DECODERS: dict[int, Callable[[bytes, int], tuple[CapsuleRecord, tuple[Section, ...]]]] = {
    1: _decode_v1,
}
"""Version → how its header is read. An entry is never removed."""


def _check_sections(
    record: CapsuleRecord, sections: tuple[Section, ...], preamble: Preamble, label: str
) -> None:
    wanted = [
        (row.name, preamble.payload_offset + row.offset, row.num_bytes)
        for row in _section_rows(record, [""] * len(SECTIONS))
    ]
    found = [(section.name, section.offset, section.num_bytes) for section in sections]
    if found != wanted or preamble.file_bytes != wanted[-1][1] + wanted[-1][2]:
        raise CapsuleArchiveError(
            f"{label} has sections that don't fit its buffers",
            reason="header",
            expected=wanted,
            found=found,
            fix=USE_A_COPY,
        )
