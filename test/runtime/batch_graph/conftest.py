"""A batch of rows full of numbers, between two other lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from flashrt_ros.runtime.backend import Backend, Program
from flashrt_ros.runtime.batch import Batch, with_row_mask
from flashrt_ros.runtime.spec import (
    ArenaLayout,
    BufferSpec,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
    ShapeKey,
)
from test.runtime.batch_graph.programs import ENCODER, MIXER

NUM_ROWS = 4
NUM_SLOTS = 6
FIRST_LANE = 1
KEY: ShapeKey = ("p",)
KEPT = (Role.STATE, Role.INPUT, Role.OUTPUT)
LAYOUT = ArenaLayout.of(
    with_row_mask(
        (
            BufferSpec("memory", (4, 8), "float32", Role.STATE),
            BufferSpec("count", (1,), "int64", Role.STATE),
            BufferSpec("goal", (8,), "float32", Role.INPUT),
            BufferSpec("goal_slot", (1,), "int64", Role.BINDING),
            BufferSpec("out", (4, 8), "float32", Role.OUTPUT),
            BufferSpec("hidden", (4, 8), "float32", Role.SCRATCH),
            BufferSpec("image", (1, 3, 16, 16), "float32", Role.SCRATCH),
        )
    )
)
GOAL = ChannelSpec("goal", ChannelRole.GOAL, (FieldSpec("values", (8,), "float32"),))


class Rows:
    """A batch between two other lanes, full of numbers, and a slot for each row."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.arena = backend.create_arena(LAYOUT, num_lanes=NUM_ROWS + 2)
        self.arena.seal()
        self.block = backend.allocate_host_block(NUM_SLOTS * GOAL.slot_bytes)
        self.slots = backend.import_slots(self.block.address, NUM_SLOTS, GOAL)
        self.batch = Batch(backend, self.arena, range(FIRST_LANE, FIRST_LANE + NUM_ROWS))
        self.fill(0)

    def fill(self, seed: int, rows: Sequence[int] = range(NUM_ROWS)) -> None:
        """Give rows numbers that depend on the seed and the row, and slots of their own."""
        for row in rows:
            generator = torch.Generator().manual_seed(seed * 1000 + row)
            values = torch.randn(8, generator=generator)
            with self.backend.ordered():
                for name, view in self.batch.views.items():
                    if view.is_floating_point():
                        view[row].copy_(torch.randn(view.shape[1:], generator=generator))
                    elif name == "count":
                        view[row].fill_(seed % 4)
                self.batch.views["goal_slot"][row].fill_(NUM_SLOTS - 1 - row)
                self.slots["goal.values"][NUM_SLOTS - 1 - row].copy_(values)

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copy every buffer of the batch to the host."""
        return self.snapshot_of(self.batch)

    def snapshot_of(self, batch: Batch) -> dict[str, torch.Tensor]:
        with self.backend.ordered():
            return {name: view.to("cpu", copy=True) for name, view in batch.views.items()}

    def get(self, name: str) -> torch.Tensor:
        """Copy one buffer of the batch to the host."""
        with self.backend.ordered():
            return self.batch.views[name].to("cpu", copy=True)

    def put(self, saved: dict[str, torch.Tensor]) -> None:
        with self.backend.ordered():
            for name, view in self.batch.views.items():
                view.copy_(saved[name])

    def outside(self) -> list[torch.Tensor]:
        others = (0, NUM_ROWS + 1)
        with self.backend.ordered():
            return [
                view.to("cpu", copy=True)
                for lane in others
                for view in self.arena.views(lane).values()
            ]

    def eager(self, program: Program) -> dict[str, torch.Tensor]:
        """Run a program over the batch without capture; put the batch back."""
        before = self.snapshot()
        with self.backend.ordered(), torch.no_grad():
            program(self.batch.views, self.slots)
        after = self.snapshot()
        self.put(before)
        return after

    def close(self) -> None:
        self.arena.close()
        self.block.close()


@pytest.fixture(autouse=True)
def weights_on_the_device(backend: Backend) -> None:
    for module in (ENCODER, MIXER):
        module.to(backend.device)
    if backend.device.type == "cuda":
        torch.cuda.synchronize()


@pytest.fixture
def rows(backend: Backend) -> Iterator[Rows]:
    rows = Rows(backend)
    yield rows
    rows.close()


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare bytes: NaN equals itself, and 0 is not -0."""
    return torch.equal(
        left.contiguous().reshape(-1).view(torch.uint8),
        right.contiguous().reshape(-1).view(torch.uint8),
    )
