"""What a capture on a host takes, and what it leaves as it was."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

from flashrt_ros.errors import CaptureError
from flashrt_ros.runtime.backend import Buffers, Slots


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


def test_capture_and_replay_inside_inference_mode(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        buffers["memory"].add_(torch.ones(8).mul_(2.0))

    with torch.inference_mode():
        graph = world.capture(program)
        rebased = graph.rebase(1)
        inside = world.replayed(rebased)
    assert world.replayed(rebased) == inside == world.eager(program, 1)


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


def test_a_program_may_return_what_it_likes(world: Any) -> None:
    graph = world.capture(lambda b, s: b["memory"] + 1.0)
    assert graph.written_roles == frozenset()


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


def test_a_program_that_ends_early_by_signal_is_put_back(world: Any) -> None:
    def program(buffers: Buffers, slots: Slots) -> None:
        buffers["memory"].zero_()
        raise KeyboardInterrupt

    before = world.bytes_of(0)
    with pytest.raises(KeyboardInterrupt):
        world.capture(program)
    assert world.bytes_of(0) == before
