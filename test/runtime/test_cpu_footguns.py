"""Known misuse of captured programs, and what becomes of it."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from flashrt_ros.errors import BackendError, CaptureError
from flashrt_ros.runtime import tape
from flashrt_ros.runtime.backend import Backend, Buffers, Program, Slots
from flashrt_ros.runtime.cpu import CpuBackend, CpuGraph
from flashrt_ros.runtime.memory_plan import Lifetime, MemoryPlan, plan_memory
from flashrt_ros.runtime.spec import Role


@pytest.fixture
def backend() -> Iterator[Backend]:
    with CpuBackend() as backend:
        yield backend


class Keeper:
    """Keeps what it makes, as modules do that cache or log."""

    def __init__(self) -> None:
        self.kept: torch.Tensor | None = None

    def makes(self, buffers: Buffers, slots: Slots) -> None:
        self.kept = buffers["memory"] * 2.0  # refused
        buffers["out"].copy_(self.kept)

    def reads(self, buffers: Buffers, slots: Slots) -> None:
        assert self.kept is not None
        buffers["out"].copy_(self.kept)  # refused


def test_a_tensor_kept_by_the_program_is_refused(world: Any, line_of: Callable[..., str]) -> None:
    keeper = Keeper()
    with pytest.raises(CaptureError, match="keeps") as caught:
        world.capture(keeper.makes)
    assert caught.value.op == "aten::mul"
    assert caught.value.source == line_of(Keeper.makes)


def test_a_node_that_reads_what_another_left_is_refused(
    world: Any, line_of: Callable[..., str]
) -> None:
    keeper = Keeper()
    with pytest.raises(CaptureError):
        world.capture(keeper.makes, ("first",))
    with pytest.raises(CaptureError, match=r"made while \('first',\) was captured") as caught:
        world.capture(keeper.reads, ("second",))
    assert caught.value.source == line_of(Keeper.reads)


def test_what_was_left_behind_is_forgotten_once_it_is_gone(world: Any) -> None:
    keeper = Keeper()
    with pytest.raises(CaptureError):
        world.capture(keeper.makes)
    keeper.kept = torch.ones(4, 8)
    world.capture(keeper.reads)
    assert world.backend._rehearsal._left_behind == []


def test_a_constant_made_before_capture_may_be_kept(world: Any) -> None:
    keeper = Keeper()
    keeper.kept = world.views(1)["memory"].clone()
    graph = world.capture(keeper.reads)
    assert world.replayed(graph) == world.eager(keeper.reads)


def test_a_view_of_the_lane_that_a_closure_holds_moves_with_the_lane(world: Any) -> None:
    row = world.views(0)["memory"][1]
    graph = world.capture(lambda b, s: b["goal"].copy_(row))
    graph.rebase(2).replay()
    views = world.views(2)
    assert views["goal"].tolist() == views["memory"][1].tolist()


def test_a_view_of_another_lane_is_refused(world: Any) -> None:
    other = world.views(1)["memory"]
    with pytest.raises(CaptureError, match="touches lane 1 of a program that runs over lane 0"):
        world.capture(lambda b, s: b["memory"].copy_(other))


def test_other_memory_of_the_arena_is_refused(world: Any) -> None:
    whole = world.arena._block.tensor("float32", (world.layout.lane_bytes // 4,))
    with pytest.raises(CaptureError, match="reaches past the end of buffer 'memory'"):
        world.capture(lambda b, s: b["out"].fill_(1.0).add_(whole.sum()))


def test_slots_reached_past_the_given_tensors_are_refused(world: Any) -> None:
    rows = world.slot_block.tensor("float32", (64,))
    with pytest.raises(CaptureError, match=r"memory of slots 'goal\.values' by another tensor"):
        world.capture(lambda b, s: b["out"].add_(rows.sum()))


def test_a_refusal_that_the_program_swallows_counts(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        try:
            scale = buffers["goal"][0].item()
        except CaptureError:
            scale = 1.0
        buffers["out"].mul_(scale)

    with pytest.raises(CaptureError, match=r"Tensor\.item"):
        world.capture(program)


def test_a_refusal_that_becomes_another_error_is_still_the_refusal(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        try:
            buffers["goal"].tolist()
        except CaptureError as error:
            raise RuntimeError("something else") from error

    with pytest.raises(CaptureError, match=r"Tensor\.tolist"):
        world.capture(program)


def test_an_error_of_the_program_names_its_line(world: Any, line_of: Callable[..., str]) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        torch.cat([buffers["memory"], buffers["goal"]])  # refused

    before = world.bytes_of(0)
    with pytest.raises(CaptureError, match="raised RuntimeError") as caught:
        world.capture(program)
    assert caught.value.source == line_of(program)
    assert world.bytes_of(0) == before


def test_an_unknown_buffer_names_the_line(world: Any, line_of: Callable[..., str]) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        buffers["nope"].zero_()  # refused

    with pytest.raises(CaptureError, match="KeyError") as caught:
        world.capture(program)
    assert caught.value.source == line_of(program)


def test_the_line_is_the_models_not_torchs(world: Any, line_of: Callable[..., str]) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x.max().item()  # refused

    model = nn.Sequential(nn.Identity(), Model())
    with pytest.raises(CaptureError) as caught:
        world.capture(lambda b, s: b["out"].copy_(model(b["memory"])))
    assert caught.value.source == line_of(Model.forward)


def test_shape_of_a_given_tensor_stays_with_the_program(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        torch.utils.swap_tensors(buffers["goal"], torch.ones(8))  # type: ignore[no-untyped-call]
        buffers["out"].zero_()

    with pytest.raises(CaptureError):
        world.capture(program)
    assert world.views(0)["goal"].data_ptr() == world.arena.address + (
        world.layout.by_name["goal"].offset
    )


def test_a_program_that_depends_on_the_host_is_captured_as_it_ran(world: Any) -> None:
    """Not detectable at capture: what Python decides is decided once."""
    calls: list[int] = []

    def program(buffers: Buffers, slots: Slots) -> None:
        calls.append(1)
        buffers["out"].fill_(float(len(calls)))

    graph = world.capture(program)
    for _ in range(3):
        graph.replay()
    assert world.views(0)["out"][0, 0].item() == 1.0


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


def test_capture_and_replay_inside_inference_mode(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        buffers["memory"].add_(torch.ones(8).mul_(2.0))

    with torch.inference_mode():
        graph = world.capture(program)
        rebased = graph.rebase(1)
        inside = world.replayed(rebased)
    assert world.replayed(rebased) == inside == world.eager(program, 1)


def test_a_program_cannot_capture_another(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        CpuBackend().capture(lambda b, s: None, ("q",), world.arena, 1, {})

    with pytest.raises(CaptureError):
        world.capture(program)
    world.capture(lambda b, s: b["out"].zero_())


def test_other_threads_are_left_alone_while_a_program_is_captured(world: Any) -> None:
    seen: list[object] = []

    def program(buffers: Buffers, slots: Slots) -> None:
        other = threading.Thread(target=lambda: seen.append(torch.ones(2).tolist()))
        other.start()
        other.join(timeout=30.0)
        buffers["out"].zero_()

    world.capture(program)
    assert seen == [[1.0, 1.0]]


def test_torch_is_itself_again_after_capture(world: Any) -> None:
    names = ("item", "tolist", "numpy", "__bool__", "__index__", "data", "untyped_storage")
    before = [getattr(torch.Tensor, name) for name in names]
    tensor = torch.tensor
    own = set(vars(torch.Tensor))
    world.capture(lambda b, s: b["out"].zero_())
    with pytest.raises(CaptureError):
        world.capture(lambda b, s: b["out"].sum().item())
    assert [getattr(torch.Tensor, name) for name in names] == before
    assert torch.tensor is tensor
    assert set(vars(torch.Tensor)) == own


def test_a_partial_and_an_instance_are_programs(world: Any) -> None:
    class Program:
        def __call__(self, buffers: Buffers, slots: Slots) -> None:
            buffers["out"].fill_(2.0)

    def fills(value: float, buffers: Buffers, slots: Slots) -> None:
        buffers["out"].fill_(value)

    for program in (Program(), functools.partial(fills, 3.0)):
        graph = world.capture(program)
        assert world.replayed(graph) == world.eager(program)


def test_a_program_that_ends_early_by_signal_is_put_back(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        buffers["memory"].zero_()
        raise KeyboardInterrupt

    before = world.bytes_of(0)
    with pytest.raises(KeyboardInterrupt):
        world.capture(program)
    assert world.bytes_of(0) == before


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


def test_a_program_may_return_what_it_likes(world: Any) -> None:
    graph = world.capture(lambda b, s: b["memory"] + 1.0)
    assert graph.written_roles == frozenset()


def test_a_buffer_written_past_its_role_is_known_as_written(world: Any) -> None:
    graph = world.capture(lambda b, s: b["memory"].view(-1)[3:5].view(2, 1).zero_())
    assert graph.written_roles == {Role.STATE}


def test_capture_does_not_import_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from flashrt_ros.runtime.cpu import CpuBackend\n"
        "from flashrt_ros.runtime.spec import *\n"
        "layout = ArenaLayout.of([BufferSpec('x', (4,), 'float32', Role.STATE)])\n"
        "backend = CpuBackend(); arena = backend.create_arena(layout, num_lanes=1); arena.seal()\n"
        "backend.capture(lambda b, s: b['x'].add_(1), ('p',), arena, 0, {}).replay()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def updates_state(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].mul_(0.5).add_(buffers["goal"])


def test_capture_runs_the_program_once(world: Any) -> None:
    calls = []

    def program(buffers: Buffers, slots: Slots) -> None:
        calls.append(1)
        updates_state(buffers, slots)

    graph = world.capture(program)
    for lane in (1, 2):
        graph.rebase(lane)
    graph.replay()
    assert len(calls) == 1


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
