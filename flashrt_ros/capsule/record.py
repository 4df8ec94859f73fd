"""What a capsule file says about its capsule, without the bytes; imports without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flashrt_ros.capsule.capsule import Position, check_labels, check_name
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.errors import FingerprintMismatchError, SpecError
from flashrt_ros.runtime.spec import (
    BUFFER_ALIGNMENT_BYTES,
    ITEM_BYTES,
    ArenaLayout,
    Role,
    round_up,
)

SECTIONS = ("state", "input", "growing")
"""Parts of a payload in order: STATE, INPUT, the used rows of the STATE buffer that grows."""

MAX_EXTENTS = 32
MAX_PAYLOAD_BYTES = 1 << 45


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """One buffer of a capsule's payload.

    Attributes:
        name: Unique within the capsule.
        shape: Extents as declared; of a growing buffer the first counts positions.
        dtype: A key of ``spec.ITEM_BYTES``.
        role: ``"state"`` or ``"input"``.
        offset: Bytes from the payload's start; a multiple of 256.
        used_bytes: Bytes that the capsule holds: all, or those of the used positions.
        grows: As in ``BufferSpec``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    offset: int
    used_bytes: int
    grows: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole buffer, without padding."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def section(self) -> str:
        """Which of :data:`SECTIONS` the buffer lies in."""
        return "growing" if self.grows else self.role


@dataclass(frozen=True, slots=True)
class CapsuleRecord:
    """A capsule without its bytes.

    Attributes:
        id: As in ``Capsule``.
        name: As in ``Capsule``.
        parent: As in ``Capsule``; the parent need not be in the same folder.
        labels: As in ``Capsule``.
        created_ns: As in ``Capsule``. Nothing is decided by it, so a clock may jump.
        position: As in ``Capsule``.
        pinned: As in ``Capsule``.
        is_automatic: As in ``Capsule``.
        fingerprint: As in ``Capsule``.
        layout: Buffers of the payload in order of offset.
        num_bytes: Bytes of payload in use, from the lane's start.
        digest: Of the payload, 32 hex digits: xxh3-128 over the digests of its sections;
            "" until it was saved.
        file: Name of its file in a folder, without the suffix; "" until it was saved.
        file_bytes: Size of its file; 0 until it was saved.
    """

    id: str
    name: str
    parent: str
    labels: tuple[str, ...]
    created_ns: int
    position: Position
    pinned: bool
    is_automatic: bool
    fingerprint: Fingerprint
    layout: tuple[LayoutRow, ...]
    num_bytes: int
    digest: str = ""
    file: str = ""
    file_bytes: int = 0

    @property
    def section_bytes(self) -> tuple[int, int, int]:
        """Length of each of :data:`SECTIONS`; together ``num_bytes``."""
        return section_bytes(self.layout)


def layout_rows(layout: ArenaLayout, num_positions: int = 0) -> tuple[LayoutRow, ...]:
    """Describe the payload of a capsule under a layout.

    Args:
        layout: Of the engine's lanes.
        num_positions: Used positions of the buffer that grows.

    Raises:
        SpecError: The layout has no such number of positions.
    """
    layout.used_bytes(num_positions)
    return tuple(
        LayoutRow(
            name=spec.name,
            shape=spec.shape,
            dtype=spec.dtype,
            role=spec.role.value,
            offset=offset,
            used_bytes=(
                spec.num_bytes // spec.shape[0] * num_positions if spec.grows else spec.num_bytes
            ),
            grows=spec.grows,
        )
        for spec, offset in ((p.spec, p.offset) for p in layout.placements)
        if spec.role in (Role.STATE, Role.INPUT)
    )


def section_bytes(layout: Sequence[LayoutRow]) -> tuple[int, int, int]:
    """Return the length of each of :data:`SECTIONS`.

    The first two are padded as in a lane, so that the next one starts where it does
    there; the last ends with the last used row.
    """
    lengths = dict.fromkeys(SECTIONS, 0)
    for row in layout:
        lengths[row.section] += (
            row.used_bytes if row.grows else round_up(row.num_bytes, BUFFER_ALIGNMENT_BYTES)
        )
    return lengths["state"], lengths["input"], lengths["growing"]


def split_payload(record: CapsuleRecord, payload: memoryview) -> tuple[memoryview, ...]:
    """Cut a payload into its sections, without a copy.

    Args:
        record: What the payload is.
        payload: ``uint8[num_bytes]`` or longer, laid out as the lane.

    Raises:
        SpecError: The payload is shorter than the record says.
    """
    if len(payload) < record.num_bytes:
        raise SpecError(
            f"the payload of capsule '{record.name or record.id}' is too short",
            expected=f"{record.num_bytes} bytes",
            found=len(payload),
        )
    sections, start = [], 0
    for length in record.section_bytes:
        sections.append(payload[start : start + length])
        start += length
    return tuple(sections)


