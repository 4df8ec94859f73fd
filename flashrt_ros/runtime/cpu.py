"""The CPU backend: programs become op tapes.

A capture runs the program once, operator by operator, and writes each one down with
the memory it read and wrote. A replay calls the same operators, in order, into memory
given beforehand, without the program's Python: byte-equal to running the program, and
under the rules of a captured device graph. It buys the semantics, not speed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from operator import length_hint

import torch

from flashrt_ros.errors import BackendError, CaptureError
from flashrt_ros.runtime.arena import Arena, Block
from flashrt_ros.runtime.backend import (
    PASSED,
    Backend,
    CapturedGraph,
    Fence,
    Program,
    SlotRead,
    Slots,
)
from flashrt_ros.runtime.batch import lane_views
from flashrt_ros.runtime.rehearsal import Rehearsal, check_equal, check_sealed
from flashrt_ros.runtime.slot_views import view_slots
from flashrt_ros.runtime.spec import (
    CAPSULE_ROLES,
    ArenaLayout,
    ChannelSpec,
    Role,
    ShapeKey,
)
from flashrt_ros.runtime.tape import LaneRegion, Tape

_POISON = 0xFF
"""Fills private memory before a check; reads as NaN in every floating dtype."""


class CpuGraph(CapturedGraph):
    """A tape bound to one lane, or to a batch of them.

    Args:
        key: Shape key.
        tape: What to replay.
        arena: Sealed.
        lane: Lane to bind to; of a batch, the first.
        num_rows: Lanes of the batch, None for a graph over one lane.
        slot_reads: Reads of slots, in order.
        private: ``uint8`` memory of the intermediates, shared with graphs rebased from
            this one.
    """

    def __init__(
        self,
        key: ShapeKey,
        tape: Tape,
        arena: Arena,
        lane: int,
        num_rows: int | None,
        slot_reads: tuple[SlotRead, ...],
        private: torch.Tensor,
    ) -> None:
        self._key = key
        self._tape = tape
        self._arena = arena
        self._lane = lane
        self._num_rows = num_rows
        self._slot_reads = slot_reads
        self._private: torch.Tensor | None = private
        self._calls: list[Callable[[], object]] = tape.bind(
            lane_views(arena, lane, num_rows), private
        )

    @property
    def key(self) -> ShapeKey:
        """Shape key it was captured under."""
        return self._key

    @property
    def lane(self) -> int:
        """Index of the lane it reads and writes."""
        return self._lane

    @property
    def num_ops(self) -> int:
        """Operators called by one replay."""
        return len(self._tape.ops)

    @property
    def written_buffers(self) -> frozenset[str]:
        """Names of the buffers a replay writes."""
        return self._tape.written_buffers

    @property
    def touched_buffers(self) -> frozenset[str]:
        """Names of the buffers a replay reads or writes."""
        return self._tape.touched_buffers

    @property
    def written_roles(self) -> frozenset[Role]:
        """Roles of the buffers a replay writes."""
        return frozenset(
            self._arena.layout.by_name[name].spec.role for name in self._tape.written_buffers
        )

    def slot_reads(self) -> tuple[SlotRead, ...]:
        """Return every read of a slot, in order."""
        return self._slot_reads

    def private_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the memory of intermediates, ``uint8``; empty once closed."""
        return () if self._private is None else (self._private,)

    def replay(self, *, beside: bool = False) -> None:
        """Call the operators in order; returns when the last one has.

        Args:
            beside: Nothing runs beside on a host; taken for the devices on which it does.

        Raises:
            BackendError: An operator failed; says which, and whether STATE or INPUT is torn. Or the
                graph is closed.
        """
        self._check_open()
        calls = iter(self._calls)
        try:
            with torch.no_grad():
                for call in calls:
                    call()
        except Exception as error:
            at = len(self._calls) - length_hint(calls) - 1
            op = self._tape.ops[at]
            raise BackendError(
                f"replay of {self._key} on lane {self._lane} failed in operator {at + 1} of "
                f"{self.num_ops}, {op.name}, captured at {op.source}",
                is_torn=self._is_torn(at),
                found=f"{type(error).__name__}: {error}",
            ) from error

    def rebase(self, lane: int) -> CpuGraph:
        """Bind the same tape to another lane."""
        private = self._check_open()
        return CpuGraph(
            self._key, self._tape, self._arena, lane, self._num_rows, self._slot_reads, private
        )

    def close(self) -> None:
        """Drop the bound operators; idempotent."""
        self._calls = []
        self._private = None

    def _check_open(self) -> torch.Tensor:
        if self._private is None:
            raise BackendError(
                f"graph {self._key} on lane {self._lane} is closed", fix="capture it again"
            )
        return self._private

    def _is_torn(self, at: int) -> bool:
        by_name = self._arena.layout.by_name
        return any(
            by_name[window.region.buffer].spec.role in CAPSULE_ROLES
            for op in self._tape.ops[: at + 1]
            for window in op.writes
            if isinstance(window.region, LaneRegion)
        )


