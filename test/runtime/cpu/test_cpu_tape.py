"""What a host replays: the bytes of the program, in memory that is shared, torn or whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from flashrt_ros.errors import BackendError, CaptureError
from flashrt_ros.runtime import tape
from flashrt_ros.runtime.backend import Buffers, Program, Slots
from flashrt_ros.runtime.cpu import CpuGraph
from flashrt_ros.runtime.memory_plan import Lifetime, MemoryPlan, plan_memory
from flashrt_ros.runtime.spec import Role


def test_weights_updated_in_place_are_seen_by_the_next_replay(world: Any) -> None:
    weight = torch.ones(8)
    graph = world.capture(lambda b, s: b["goal"].copy_(weight * 2.0))
    weight.fill_(5.0)
    graph.replay()
    assert world.views(0)["goal"].tolist() == [10.0] * 8


def test_weights_that_want_gradients_are_fine(world: Any) -> None:
    layer = nn.Linear(8, 8)
    program = lambda b, s: b["out"].copy_(layer(b["memory"]))  # noqa: E731
    graph = world.capture(program)
    with torch.enable_grad():
        assert world.replayed(graph) == world.eager(program)


def test_intermediates_share_memory(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        x = buffers["memory"]
        for _ in range(50):
            x = torch.sin(x)
        buffers["out"].copy_(x)

    graph = world.capture(program)
    assert isinstance(graph, CpuGraph)
    assert sum(tensor.numel() for tensor in graph.private_tensors()) <= 2 * 256
    assert world.replayed(graph) == world.eager(program)


def test_a_tape_that_gives_other_bytes_is_refused(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the check at capture: a plan that puts every value in one place."""

    def program(buffers: Buffers, slots: Slots) -> None:
        memory = buffers["memory"]
        buffers["out"].copy_(memory.sin() + memory.cos() * 2.0)

    def overlapping(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
        return MemoryPlan(tuple(0 for _ in lifetimes), plan_memory(lifetimes).num_bytes)

    before = world.bytes_of(0)
    with monkeypatch.context() as patch:
        patch.setattr(tape, "plan_memory", overlapping)
        with pytest.raises(CaptureError, match="other bytes in out"):
            world.capture(program)
    assert world.bytes_of(0) == before
    world.capture(program)


def test_uninitialised_memory_replays_to_the_same_bytes(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        scratch = torch.empty(4, 8)
        scratch[:2].copy_(buffers["memory"][:2])
        buffers["out"].copy_(scratch)

    graph = world.capture(program)
    assert world.replayed(graph) == world.replayed(graph)


def test_a_buffer_written_past_its_role_is_known_as_written(world: Any) -> None:
    graph = world.capture(lambda b, s: b["memory"].view(-1)[3:5].view(2, 1).zero_())
    assert graph.written_roles == {Role.STATE}


def writes_to_a_constant(buffers: Buffers, slots: Slots) -> None:
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
    scale.add_(buffers["memory"][0, :4])
    buffers["out"][:, 0].copy_(scale)


def test_a_constant_that_a_program_writes_to_begins_anew_at_each_replay(world: Any) -> None:
    graph = world.capture(writes_to_a_constant)
    expected = world.eager(writes_to_a_constant)
    assert world.replayed(graph) == expected
    assert world.replayed(graph) == expected


def checks(buffers: Buffers, slots: Slots) -> None:
    torch._assert_async(buffers["goal"].sum() < 1e6)
    buffers["goal"].add_(1.0)


def test_a_check_is_made_at_every_replay(world: Any) -> None:
    graph = world.capture(checks)
    graph.replay()
    world.set("goal", 1e9)
    with pytest.raises(BackendError, match="_assert_async") as caught:
        graph.replay()
    assert not caught.value.is_torn


def torn(buffers: Buffers, slots: Slots) -> None:
    buffers["count"].add_(1)
    buffers["out"][:1].copy_(slots["goal.values"].index_select(0, buffers["goal_slot"]))


def whole(buffers: Buffers, slots: Slots) -> None:
    buffers["out"][:1].copy_(slots["goal.values"].index_select(0, buffers["goal_slot"]))
    buffers["count"].add_(1)


@pytest.mark.parametrize(("program", "is_torn"), [(torn, True), (whole, False)])
def test_failed_replay_says_whether_state_is_torn(
    world: Any, program: Program, is_torn: bool, line_of: Callable[..., str]
) -> None:
    graph = world.capture(program)
    world.set("goal_slot", 10_000)
    with pytest.raises(BackendError, match="index_select") as caught:
        graph.replay()
    assert caught.value.is_torn is is_torn
    assert line_of(program, "index_select") in str(caught.value)
    world.set("goal_slot", 0)
    graph.replay()
