"""Failed captures and replays on every backend leave it usable, and say what is torn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flashrt_ros.errors import BackendError, CaptureError
from flashrt_ros.runtime.backend import Buffers, Program, Slots


def moves_on(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].mul_(0.5).add_(buffers["goal"])


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
    world.views(0)["goal_slot"].fill_(10_000)
    with pytest.raises(BackendError, match="index_select") as caught:
        graph.replay()
    assert caught.value.is_torn is is_torn
    assert line_of(program, "index_select") in str(caught.value)
    world.views(0)["goal_slot"].fill_(0)
    graph.replay()


def reads_item(buffers: Buffers, slots: Slots) -> None:
    buffers["count"].add_(1)
    buffers["out"].fill_(buffers["goal"][0].item())  # refused


def test_failed_capture_leaves_everything_usable(world: Any) -> None:
    before = world.all_bytes()
    for _ in range(3):
        with pytest.raises(CaptureError):
            world.capture(reads_item)
        assert world.all_bytes() == before
    graph = world.capture(moves_on)
    assert world.replayed(graph) == world.eager(moves_on)
    assert world.views(0)["goal"].tolist()  # tensors are themselves again