class CpuBackend(Backend):
    """Captures programs as op tapes on the host.

    Every call runs to its end before it returns. The number of intra-op threads
    changes the bytes that some operators give: set it once, before the first capture.
    """

    def __init__(self) -> None:
        self._rehearsal = Rehearsal()

    @property
    def name(self) -> str:
        """The name in configurations."""
        return "cpu"

    @property
    def device(self) -> torch.device:
        """The host."""
        return torch.device("cpu")

    @property
    def has_own_memory(self) -> bool:
        """No: lanes and blocks are the process's."""
        return False

    @property
    def reads_host_in_place(self) -> bool:
        """Yes: all memory is the host's."""
        return True

    def create_arena(self, layout: ArenaLayout, *, num_lanes: int) -> Arena:
        """Allocate an arena in the process's memory."""
        return Arena(layout, num_lanes=num_lanes)

    def allocate_block(self, num_bytes: int) -> Block:
        """Allocate pages of the process."""
        return Block(num_bytes)

    def allocate_host_block(self, num_bytes: int) -> Block:
        """Allocate pages of the process."""
        return Block(num_bytes)

    def register(self, address: int, num_bytes: int) -> None:
        """Do nothing: graphs read all mapped memory."""

    def unregister(self, address: int) -> None:
        """Do nothing."""

    def import_slots(
        self, address: int, num_slots: int, channel: ChannelSpec
    ) -> dict[str, torch.Tensor]:
        """View the slots of a channel in place."""
        return view_slots(address, num_slots, channel, _host_bytes)

    def capture(
        self,
        program: Program,
        key: ShapeKey,
        arena: Arena,
        lane: int,
        slots: Slots,
        *,
        num_rows: int | None = None,
    ) -> CpuGraph:
        """Run a program once over a lane, or a batch, and record its operators; see ``Backend``.

        The tape is then replayed once with its private memory poisoned, and refused
        unless the lanes' bytes are those that the program itself gave.
        """
        check_sealed(key, arena)
        lane_views(arena, lane, num_rows)  # refuses lanes that are not there
        address, num_bytes = arena.lane_address(lane), arena.layout.lane_bytes * (num_rows or 1)
        before = ctypes.string_at(address, num_bytes)
        with torch.inference_mode(False), torch.no_grad():
            try:
                tape, slot_reads = self._rehearsal.record(
                    program, key, arena, lane, slots, num_rows
                )
                eager = ctypes.string_at(address, num_bytes)
                ctypes.memmove(address, before, num_bytes)
                private = Block(max(1, tape.plan.num_bytes)).tensor(
                    "uint8", (max(1, tape.plan.num_bytes),)
                )
                graph = CpuGraph(key, tape, arena, lane, num_rows, slot_reads, private)
                private.fill_(_POISON)
                _replay_once(graph)
                check_equal(key, arena, eager, ctypes.string_at(address, num_bytes))
            finally:
                ctypes.memmove(address, before, num_bytes)
        return graph

    def copy(self, dst_address: int, src_address: int, num_bytes: int) -> None:
        """Copy bytes; done when it returns."""
        ctypes.memmove(dst_address, src_address, num_bytes)

    def copy_aside(self, dst_address: int, src_address: int, num_bytes: int) -> Fence:
        """Copy bytes; done when it returns."""
        ctypes.memmove(dst_address, src_address, num_bytes)
        return PASSED

    def write(self, address: int, data: bytes | bytearray, *, beside: bool = False) -> None:
        """Copy bytes in; done when it returns."""
        source = data if isinstance(data, bytes) else bytes(data)
        ctypes.memmove(address, source, len(source))

    def read(self, address: int, num_bytes: int) -> bytes:
        """Copy bytes out."""
        return ctypes.string_at(address, num_bytes)

    def fence(self) -> Fence:
        """Return a fence that is done."""
        return PASSED

    def fence_all(self) -> Fence:
        """Return a fence that is done."""
        return PASSED

    def ordered(self) -> AbstractContextManager[None]:
        """Do nothing: every operator has run when it returns."""
        return nullcontext()

    def synchronize(self) -> None:
        """Return at once: no call of this backend leaves work behind."""

    def close(self) -> None:
        """Forget what refused programs left behind; idempotent."""
        self._rehearsal.clear()


def _replay_once(graph: CpuGraph) -> None:
    try:
        graph.replay()
    except BackendError as error:
        raise CaptureError(
            f"program {graph.key} can't be captured: it ran, but its replay failed",
            found=str(error),
        ) from error


def _host_bytes(address: int, num_bytes: int) -> torch.Tensor:
    memory = (ctypes.c_char * num_bytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8)
