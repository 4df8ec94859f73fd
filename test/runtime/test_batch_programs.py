"""Programs of one lane, lifted to rows and masked; run here as they are, without capture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from flashrt_ros.runtime.backend import Buffers, Program, Slots
from flashrt_ros.runtime.batch import ROW_MASK
from flashrt_ros.runtime.batch_programs import masked, over_rows

NUM_ROWS = 5
torch.manual_seed(0)
NETWORK = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 8)).eval()


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "memory": torch.randn(NUM_ROWS, 4, 8, generator=generator),
        "goal": torch.randn(NUM_ROWS, 8, generator=generator),
        "goal_slot": torch.tensor([[2], [0], [6], [2], [5]]),
        "count": torch.arange(NUM_ROWS)[:, None],
        ROW_MASK: torch.tensor([[True], [False], [True], [False], [True]]),
    }


def slot_tensors() -> dict[str, torch.Tensor]:
    return {"goal.values": torch.arange(7.0)[:, None] * 10.0 + torch.arange(8.0)}


def integers(buffers: Buffers, slots: Slots) -> None:
    buffers["count"].add_(1)
    at = (buffers["count"] % 4)[:, None].expand(1, 8)
    buffers["memory"].copy_(buffers["memory"].scatter(0, at, buffers["goal"][None]))


def falls_back(buffers: Buffers, slots: Slots) -> None:
    """vmap has no rule for this operator: it calls it once for each row."""
    buffers["memory"].index_copy_(0, buffers["count"] % 4, buffers["goal"][None])


def network(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].add_(NETWORK(buffers["memory"]))
    buffers["goal"].copy_(buffers["memory"].mean(0))


def selects_a_slot(buffers: Buffers, slots: Slots) -> None:
    buffers["goal"].copy_(slots["goal.values"].index_select(0, buffers["goal_slot"])[0])


def selects_into(buffers: Buffers, slots: Slots) -> None:
    torch.index_select(slots["goal.values"], 0, buffers["goal_slot"], out=buffers["memory"][:1])


def selects_by_name(buffers: Buffers, slots: Slots) -> None:
    chosen = torch.index_select(input=slots["goal.values"], dim=0, index=buffers["goal_slot"])
    buffers["goal"].add_(chosen[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    "program", [integers, network, falls_back, selects_a_slot, selects_into, selects_by_name]
)
def test_rows_are_what_the_program_makes_of_each(program: Program) -> None:
    batched, alone, slots = tensors(), tensors(), slot_tensors()
    with torch.no_grad():
        over_rows(program)(batched, slots)
        for row in range(NUM_ROWS):
            program({name: tensor[row] for name, tensor in alone.items()}, slots)
    assert any(not torch.equal(batched[name], tensors()[name]) for name in batched)
    for name, tensor in batched.items():
        torch.testing.assert_close(tensor, alone[name], rtol=1e-5, atol=1e-6)
        if not tensor.is_floating_point():
            assert torch.equal(tensor, alone[name])


def test_what_is_alike_for_all_rows_takes_no_rows_values() -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        total = torch.zeros(8)
        total += buffers["goal"]
        buffers["goal"].copy_(total)

    with pytest.raises(RuntimeError, match="shape"), torch.no_grad():
        over_rows(program)(tensors(), {})


def test_a_buffer_is_not_replaced() -> None:
    def replaces(buffers: Buffers, slots: Slots) -> None:
        buffers["goal"] = buffers["goal"] + 1.0  # type: ignore[index]

    for lift in (over_rows, lambda program: masked(program, ["goal"])):
        with pytest.raises(TypeError, match="item assignment"):
            lift(replaces)(tensors(), {})


def all_at_once(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].mul_(2.0)
    buffers["goal"].copy_(buffers["memory"].sum(1))
    buffers["count"].add_(1)


@pytest.mark.parametrize("lift", [over_rows, lambda program: program], ids=["rows", "batch"])
def test_rows_outside_the_mask_keep_their_bytes(lift: Callable[[Program], Program]) -> None:
    program = network if lift is over_rows else all_at_once
    given, free, before = tensors(), tensors(), tensors()
    given["memory"][1, 0, 0] = float("nan")
    before["memory"][1, 0, 0] = float("nan")
    with torch.no_grad():
        masked(lift(program), ["memory", "goal", "count"])(given, {})
        lift(program)(free, {})
    for name, tensor in given.items():
        for row in range(NUM_ROWS):
            expected = free if before[ROW_MASK][row] else before
            assert tensor[row].view(torch.uint8).equal(expected[name][row].view(torch.uint8))
    assert not torch.equal(given["goal"], free["goal"])  # the control: a mask does matter


def test_what_is_not_protected_is_written_in_every_row() -> None:
    given = tensors()
    masked(all_at_once, ["memory"])(given, {})
    assert given["count"][:, 0].tolist() == [1, 2, 3, 4, 5]


def test_a_program_that_fails_leaves_every_row() -> None:
    def fails(buffers: Buffers, slots: Slots) -> None:
        all_at_once(buffers, slots)
        raise ValueError("at the end")

    given = tensors()
    with pytest.raises(ValueError, match="at the end"):
        masked(fails, ["memory", "goal", "count"])(given, {})
    for name, tensor in tensors().items():
        assert torch.equal(given[name], tensor)


def test_a_lifted_program_keeps_its_name() -> None:
    assert masked(over_rows(network), []).__name__ == "network"
