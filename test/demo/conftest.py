"""What the demo's tests share: an episode that never happened."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.demo.trace import EpisodeTrace, Saying
from flashrt_ros.demo.witness import Chunk


def make_trace(index: int, *, is_reached: bool = True) -> EpisodeTrace:
    start = np.array([0.1, 0.1])
    subgoal = (0.4, 0.35)
    block = (0.25, 0.15, 0.4)
    trace = EpisodeTrace(index, 1000 + index, block, subgoal, start_s=5.0 * index)
    trace.happened("reset", trace.start_s, (0.1, 0.1))
    for tick in range(30):
        x, y = start + (np.array(subgoal) - start) * tick / 29
        trace.add(trace.start_s + 0.1 * tick, (float(x), float(y)))
        if tick == 10:
            trace.detour = (0.12, 0.3)
            trace.happened("interrupt", trace.times_s[-1])
        if tick == 15:
            trace.happened("resume", trace.times_s[-1])
    trace.block_end = block
    trace.ticks = 30
    trace.is_reached = is_reached
    return trace


@pytest.fixture
def trace() -> EpisodeTrace:
    return make_trace(0)


@pytest.fixture
def forked_trace() -> EpisodeTrace:
    trace = make_trace(1)
    rows = np.array(trace.path[10:26])
    trace.branches = [rows + 0.002 * number for number in range(4)]
    trace.selected = 2
    trace.happened("fork", trace.times_s[10], trace.path[10])
    trace.happened("select", trace.times_s[11], trace.path[11])
    return trace


@pytest.fixture
def words_trace() -> EpisodeTrace:
    trace = make_trace(-1)
    trace.sayings = [
        Saying("go to the lower right, then back", 0.0, ((0.384, 0.384), (0.1, 0.1)), 1),
        Saying("go left of the block", 1.0, ((0.14, 0.15),), 0),
        Saying("make me a coffee", 2.0, (), 0),
    ]
    for saying in trace.sayings:
        at = trace.path[round(10 * saying.time_s)]
        trace.happened("words", saying.time_s, at)
    return trace


@pytest.fixture
def chunk() -> Chunk:
    rows = np.linspace((0.1, 0.1), (0.4, 0.35), 16).astype(np.float32)
    return Chunk(
        generation=3,
        sequence=7,
        tick=8,
        goal_sequence=2,
        goal_source_sequence=5,
        goal_stamp_ns=1_500,
        observation_sequence=9,
        observation_stamp_ns=1_600,
        score=0.0,
        horizon=16,
        action_dim=2,
        actions=rows.tobytes(),
    )