def check_record(record: CapsuleRecord) -> None:
    """Refuse a record that contradicts itself.

    Raises:
        CapsuleNameError: Id, name, parent or a label is malformed.
        SpecError: The layout, the position or a size is impossible.
    """
    check_name(record.id)
    for name in (record.name, record.parent):
        if name:
            check_name(name)
    check_labels(record.labels)
    _check_layout(record.layout, record.position.num_positions)
    if record.num_bytes != sum(record.section_bytes):
        raise SpecError(
            f"capsule '{record.id}' has another size than its buffers",
            expected=sum(record.section_bytes),
            found=record.num_bytes,
        )
    position = record.position
    origin = position.origin
    _check_numbers(
        record.id,
        counts=(
            position.tick,
            position.queue_length,
            position.noise_seed,
            position.noise_counter,
            origin.goal_sequence,
            origin.goal_source_sequence,
            origin.observation_sequence,
            origin.latched_tick,
        ),
        times=(record.created_ns, origin.goal_stamp_ns, origin.observation_stamp_ns),
    )
    if not 0 <= position.queue_head <= position.queue_length:
        raise SpecError(
            f"capsule '{record.id}' has an impossible action queue",
            expected=f"0 <= head <= {position.queue_length}",
            found=position.queue_head,
        )


def require_layout(record: CapsuleRecord, layout: Sequence[LayoutRow]) -> None:
    """Refuse a capsule whose buffers are not those of an engine.

    Args:
        record: Of the capsule.
        layout: :func:`layout_rows` of the engine; the used positions don't matter.

    Raises:
        FingerprintMismatchError: Names the buffers that the capsule lacks, that the engine
            does not know, or that lie elsewhere.
    """
    own = {row.name: _placed(row) for row in layout}
    theirs = {row.name: _placed(row) for row in record.layout}
    if own == theirs:
        return
    names = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]
    raise FingerprintMismatchError(
        f"capsule '{record.name or record.id}' holds other buffers than this engine",
        expected="; ".join(f"{name}: {own.get(name, 'none')}" for name in names),
        found="; ".join(f"{name}: {theirs.get(name, 'none')}" for name in names),
        fix="restore it where it was taken, or take a new one here",
    )


def _placed(row: LayoutRow) -> str:
    shape = "x".join(map(str, row.shape))
    return f"{row.section} {row.dtype}[{shape}] at {row.offset}"


def _check_numbers(capsule_id: str, *, counts: Sequence[int], times: Sequence[int]) -> None:
    for value, low, high in (
        *((count, 0, (1 << 64) - 1) for count in counts),
        *((time, -(1 << 63), (1 << 63) - 1) for time in times),
    ):
        if not low <= value <= high:
            raise SpecError(
                f"capsule '{capsule_id}' has an impossible position or time",
                expected=f"{low} to {high}",
                found=value,
            )


def _check_layout(layout: tuple[LayoutRow, ...], num_positions: int) -> None:
    names: set[str] = set()
    offset = order = most = 0
    for row in layout:
        if not 0 < len(row.name) <= 256:
            raise SpecError("a buffer has no usable name", expected="1 to 256 characters")
        if row.name in names:
            raise SpecError(f"buffer '{row.name}' is there twice", fix="give each its own name")
        names.add(row.name)
        if row.dtype not in ITEM_BYTES or row.role not in SECTIONS[:2]:
            raise SpecError(
                f"buffer '{row.name}' has an unknown dtype or role",
                found=f"{row.dtype}, {row.role}",
            )
        is_possible = 0 < len(row.shape) <= MAX_EXTENTS and min(row.shape) > 0
        if not is_possible or row.num_bytes > MAX_PAYLOAD_BYTES:
            raise SpecError(
                f"buffer '{row.name}' has an impossible shape",
                expected=f"1 to {MAX_EXTENTS} positive extents, {MAX_PAYLOAD_BYTES} bytes at most",
                found=row.shape[: MAX_EXTENTS + 1],
            )
        if row.grows and row.role != "state":
            raise SpecError(f"buffer '{row.name}' grows but is no STATE", found=row.role)
        place = SECTIONS.index(row.section)
        if place < order or order == 2 or row.offset != offset:
            raise SpecError(
                f"buffer '{row.name}' is out of place",
                expected=f"offset {offset}, after STATE and INPUT where it grows",
                found=f"offset {row.offset} in {row.section}",
            )
        used = row.num_bytes
        if row.grows:
            most = row.shape[0]
            used = used // most * num_positions
        if row.used_bytes != used or not 0 <= row.used_bytes <= row.num_bytes:
            raise SpecError(
                f"buffer '{row.name}' uses an impossible number of bytes",
                expected=used,
                found=row.used_bytes,
            )
        order = place
        offset += round_up(row.num_bytes, BUFFER_ALIGNMENT_BYTES)
    if not layout:
        raise SpecError("a capsule has no buffers", expected="at least one")
    if not 0 <= num_positions <= most:
        raise SpecError(
            "the layout has no such number of positions",
            expected=f"0 to {most}",
            found=num_positions,
        )
