"""Every program here must be refused at capture, with the operator and the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from flashrt_ros.errors import CaptureError
from flashrt_ros.runtime.backend import Buffers, Program, Slots

DROPOUT = nn.Dropout(0.5).train()
NORM = nn.BatchNorm1d(8).train()
WEIGHT = torch.ones(8)
Refused = tuple[Program, str]
REFUSED: list[Any] = []


def refused(*ops: str) -> Callable[[Program], Program]:
    """Collect a program, and the operator that its refusal must name: one of these, by device."""

    def collect(program: Program) -> Program:
        REFUSED.append(pytest.param(program, ops, id=program.__name__))
        return program

    return collect


@refused("Tensor.item")
def item(b: Buffers, s: Slots) -> None:
    b["out"].fill_(b["goal"][0].item())  # refused


@refused("Tensor.tolist")
def tolist(b: Buffers, s: Slots) -> None:
    b["out"].fill_(sum(b["goal"].tolist()))  # refused


@refused("Tensor.numpy")
def numpy(b: Buffers, s: Slots) -> None:
    b["out"].fill_(float(b["goal"].numpy().sum()))  # refused


@refused("Tensor.__array__")
def asarray(b: Buffers, s: Slots) -> None:
    b["out"].fill_(float(np.asarray(b["goal"]).sum()))  # refused


@refused("Tensor.__bool__")
def branches(b: Buffers, s: Slots) -> None:
    if b["goal"].sum() > 0:  # refused
        b["out"].zero_()


@refused("Tensor.__bool__")
def loops(b: Buffers, s: Slots) -> None:
    while b["goal"].sum() < 10:  # refused
        b["goal"].add_(1)


@refused("Tensor.__bool__")
def largest(b: Buffers, s: Slots) -> None:
    b["out"].copy_(max(b["goal"][0], b["goal"][1]))  # refused


@refused("Tensor.__int__")
def to_int(b: Buffers, s: Slots) -> None:
    b["out"].fill_(int(b["count"]))  # refused


@refused("Tensor.__float__")
def to_float(b: Buffers, s: Slots) -> None:
    b["out"].fill_(float(b["goal"][0]))  # refused


@refused("Tensor.__index__")
def ranges(b: Buffers, s: Slots) -> None:
    for _ in range(b["count"][0]):  # refused
        b["out"].add_(1)


@refused("Tensor.__contains__")
def contains(b: Buffers, s: Slots) -> None:
    if 0.0 in b["goal"]:  # refused
        b["out"].zero_()


@refused("Tensor.__format__")
def formats(b: Buffers, s: Slots) -> None:
    b["out"].fill_(float(f"{b['goal'][0]:.3f}"))  # refused


@refused("Tensor.__repr__")
def logs(b: Buffers, s: Slots) -> None:
    print(b["goal"])  # refused


@refused("aten::_local_scalar_dense")
def indexes_by_a_tensor(b: Buffers, s: Slots) -> None:
    b["out"].copy_(b["memory"][b["count"][0]])  # refused


@refused("aten::_local_scalar_dense")
def scales_by_alpha(b: Buffers, s: Slots) -> None:
    torch.add(b["memory"], b["memory"], alpha=b["goal"][0], out=b["out"])  # type: ignore[call-overload]  # refused


@refused("aten::equal")
def compares(b: Buffers, s: Slots) -> None:
    b["out"].fill_(torch.equal(b["memory"], b["out"]))  # refused


@refused("aten::allclose")
def compares_nearly(b: Buffers, s: Slots) -> None:
    b["out"].fill_(torch.allclose(b["memory"], b["out"]))  # refused


@refused("aten::nonzero")
def nonzero(b: Buffers, s: Slots) -> None:
    b["count"].copy_(torch.nonzero(b["goal"]).sum()[None])  # refused


@refused("aten::nonzero")
def where_without_values(b: Buffers, s: Slots) -> None:
    b["count"].copy_(torch.where(b["goal"] > 0)[0].sum()[None])  # refused


@refused("aten::masked_select")
def masked_select(b: Buffers, s: Slots) -> None:
    b["out"].fill_(b["goal"].masked_select(b["goal"] > 0).sum())  # refused


@refused("aten::index")
def indexes_by_a_mask(b: Buffers, s: Slots) -> None:
    b["out"].copy_(b["goal"][b["goal"] > 0].sum())  # refused


@refused("aten::index_put_")
def writes_by_a_mask(b: Buffers, s: Slots) -> None:
    b["goal"][b["goal"] > 0] = 1.0  # refused


@refused("aten::_unique2")
def unique(b: Buffers, s: Slots) -> None:
    b["out"].copy_(torch.unique(b["goal"]).sum())  # refused


@refused("aten::repeat_interleave")
def repeats(b: Buffers, s: Slots) -> None:
    b["out"].copy_(b["goal"].repeat_interleave(b["count"]).sum())  # refused


@refused("tensor_split")
def splits_by_a_tensor(b: Buffers, s: Slots) -> None:
    b["out"].copy_(torch.tensor_split(b["goal"], b["count"])[0].sum())  # refused


@refused("torch.tensor")
def builds_from_items(b: Buffers, s: Slots) -> None:
    b["out"][0, :2].copy_(torch.tensor([b["goal"][0], b["goal"][1]]))  # refused


@refused("aten::lift_fresh")
def brings_in_an_array(b: Buffers, s: Slots) -> None:
    b["goal"].copy_(torch.from_numpy(np.ones(8, np.float32)))  # refused


@refused("aten::randn")
def randn(b: Buffers, s: Slots) -> None:
    b["out"].copy_(torch.randn(4, 8))  # refused


@refused("aten::randn_like")
def randn_like(b: Buffers, s: Slots) -> None:
    b["out"].copy_(torch.randn_like(b["out"]))  # refused


@refused("aten::normal_")
def normal(b: Buffers, s: Slots) -> None:
    b["out"].normal_()  # refused


@refused("aten::bernoulli_", "aten::native_dropout")
def dropout(b: Buffers, s: Slots) -> None:
    b["out"].copy_(DROPOUT(b["memory"]))  # refused


@refused("aten::multinomial")
def multinomial(b: Buffers, s: Slots) -> None:
    b["count"].copy_(b["goal"].abs().multinomial(1))  # refused


@refused("aten::randperm")
def randperm(b: Buffers, s: Slots) -> None:
    b["count"].copy_(torch.randperm(8)[:1])  # refused


@refused("aten::rand")
def own_generator(b: Buffers, s: Slots) -> None:
    b["out"].copy_(torch.rand(4, 8, generator=torch.Generator()))  # refused


@refused("aten::bernoulli_", "aten::_scaled_dot_product_efficient_attention")
def attention_with_dropout(b: Buffers, s: Slots) -> None:
    q = b["memory"].view(1, 1, 4, 8)
    out = functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)  # refused
    b["out"].copy_(out[0, 0])


@refused("aten::native_batch_norm")
def norm_in_training(b: Buffers, s: Slots) -> None:
    mean, var = NORM.running_mean, NORM.running_var
    b["out"].copy_(functional.batch_norm(b["memory"], mean, var, training=True))  # refused


@refused("aten::add_")
def writes_a_weight(b: Buffers, s: Slots) -> None:
    WEIGHT.add_(1.0)  # refused
    b["goal"].copy_(WEIGHT)


@refused("aten::add_")
def counts_batches(b: Buffers, s: Slots) -> None:
    b["out"].copy_(NORM(b["memory"]))  # refused


@refused("aten::copy_")
def writes_a_slot(b: Buffers, s: Slots) -> None:
    s["goal.values"][0].copy_(b["goal"])  # refused


@refused("aten::mul")
def reads_every_slot(b: Buffers, s: Slots) -> None:
    b["goal"].copy_((s["goal.values"] * 2.0)[0])  # refused


@refused("aten::copy_")
def reads_a_slot_by_number(b: Buffers, s: Slots) -> None:
    b["goal"].copy_(s["goal.values"][1])  # refused


@refused("aten::index_select")
def reads_a_slot_by_a_computed_index(b: Buffers, s: Slots) -> None:
    index = b["goal_slot"] + 1
    b["goal"].copy_(s["goal.values"].index_select(0, index)[0])  # refused


@refused("aten::index_select")
def reads_a_slot_by_state(b: Buffers, s: Slots) -> None:
    b["goal"].copy_(s["goal.values"].index_select(0, b["count"])[0])  # refused


@refused("assignment")
def replaces_a_buffer(b: Buffers, s: Slots) -> None:
    b["goal"] = b["goal"] + 1.0  # type: ignore[index]  # refused


@refused("Tensor.data")
def changes_storage(b: Buffers, s: Slots) -> None:
    b["goal"].data = torch.ones(8, device=b["goal"].device)  # refused


@refused("aten::resize_")
def resizes(b: Buffers, s: Slots) -> None:
    b["goal"].resize_(4)  # refused


@refused("aten::set_")
def sets(b: Buffers, s: Slots) -> None:
    b["goal"].set_(torch.ones_like(b["goal"]))  # type: ignore[call-overload]  # refused


@refused("aten::unsqueeze_")
def reshapes_a_buffer(b: Buffers, s: Slots) -> None:
    b["goal"].unsqueeze_(0)  # refused


@refused("aten::add")
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def resizes_by_out(b: Buffers, s: Slots) -> None:
    torch.add(b["memory"], 1.0, out=torch.empty(0, device=b["out"].device))  # refused


@refused("untyped_storage")
def takes_the_storage(b: Buffers, s: Slots) -> None:
    b["goal"].untyped_storage().fill_(0)  # type: ignore[attr-defined]  # refused


@refused("Tensor.data_ptr")
def takes_the_address(b: Buffers, s: Slots) -> None:
    b["count"].fill_(b["goal"].data_ptr())  # refused


@refused("aten::_to_sparse")
def sparse(b: Buffers, s: Slots) -> None:
    b["out"].copy_(torch.eye(4, device=b["out"].device).to_sparse() @ b["memory"])  # refused


@pytest.mark.parametrize(("program", "ops"), REFUSED)
@pytest.mark.filterwarnings("ignore:.*[Ss]parse")
def test_refusal_names_operator_and_line(
    world: Any, program: Program, ops: tuple[str, ...], line_of: Callable[..., str]
) -> None:
    before, slots = world.all_bytes(), bytes(world.slot_block.view())
    with pytest.raises(CaptureError) as caught:
        world.capture(program)
    error = caught.value
    assert any(op in error.op for op in ops)
    assert error.source == line_of(program)
    assert error.op in str(error)
    assert error.source in str(error)
    assert error.fix
    assert world.all_bytes() == before
    assert bytes(world.slot_block.view()) == slots


def test_random_numbers_are_refused_before_the_generator_moves(world: Any) -> None:
    state = torch.get_rng_state()
    for program in (randn, normal, dropout, multinomial):
        with pytest.raises(CaptureError):
            world.capture(program)
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_stay_as_they_are(world: Any) -> None:
    with pytest.raises(CaptureError):
        world.capture(writes_a_weight)
    assert WEIGHT.tolist() == [1.0] * 8


def test_every_operator_with_the_random_tag_is_refused() -> None:
    from flashrt_ros.runtime.op_traits import traits_of

    tagged = 0
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, name = qualified.partition("::")
        if namespace != "aten":
            continue
        packet, _, overload = name.partition(".")
        try:
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        except AttributeError:
            continue
        if torch.Tag.nondeterministic_seeded in op.tags:
            tagged += 1
            assert traits_of(op).refusal is not None, qualified
    assert tagged > 50
