from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flashrt_ros.errors import (
    AbandonedError,
    BackendError,
    LanePoisonedError,
    SpecError,
    UnknownShapeKeyError,
)
from flashrt_ros.runtime.backend import Backend, Buffers, Program, Slots
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.plan import Plan, PlanRun
from flashrt_ros.runtime.spec import ShapeKey


def latch(b: Buffers, s: Slots) -> None:
    b["hidden"].copy_(s["goal.values"].index_select(0, b["goal_slot"]).expand(4, 8))


def step(b: Buffers, s: Slots) -> None:
    b["hidden"].copy_(torch.tanh(b["hidden"] + b["memory"]))


def commit(b: Buffers, s: Slots) -> None:
    b["memory"].copy_(b["hidden"])
    b["goal"].copy_(s["goal.values"].index_select(0, b["goal_slot"])[0])
    b["count"].add_(1)
    b["out"].copy_(b["hidden"])


def commit_late(b: Buffers, s: Slots) -> None:
    goal = s["goal.values"].index_select(0, b["goal_slot"])[0]
    b["out"].copy_(b["hidden"])
    b["goal"].copy_(goal)
    b["count"].add_(1)


def writes_input(b: Buffers, s: Slots) -> None:
    b["goal"].zero_()


PROGRAMS: dict[ShapeKey, Program] = {
    ("latch",): latch,
    ("step",): step,
    ("commit",): commit,
    ("commit late",): commit_late,
    ("input",): writes_input,
}
NODES: tuple[ShapeKey, ...] = (("latch",), ("step",), ("step",), ("commit",))


@pytest.fixture
def backend() -> Iterator[Backend]:
    # a node that fails ends a device's context
    with CpuBackend() as backend:
        yield backend


@pytest.fixture
def graphs(world: Any) -> Iterator[GraphSet]:
    with world.graphs(PROGRAMS) as graphs:
        yield graphs


def kept(world: Any, lane: int = 1) -> bytes:
    data: bytes = world.bytes_of(lane)[: world.layout.capsule_bytes]
    return data


def test_nodes_run_in_order_and_the_last_commits(world: Any, graphs: GraphSet) -> None:
    plan = Plan(graphs, NODES)
    assert (plan.nodes, plan.commit) == (NODES, 3)
    run = PlanRun(plan, Lane(graphs, 1))
    before = kept(world)
    for index in range(3):
        assert run.index == index
        assert run.submit_next() is False
        assert kept(world) == before
    assert run.submit_next() is True
    assert run.is_done
    assert not run.is_abandoned
    assert world.get("count", 1) == [1]
    assert kept(world) != before


def test_a_run_equals_its_programs(world: Any, graphs: GraphSet) -> None:
    world.put_bytes(world.bytes_of(1), 2)
    run = PlanRun(Plan(graphs, NODES), Lane(graphs, 1))
    while not run.submit_next():
        pass
    with torch.no_grad():
        for key in NODES:
            PROGRAMS[key](world.views(2), world.slots)
    assert world.bytes_of(1) == world.bytes_of(2)


@pytest.mark.parametrize("num_submitted", [0, 1, 2, 3])
def test_abandoned_between_nodes_leaves_state_and_input(
    world: Any, graphs: GraphSet, num_submitted: int
) -> None:
    plan, lane = Plan(graphs, NODES), Lane(graphs, 1)
    before = kept(world)
    run = PlanRun(plan, lane)
    for _ in range(num_submitted):
        run.submit_next()
    run.abandon()
    run.abandon()
    assert run.is_abandoned
    assert kept(world) == before
    with pytest.raises(AbandonedError, match="was abandoned"):
        run.submit_next()
    assert kept(world) == before
    assert not lane.is_poisoned


def test_a_plan_after_an_abandoned_one_is_not_affected_by_it(world: Any, graphs: GraphSet) -> None:
    world.put_bytes(world.bytes_of(1), 2)
    plan = Plan(graphs, NODES)
    world.views(1)["goal_slot"].fill_(3)
    left = PlanRun(plan, Lane(graphs, 1))
    left.submit_next()
    left.submit_next()
    left.abandon()
    world.views(1)["goal_slot"].fill_(0)
    for lane in (1, 2):
        run = PlanRun(plan, Lane(graphs, lane))
        while not run.submit_next():
            pass
    assert world.bytes_of(1) == world.bytes_of(2)


@pytest.mark.parametrize(("key", "buffers"), [(("commit",), "count"), (("input",), "goal")])
def test_a_node_that_writes_state_or_input_early_is_refused(
    graphs: GraphSet, key: ShapeKey, buffers: str
) -> None:
    with pytest.raises(SpecError, match=f"writes to .*{buffers}"):
        Plan(graphs, [("latch",), key, ("commit",)])


