"""A replay over a batch, on every backend: what it leaves alone, and that no row meets another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashrt_ros.runtime.backend import Backend, Buffers, Program, Slots
from flashrt_ros.runtime.batch_graph import BatchedGraphSet
from flashrt_ros.runtime.batch_programs import over_rows
from test.runtime.batch_graph.conftest import KEPT, KEY, LAYOUT, NUM_ROWS, NUM_SLOTS, Rows, same
from test.runtime.batch_graph.programs import PROGRAMS, attends, mixes, reads_slots, selects

# vmap calls an operator that it has no rule for (here the attention) once for each row.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_outside_the_mask_keep_state_input_and_output(rows: Rows, program: Program) -> None:
    with rows.backend.ordered():
        rows.batch.views["memory"][2, 0, 0] = float("nan")
    with BatchedGraphSet(rows.batch, {KEY: program}, rows.slots) as graphs:
        before, expected = rows.snapshot(), rows.eager(program)
        graphs.replay(KEY, [3, 1])
        for name, value in rows.snapshot().items():
            if LAYOUT.by_name[name].spec.role in KEPT:
                for row in range(NUM_ROWS):
                    wanted = expected if row in (1, 3) else before
                    assert same(value[row], wanted[name][row]), (name, row)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_row_depends_on_what_other_rows_hold(backend: Backend, data: st.DataObject) -> None:
    """Over random histories: masks, restores, and other rows full of anything."""
    program = over_rows(_all_programs)
    subject = data.draw(st.integers(0, NUM_ROWS - 1), "row")
    masks = data.draw(st.lists(st.sets(st.integers(0, NUM_ROWS - 1)), min_size=1, max_size=4))
    is_in = [subject in mask for mask in masks]
    others = [row for row in range(NUM_ROWS) if row != subject]
    junk = data.draw(st.sampled_from([0.0, 1e30, float("inf"), float("nan")]))
    rows = Rows(backend)
    kept = [name for name, place in LAYOUT.by_name.items() if place.spec.role in KEPT]
    results = []
    with BatchedGraphSet(rows.batch, {KEY: program}, rows.slots) as graphs:
        for run in (1, 2):
            rows.fill(7, others)
            rows.fill(5, [subject])
            if run == 2:
                with backend.ordered():
                    for view in rows.batch.views.values():
                        if view.is_floating_point():
                            for row in others:
                                view[row].fill_(junk)
                    for row in others:
                        rows.slots["goal.values"][NUM_SLOTS - 1 - row].fill_(junk)
            for at, mask in enumerate(masks):
                # the second run has other companions in its masks
                companions = mask if run == 1 else set(others[at % 2 :])
                chosen = (companions - {subject}) | ({subject} if is_in[at] else set())
                graphs.replay(KEY, sorted(chosen))
            now = rows.snapshot()
            results.append([now[name][subject] for name in kept])
    rows.close()
    assert all(map(same, *results))


def test_a_program_that_mixes_rows_is_seen_to(rows: Rows) -> None:
    """The control of the test before."""

    def centres(buffers: Buffers, slots: Slots) -> None:
        buffers["out"].copy_(buffers["memory"] - buffers["memory"].mean(0))

    with BatchedGraphSet(rows.batch, {KEY: centres}, rows.slots) as graphs:
        graphs.replay(KEY)
        first = rows.snapshot()["out"]
        rows.fill(9, [3])
        graphs.replay(KEY)
        assert not same(rows.get("out")[0], first[0])


def _all_programs(buffers: Buffers, slots: Slots) -> None:
    for program in (reads_slots, mixes, attends, selects):
        program(buffers, slots)


def test_a_row_is_reset_between_replays_and_runs_the_same_again(rows: Rows) -> None:
    with (
        BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots) as graphs,
        rows.backend.allocate_block(LAYOUT.capsule_bytes) as home,
    ):
        rows.batch.save(1, home.address)
        first = [_step(rows, graphs) for _ in range(3)]
        rows.batch.load(1, home.address)
        second = [_step(rows, graphs) for _ in range(3)]
        third = [_step(rows, graphs) for _ in range(3)]
    for before, after, never in zip(first, second, third, strict=True):
        assert same(before[1], after[1])
        assert not same(before[0], after[0])  # the other rows went on
        assert not same(before[1], never[1])  # the control: without the reset it differs


def test_a_reset_touches_no_other_row(rows: Rows) -> None:
    results = []
    for is_reset in (False, True):
        rows.fill(1)
        with (
            BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots) as graphs,
            rows.backend.allocate_block(LAYOUT.capsule_bytes) as home,
        ):
            rows.batch.save(2, home.address)
            _step(rows, graphs)
            if is_reset:
                rows.batch.load(2, home.address)
            results.append(_step(rows, graphs))
    left, right = results
    assert [same(left[row], right[row]) for row in range(NUM_ROWS)] == [True, True, False, True]


def _step(rows: Rows, graphs: BatchedGraphSet) -> torch.Tensor:
    graphs.replay(KEY)
    return rows.get("memory")
