from __future__ import annotations

from typing import Any

import pytest
import torch

from flashrt_ros.errors import (
    BackendError,
    CaptureError,
    SealedArenaError,
    SpecError,
    UnknownShapeKeyError,
)
from flashrt_ros.runtime.backend import Buffers, Slots
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role


def counts(buffers: Buffers, slots: Slots) -> None:
    buffers["count"].add_(1)


def clears(buffers: Buffers, slots: Slots) -> None:
    buffers["out"].zero_()


def draws(buffers: Buffers, slots: Slots) -> None:
    buffers["out"].copy_(torch.randn(4, 8))


def test_every_lane_has_every_graph(world: Any) -> None:
    with world.graphs({("count",): counts, ("clear", 1): clears}) as graphs:
        assert graphs.keys == (("count",), ("clear", 1))
        graphs.replay(1, ("count",))
        graphs.replay(1, ("count",))
        graphs.replay(2, ("count",))
        assert [world.get("count", lane) for lane in range(3)] == [[0], [2], [1]]
        assert graphs.graph(2, ("clear", 1)).lane == 2


def test_capture_changes_no_byte_of_any_lane(world: Any) -> None:
    before = world.all_bytes()
    world.graphs({("count",): counts, ("clear",): clears})
    assert world.all_bytes() == before


def test_a_key_that_a_lane_refuses_leaves_no_graph_behind(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.graphs({("count",): counts}) as graphs:
        kind = type(graphs.graph(0, ("count",)))
        rebase, close = kind.rebase, kind.close
        closed: list[int] = []

        def refuse(graph: Any, lane: int) -> Any:
            if lane == 2:
                raise CaptureError("no room for another lane")
            return rebase(graph, lane)

        def note(graph: Any) -> None:
            closed.append(graph.lane)
            close(graph)

        monkeypatch.setattr(kind, "rebase", refuse)
        monkeypatch.setattr(kind, "close", note)
        with pytest.raises(CaptureError, match="no room"):
            graphs.capture(("clear",), clears)
        assert sorted(closed) == [0, 1]
        assert graphs.keys == (("count",),)
        monkeypatch.undo()
        graphs.capture(("clear",), clears)


def test_unknown_key_names_the_known_ones(world: Any) -> None:
    with world.graphs({("count",): counts, ("clear", 1): clears}) as graphs:
        before = world.all_bytes()
        with pytest.raises(UnknownShapeKeyError, match=r"\('clear', 1\)"):
            graphs.replay(0, ("clear", 2))
        assert world.all_bytes() == before


def test_unknown_lane_is_refused(world: Any) -> None:
    with world.graphs({("count",): counts}) as graphs, pytest.raises(SpecError, match="no lane 3"):
        graphs.replay(3, ("count",))


@pytest.mark.parametrize("lane", [-1, -3])
def test_negative_lane_does_not_count_from_the_end(world: Any, lane: int) -> None:
    with world.graphs({("count",): counts}) as graphs, pytest.raises(SpecError):
        graphs.replay(lane, ("count",))


def test_evicted_key_is_unknown_and_can_be_captured_again(world: Any) -> None:
    with world.graphs({("count",): counts, ("clear",): clears}) as graphs:
        held = graphs.graph(1, ("count",))
        graphs.evict(("count",))
        with pytest.raises(UnknownShapeKeyError, match=r"\('clear',\)"):
            graphs.replay(0, ("count",))
        with pytest.raises(UnknownShapeKeyError):
            graphs.evict(("count",))
        with pytest.raises(BackendError, match="closed"):
            held.replay()
        graphs.capture(("count",), counts)
        graphs.replay(1, ("count",))
        assert world.get("count", 1) == [1]


def test_taken_key_is_refused(world: Any) -> None:
    with world.graphs({("count",): counts}) as graphs:
        with pytest.raises(SpecError, match="evict"):
            graphs.capture(("count",), clears)
        graphs.replay(0, ("count",))
        assert world.get("count", 0) == [1]


def test_capture_beside_live_lanes_keeps_their_state(world: Any) -> None:
    with world.graphs({("count",): counts}) as graphs:
        graphs.replay(0, ("count",))
        before = world.all_bytes()
        graphs.capture(("clear",), clears)
        assert world.all_bytes() == before


def test_a_program_that_cannot_be_captured_leaves_no_set(world: Any) -> None:
    before = world.all_bytes()
    with pytest.raises(CaptureError, match="randn"):
        world.graphs({("count",): counts, ("draw",): draws})
    assert world.all_bytes() == before
    with world.graphs({("count",): counts}) as graphs:
        with pytest.raises(CaptureError):
            graphs.capture(("draw",), draws)
        assert graphs.keys == (("count",),)


def test_unsealed_arena_is_refused(world: Any) -> None:
    layout = ArenaLayout.of([BufferSpec("count", (1,), "int64", Role.STATE)])
    with (
        world.backend.create_arena(layout, num_lanes=1) as arena,
        pytest.raises(SealedArenaError, match="sealed"),
    ):
        GraphSet(world.backend, {("count",): counts}, arena, {})


def test_closed_set_knows_no_key(world: Any) -> None:
    graphs = world.graphs({("count",): counts})
    graphs.close()
    graphs.close()
    with pytest.raises(UnknownShapeKeyError, match="none"):
        graphs.replay(0, ("count",))