def test_the_commit_node_is_the_last(graphs: GraphSet) -> None:
    assert Plan(graphs, NODES, 3).commit == 3
    with pytest.raises(SpecError, match="not the last"):
        Plan(graphs, NODES, 2)
    with pytest.raises(SpecError, match="no nodes"):
        Plan(graphs, [])


@pytest.mark.parametrize("nodes", [[("nope",), ("commit",)], [("latch",), ("nope",)]])
def test_unknown_node_is_refused(graphs: GraphSet, nodes: list[ShapeKey]) -> None:
    with pytest.raises(UnknownShapeKeyError):
        Plan(graphs, nodes)


def test_a_done_run_has_no_next_node(world: Any, graphs: GraphSet) -> None:
    run = PlanRun(Plan(graphs, [("commit",)]), Lane(graphs, 1))
    assert run.submit_next()
    run.abandon()
    assert not run.is_abandoned
    after = world.bytes_of(1)
    with pytest.raises(SpecError, match="no node left"):
        run.submit_next()
    assert world.bytes_of(1) == after


def test_failure_before_the_commit_ends_the_run_and_poisons_nothing(
    world: Any, graphs: GraphSet
) -> None:
    lane = Lane(graphs, 1)
    world.views(1)["goal_slot"].fill_(9999)
    before = kept(world)
    run = PlanRun(Plan(graphs, NODES), lane)
    with pytest.raises(BackendError, match="index_select"):
        run.submit_next()
    assert kept(world) == before
    assert not lane.is_poisoned
    with pytest.raises(AbandonedError, match="failed"):
        run.submit_next()


def test_failure_after_the_first_state_write_poisons_until_restored(
    world: Any, graphs: GraphSet
) -> None:
    lane = Lane(graphs, 1)
    saved = world.bytes_of(1)
    plan = Plan(graphs, [("step",), ("commit",)])
    run = PlanRun(plan, lane)
    run.submit_next()
    world.views(1)["goal_slot"].fill_(9999)
    with pytest.raises(BackendError):
        run.submit_next()
    assert lane.is_poisoned
    torn = world.bytes_of(1)
    with pytest.raises(LanePoisonedError, match="lane 1"):
        lane.replay(("step",))
    with pytest.raises(LanePoisonedError, match="written in part"):
        PlanRun(plan, lane)
    assert world.bytes_of(1) == torn
    assert torn[: world.layout.state_bytes] != saved[: world.layout.state_bytes]

    world.put_bytes(saved, 1)
    lane.clear_poison()
    lane.replay(("commit",))
    assert world.get("count", 1) == [1]


def test_failure_of_a_commit_before_its_first_state_write_poisons_nothing(
    world: Any, graphs: GraphSet
) -> None:
    lane = Lane(graphs, 1)
    before = kept(world)
    world.views(1)["goal_slot"].fill_(9999)
    run = PlanRun(Plan(graphs, [("commit late",)]), lane)
    with pytest.raises(BackendError):
        run.submit_next()
    assert kept(world) == before
    assert not lane.is_poisoned


@pytest.mark.parametrize(("key", "is_poisoned"), [(("commit",), True), (("step",), False)])
def test_a_replay_cut_short_from_outside_poisons_if_it_writes_state(
    graphs: GraphSet, monkeypatch: pytest.MonkeyPatch, key: ShapeKey, is_poisoned: bool
) -> None:
    def interrupt(*, beside: bool = False) -> None:
        raise KeyboardInterrupt

    lane = Lane(graphs, 1)
    monkeypatch.setattr(graphs.graph(1, key), "replay", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lane.replay(key)
    assert lane.is_poisoned is is_poisoned


def test_a_lane_poisoned_while_a_run_is_under_way_refuses_its_next_node(graphs: GraphSet) -> None:
    lane = Lane(graphs, 1)
    run = PlanRun(Plan(graphs, NODES), lane)
    run.submit_next()
    lane.poison("another replay failed")
    with pytest.raises(LanePoisonedError, match="another replay failed"):
        run.submit_next()


def test_poison_is_one_lanes_own(graphs: GraphSet) -> None:
    poisoned, other = Lane(graphs, 1), Lane(graphs, 2)
    poisoned.poison("a test")
    other.replay(("commit",))
    assert not other.is_poisoned


def test_a_node_evicted_under_way_ends_the_run(world: Any, graphs: GraphSet) -> None:
    run = PlanRun(Plan(graphs, NODES), Lane(graphs, 1))
    run.submit_next()
    graphs.evict(("step",))
    before = kept(world)
    with pytest.raises(UnknownShapeKeyError):
        run.submit_next()
    assert run.is_abandoned
    assert kept(world) == before
