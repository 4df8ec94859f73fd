"""What the CUDA backend promises beyond the conformance suite."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from flashrt_ros.errors import BackendError, CaptureError, DeviceMemoryError
from flashrt_ros.runtime.backend import Buffers, Slots
from flashrt_ros.runtime.cuda import CudaBackend
from flashrt_ros.runtime.spec import (
    PAGE_BYTES,
    ArenaLayout,
    BufferSpec,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
)

pytestmark = pytest.mark.gpu

BIG = 1 << 20
CHANNEL = ChannelSpec(
    "g", ChannelRole.GOAL, (FieldSpec("v", (PAGE_BYTES // 4,), "float32"),), num_rings=1
)


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    with CudaBackend() as backend:
        yield backend


def slow(buffers: Buffers, slots: Slots) -> None:
    """Keeps the device busy for some milliseconds, in SCRATCH only."""
    for _ in range(200):
        buffers["big"].mul_(1.0001)
    buffers["seen"].copy_(buffers["count"])


def counts(buffers: Buffers, slots: Slots) -> None:
    buffers["count"].add_(1)
    buffers["out"].copy_(buffers["count"])


def commits(buffers: Buffers, slots: Slots) -> None:
    buffers["kept"].copy_(buffers["seen"])


SPECS = [
    BufferSpec("count", (1,), "int64", Role.STATE),
    BufferSpec("kept", (1,), "int64", Role.STATE),
    BufferSpec("out", (1,), "int64", Role.OUTPUT),
    BufferSpec("seen", (1,), "int64", Role.SCRATCH),
    BufferSpec("big", (16 * BIG,), "float32", Role.SCRATCH),
]


class Bench:
    def __init__(self, backend: CudaBackend) -> None:
        self.backend = backend
        self.layout = ArenaLayout.of(SPECS)
        self.arena = backend.create_arena(self.layout, num_lanes=2)
        self.arena.seal()
        self.slow = backend.capture(slow, ("slow",), self.arena, 0, {})
        self.counts = backend.capture(counts, ("counts",), self.arena, 0, {})
        self.commits = backend.capture(commits, ("commits",), self.arena, 0, {})

    def value(self, name: str) -> int:
        place = self.layout.by_name[name]
        at = self.arena.lane_address(0) + place.offset
        return int.from_bytes(self.backend.read(at, 8), "little")

    def output(self) -> int:
        return ctypes.c_int64.from_address(self.arena.host_address(0, "out")).value


@pytest.fixture
def bench(backend: CudaBackend) -> Iterator[Bench]:
    bench = Bench(backend)
    yield bench
    for graph in (bench.slow, bench.counts, bench.commits):
        graph.close()
    bench.arena.close()


def test_graphs_take_effect_in_the_order_of_their_calls(bench: Bench) -> None:
    for _ in range(5):
        bench.slow.replay()
        bench.counts.replay()
        bench.commits.replay()
    assert (bench.value("count"), bench.value("kept")) == (5, 4)


def test_a_pop_beside_a_plan_does_not_wait_for_it(bench: Bench) -> None:
    bench.slow.replay()
    plan = bench.backend.fence()
    bench.counts.replay(beside=True)
    pop = bench.backend.fence()
    pop.wait()
    assert not plan.is_done
    assert bench.output() == 1
    bench.commits.replay()
    bench.backend.fence().wait()
    assert plan.is_done


def test_without_beside_it_waits(bench: Bench) -> None:
    bench.slow.replay()
    plan = bench.backend.fence()
    bench.counts.replay()
    bench.backend.fence().wait()
    assert plan.is_done


def test_an_output_is_on_the_host_when_its_fence_is_done(bench: Bench) -> None:
    for expected in range(1, 200):
        bench.counts.replay()
        bench.backend.fence().wait()
        assert bench.output() == expected


def test_a_copy_aside_holds_what_writes_state_back(bench: Bench, backend: CudaBackend) -> None:
    num_bytes = bench.layout.lane_bytes
    with backend.allocate_block(num_bytes) as block:
        for expected in range(1, 60):
            bench.counts.replay()
            fence = backend.copy_aside(block.address, bench.arena.lane_address(0), num_bytes)
            bench.counts.replay()
            fence.wait()
            held = int.from_bytes(backend.read(block.address, 8), "little")
            assert held == 2 * expected - 1


def test_writes_are_ordered_and_keep_nothing_of_the_caller(
    bench: Bench, backend: CudaBackend
) -> None:
    data = bytearray(8)
    for value in range(3000):
        data[:] = (10 * value).to_bytes(8, "little")
        backend.write(bench.arena.lane_address(0), data)
        data[:] = b"\xff" * 8
        bench.counts.replay()
    assert bench.value("count") == 10 * 2999 + 1


def test_large_writes_and_reads_come_in_parts(backend: CudaBackend) -> None:
    data = torch.arange(3 * BIG // 4, dtype=torch.int32).numpy().tobytes()
    with backend.allocate_block(len(data)) as block:
        backend.write(block.address, data)
        assert backend.read(block.address, len(data)) == data


def test_fences_stay_true_long_after_their_event_is_used_again(bench: Bench) -> None:
    bench.slow.replay()
    old = bench.backend.fence()
    fences = []
    for _ in range(200):
        bench.counts.replay(beside=True)
        fences.append(bench.backend.fence())
    fences[-1].wait()
    assert all(fence.is_done for fence in fences)
    old.wait()
    assert old.is_done


def test_registered_memory_is_read_in_place_and_can_be_mapped_anew(backend: CudaBackend) -> None:
    num_bytes = CHANNEL.slot_bytes * 2
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    numbers = (ctypes.c_float * (num_bytes // 4)).from_buffer(memory)
    address = ctypes.addressof(numbers)
    backend.register(address, num_bytes)
    slots = backend.import_slots(address, 2, CHANNEL)
    layout = ArenaLayout.of(
        [
            BufferSpec("g_slot", (1,), "int64", Role.BINDING),
            BufferSpec("got", (1,), "float32", Role.OUTPUT),
        ]
    )
    with backend.create_arena(layout, num_lanes=1) as arena:
        arena.seal()

        def latch(buffers: Buffers, slots: Slots) -> None:
            buffers["got"].copy_(slots["g.v"].index_select(0, buffers["g_slot"])[0, :1])

        graph = backend.capture(latch, ("latch",), arena, 0, slots)
        (read,) = graph.slot_reads()
        assert read.row_address(1) == address + CHANNEL.slot_bytes
        for value in (3.0, 4.0):
            numbers[CHANNEL.slot_bytes // 4] = value
            backend.write(arena.lane_address(0) + layout.by_name["g_slot"].offset, b"\1" + bytes(7))
            graph.replay()
            backend.fence().wait()
            got = ctypes.c_float.from_address(arena.host_address(0, "got")).value
            assert got == value
        backend.unregister(address)
        backend.register(address, num_bytes)
        numbers[CHANNEL.slot_bytes // 4] = 5.0
        graph.replay()
        backend.fence().wait()
        assert ctypes.c_float.from_address(arena.host_address(0, "got")).value == 5.0
        graph.close()


def test_capture_goes_on_while_another_thread_uses_the_device(backend: CudaBackend) -> None:
    layout = ArenaLayout.of(SPECS)
    is_over = threading.Event()
    failures: list[BaseException] = []

    def disturb() -> None:
        try:
            while not is_over.is_set():
                torch.ones(BIG, device="cuda").sum().item()
                torch.ones(BIG).cuda()
                torch.cuda.empty_cache()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    thread = threading.Thread(target=disturb)
    with backend.create_arena(layout, num_lanes=1) as arena:
        arena.seal()
        thread.start()
        try:
            for index in range(20):
                backend.capture(slow, ("slow", index), arena, 0, {}).close()
        finally:
            is_over.set()
            thread.join(timeout=30)
    assert not failures


def waits(buffers: Buffers, slots: Slots) -> None:
    buffers["count"].add_(1)
    torch.cuda.current_stream().synchronize()  # refused


def test_what_breaks_a_capture_is_named_and_the_backend_stays_usable(
    bench: Bench, backend: CudaBackend, line_of: Callable[..., str]
) -> None:
    for _ in range(3):
        with pytest.raises(CaptureError) as caught:
            backend.capture(waits, ("waits",), bench.arena, 0, {})
        assert caught.value.source == line_of(waits)
    bench.counts.replay()
    assert bench.value("count") == 1
    graph = backend.capture(counts, ("again",), bench.arena, 0, {})
    graph.replay()
    assert bench.value("count") == 2
    graph.close()


def test_memory_that_is_not_there_is_refused_with_figures(backend: CudaBackend) -> None:
    free = torch.cuda.mem_get_info()[0]
    with pytest.raises(DeviceMemoryError, match="bytes free") as caught:
        backend.allocate_block(1 << 50)
    assert str(1 << 50) in str(caught.value)
    assert torch.cuda.mem_get_info()[0] >= free
    layout = ArenaLayout.of([BufferSpec("x", (1 << 40,), "float32", Role.STATE)])
    with pytest.raises(DeviceMemoryError, match="arena"):
        backend.create_arena(layout, num_lanes=1)
    with backend.allocate_block(1 << 20):
        pass


def test_another_index_than_there_are_is_refused() -> None:
    count = torch.cuda.device_count()
    for index in (-1, count, 99):
        with pytest.raises(BackendError, match="no device 'cuda:"):
            CudaBackend(index)


LOST = """
import torch
from flashrt_ros.errors import DeviceLostError
from flashrt_ros.runtime.cuda import CudaBackend
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role
backend = CudaBackend()
arena = backend.create_arena(ArenaLayout.of([
    BufferSpec("at", (1,), "int64", Role.STATE), BufferSpec("x", (8,), "float32", Role.SCRATCH),
]), num_lanes=1)
arena.seal()
def reads(b, s): b["x"][:1].copy_(b["x"].index_select(0, b["at"]))
graph = backend.capture(reads, ("reads",), arena, 0, {})
backend.write(arena.lane_address(0), (10_000).to_bytes(8, "little"))
graph.replay()
try:
    backend.fence().wait()
