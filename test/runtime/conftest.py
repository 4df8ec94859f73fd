from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.backend import Backend, CapturedGraph, Program
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.cuda import CudaBackend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.spec import (
    ArenaLayout,
    BufferSpec,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
    ShapeKey,
)

# The number of threads changes the bytes that some operators give.
torch.set_num_threads(1)

BACKENDS = [
    pytest.param(CpuBackend, id="cpu"),
    pytest.param(CudaBackend, id="cuda", marks=pytest.mark.gpu),
]
"""A backend joins every test of the conformance suite by a line here."""

SPECS = (
    BufferSpec("memory", (4, 8), "float32", Role.STATE),
    BufferSpec("count", (1,), "int64", Role.STATE),
    BufferSpec("goal", (8,), "float32", Role.INPUT),
    BufferSpec("goal_slot", (1,), "int64", Role.BINDING),
    BufferSpec("out", (4, 8), "float32", Role.OUTPUT),
    BufferSpec("hidden", (4, 8), "float32", Role.SCRATCH),
    BufferSpec("image", (1, 3, 16, 16), "float32", Role.SCRATCH),
)

GOAL = ChannelSpec(
    "goal",
    ChannelRole.GOAL,
    (FieldSpec("values", (8,), "float32"), FieldSpec("mask", (8,), "bool")),
    num_rings=1,
    num_ring_slots=2,
)


def lane_bytes(backend: Backend, arena: Arena, lane: int) -> bytes:
    """Every buffer's bytes at its offset, wherever the backend keeps it; zero between them."""
    data = bytearray(arena.layout.lane_bytes)
    views = arena.views(lane)
    with backend.ordered():
        for place in arena.layout.placements:
            flat = views[place.spec.name].reshape(-1).view(torch.uint8).cpu().numpy()
            data[place.offset : place.offset + place.spec.num_bytes] = flat.tobytes()
    return bytes(data)


def put_lane_bytes(backend: Backend, arena: Arena, lane: int, data: bytes) -> None:
    """Put back what :func:`lane_bytes` gave."""
    views = arena.views(lane)
    with backend.ordered():
        for place in arena.layout.placements:
            part = bytearray(data[place.offset : place.offset + place.spec.num_bytes])
            flat = torch.frombuffer(part, dtype=torch.uint8)
            views[place.spec.name].reshape(-1).view(torch.uint8).copy_(flat)


class World:
    """A backend, an arena of lanes full of numbers, and a channel of slots."""

    def __init__(
        self, backend: Backend, *, num_lanes: int = 3, specs: Sequence[BufferSpec] = SPECS
    ) -> None:
        self.backend = backend
        self.layout = ArenaLayout.of(specs)
        self.arena = backend.create_arena(self.layout, num_lanes=num_lanes)
        self.slot_block = backend.allocate_host_block(GOAL.slot_bytes * GOAL.num_slots)
        self.slots = backend.import_slots(self.slot_block.address, GOAL.num_slots, GOAL)
        with backend.ordered():
            self.slots["goal.values"].copy_(
                torch.arange(8.0) + 100.0 * torch.arange(GOAL.num_slots)[:, None]
            )
        self.arena.seal()
        for lane in range(num_lanes):
            self.fill(lane, seed=lane)

    def views(self, lane: int = 0) -> dict[str, torch.Tensor]:
        return self.arena.views(lane)

    def fill(self, lane: int, *, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with self.backend.ordered():
            for view in self.views(lane).values():
                if view.dtype.is_floating_point:
                    view.copy_(torch.randn(view.shape, generator=generator))

    def set(self, name: str, value: float, lane: int = 0) -> None:
        with self.backend.ordered():
            self.views(lane)[name].fill_(value)

    def get(self, name: str, lane: int = 0) -> Any:
        with self.backend.ordered():
            return self.views(lane)[name].tolist()

    def poison(self, graph: CapturedGraph, value: int) -> None:
        with self.backend.ordered():
            for tensor in graph.private_tensors():
                tensor.fill_(value)

    def bytes_of(self, lane: int = 0) -> bytes:
        return lane_bytes(self.backend, self.arena, lane)

    def put_bytes(self, data: bytes, lane: int = 0) -> None:
        put_lane_bytes(self.backend, self.arena, lane, data)

    def all_bytes(self) -> list[bytes]:
        return [self.bytes_of(lane) for lane in range(self.arena.num_lanes)]

    def capture(self, program: Program, key: ShapeKey = ("p",), lane: int = 0) -> CapturedGraph:
        return self.backend.capture(program, key, self.arena, lane, self.slots)

    def graphs(self, programs: dict[ShapeKey, Program]) -> GraphSet:
        return GraphSet(self.backend, programs, self.arena, self.slots)

    def eager(self, program: Program, lane: int = 0) -> bytes:
        """Run a program without a capture; put the lane back, return what it made of it."""
        before = self.bytes_of(lane)
        with self.backend.ordered(), torch.no_grad():
            program(self.views(lane), self.slots)
        after = self.bytes_of(lane)
        self.put_bytes(before, lane)
        return after

    def replayed(self, graph: CapturedGraph) -> bytes:
        """Replay a graph; put the lane back, return what it made of it."""
        before = self.bytes_of(graph.lane)
        graph.replay()
        self.backend.synchronize()
        after = self.bytes_of(graph.lane)
        self.put_bytes(before, graph.lane)
        return after


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with request.param() as backend:
        yield backend


@pytest.fixture
def world(backend: Backend) -> Iterator[Any]:
    world = World(backend)
    yield world
    world.arena.close()
    world.slot_block.close()


@pytest.fixture
def lane_access() -> tuple[Callable[..., bytes], Callable[..., None]]:
    """Return what reads and what writes all bytes of a lane."""
    return lane_bytes, put_lane_bytes


@pytest.fixture
def line_of() -> Callable[[Program, str], str]:
    """Return ``file:line`` of the line of a function that carries a marker."""

    def find(function: Program, marker: str = "# refused") -> str:
        lines, start = inspect.getsourcelines(function)
        found = [start + at for at, line in enumerate(lines) if marker in line]
        assert len(found) == 1
        return f"{inspect.getsourcefile(function)}:{found[0]}"

    return find
