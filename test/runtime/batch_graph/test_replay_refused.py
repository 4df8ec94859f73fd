"""Replays over a batch that are refused, or fail, on every backend: no row is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flashrt_ros.errors import BackendError, LanePoisonedError, SpecError, UnknownShapeKeyError
from flashrt_ros.runtime.backend import Buffers, Slots
from flashrt_ros.runtime.batch_graph import BatchedGraphSet, BatchedPlan
from flashrt_ros.runtime.batch_programs import over_rows
from flashrt_ros.runtime.spec import Role, ShapeKey
from test.runtime.batch_graph.conftest import KEPT, KEY, LAYOUT, NUM_SLOTS, Rows, same
from test.runtime.batch_graph.programs import encodes, mixes, reads_slots


def test_unknown_taken_and_evicted_keys(rows: Rows) -> None:
    graphs = BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots)
    before = rows.snapshot()
    with pytest.raises(UnknownShapeKeyError, match=r"4 rows.*\('q',\)"):
        graphs.replay(("q",))
    with pytest.raises(SpecError, match="already"):
        graphs.capture(KEY, over_rows(encodes))
    plan = BatchedPlan(graphs, [KEY])
    graphs.evict(KEY)
    with pytest.raises(UnknownShapeKeyError, match="empty"):
        plan.replay()
    graphs.close()
    graphs.close()
    assert all(same(value, before[name]) for name, value in rows.snapshot().items())


@pytest.mark.parametrize("chosen", [[4], [-1], [1, 1]])
def test_a_mask_of_other_rows_runs_nothing(rows: Rows, chosen: list[int]) -> None:
    with BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots) as graphs:
        before = rows.snapshot()
        for replays in (graphs.replay, _replay_plan(graphs)):
            with pytest.raises(SpecError):
                replays(KEY, chosen)
        assert all(same(value, before[name]) for name, value in rows.snapshot().items())


def _replay_plan(graphs: BatchedGraphSet) -> Callable[[ShapeKey, list[int]], None]:
    return lambda key, chosen: BatchedPlan(graphs, [key]).replay(chosen)


def test_a_replay_that_fails_leaves_every_row_whole(rows: Rows) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        mixes(buffers, slots)
        reads_slots(buffers, slots)

    if rows.backend.name != "cpu":
        pytest.skip("a device does not check an index")
    with BatchedGraphSet(rows.batch, {KEY: over_rows(program)}, rows.slots) as graphs:
        before = rows.snapshot()
        rows.batch.views["goal_slot"][2].fill_(NUM_SLOTS)
        with pytest.raises(BackendError, match="index"):
            graphs.replay(KEY)
        assert rows.batch.poisoned_rows == ()
        for name, value in rows.snapshot().items():
            if LAYOUT.by_name[name].spec.role in KEPT:
                assert same(value, before[name])


def test_a_poisoned_row_is_refused_until_it_is_loaded(rows: Rows) -> None:
    with (
        BatchedGraphSet(rows.batch, {KEY: over_rows(mixes)}, rows.slots) as graphs,
        rows.backend.allocate_block(LAYOUT.capsule_bytes) as home,
    ):
        rows.batch.save(1, home.address)
        torn: Any = _Torn()
        with pytest.raises(BackendError):
            rows.batch.replay(torn, [1])
        before = rows.snapshot()
        for replays in (graphs.replay, _replay_plan(graphs)):
            with pytest.raises(LanePoisonedError, match="row 1"):
                replays(KEY, [0, 1])
        assert all(same(value, before[name]) for name, value in rows.snapshot().items())
        graphs.replay(KEY, [0, 2, 3])
        rows.batch.load(1, home.address)
        graphs.replay(KEY)


class _Torn:
    key = KEY
    written_roles = frozenset((Role.STATE,))

    def replay(self) -> None:
        raise BackendError("cut", is_torn=True)
