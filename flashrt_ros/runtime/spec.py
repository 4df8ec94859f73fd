"""Declarations that the rest of the runtime is built from; imports without torch.

Dimensions, used in every docstring of the package: ``B`` batch, ``T`` tokens,
``H`` horizon (actions in a chunk), ``A`` action size, ``S`` state size.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from flashrt_ros.errors import SpecError

BUFFER_ALIGNMENT_BYTES = 256
"""Every buffer starts on this border, so that a row of any dtype is aligned on any device."""

PAGE_BYTES = 4096
"""A page of memory; what is mapped, locked or written to a file is whole pages."""

ITEM_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Dtypes a buffer or slot field may have, by name, with the size of an item in bytes."""

ShapeKey = tuple[str | int, ...]
"""Opaque name of one captured variant of a graph, e.g. ``("denoise", 3)``."""


class Role(enum.Enum):
    """What a buffer is to the execution, which decides where its bytes go.

    ``STATE`` is what the next replay needs from the past; ``INPUT`` what the
    committed plan consumed; both make up a capsule. ``BINDING`` holds slot
    indices and the like, rewritten by the host at every latch. ``OUTPUT`` is
    what a plan gives away. ``SCRATCH`` is all that crosses plan nodes.
    """

    STATE = "state"
    INPUT = "input"
    BINDING = "binding"
    OUTPUT = "output"
    SCRATCH = "scratch"


CAPSULE_ROLES = frozenset((Role.STATE, Role.INPUT))
"""Roles that a capsule carries: what no node of a plan but the commit node may write."""


