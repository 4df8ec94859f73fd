"""What a backend offers: arenas, slots and captured graphs."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

from flashrt_ros.runtime.arena import Arena, Block
from flashrt_ros.runtime.spec import ArenaLayout, ChannelSpec, Role, ShapeKey

Buffers = Mapping[str, torch.Tensor]
"""Views over one lane, by buffer name."""

Slots = Mapping[str, torch.Tensor]
"""Views over all slots of a channel's field, by ``"channel.field"``: ``[num_slots, *shape]``.

``"noise.values"`` is the engine-owned ring of drawn noise where the model has a
``noise_shape``.
"""

Program = Callable[[Buffers, Slots], object]
"""Reads and writes buffers in place; reads slots. What it returns is ignored; it keeps nothing."""


@dataclass(frozen=True, slots=True)
class SlotRead:
    """One read of a slot in place: row ``i`` lies at ``address + i * pitch_bytes``.

    ``i`` is what the BINDING buffer holds when the graph is replayed, so the address
    that a replay really reads is :meth:`row_address` of it.

    Attributes:
        field: ``"channel.field"``, the key of :data:`Slots`.
        address: Address the graph reads row 0 from.
        pitch_bytes: Bytes from one row to the next.
        num_rows: Rows in the view.
        binding: Name of the BINDING buffer that holds the row's index.
    """

    field: str
    address: int
    pitch_bytes: int
    num_rows: int
    binding: str

    def row_address(self, index: int) -> int:
        """Address that a replay reads while the binding holds ``index``."""
        return self.address + index * self.pitch_bytes


class CapturedGraph(abc.ABC):
    """A program captured for one lane; replays it without running its Python.

    Graphs made by :meth:`rebase` share their private memory with the graph they came
    from, so that of one capture's graphs only one may be in replay at a time.
    """

    @property
    @abc.abstractmethod
    def key(self) -> ShapeKey:
        """Shape key it was captured under."""

    @property
    @abc.abstractmethod
    def lane(self) -> int:
        """Index of the lane it reads and writes."""

    @property
    @abc.abstractmethod
    def num_ops(self) -> int:
        """Operations of one replay."""

    @property
    @abc.abstractmethod
    def written_buffers(self) -> frozenset[str]:
        """Names of the buffers a replay writes."""

    @property
    @abc.abstractmethod
    def written_roles(self) -> frozenset[Role]:
        """Roles of the buffers a replay writes."""

    @abc.abstractmethod
    def slot_reads(self) -> tuple[SlotRead, ...]:
        """Return every read of a slot, in order."""

    @abc.abstractmethod
    def private_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the memory of intermediates, ``uint8``, whose bytes no replay depends on.

        A proof may overwrite it between replays. Constants are not part of it.
        """

    @abc.abstractmethod
    def replay(self) -> None:
        """Run the captured operations once, in order.

        Raises:
            BackendError: An operation failed, or the graph is closed; ``is_torn`` says
                whether STATE or INPUT may be written in part.
        """

    @abc.abstractmethod
    def rebase(self, lane: int) -> CapturedGraph:
        """Return the same graph over another lane, without running the program.

        Raises:
            SpecError: No lane has this index.
            BackendError: The graph is closed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Free what the graph holds; idempotent. Graphs rebased from it stay usable."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Backend(abc.ABC):
    """A device: its memory, and how programs become graphs on it."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Short name, as in configurations ("cpu")."""

    @abc.abstractmethod
    def create_arena(self, layout: ArenaLayout, *, num_lanes: int) -> Arena:
        """Allocate an arena, zeroed and not yet sealed; the caller closes it.

        Raises:
            SpecError: ``num_lanes`` is not positive.
            BackendError: There is no such memory.
        """

    @abc.abstractmethod
    def allocate_block(self, num_bytes: int) -> Block:
        """Allocate memory that :meth:`copy` reaches; the caller closes it.

        Raises:
            SpecError: ``num_bytes`` is not positive.
            BackendError: There is no such memory.
        """

    @abc.abstractmethod
    def import_slots(
        self, address: int, num_slots: int, channel: ChannelSpec
    ) -> dict[str, torch.Tensor]:
        """View the slots of a channel in place.

        Nothing is read or copied here, so pages may be mapped later. The caller keeps
        the address range mapped for as long as a tensor or graph over it is used.

        Args:
            address: Address of slot 0, 256-byte aligned.
            num_slots: Slots at a pitch of ``channel.slot_bytes``.
            channel: What a slot holds.

        Returns:
            ``"channel.field"`` → ``[num_slots, *shape]``, a strided view.

        Raises:
            SpecError: The address is not aligned or there are no slots.
        """

    @abc.abstractmethod
    def capture(
        self, program: Program, key: ShapeKey, arena: Arena, lane: int, slots: Slots
    ) -> CapturedGraph:
        """Run a program once over a lane and record what it does.

        The lane's bytes are put back, whether capture succeeds or not; a refused
        capture leaves the backend usable.

        Args:
            program: Reads and writes the lane's buffers, reads slots by
                ``slots[field].index_select(0, buffers[binding])``.
            key: Names the graph.
            arena: Sealed.
            lane: Lane to capture on; :meth:`CapturedGraph.rebase` gives the others.
            slots: Tensors the program may read.

        Raises:
            SealedArenaError: The arena is not sealed.
            SpecError: No lane has this index.
            CaptureError: The program did what a replay can't repeat; names the
                operation and the source line.
        """

    @abc.abstractmethod
    def copy(self, dst_address: int, src_address: int, num_bytes: int) -> None:
        """Copy bytes between arenas, blocks and slots, ordered after earlier replays.

        Both ranges must be mapped and must not overlap.
        """

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Return when every replay and copy submitted so far has completed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free what the backend holds; idempotent. Close graphs and arenas first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
