"""A replay over a batch, on every backend: the bytes of the program, on whatever lanes."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.backend import Program
from flashrt_ros.runtime.batch import ROW_MASK, Batch
from flashrt_ros.runtime.batch_graph import BatchedGraphSet
from flashrt_ros.runtime.batch_programs import over_rows
from test.runtime.batch_graph.conftest import FIRST_LANE, KEY, NUM_ROWS, NUM_SLOTS, Rows, same
from test.runtime.batch_graph.programs import PROGRAMS, encodes, mixes, reads_slots

# vmap calls an operator that it has no rule for (here the attention) once for each row.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


@pytest.mark.parametrize("program", PROGRAMS)
def test_replay_is_byte_equal_to_the_program(rows: Rows, program: Program) -> None:
    with BatchedGraphSet(rows.batch, {KEY: program}, rows.slots) as graphs:
        for seed in range(1, 4):  # other numbers than those it was captured over
            rows.fill(seed)
            outside, before = rows.outside(), rows.snapshot()
            expected = rows.eager(program)
            graphs.replay(KEY)
            rows.backend.synchronize()
            changed = [name for name in expected if not same(expected[name], before[name])]
            assert changed
            for name, value in rows.snapshot().items():
                assert name == ROW_MASK or same(value, expected[name]), name
            assert all(map(same, rows.outside(), outside))


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_replay_depends_on_private_memory(rows: Rows, program: Program) -> None:
    with BatchedGraphSet(rows.batch, {KEY: program}, rows.slots) as graphs:
        before = rows.snapshot()
        results = []
        for fill in (0x00, 0xFF, 0x3F):
            rows.put(before)
            with rows.backend.ordered():
                for tensor in graphs.graph(KEY).private_tensors():
                    tensor.fill_(fill)
            graphs.replay(KEY)
            rows.backend.synchronize()
            results.append(rows.snapshot())
        for other in results[1:]:
            assert all(same(other[name], view) for name, view in results[0].items())


def test_capture_leaves_every_lane_as_it_was(rows: Rows) -> None:
    before, outside = rows.snapshot(), rows.outside()
    with BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots):
        pass
    assert all(same(value, before[name]) for name, value in rows.snapshot().items())
    assert all(map(same, rows.outside(), outside))


def test_each_row_reads_its_own_slot_in_place(rows: Rows) -> None:
    with BatchedGraphSet(rows.batch, {KEY: over_rows(reads_slots)}, rows.slots) as graphs:
        reads = graphs.graph(KEY).slot_reads()
        assert {(read.field, read.binding) for read in reads} == {("goal.values", "goal_slot")}
        assert reads[0].num_rows == NUM_SLOTS
        order = [3, 3, 0, 5]
        with rows.backend.ordered():
            for row, slot in enumerate(order):
                rows.batch.views["goal_slot"][row].fill_(slot)
        graphs.replay(KEY)
        with rows.backend.ordered():
            expected = rows.slots["goal.values"][order].cpu()
        assert torch.equal(rows.get("goal"), expected)


@pytest.mark.parametrize("program", [mixes, reads_slots, encodes])
def test_rows_are_what_the_lane_graph_makes_of_them_but_for_rounding(
    rows: Rows, program: Program
) -> None:
    first = rows.backend.capture(program, KEY, rows.arena, FIRST_LANE, rows.slots)
    before = rows.snapshot()
    for lane in rows.batch.lanes:
        first.rebase(lane).replay()
    rows.backend.synchronize()
    alone = rows.snapshot()
    rows.put(before)
    with BatchedGraphSet(rows.batch, {KEY: over_rows(program)}, rows.slots) as graphs:
        graphs.replay(KEY)
        batched = rows.snapshot()
    # a convolution on CUDA rounds its factors to TF32, in another order for another shape
    tolerance = (1e-5, 1e-6) if rows.backend.name == "cpu" else (1e-2, 1e-2)
    for name, value in batched.items():
        if name != ROW_MASK:
            torch.testing.assert_close(value, alone[name], rtol=tolerance[0], atol=tolerance[1])


def test_a_graph_over_a_batch_moves_to_other_lanes(rows: Rows) -> None:
    program = over_rows(mixes)
    graph = rows.backend.capture(
        program, KEY, rows.arena, FIRST_LANE, rows.slots, num_rows=NUM_ROWS
    )
    later = Batch(rows.backend, rows.arena, range(2, 2 + NUM_ROWS))
    before = rows.snapshot_of(later)
    with rows.backend.ordered(), torch.no_grad():
        program(later.views, rows.slots)
    expected = rows.snapshot_of(later)
    with rows.backend.ordered():
        for name, view in later.views.items():
            view.copy_(before[name])
    graph.rebase(2).replay()
    assert all(same(value, expected[name]) for name, value in rows.snapshot_of(later).items())
    with pytest.raises(SpecError):
        graph.rebase(3)
