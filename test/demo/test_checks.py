"""The judgements that need no process: each must also find what is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="the demo's scenarios need ROS")

from flashrt_ros.demo.scenarios.branching import (
    is_best_selected,
    pairwise_different,
    score,
)
from flashrt_ros.demo.scenarios.lockstep import equal_bytes
from flashrt_ros.demo.scenarios.naming import is_named
from flashrt_ros.demo.scenarios.stale import stale_chunks
from flashrt_ros.demo.witness import Chunk

BARRIERS = [(2, 1_000), (5, 2_000)]


def test_a_chunk_from_after_the_reset_is_not_stale(chunk: Chunk) -> None:
    assert stale_chunks([chunk], BARRIERS) == []
    assert stale_chunks([replace(chunk, generation=1)], [(2, 9_000)]) == []


@pytest.mark.parametrize(
    "late",
    [
        {"goal_stamp_ns": 999},
        {"observation_stamp_ns": 999},
        {"generation": 6},
    ],
)
def test_a_chunk_from_before_the_reset_is_stale(chunk: Chunk, late: dict[str, int]) -> None:
    found = replace(chunk, **late)  # type: ignore[arg-type]
    assert stale_chunks([chunk, found], BARRIERS) == [found]


def test_a_chunk_that_names_what_was_sent_is_named(chunk: Chunk) -> None:
    assert is_named(chunk, {5: 1_500}, {1_600})


@pytest.mark.parametrize(
    ("goals", "stamps"), [({5: 1_501}, {1_600}), ({6: 1_500}, {1_600}), ({5: 1_500}, {1_601})]
)
def test_a_chunk_that_names_what_nobody_sent_is_not(
    chunk: Chunk, goals: dict[int, int], stamps: set[int]
) -> None:
    assert not is_named(chunk, goals, stamps)


def test_equal_chunks_are_found(chunk: Chunk) -> None:
    other = replace(chunk, actions=chunk.actions[:-1] + b"\x7f")
    assert pairwise_different([chunk, other])
    assert not pairwise_different([chunk, other, replace(chunk, sequence=8)])
    assert equal_bytes([chunk], [replace(chunk, sequence=8)])
    assert not equal_bytes([chunk], [other])
    assert not equal_bytes([chunk], [])


def test_only_the_best_counts_as_selected() -> None:
    assert is_best_selected([0.1, 0.4, 0.2], 1)
    assert not is_best_selected([0.1, 0.4, 0.2], 2)


def test_the_score_is_that_of_the_policy(chunk: Chunk) -> None:
    torch = pytest.importorskip("torch")
    from flashrt_ros.models.flow_policy import FlowPolicy

    goal, agent = np.array([0.41, 0.3], np.float32), np.array([0.09, 0.12], np.float32)
    buffers = {"goal": torch.from_numpy(goal), "agent_pos": torch.from_numpy(agent)}
    rows = torch.frombuffer(bytearray(chunk.actions), dtype=torch.float32).view(16, 2)
    wanted = FlowPolicy.untrained(0).score(rows, buffers)
    assert score(chunk, goal, agent) == pytest.approx(wanted, abs=1e-9)
