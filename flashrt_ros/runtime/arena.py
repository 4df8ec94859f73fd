"""Memory at fixed addresses: blocks of pages, and the arena that lanes lie in."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import mmap
from types import TracebackType
from typing import Self

import torch

from flashrt_ros.errors import BackendError, SealedArenaError, SpecError
from flashrt_ros.runtime.spec import PAGE_BYTES, ArenaLayout, Placement, round_up

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""Torch dtype of each name in ``spec.ITEM_BYTES``."""


class Block:
    """Private, zeroed pages at one address for the block's whole life.

    Every page is touched once here, so that no copy pays for a first touch: a block
    is meant to be allocated once and reused. Pages are huge where the kernel grants it.

    Ownership: tensors over the block (:meth:`tensor`) and memoryviews keep its pages
    alive; after :meth:`close` the pages go when the last of them goes.

    Attributes:
        address: Of the first byte, constant; a multiple of the page. Plain, as every copy asks.

    Args:
        num_bytes: Bytes wanted; rounded up to whole pages.

    Raises:
        SpecError: ``num_bytes`` is not positive.
        BackendError: The kernel has no such memory.
    """

    address: int

    def __init__(self, num_bytes: int) -> None:
        if num_bytes <= 0:
            raise SpecError("a block has no bytes", expected="a positive size", found=num_bytes)
        size = round_up(num_bytes, PAGE_BYTES)
        try:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise BackendError(
                f"a block of {size} bytes could not be allocated",
                found=str(error),
                fix="use fewer lanes or a smaller capsule quota",
            ) from error
        # A kernel built without huge pages refuses the advice; plain pages work as well.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
        self._pages: mmap.mmap | None = pages
        self._num_bytes = num_bytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        ctypes.memset(self.address, 0, size)

    @property
    def num_bytes(self) -> int:
        """Bytes asked for."""
        return self._num_bytes

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._pages is None

    def view(self) -> memoryview:
        """Return the bytes, writable, in place.

        Raises:
            BackendError: The block is closed.
        """
        return memoryview(self._open_pages())[: self._num_bytes]

    def tensor(self, dtype: str, shape: tuple[int, ...], offset: int = 0) -> torch.Tensor:
        """Return a contiguous tensor over part of the block, with a storage of its own.

        Args:
            dtype: A key of ``spec.ITEM_BYTES``.
            shape: Extents.
            offset: Bytes from the block's start; a multiple of the item size.

        Raises:
            BackendError: The block is closed.
        """
        count = 1
        for extent in shape:
            count *= extent
        flat = torch.frombuffer(self._open_pages(), dtype=DTYPES[dtype], count=count, offset=offset)
        return flat.view(shape)

    def close(self) -> None:
        """Let go of the pages; idempotent. Views and tensors stay valid."""
        # Never mmap.close(): torch.frombuffer holds the mmap object but exports no
        # buffer, so close() would unmap the pages under living tensors.
        self._pages = None

    def _open_pages(self) -> mmap.mmap:
        if self._pages is None:
            raise BackendError(f"a block of {self._num_bytes} bytes is closed")
        return self._pages

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Arena:
    """One allocation that holds every lane, at a constant pitch.

    Lane ``i`` starts at ``address + i * layout.lane_bytes``. Lanes may be added until
    the arena is sealed; graphs are captured only after it is, so that no address in a
    graph ever moves.

    Ownership: views keep the pages alive; see :class:`Block`.

    Args:
        layout: Offsets within a lane.
        num_lanes: Lanes to begin with, at least one.

    Raises:
        SpecError: ``num_lanes`` is not positive.
        BackendError: The kernel has no such memory.
    """

    def __init__(self, layout: ArenaLayout, *, num_lanes: int) -> None:
        if num_lanes <= 0:
            raise SpecError("an arena has no lanes", expected="at least one", found=num_lanes)
        self._layout = layout
        self._starts = [place.offset for place in layout.placements]
        self._num_lanes = num_lanes
        self._block = self._allocate(layout.lane_bytes * num_lanes)
        self._views: list[dict[str, torch.Tensor]] | None = None
        self._is_sealed = False

    @property
    def layout(self) -> ArenaLayout:
        """Offsets within a lane, equal for all."""
        return self._layout

    @property
    def num_lanes(self) -> int:
        """Lanes in the arena."""
        return self._num_lanes

    @property
    def address(self) -> int:
        """Address of lane 0."""
        return self._block.address

    @property
    def num_bytes(self) -> int:
        """Bytes of all lanes."""
        return self._layout.lane_bytes * self._num_lanes

    @property
    def is_sealed(self) -> bool:
        """Whether addresses are final."""
        return self._is_sealed

    def add_lanes(self, count: int) -> None:
        """Add lanes, zeroed; what lanes held moves to another address.

        Args:
            count: Lanes to add, at least one.

        Raises:
            SealedArenaError: The arena is sealed, or views of it were handed out: they
                would go on showing the old address. The arena is untouched.
            SpecError: ``count`` is not positive.
        """
        if self._is_sealed or self._views is not None:
            raise SealedArenaError(
                "lanes can't be added to the arena",
                expected="an arena before seal() and before its first view",
                found="a sealed arena" if self._is_sealed else "an arena with views",
                fix="ask for all lanes when the arena is made",
            )
        if count <= 0:
            raise SpecError("no lanes to add", expected="a positive count", found=count)
        block = self._allocate(self._layout.lane_bytes * (self._num_lanes + count))
        self._move(block, self._block, self.num_bytes)
        self._block.close()
        self._block = block
        self._num_lanes += count

    def seal(self) -> None:
        """Make every address final; idempotent. Capture is possible from now on."""
        self._is_sealed = True

    def lane_address(self, lane: int) -> int:
        """Address of a lane's first byte.

        Raises:
            SpecError: No lane has this index.
        """
        if not 0 <= lane < self._num_lanes:
            raise SpecError(
                f"the arena has no lane {lane}", expected=f"0 to {self._num_lanes - 1}", found=lane
            )
        return self._block.address + lane * self._layout.lane_bytes

    def locate(self, address: int) -> tuple[int, Placement, int] | None:
        """Say which byte of which buffer lies at an address.

        Returns:
            Lane, placement and bytes from the buffer's start; None outside the arena. An
            address in the padding counts to the buffer before it.
        """
        if not self.address <= address < self.address + self.num_bytes:
            return None
        lane, offset = divmod(address - self.address, self._layout.lane_bytes)
        place = self._placement_at(offset)
        return lane, place, offset - place.offset

    def host_address(self, lane: int, buffer: str) -> int:
        """Address at which the host reads an OUTPUT buffer, once its graph has completed.

        Raises:
            SpecError: No lane has this index.
        """
        return self.lane_address(lane) + self._layout.by_name[buffer].offset

    def pitch_bytes(self, buffer: str) -> int:
        """Bytes from a buffer in one lane to the same buffer in the next."""
        return self._layout.lane_bytes

    def views(self, lane: int) -> dict[str, torch.Tensor]:
        """Return a lane's buffers by name, each with a storage of its own.

        The tensors are the same objects at every call; the dictionary is the caller's.

        Raises:
            SpecError: No lane has this index.
            BackendError: The arena is closed.
        """
        self.lane_address(lane)
        if self._block.is_closed:
            raise BackendError("the arena is closed")
        if self._views is None:
            self._views = [self._make_views(index) for index in range(self._num_lanes)]
        return dict(self._views[lane])

    def _allocate(self, num_bytes: int) -> Block:
        """Allocate the lanes; a backend's own arena has its own kind of memory."""
        return Block(num_bytes)

    def _move(self, target: Block, source: Block, num_bytes: int) -> None:
        """Copy from one block to another of the same kind; done when it returns."""
        ctypes.memmove(target.address, source.address, num_bytes)

    def _placement_at(self, offset: int) -> Placement:
        return self._layout.placements[bisect.bisect_right(self._starts, offset) - 1]

    def _make_views(self, lane: int) -> dict[str, torch.Tensor]:
        start = lane * self._layout.lane_bytes
        return {
            name: self._block.tensor(place.spec.dtype, place.spec.shape, start + place.offset)
            for name, place in self._layout.by_name.items()
        }

    def close(self) -> None:
        """Let go of the pages; idempotent. Views handed out stay valid."""
        self._views = None
        self._block.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
