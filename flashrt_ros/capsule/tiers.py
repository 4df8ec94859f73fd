"""Where payloads lie: memory tiers with a quota each, the disk, and who holds what where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashrt_ros.runtime.arena import Block


DEVICE = "device"
HOST = "host"
DISK = "disk"
TIERS = (DEVICE, HOST, DISK)
"""Every tier there may be, fastest first. Without a device of its own memory is "host"."""

AHEAD_BYTES = 1 << 20
"""Blocks from this size up are all allocated at the start: one takes long enough to miss a tick."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A payload in a folder of capsule files.

    Attributes:
        folder: Which folder, as the keeper of files names it ("kept" or "spilled").
        key: Name of the file in that folder.
        num_bytes: Bytes of payload, as counted against the disk's quota.
    """

    folder: str
    key: str
    num_bytes: int


@dataclass(slots=True, eq=False)
class Residence:
    """The copies of one payload: at most one in each tier, all with the same bytes.

    Attributes:
        blocks: By memory tier, fastest first.
        file: On disk, or None.
        last_use: Grows with every use; the smallest is the least recently used.
        num_holds: Background jobs that read or write a copy; none of its memory is
            released before they end.
        is_gone: The capsule was dropped; the last hold gives the memory back.
        anchor: Memory tier whose copy stays for as long as the capsule does, because
            somebody reads it in slices; "" for none.
        reserved: Memory tier whose block is one of those set aside for automatic capsules;
            "" for none.
    """

    blocks: dict[str, Block] = field(default_factory=dict)
    file: FilePlace | None = None
    last_use: int = 0
    num_holds: int = 0
    is_gone: bool = False
    anchor: str = ""
    reserved: str = ""

    @property
    def is_in_memory(self) -> bool:
        """Whether a verb can use the payload at once."""
        return bool(self.blocks)

    @property
    def tier(self) -> str:
        """Fastest tier that holds the payload."""
        return next(iter(self.blocks), DISK)

    def put(self, tier: str, block: Block) -> None:
        """Note a copy in a memory tier; the order of tiers is kept."""
        self.blocks[tier] = block
        if len(self.blocks) > 1:
            ordered = sorted(self.blocks.items(), key=lambda pair: TIERS.index(pair[0]))
            self.blocks = dict(ordered)

    def is_redundant(self, tier: str) -> bool:
        """Tell whether another copy would remain without the one in this tier."""
        return len(self.blocks) + (self.file is not None) > 1

    def has_below(self, tier: str) -> bool:
        """Tell whether a slower tier than this one holds a copy."""
        place = TIERS.index(tier)
        return self.file is not None or any(TIERS.index(t) > place for t in self.blocks)


class MemoryTier:
    """Blocks of one size in one kind of memory, allocated once and reused.

    Fresh pages cost several times the copy, so a block that comes back serves the next
    capsule. Large blocks are made at construction, as many as the quota admits, small ones
    when they are needed first. Blocks for automatic capsules are set aside at construction
    in any case, and don't count against the quota.

    Attributes:
        num_arriving: Blocks handed out to be filled by a move that is under way; whoever
            gets them can give way afterwards.

    Args:
        name: :data:`DEVICE` or :data:`HOST`.
        allocate: Makes a block of a given size.
        block_bytes: Size of every block.
        quota_bytes: What callers' capsules may take together.
        num_reserved: Blocks set aside for automatic capsules.

    Raises:
        BackendError: There is no such memory; none is kept.
    """

    def __init__(
        self,
        name: str,
        allocate: Callable[[int], Block],
        *,
        block_bytes: int,
        quota_bytes: int,
        num_reserved: int = 0,
    ) -> None:
        self.name = name
        self.block_bytes = block_bytes
        self.quota_bytes = quota_bytes
        self._allocate = allocate
        self.num_arriving = 0
        self._num_used = 0
        self._free: list[Block] = []
        self._reserved: list[Block] = []
        num_ahead = quota_bytes // block_bytes if block_bytes >= AHEAD_BYTES else 0
        try:
            for blocks, count in ((self._reserved, num_reserved), (self._free, num_ahead)):
                blocks.extend(allocate(block_bytes) for _ in range(count))
        except BaseException:
            self.close()
            raise

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that count against the quota."""
        return self._num_used * self.block_bytes

    @property
    def has_room(self) -> bool:
        """Whether the quota leaves room for one more block."""
        return self.used_bytes + self.block_bytes <= self.quota_bytes

    def take(self) -> Block:
        """Hand a block out; only where :attr:`has_room`.

        Raises:
            BackendError: There is no memory for a small one; nothing is handed out.
        """
        assert self.has_room, self.name
        block = self._free.pop() if self._free else self._allocate(self.block_bytes)
        self._num_used += 1
        return block

    def give(self, block: Block) -> None:
        """Take a block back that :meth:`take` handed out."""
        self._num_used -= 1
        self._free.append(block)

    def take_reserved(self) -> Block | None:
        """Hand out a block set aside for automatic capsules, None when all are out."""
        return self._reserved.pop() if self._reserved else None

    def give_reserved(self, block: Block) -> None:
        """Take a block back that :meth:`take_reserved` handed out, or one in its place."""
        self._reserved.append(block)

    def close(self) -> None:
        """Free the blocks that are not handed out. Idempotent."""
        for block in (*self._free, *self._reserved):
            block.close()
        self._free.clear()
        self._reserved.clear()


class DiskTier:
    """What the files of the engine's own capsules may take on disk.

    Args:
        quota_bytes: Bytes of payload.
    """

    name = DISK

    def __init__(self, quota_bytes: int) -> None:
        self.quota_bytes = quota_bytes
        self.used_bytes = 0

    def has_room(self, num_bytes: int) -> bool:
        """Whether the quota leaves room for a payload of this size."""
        return self.used_bytes + num_bytes <= self.quota_bytes
