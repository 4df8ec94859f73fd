"""Failed captures on every backend leave it usable."""

from __future__ import annotations

from typing import Any

import pytest

from flashrt_ros.errors import CaptureError
from flashrt_ros.runtime.backend import Buffers, Slots


def moves_on(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].mul_(0.5).add_(buffers["goal"])


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
    assert world.get("goal")  # tensors are themselves again