except DeviceLostError as error:
    print("LOST", error)
try:
    graph.replay(); backend.synchronize()
except DeviceLostError:
    print("STILL")
graph.close(); arena.close(); backend.close()
print("CLOSED")
"""


def test_a_lost_device_says_so_and_can_still_be_closed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST], capture_output=True, text=True, timeout=120, check=False
    )
    assert "LOST the device is lost" in done.stdout, done.stderr
    assert "STILL" in done.stdout
    assert "CLOSED" in done.stdout, done.stderr


def test_an_integrated_device_has_no_memory_of_its_own() -> None:
    with CudaBackend(is_integrated=True) as backend:
        assert not backend.has_own_memory
        with backend.allocate_block(64) as block:
            backend.write(block.address, bytes(range(64)))
            backend.fence().wait()
            assert block.view() == bytes(range(64))
    with CudaBackend(is_integrated=False) as backend:
        assert backend.has_own_memory


def keeps(kept: list[Any]) -> Callable[[Buffers, Slots], None]:
    def program(buffers: Buffers, slots: Slots) -> None:
        kept.append(buffers["count"] * 2)

    return program


def test_memory_that_a_program_keeps_is_refused(bench: Bench, backend: CudaBackend) -> None:
    kept: list[Any] = []
    with pytest.raises(CaptureError, match="keeps"):
        backend.capture(keeps(kept), ("keeps",), bench.arena, 0, {})
