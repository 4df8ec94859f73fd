"""Plans of graphs over a batch, on every backend."""

from __future__ import annotations

import pytest

from flashrt_ros.errors import SpecError, UnknownShapeKeyError
from flashrt_ros.runtime.backend import Buffers, Program, Slots
from flashrt_ros.runtime.batch_graph import BatchedGraphSet, BatchedPlan
from flashrt_ros.runtime.batch_programs import over_rows
from flashrt_ros.runtime.spec import ShapeKey
from test.runtime.batch_graph.conftest import Rows, same
from test.runtime.batch_graph.programs import mixes


def test_a_plan_needs_nodes_and_writes_state_last(rows: Rows) -> None:
    programs: dict[ShapeKey, Program] = {
        ("hidden",): over_rows(_fills_hidden),
        ("state",): over_rows(mixes),
    }
    with BatchedGraphSet(rows.batch, programs, rows.slots) as graphs:
        assert BatchedPlan(graphs, [("hidden",), ("state",)]).nodes == (("hidden",), ("state",))
        with pytest.raises(SpecError, match="no nodes"):
            BatchedPlan(graphs, [])
        with pytest.raises(SpecError, match="count, memory"):
            BatchedPlan(graphs, [("state",), ("hidden",)])
        with pytest.raises(UnknownShapeKeyError):
            BatchedPlan(graphs, [("hidden",), ("other",)])


def _fills_hidden(buffers: Buffers, slots: Slots) -> None:
    buffers["hidden"].copy_(buffers["memory"] + 1.0)


def test_a_plan_runs_its_nodes_under_one_mask(rows: Rows) -> None:
    programs: dict[ShapeKey, Program] = {
        ("hidden",): over_rows(_fills_hidden),
        ("commit",): over_rows(_commits_hidden),
    }
    with BatchedGraphSet(rows.batch, programs, rows.slots) as graphs:
        before = rows.snapshot()["memory"]
        BatchedPlan(graphs, [("hidden",), ("commit",)]).replay([0, 2])
        after = rows.get("memory")
        assert [same(after[row], before[row] + 1.0) for row in range(4)] == [True, False] * 2
        assert [same(after[row], before[row]) for row in range(4)] == [False, True] * 2


def _commits_hidden(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].copy_(buffers["hidden"])
