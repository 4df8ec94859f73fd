"""The judgements that need no process: each must also find what is wrong."""

from __future__ import annotations

import secrets
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="the demo's scenarios need ROS")


from flashrt_ros.demo.census import marked_processes
from flashrt_ros.demo.report import Report
from flashrt_ros.demo.scenarios.branching import (
    Forked,
    are_scores_true,
    branch_of,
    is_best_taken,
    pairwise_different,
    score,
)
from flashrt_ros.demo.scenarios.episodes import finished
from flashrt_ros.demo.scenarios.leaks import check_processes, has_ended_well
from flashrt_ros.demo.scenarios.lockstep import equal_bytes
from flashrt_ros.demo.scenarios.naming import is_named
from flashrt_ros.demo.scenarios.stale import is_refused, stale_chunks
from flashrt_ros.demo.trace import EpisodeTrace
from flashrt_ros.demo.witness import Chunk
from flashrt_ros.engine.protocol import format_detail

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
    assert is_named(chunk, {(5, 1_500)}, {1_600})


@pytest.mark.parametrize(
    ("goals", "stamps"),
    [({(5, 1_501)}, {1_600}), ({(6, 1_500)}, {1_600}), ({(5, 1_500)}, {1_601})],
)
def test_a_chunk_that_names_what_nobody_sent_is_not(
    chunk: Chunk, goals: set[tuple[int, int]], stamps: set[int]
) -> None:
    assert not is_named(chunk, goals, stamps)


def test_equal_chunks_are_found(chunk: Chunk) -> None:
    other = replace(chunk, actions=chunk.actions[:-1] + b"\x7f")
    assert pairwise_different([chunk, other])
    assert not pairwise_different([chunk, other, replace(chunk, sequence=8)])
    assert equal_bytes([chunk], [replace(chunk, sequence=8)])
    assert not equal_bytes([chunk], [other])
    assert not equal_bytes([chunk], [])


@pytest.fixture
def fork(chunk: Chunk) -> Forked:
    rows = np.frombuffer(chunk.actions, np.float32).reshape(16, 2)
    scores = [-0.1, -0.05, -0.2]
    chunks = [
        replace(chunk, actions=(rows + np.float32(0.001 * number)).tobytes(), score=value)
        for number, value in enumerate(scores)
    ]
    return Forked(chunks, scores, continued=1)


def test_only_the_bytes_of_the_best_branch_count(fork: Forked) -> None:
    assert is_best_taken(fork)
    for other in (0, 2, -1):
        assert not is_best_taken(replace(fork, continued=other))


@pytest.mark.parametrize("reported", [-0.01, float("nan")])
def test_a_score_that_the_bytes_do_not_have_does_not_count(fork: Forked, reported: float) -> None:
    chunks = [replace(fork.chunks[0], score=reported), *fork.chunks[1:]]
    assert not are_scores_true(replace(fork, chunks=chunks))
    assert not is_best_taken(replace(fork, chunks=chunks))


def test_a_branch_is_known_by_its_bytes(fork: Forked) -> None:
    assert branch_of(fork.chunks[2].actions[:64], fork.chunks) == 2
    assert branch_of(b"", fork.chunks) == -1
    assert branch_of(b"other bytes", fork.chunks) == -1
    assert branch_of(fork.chunks[0].actions, [fork.chunks[0], fork.chunks[0]]) == -1


def test_an_episode_without_an_end_is_not_finished(trace: EpisodeTrace) -> None:
    assert finished([trace, replace(trace, block_end=None)]) == [trace]


def test_only_the_refusal_as_stale_counts() -> None:
    detail = "refused topic=subgoal planner=p sequence=7 code=308 name=STALE_STAMP: late"
    event = SimpleNamespace(detail=detail)
    assert is_refused([event], 7)
    assert not is_refused([event], 77)
    assert not is_refused([SimpleNamespace(detail=detail.replace("308", "404"))], 7)
    assert not is_refused([], 7)


def test_a_planner_with_blanks_in_its_name_is_refused_as_another() -> None:
    name = "left arm sequence=8 code=308 "
    detail = format_detail("refused", planner=name, sequence=7, code=308, text="late")
    event = SimpleNamespace(detail=detail)
    assert is_refused([event], 7)
    assert not is_refused([event], 8)


@pytest.mark.parametrize(("rate", "base"), [(0.5, 1.0), (0.0, 0.85), (0.0, 0.0)])
def test_a_control_needs_a_policy_that_succeeds(rate: float, base: float) -> None:
    pytest.importorskip("torch")
    from flashrt_ros.demo.scenarios.without_ros import falls_short

    assert falls_short(0.1, 0.95)
    assert not falls_short(rate, base)


@pytest.mark.parametrize(
    ("left", "killed"), [([1], ()), ([], ("engine",)), ([1], ("engine", "sim"))]
)
def test_a_process_that_had_to_be_killed_has_not_ended_well(
    left: list[int], killed: tuple[str, ...]
) -> None:
    assert has_ended_well([], ())
    assert not has_ended_well(left, killed)


@pytest.mark.parametrize("killed", [(), ("policy_node",)])
def test_the_end_is_judged_by_who_was_killed(killed: tuple[str, ...]) -> None:
    mark = secrets.token_hex(8)

    class Ended:
        marks: ClassVar = {"FLASHRT_ROS_TEST_END": mark}

        @property
        def processes(self) -> list[int]:
            return marked_processes("FLASHRT_ROS_TEST_END", mark)

    stage, report = Ended(), Report()
    vars(stage)["killed"] = killed
    scene: Any = SimpleNamespace(stage=stage, report=report)
    check_processes(scene)
    assert report.checks["leaked_processes"].is_held == (not killed)
    assert report.controls["process_stayed"].is_held
    assert report.figures["killed_processes"] == list(killed)


def test_the_score_is_that_of_the_policy(chunk: Chunk) -> None:
    torch = pytest.importorskip("torch")
    from flashrt_ros.models.flow_policy import FlowPolicy

    goal, agent = np.array([0.41, 0.3], np.float32), np.array([0.09, 0.12], np.float32)
    buffers = {"goal": torch.from_numpy(goal), "agent_pos": torch.from_numpy(agent)}
    rows = torch.frombuffer(bytearray(chunk.actions), dtype=torch.float32).view(16, 2)
    wanted = FlowPolicy.untrained(0).score(rows, buffers)
    assert score(chunk, goal, agent) == pytest.approx(wanted, abs=1e-9)