class Inert(enum.Enum):
    """Why damaging a STATE buffer need not change what follows; a closed list.

    ``COUNTER`` counts and is reported. ``PROVENANCE`` says where something came
    from and is reported.
    """

    COUNTER = "counter"
    PROVENANCE = "provenance"


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """A named, typed region of a lane at a fixed offset.

    Attributes:
        name: Unique within the lane.
        shape: Extents, all positive.
        dtype: A key of :data:`ITEM_BYTES`.
        role: Decides the section and whether a capsule carries the buffer.
        inert: For STATE only: why ``prove`` may find that it changes nothing.
        feeds_noise: For STATE only: the noise generator draws from it, so that
            ``prove`` judges it by the noise it gives.
        grows: For STATE only, once per layout: the first extent counts positions (of a
            KV cache), filled from the front, so that a capsule copies the used rows only.
            What lies past them must be finite and must not be read.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    inert: Inert | None = None
    feeds_noise: bool = False
    grows: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise SpecError("a buffer has no name", expected="a non-empty name")
        if self.dtype not in ITEM_BYTES:
            raise SpecError(
                f"buffer '{self.name}' has an unknown dtype",
                expected=f"one of {', '.join(ITEM_BYTES)}",
                found=self.dtype,
            )
        if not self.shape or any(extent <= 0 for extent in self.shape):
            raise SpecError(
                f"buffer '{self.name}' has an empty shape",
                expected="one or more positive extents",
                found=self.shape,
            )
        is_marked = self.inert is not None or self.feeds_noise or self.grows
        if self.role is not Role.STATE and is_marked:
            raise SpecError(
                f"buffer '{self.name}' is marked inert, feeds_noise or grows but is no STATE",
                expected=Role.STATE.name,
                found=self.role.name,
            )

    @property
    def num_items(self) -> int:
        """Product of the extents."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes the buffer holds, without padding."""
        return self.num_items * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a buffer lies in its lane.

    Attributes:
        spec: The buffer.
        offset: Bytes from the lane's start; a multiple of 256.
    """

    spec: BufferSpec
    offset: int


_SECTIONS = (
    (Role.STATE, False),
    (Role.INPUT, False),
    (Role.STATE, True),
    (Role.BINDING, False),
    (Role.OUTPUT, False),
    (Role.SCRATCH, False),
)
"""Order in a lane: role, and whether the buffer grows."""


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """Offsets of all buffers of one lane; equal for every lane.

    STATE comes first, then INPUT, then the STATE buffer that grows, if there is one, so
    that a capsule's payload is one run from the lane's start whose length follows from
    the positions used. Padding inside it is zero and never written.

    Attributes:
        placements: In order of offset.
        state_bytes: Length of the STATE section without what grows, padded to 256.
        input_bytes: Length of the INPUT section, padded to 256.
        growing: Where the growing buffer lies; None where nothing grows.
        lane_bytes: Pitch from one lane to the next; a multiple of the page.
    """

    placements: tuple[Placement, ...]
    state_bytes: int
    input_bytes: int
    growing: Placement | None
    lane_bytes: int
    by_name: dict[str, Placement] = field(repr=False, compare=False)

    @staticmethod
    def of(specs: Sequence[BufferSpec]) -> ArenaLayout:
        """Place buffers by role, in declared order within a role.

        Raises:
            SpecError: Two buffers share a name, two grow, or there are none.
        """
        if not specs:
            raise SpecError("a layout has no buffers", expected="at least one")
        growing = [spec.name for spec in specs if spec.grows]
        if len(growing) > 1:
            raise SpecError(
                "several buffers of a layout grow",
                expected="one at most, with every layer's rows of a position side by side",
                found=", ".join(growing),
            )
        names = [spec.name for spec in specs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SpecError(f"buffer '{twice[0]}' is declared twice", fix="give each its own name")
        offset = 0
        ends: list[int] = []
        placements: list[Placement] = []
        for section in _SECTIONS:
            for spec in specs:
                if (spec.role, spec.grows) == section:
                    placements.append(Placement(spec, offset))
                    offset += round_up(spec.num_bytes, BUFFER_ALIGNMENT_BYTES)
            ends.append(offset)
        by_name = {placement.spec.name: placement for placement in placements}
        return ArenaLayout(
            placements=tuple(placements),
            state_bytes=ends[0],
            input_bytes=ends[1] - ends[0],
            growing=by_name[growing[0]] if growing else None,
            lane_bytes=round_up(offset, PAGE_BYTES),
            by_name=by_name,
        )

    @property
    def capsule_bytes(self) -> int:
        """Most bytes a capsule takes: STATE, INPUT and every position of what grows."""
        fixed_bytes = self.state_bytes + self.input_bytes
        if self.growing is None:
            return fixed_bytes
        return fixed_bytes + round_up(self.growing.spec.num_bytes, BUFFER_ALIGNMENT_BYTES)

    def used_bytes(self, num_positions: int) -> int:
        """Bytes that a capsule copies at this many used positions.

        Raises:
            SpecError: More positions than the growing buffer has, or fewer than none.
        """
        growing = self.growing
        most = 0 if growing is None else growing.spec.shape[0]
        if not 0 <= num_positions <= most:
            raise SpecError(
                "the layout has no such number of positions",
                expected=f"0 to {most}",
                found=num_positions,
            )
        if growing is None or not num_positions:
            return self.state_bytes + self.input_bytes
        return growing.offset + num_positions * (growing.spec.num_bytes // most)

    def digest(self) -> str:
        """Hash of names, shapes, dtypes, roles and offsets, as hex."""
        rows = [
            [p.spec.name, list(p.spec.shape), p.spec.dtype, p.spec.role.value, p.offset]
            + (["grows"] if p.spec.grows else [])
            for p in self.placements
        ]
        return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()[:32]


class ChannelRole(enum.Enum):
    """Which way a slot channel's payload goes, and who may write it."""

    GOAL = "goal"
    OBSERVATION = "observation"


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A typed part of a slot's payload.

    Attributes:
        name: Unique within the channel.
        shape: Extents.
        dtype: A key of :data:`ITEM_BYTES`.
        low: Smallest value allowed, or None. Units as ``units`` says.
        high: Largest value allowed, or None.
        units: SI unit of the values, for people ("m", "rad", "" for none).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None
    units: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes the field holds, without padding."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """What one slot of a channel holds, and how many slots there are.

    Slots of a channel lie in one address range at a constant pitch: writer ring
    ``w`` holds slots ``w * num_ring_slots`` onward. A graph reads them through an
    index, so that no address in it changes.

    Attributes:
        name: Unique within the model; part of buffer and binding names.
        role: GOAL (planners write) or OBSERVATION (policy nodes write).
        fields: Payload parts, in order, each on a 256-byte border.
        frame: Frame the values stand in (REP 105), or "" where none applies.
        num_rings: Writers admitted at once. One more ring belongs to the engine
            (restored goals) and comes last.
        num_ring_slots: Slots of each ring.
    """

    name: str
    role: ChannelRole
    fields: tuple[FieldSpec, ...]
    frame: str = ""
    num_rings: int = 4
    num_ring_slots: int = 4

    def field_offset(self, name: str) -> int:
        """Bytes from a slot's start to a field.

        Raises:
            SpecError: No field has this name.
        """
        offset = 0
        for part in self.fields:
            if part.name == name:
                return offset
            offset += round_up(part.num_bytes, BUFFER_ALIGNMENT_BYTES)
        raise SpecError(
            f"channel '{self.name}' has no field '{name}'",
            expected=", ".join(part.name for part in self.fields),
        )

    @property
    def payload_bytes(self) -> int:
        """Bytes of one slot that carry payload, padding between fields included."""
        return sum(round_up(part.num_bytes, BUFFER_ALIGNMENT_BYTES) for part in self.fields)

    @property
    def slot_bytes(self) -> int:
        """Pitch from one slot to the next: a power of two up to a page, then whole pages.

        So a ring is whole pages and can be mapped alone, and the pitch stays
        constant from one ring to the next.
        """
        if self.payload_bytes > PAGE_BYTES:
            return round_up(self.payload_bytes, PAGE_BYTES)
        return 1 << (max(BUFFER_ALIGNMENT_BYTES, self.payload_bytes) - 1).bit_length()

    @property
    def num_ring_slots_padded(self) -> int:
        """Slots of a ring, counting those that only fill its last page; never loaned."""
        return round_up(self.num_ring_slots, max(1, PAGE_BYTES // self.slot_bytes))

    @property
    def ring_bytes(self) -> int:
        """Bytes of one writer's ring; a multiple of the page."""
        return self.slot_bytes * self.num_ring_slots_padded

    @property
    def num_slots(self) -> int:
        """Index range of a graph over the channel, the engine's own ring included."""
        return (self.num_rings + 1) * self.num_ring_slots_padded


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of ``step`` that is at least ``value``."""
    return -(-value // step) * step
