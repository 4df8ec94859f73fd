"""Which streams backends get, over a torch that hands its own out in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flashrt_ros.runtime import cuda_streams
from flashrt_ros.runtime.cuda_streams import Streams

NUM_POOLED = 32
DEVICE = torch.device("cuda", 0)


class Pooled:
    """A stream of torch's pool: the same ones again and again."""

    _counts: Iterator[int]

    def __init__(self, device: torch.device, priority: int) -> None:
        self.cuda_stream = 1000 * (1 - priority) + next(self._counts) % NUM_POOLED


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Driver:
        def create_event(self) -> int:
            return 1

        def destroy_event(self, event: int) -> None:
            pass

    Pooled._counts = itertools.count()
    monkeypatch.setattr(torch.cuda, "Stream", Pooled)
    monkeypatch.setattr(cuda_streams, "_taken", set())  # other tests' backends may be open yet
    return Driver()


def handles(streams: Streams) -> set[int]:
    return {streams.plan.handle, streams.state.handle, streams.copy.handle}


@pytest.mark.parametrize("is_background", [False, True])
def test_open_backends_have_streams_of_their_own(driver: Any, is_background: bool) -> None:
    first = Streams(driver, DEVICE, is_background=is_background)
    mine = handles(first)
    assert len(mine) == 3
    others = []
    for _ in range(8):
        other = Streams(driver, DEVICE, is_background=is_background)
        assert not handles(other) & mine
        others.append(other)
    for other in others:
        other.close()
    # made and closed again and again, past the end of the pool
    for _ in range(5 * NUM_POOLED):
        other = Streams(driver, DEVICE, is_background=is_background)
        assert not handles(other) & mine
        other.close()
    first.close()


def test_what_a_closed_backend_had_is_handed_out_again(driver: Any) -> None:
    seen: set[int] = set()
    for _ in range(NUM_POOLED):
        streams = Streams(driver, DEVICE)
        seen |= handles(streams)
        streams.close()
        streams.close()
    again = Streams(driver, DEVICE)
    assert handles(again) <= seen
    streams.close()  # once more, as it may: what has its place now keeps it
    others = [Streams(driver, DEVICE) for _ in range(NUM_POOLED - 1)]
    assert not any(handles(other) & handles(again) for other in others)
    for one in (again, *others):
        one.close()


def test_more_backends_than_streams_share_them(driver: Any) -> None:
    opened = [Streams(driver, DEVICE) for _ in range(NUM_POOLED + 2)]
    assert len({streams.plan.handle for streams in opened}) == NUM_POOLED
    for streams in opened:
        streams.close()
