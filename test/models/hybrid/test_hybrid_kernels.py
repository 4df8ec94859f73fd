"""The two expensive operations against their formulas, and the choice between implementations."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flashrt_ros.errors import ConfigError
from flashrt_ros.models.hybrid_attention import torch_attention
from flashrt_ros.models.hybrid_kernels import TORCH_KERNELS, select_kernels
from flashrt_ros.models.hybrid_linear import DeltaInputs, torch_delta_chunk, torch_delta_step
from flashrt_ros.models.hybrid_ops import TorchOps

KEY_HEADS, VALUE_HEADS, SIZE = 2, 4, 8


def inputs(length: int, seed: int = 0) -> DeltaInputs:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return DeltaInputs(
        queries=draw(length, KEY_HEADS, SIZE),
        keys=draw(length, KEY_HEADS, SIZE),
        values=draw(length, VALUE_HEADS, SIZE),
        decay=-draw(length, VALUE_HEADS).abs() * 0.1,
        strength=draw(length, VALUE_HEADS).sigmoid(),
    )


def rows(whole: DeltaInputs, start: int, end: int) -> DeltaInputs:
    return DeltaInputs(
        whole.queries[start:end],
        whole.keys[start:end],
        whole.values[start:end],
        whole.decay[start:end],
        whole.strength[start:end],
    )


def by_formula(given: DeltaInputs, state: Tensor) -> Tensor:
    """The rule token by token in float64, as its paper has it."""
    outputs = []
    state = state.double()
    for at in range(given.values.shape[0]):
        heads = []
        for head in range(VALUE_HEADS):
            key_head = head * KEY_HEADS // VALUE_HEADS
            q, k = (x[at, key_head].double() for x in (given.queries, given.keys))
            q, k = q / q.norm() / SIZE**0.5, k / k.norm()
            old = state[head] * given.decay[at, head].double().exp()
            update = given.strength[at, head] * (given.values[at, head].double() - k @ old)
            state[head] = old + torch.outer(k, update)
            heads.append(q @ state[head])
        outputs.append(torch.stack(heads))
    return torch.stack(outputs)


def fresh(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VALUE_HEADS, SIZE, SIZE, generator=generator)


@pytest.mark.parametrize("length", [64, 128])
def test_the_rule_over_a_chunk_is_the_rule_token_by_token(length: int) -> None:
    given, state = inputs(length), fresh()
    expected = by_formula(given, state)
    found = torch_delta_chunk(given, state)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


def test_steps_are_the_chunk() -> None:
    given, stepped, chunked = inputs(64), fresh(), fresh()
    expected = torch_delta_chunk(given, chunked)
    outputs = [torch_delta_step(rows(given, at, at + 1), stepped) for at in range(64)]
    torch.testing.assert_close(torch.cat(outputs), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(stepped, chunked, atol=1e-4, rtol=1e-4)


def test_the_rule_stays_exact_where_every_key_is_the_same() -> None:
    given, state = inputs(64), fresh()
    given.keys[:] = given.keys[0]
    given.strength[:] = 0.99
    expected = by_formula(given, state)
    found = torch_delta_chunk(given, state)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


def test_a_chunk_of_two_blocks_is_two_chunks_to_the_bit() -> None:
    given, once, twice = inputs(128), fresh(), fresh()
    whole = torch_delta_chunk(given, once)
    parts = [torch_delta_chunk(rows(given, at, at + 64), twice) for at in (0, 64)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(once, twice)


def test_padding_leaves_the_state_to_the_bit() -> None:
    given, state = inputs(64), fresh()
    given.decay.zero_()
    given.strength.zero_()
    torch_delta_chunk(given, state)
    assert torch.equal(state, fresh())


def attention_by_formula(queries: Tensor, cache: Tensor, position: int) -> Tensor:
    length, num_heads, size = queries.shape
    group = num_heads // cache.shape[2]
    rows = []
    for at in range(length):
        keys, values = cache[: position + at + 1].double().unbind(1)
        heads = [
            torch.softmax(keys[:, h // group] @ queries[at, h].double() / size**0.5, 0)
            @ values[:, h // group]
            for h in range(num_heads)
        ]
        rows.append(torch.stack(heads))
    return torch.stack(rows)


@pytest.mark.parametrize(("length", "position"), [(1, 0), (1, 99), (64, 0), (128, 70)])
def test_attention_reads_as_far_as_the_position(length: int, position: int) -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(length, 4, 16, generator=generator)
    cache = torch.randn(256, 3, 2, 2, 16, generator=generator)[:, 1]
    found = torch_attention(queries, cache, torch.tensor([position]))
    expected = attention_by_formula(queries, cache, position)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_row_of_a_long_product_is_that_of_a_short_one_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 80, generator=generator)
    long = torch.randn(256, 80, generator=generator)
    short = torch.cat([TorchOps().project(long[at : at + 64], weight) for at in range(0, 256, 64)])
    assert torch.equal(TorchOps().project(long, weight), short)


# choice ---------------------------------------------------------------------------------------


def test_on_a_cpu_torch_is_chosen() -> None:
    assert select_kernels("cpu") == TORCH_KERNELS
    assert select_kernels("cuda:0", ops="torch", linear="torch") == TORCH_KERNELS


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ops": "flash"}, "auto, torch or triton, found flash"),
        ({"linear": "mamba"}, "auto, torch or fla, found mamba"),
        ({"ops": "triton"}, "'triton' can't run 'ops' here"),
        ({"linear": "fla"}, "'fla' can't run 'linear' here"),
    ],
)
def test_what_does_not_run_here_is_refused(options: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        select_kernels("cpu", **options)


def check_triton(device: str, environment: dict[str, str]) -> None:
    program = Path(__file__).with_name("triton_check.py")
    subprocess.run(
        [sys.executable, program, device], env=os.environ | environment, timeout=600, check=True
    )


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_triton_operations_agree_with_torch_in_the_interpreter() -> None:
    check_triton("cpu", {"TRITON_INTERPRET": "1"})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_triton_operations_agree_with_torch_on_the_device() -> None:
    check_triton("cuda", {})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("length", [1, 64, 512])
def test_the_rule_on_the_device_agrees_with_torch(length: int) -> None:
    torch.manual_seed(0)
    kernels = select_kernels("cuda")
    queries, keys, values = (
        torch.randn(length, heads, 128, device="cuda").bfloat16() for heads in (4, 4, 8)
    )
    given = DeltaInputs(
        queries=queries,
        keys=keys,
        values=values,
        decay=-torch.rand(length, 8, device="cuda"),
        strength=torch.rand(length, 8, device="cuda"),
    )
    first = torch.randn(8, 128, 128, device="cuda")
    states = [first, first.clone()]
    ours, theirs = (
        (torch_delta_step, kernels.delta_step)
        if length == 1
        else (torch_delta_chunk, kernels.delta_chunk)
    )
    torch.testing.assert_close(
        theirs(given, states[1]), ours(given, states[0]), atol=5e-2, rtol=5e-2
    )
    torch.testing.assert_close(states[1], states[0], atol=5e-2, rtol=5e-2)
