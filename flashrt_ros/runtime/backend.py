"""What a backend offers: arenas, slots and captured graphs."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
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


class Fence(abc.ABC):
    """A point in what was submitted to a backend; done once the device has come past it."""

    @property
    @abc.abstractmethod
    def is_done(self) -> bool:
        """Whether the device has come past it; asks, never waits.

        Raises:
            DeviceLostError: The device's context is gone.
        """

    @abc.abstractmethod
    def wait(self) -> None:
        """Return when the device has come past it.

        Raises:
            DeviceLostError: The device's context is gone.
        """


class _Passed(Fence):
    """A fence that is done."""

    @property
    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


PASSED: Fence = _Passed()
"""The fence of whatever is complete when its call returns."""


class CapturedGraph(abc.ABC):
    """A program captured for one lane; replays it without running its Python.

    Graphs made by :meth:`rebase` share their private memory with the graph they came
    from, so that of one capture's graphs only one may be in replay at a time. A backend
    keeps to that by itself.
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
    def touched_buffers(self) -> frozenset[str]:
        """Names of the buffers a replay reads or writes."""

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
    def replay(self, *, beside: bool = False) -> None:
        """Submit the captured operations once, in order; ``Backend.fence`` tells when they ran.

        Replays, copies and writes take effect in the order of their calls.

        Args:
            beside: Don't wait for graphs under way that write neither STATE nor INPUT (the
                plan's nodes before its commit). For a graph that writes STATE or INPUT and
                touches nothing that those write, and writes nothing that those read.

        Raises:
            BackendError: An operation failed, or the graph is closed; ``is_torn`` says
                whether STATE or INPUT may be written in part.
            DeviceLostError: The device's context is gone.
        """

    @abc.abstractmethod
    def rebase(self, lane: int) -> CapturedGraph:
        """Return the same graph over another lane; the program is not judged again.

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
        """Short name, as in configurations ("cpu", "cuda")."""

    @property
    @abc.abstractmethod
    def device(self) -> torch.device:
        """Where arenas lie, and where a model's weights belong."""

    @property
    @abc.abstractmethod
    def has_own_memory(self) -> bool:
        """Whether blocks lie in other memory than the host's.

        False on a host, and on a device integrated with it: there a spill to the host
        would free nothing.
        """

    @abc.abstractmethod
    def create_arena(self, layout: ArenaLayout, *, num_lanes: int) -> Arena:
        """Allocate an arena, zeroed and not yet sealed; the caller closes it.

        Raises:
            SpecError: ``num_lanes`` is not positive.
            BackendError: There is no such memory.
        """

    @abc.abstractmethod
    def allocate_block(self, num_bytes: int) -> Block:
        """Allocate memory beside the lanes that :meth:`copy` reaches; the caller closes it.

        Raises:
            SpecError: ``num_bytes`` is not positive.
            BackendError: There is no such memory.
        """

    @abc.abstractmethod
    def allocate_host_block(self, num_bytes: int) -> Block:
        """Allocate memory that the host sees by ``Block.view`` and graphs read in place.

        Raises:
            SpecError: ``num_bytes`` is not positive.
            BackendError: There is no such memory, or it can't be locked.
        """

    @property
    @abc.abstractmethod
    def reads_host_in_place(self) -> bool:
        """Whether graphs can read registered host memory; without it slots are staged."""

    @abc.abstractmethod
    def register(self, address: int, num_bytes: int) -> None:
        """Let graphs read mapped host memory in place, from now until :meth:`unregister`.

        Args:
            address: Page-aligned; stays mapped, to the same pages.
            num_bytes: Whole pages.

        Raises:
            BackendError: The memory can't be locked.
        """

    @abc.abstractmethod
    def unregister(self, address: int) -> None:
        """Undo :meth:`register` of the range at this address; waits for the device."""

    @abc.abstractmethod
    def import_slots(
        self, address: int, num_slots: int, channel: ChannelSpec
    ) -> dict[str, torch.Tensor]:
        """View the slots of a channel in place.

        Nothing is read or copied here. The caller keeps the address range mapped, and
        registered, for as long as a graph over it is used.

        Args:
            address: Address of slot 0, 256-byte aligned; of host memory or of a block.
            num_slots: Slots at a pitch of ``channel.slot_bytes``.
            channel: What a slot holds.

        Returns:
            ``"channel.field"`` → ``[num_slots, *shape]``, a strided view.

        Raises:
            SpecError: The address is not aligned or there are no slots.
        """

    @abc.abstractmethod
    def capture(
        self,
        program: Program,
        key: ShapeKey,
        arena: Arena,
        lane: int,
        slots: Slots,
        *,
        num_rows: int | None = None,
    ) -> CapturedGraph:
        """Run a program once over a lane, or over a batch of them, and record what it does.

        The lanes' bytes are put back, whether capture succeeds or not; a refused
        capture leaves the backend usable.

        Args:
            program: Reads and writes the lane's buffers, reads slots by
                ``slots[field].index_select(0, buffers[binding])``.
            key: Names the graph.
            arena: Sealed.
            lane: Lane to capture on; :meth:`CapturedGraph.rebase` gives the others.
            slots: Tensors the program may read.
            num_rows: Lanes from ``lane`` on that the program runs over as one batch: it
                is given views ``[num_rows, *shape]``, and a whole ``BINDING`` of them
                says which slot each row reads. None for one lane and views ``[*shape]``.

        Raises:
            SealedArenaError: The arena is not sealed.
            SpecError: There are no such lanes.
            CaptureError: The program did what a replay can't repeat; names the
                operation and the source line.
        """

    @abc.abstractmethod
    def copy(self, dst_address: int, src_address: int, num_bytes: int) -> None:
        """Copy bytes between arenas, blocks and slots, in the order of the calls.

        Both ranges must be mapped and must not overlap.
        """

    @abc.abstractmethod
    def copy_aside(self, dst_address: int, src_address: int, num_bytes: int) -> Fence:
        """Copy bytes after what is submitted so far, beside plan nodes that follow.

        What writes STATE or INPUT, and every :meth:`copy`, waits for it; a plan's nodes
        before its commit don't. For snapshots, and for lanes that nobody replays.

        Returns:
            Done once the copy is.
        """

    @abc.abstractmethod
    def write(self, address: int, data: bytes | bytearray, *, beside: bool = False) -> None:
        """Copy bytes of the host into a lane or block, in the order of the calls.

        Args:
            address: Where to.
            data: May change as soon as the call returns.
            beside: Don't wait for plan nodes under way, as in ``CapturedGraph.replay``.
        """

    @abc.abstractmethod
    def read(self, address: int, num_bytes: int) -> bytes:
        """Copy bytes of a lane or block out, as of all that is submitted; waits for it."""

    @abc.abstractmethod
    def fence(self) -> Fence:
        """Mark the last replay, copy or write that was submitted.

        What it did not have to wait for may be under way still: plan nodes, where it runs
        beside them, and copies made aside, where it is a plan node.
        """

    @abc.abstractmethod
    def fence_all(self) -> Fence:
        """Mark everything that was submitted so far."""

    @abc.abstractmethod
    def ordered(self) -> AbstractContextManager[None]:
        """Run torch operators of the block in the order of replays and copies."""

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
