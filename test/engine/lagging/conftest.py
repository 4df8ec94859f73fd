"""A device that does nothing until it is told to, in any order that is legal.

Three queues with marks between them, as on CUDA; the order is that of ``runtime.cuda_streams``
itself. Everything that the host may do while a device lags behind can be done over it.
"""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.backend import CapturedGraph, Fence, Program, SlotRead, Slots
from flashrt_ros.runtime.cpu import CpuBackend, CpuGraph
from flashrt_ros.runtime.cuda_driver import Driver
from flashrt_ros.runtime.cuda_streams import Stream, Streams
from flashrt_ros.runtime.spec import Role, ShapeKey


class _Mark:
    """A point in a queue."""

    def __init__(self) -> None:
        self.is_passed = False


Queue = deque[Callable[[], object] | _Mark | tuple[_Mark]]
"""Work, marks, and waits for marks of other queues."""


class SlowDriver(Driver):
    """Queues of work; :meth:`step` does one piece of one of them."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.laziest = -1  # a stream whose work is done when no other has any
        self.queues: dict[int, Queue] = {}
        self._newest: dict[int, _Mark] = {}
        self._num_events = 0
        self.num_steps = 0

    def submit(self, stream: int, work: Callable[[], object]) -> None:
        self._queue(stream).append(work)

    def step(self) -> bool:
        """Do one piece of work; False when there is none."""
        ready = {
            stream: queue
            for stream, queue in self.queues.items()
            if queue and not _is_stuck(queue[0])
        }
        if len(ready) > 1:
            ready.pop(self.laziest, None)
        if not ready:
            assert not any(self.queues.values()), "queues wait for each other"
            return False
        self.do(self.random.choice([*ready.values()]))
        return True

    def do(self, queue: Queue) -> None:
        """Do the next piece of work of a queue."""
        self.num_steps += 1
        entry = queue.popleft()
        if isinstance(entry, _Mark):
            entry.is_passed = True
        elif callable(entry):
            entry()

    def do_beside(self, stream: int) -> None:
        """Do one piece of work of any queue but one; all others may not wait for it."""
        self.do(
            next(q for s, q in self.queues.items() if s != stream and q and not _is_stuck(q[0]))
        )

    def is_idle(self, stream: int) -> bool:
        """Tell whether nothing is left to do in a queue."""
        return not any(isinstance(entry, _Mark) for entry in self._queue(stream))

    def create_event(self) -> int:
        self._num_events += 1
        return self._num_events

    def destroy_event(self, event: int) -> None:
        self._newest.pop(event, None)

    def record(self, event: int, stream: int) -> None:
        mark = self._newest[event] = _Mark()
        self._queue(stream).append(mark)

    def is_done(self, event: int) -> bool:
        return self._newest[event].is_passed

    def wait_event(self, event: int) -> None:
        while not self.is_done(event):
            assert self.step()

    def order(self, stream: int, event: int) -> None:
        self._queue(stream).append((self._newest[event],))

    def synchronize(self, stream: int) -> None:
        while self._queue(stream):
            assert self.step()

    def _queue(self, stream: int) -> Queue:
        return self.queues.setdefault(stream, deque())


def _is_stuck(entry: object) -> bool:
    return isinstance(entry, tuple) and not entry[0].is_passed


class _TorchStream:
    """Stands for torch's, which needs a device."""

    _count = 0

    def __init__(self, device: torch.device, priority: int) -> None:
        type(self)._count += 1
        self.cuda_stream = self._count


class SlowBackend(CpuBackend):
    """The host's backend, with nothing done until the driver is stepped."""

    def __init__(self, *, has_own_memory: bool = False) -> None:
        super().__init__()
        self.driver = SlowDriver()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "Stream", _TorchStream)
            self.streams = Streams(self.driver, self.device)
        self._has_own_memory = has_own_memory

    @property
    def has_own_memory(self) -> bool:
        return self._has_own_memory

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
        self.synchronize()
        graph = super().capture(program, key, arena, lane, slots, num_rows=num_rows)
        return SlowGraph(self, graph)  # type: ignore[return-value]

    def submit(self, stream: Stream, work: Callable[[], object]) -> None:
        self.driver.submit(stream.handle, work)
        self.streams.submitted(stream)

    def copy(self, dst_address: int, src_address: int, num_bytes: int) -> None:
        work = partial(ctypes.memmove, dst_address, src_address, num_bytes)
        self.submit(self.streams.before_state(), work)

    def copy_aside(self, dst_address: int, src_address: int, num_bytes: int) -> Fence:
        work = partial(ctypes.memmove, dst_address, src_address, num_bytes)
        self.submit(self.streams.before_copy(), work)
        return self.streams.fence()

    def write(self, address: int, data: bytes | bytearray, *, beside: bool = False) -> None:
        work = partial(ctypes.memmove, address, bytes(data), len(data))
        self.submit(self.streams.before_state(beside=beside), work)

    def read(self, address: int, num_bytes: int) -> bytes:
        found: list[bytes] = []
        self.submit(
            self.streams.before_state(),
            lambda: found.append(ctypes.string_at(address, num_bytes)),
        )
        self.streams.fence().wait()
        return found[0]

    def fence(self) -> Fence:
        return self.streams.fence()

    def fence_all(self) -> Fence:
        return self.streams.fence_all()

    @contextmanager
    def ordered(self) -> Iterator[None]:
        self.synchronize()
        yield

    def synchronize(self) -> None:
        self.streams.synchronize()


class SlowGraph(CapturedGraph):
    """A tape that is replayed when its turn on the device comes."""

    def __init__(self, backend: SlowBackend, graph: CpuGraph) -> None:
        self._backend = backend
        self._graph = graph

    @property
    def key(self) -> ShapeKey:
        return self._graph.key

    @property
    def lane(self) -> int:
        return self._graph.lane

    @property
    def num_ops(self) -> int:
        return self._graph.num_ops

    @property
    def written_buffers(self) -> frozenset[str]:
        return self._graph.written_buffers

    @property
    def touched_buffers(self) -> frozenset[str]:
        return self._graph.touched_buffers

    @property
    def written_roles(self) -> frozenset[Role]:
        return self._graph.written_roles

    def slot_reads(self) -> tuple[SlotRead, ...]:
        return self._graph.slot_reads()

    def private_tensors(self) -> tuple[torch.Tensor, ...]:
        return self._graph.private_tensors()

    def replay(self, *, beside: bool = False) -> None:
        streams = self._backend.streams
        keeps = self.written_roles & {Role.STATE, Role.INPUT}
        stream = streams.before_state(beside=beside) if keeps else streams.before_plan()
        self._backend.submit(stream, self._graph.replay)

    def rebase(self, lane: int) -> CapturedGraph:
        return SlowGraph(self._backend, self._graph.rebase(lane))

    def close(self) -> None:
        self._backend.synchronize()
        self._graph.close()


@pytest.fixture(scope="session")
def slow_backend() -> type[SlowBackend]:
    """Makes devices."""
    return SlowBackend
