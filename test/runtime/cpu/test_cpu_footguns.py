"""Known misuse of captured programs on a host, and the line that a refusal names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from flashrt_ros.errors import CaptureError
from flashrt_ros.runtime.backend import Buffers, Slots
from flashrt_ros.runtime.cpu import CpuBackend


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


def test_a_program_cannot_capture_another(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        CpuBackend().capture(lambda b, s: None, ("q",), world.arena, 1, {})

    with pytest.raises(CaptureError):
        world.capture(program)
    world.capture(lambda b, s: b["out"].zero_())
