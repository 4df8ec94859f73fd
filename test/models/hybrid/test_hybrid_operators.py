"""What a capture is told of the Triton kernels, and the launches that others' kernels get."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from flashrt_ros.models import hybrid_linear_cuda
from flashrt_ros.models.hybrid_ops_cuda import TritonOps
from flashrt_ros.runtime.op_traits import traits_of

WRITTEN = {
    "row_times_matrix": [],
    "rows_times_matrix": [],
    "norm": [],
    "add_norm": [],
    "silu_product": [],
    "convolve": ["past"],
    "gates": [],
    "gated_norm": [],
    "place_heads": ["cache"],
    "attend": [],
    "choose": [],
    "delta_step": ["state"],
    "delta_chunk": ["state"],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_capture_sees_what_a_kernel_writes(name: str) -> None:
    traits = traits_of(getattr(torch.ops.flashrt_hybrid, name).default)
    assert [argument for _, argument in traits.written] == WRITTEN[name]
    assert not traits.is_view
    assert traits.refusal is None


class Kernel:
    """Stands for a kernel that looks for its launch settings."""

    def __init__(self, *configs: tuple[dict[str, int], int, int]) -> None:
        self.configs = [
            SimpleNamespace(kwargs=blocks, num_warps=warps, num_stages=stages)
            for blocks, warps, stages in configs
        ]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    made = ModuleType("kernels_of_others")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    hybrid_linear_cuda.fix_launches.cache_clear()
    yield made
    hybrid_linear_cuda.fix_launches.cache_clear()


def test_a_kernel_gets_the_one_launch_that_is_named(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Kernel(({"B": 32}, 4, 2), ({"B": 64}, 4, 3), ({"B": 64}, 8, 3))
    without = Kernel(({"B": 16}, 1, 1))
    module.wrapped = SimpleNamespace(fn=inner)  # type: ignore[attr-defined]
    module.without = without  # type: ignore[attr-defined]
    launch = (module.__name__, {"B": 64}, 4, 3)
    launches = dict.fromkeys(("wrapped", "without", "missing"), launch)
    launches["elsewhere"] = ("no_such_module_anywhere", {}, 4, 3)
    monkeypatch.setattr(hybrid_linear_cuda, "_LAUNCHES", launches)
    assert hybrid_linear_cuda.fix_launches() == ("wrapped",)
    assert [(config.kwargs, config.num_warps) for config in inner.configs] == [({"B": 64}, 4)]
    assert len(without.configs) == 1


def test_nothing_is_prepared_for_short_chunks_nor_in_float32() -> None:
    ops = TritonOps()
    ops.prepare([torch.zeros(4, 4, dtype=torch.bfloat16)], 64)
    ops.prepare([torch.zeros(4, 4)], 1024)
    assert not ops.by_library
