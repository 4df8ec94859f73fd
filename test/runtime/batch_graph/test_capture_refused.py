"""What no graph over a batch is captured of, on every backend."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.errors import CaptureError, SealedArenaError, SpecError
from flashrt_ros.runtime.backend import Backend, Buffers, Program, Slots
from flashrt_ros.runtime.batch_graph import BatchedGraphSet
from flashrt_ros.runtime.batch_programs import over_rows
from test.runtime.batch_graph.conftest import FIRST_LANE, KEY, LAYOUT, NUM_ROWS, Rows, same
from test.runtime.batch_graph.programs import mixes


def to_host(buffers: Buffers, slots: Slots) -> None:
    buffers["out"].fill_(buffers["goal"].sum().item())


def alike_for_all(buffers: Buffers, slots: Slots) -> None:
    total = torch.zeros(8, device=buffers["goal"].device)
    total += buffers["goal"]


def by_number(buffers: Buffers, slots: Slots) -> None:
    buffers["goal"].copy_(slots["goal.values"][1])


def by_a_computed_index(buffers: Buffers, slots: Slots) -> None:
    index = buffers["goal_slot"] + 1
    buffers["goal"].copy_(slots["goal.values"].index_select(0, index)[0])


def of_one_row_for_all(buffers: Buffers, slots: Slots) -> None:
    buffers["goal"].copy_(slots["goal.values"].index_select(0, buffers["goal_slot"][0]))


def past_the_last_row(buffers: Buffers, slots: Slots) -> None:
    memory = buffers["memory"]
    more = memory.as_strided((NUM_ROWS + 1, 8), (memory.stride(0), 1), memory.storage_offset())
    more.add_(1.0)


def past_the_buffer(buffers: Buffers, slots: Slots) -> None:
    memory = buffers["memory"]
    wide = memory.as_strided((NUM_ROWS, 40), (memory.stride(0), 1), memory.storage_offset())
    wide.add_(1.0)


def random_numbers(buffers: Buffers, slots: Slots) -> None:
    buffers["out"].copy_(torch.randn(4, 8, device=buffers["out"].device))


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (over_rows(to_host), "Tensor.item"),
        (over_rows(alike_for_all), "it raised RuntimeError"),
        (over_rows(by_number), "goal.values"),
        (over_rows(by_a_computed_index), "index_select"),
        (of_one_row_for_all, "index_select"),
        (past_the_last_row, "touches lane 5 of a program that runs over lanes 1 to 4"),
        (past_the_buffer, "past the end of buffer 'memory'"),
        (over_rows(random_numbers), "randn"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_capture_refuses(rows: Rows, program: Program, found: str) -> None:
    before, outside = rows.snapshot(), rows.outside()
    with pytest.raises(CaptureError, match=found) as caught:
        BatchedGraphSet(rows.batch, {KEY: program}, rows.slots)
    assert caught.value.source
    assert __file__ in caught.value.source
    assert all(same(value, before[name]) for name, value in rows.snapshot().items())
    assert all(map(same, rows.outside(), outside))
    with BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots) as graphs:
        graphs.replay(KEY)  # the backend is still usable


def test_a_program_over_one_lane_may_not_touch_the_batch(rows: Rows) -> None:
    whole = rows.batch.views["memory"]

    def program(buffers: Buffers, slots: Slots) -> None:
        whole.add_(1.0)

    with pytest.raises(CaptureError, match="touches lane 4 of a program that runs over lane 1"):
        rows.backend.capture(program, KEY, rows.arena, FIRST_LANE, rows.slots)


@pytest.mark.parametrize(("lane", "num_rows"), [(0, 7), (0, 0), (-1, 2), (5, 2)])
def test_lanes_that_are_not_there_are_refused(rows: Rows, lane: int, num_rows: int) -> None:
    with pytest.raises(SpecError):
        rows.backend.capture(over_rows(mixes), KEY, rows.arena, lane, rows.slots, num_rows=num_rows)


def test_an_arena_that_is_not_sealed_is_refused(backend: Backend) -> None:
    with (
        backend.create_arena(LAYOUT, num_lanes=2) as arena,
        pytest.raises(SealedArenaError),
    ):
        backend.capture(over_rows(mixes), KEY, arena, 0, {}, num_rows=2)
