"""A bench looks at the bytes before it times: one that damages them must not give figures."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from flashrt_ros.bench import checks
from flashrt_ros.bench.checks import require_different, require_equal
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.bench.registry import BENCHES
from flashrt_ros.models.action_queue import pop
from flashrt_ros.models.base import Buffers, Slots
from flashrt_ros.models.flow_policy import FlowPolicy
from flashrt_ros.runtime.backend import Fence
from flashrt_ros.runtime.cpu import CpuBackend, CpuGraph


class TimedError(Exception):
    """Something was timed that should not have been."""


@pytest.fixture
def no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every timing fail the test."""

    def refuse(*arguments: object) -> None:
        raise TimedError

    monkeypatch.setattr("flashrt_ros.bench.context.measure", refuse)


@pytest.mark.parametrize("name", ["replay", "restore", "fork", "snapshot"])
def test_without_damage_it_comes_to_the_timing(
    name: str, make_context: Callable[..., Context], no_timing: None
) -> None:
    with pytest.raises(TimedError):
        BENCHES[name].run(make_context())


@pytest.mark.parametrize("name", ["restore", "fork", "snapshot"])
def test_a_copy_that_leaves_bytes_out_is_noticed(
    name: str,
    make_context: Callable[..., Context],
    no_timing: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def copy_short(self: CpuBackend, dst: int, src: int, num_bytes: int) -> None:
        ctypes.memmove(dst, src, num_bytes - min(num_bytes, 1 << 19))

    def copy_short_aside(self: CpuBackend, dst: int, src: int, num_bytes: int) -> Fence:
        copy_short(self, dst, src, num_bytes)
        return self.fence()

    monkeypatch.setattr(CpuBackend, "copy", copy_short)
    monkeypatch.setattr(CpuBackend, "copy_aside", copy_short_aside)
    with pytest.raises(WrongResultError, match="ballast"):
        BENCHES[name].run(make_context())


def test_a_replay_that_leaves_a_node_out_is_noticed(
    make_context: Callable[..., Context], no_timing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = CpuGraph.replay

    def skip(self: CpuGraph, **options: bool) -> None:
        if self.key != ("denoise", 3) or is_capturing[0]:
            replay(self, **options)

    is_capturing = [True]
    check = BENCHES["replay"]
    monkeypatch.setattr(CpuGraph, "replay", skip)
    context = make_context(
        tell=lambda share, text: is_capturing.__setitem__(0, "comparing" not in text)
    )
    with pytest.raises(WrongResultError, match="a replay gave other bytes"):
        check.run(context)


def test_a_popped_action_that_is_another_is_noticed(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = FlowPolicy.programs

    def pop_wrong(buffers: Buffers, slots: Slots) -> None:
        pop(buffers, slots)
        buffers["action"].add_(1.0)

    monkeypatch.setattr(FlowPolicy, "programs", lambda self: {**whole(self), ("pop",): pop_wrong})
    with pytest.raises(WrongResultError, match="popped"):
        BENCHES["steady"].run(make_context())


def test_bits_are_compared_and_not_numbers() -> None:
    nan = torch.tensor([float("nan")])
    assert checks.same_bytes(nan, nan.clone())
    assert not checks.same_bytes(torch.tensor([0.0]), torch.tensor([-0.0]))
    require_equal("it", {"a": nan}, {"a": nan.clone()})


def test_what_differs_is_named() -> None:
    found = {"a": torch.zeros(2), "b": torch.ones(2)}
    with pytest.raises(WrongResultError, match=r"it gave other bytes than expected in b$"):
        require_equal("it", found, {"a": torch.zeros(2), "b": torch.zeros(2)})


def test_what_changed_nothing_proves_nothing() -> None:
    with pytest.raises(WrongResultError, match="changed nothing"):
        require_different("it", {"a": torch.zeros(2)}, {"a": torch.zeros(2)})
