"""Every published chunk must name the goal and the observation that it was made from."""

from __future__ import annotations

from dataclasses import replace

from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.witness import Chunk


def check_names(scene: Scene) -> None:
    """Compare what every chunk names with what the planner and the robot have sent."""
    witness, report = scene.witness, scene.report
    with scene.stage.news.change():
        chunks, goals = list(witness.chunks), set(witness.goals)
        stamps = set(witness.frame_stamps)
    unnamed = [chunk for chunk in chunks if not is_named(chunk, goals, stamps)]
    report.note("chunks", len(chunks))
    report.check(
        "unnamed_chunks",
        len(unnamed),
        expected=f"0 of {len(chunks)} published",
        is_held=not unnamed and bool(chunks),
    )
    forged = [
        replace(chunks[-1], goal_stamp_ns=chunks[-1].goal_stamp_ns + 1),
        replace(chunks[-1], goal_sequence=0),
        replace(chunks[-1], observation_stamp_ns=chunks[-1].observation_stamp_ns + 1),
        replace(chunks[-1], observation_sequence=0),
    ]
    found = sum(not is_named(chunk, goals, stamps) for chunk in forged)
    report.control(
        "forged_names",
        "unnamed_chunks",
        "four chunks that name a goal or an observation nobody sent",
        found,
        expected="4",
        is_held=found == len(forged),
    )


def is_named(chunk: Chunk, goals: set[tuple[int, int]], stamps: set[int]) -> bool:
    """Tell whether a chunk names a goal and an observation that were really sent.

    Args:
        chunk: As published.
        goals: The planner's number and the stamp of every goal.
        stamps: Of every observation.
    """
    return (
        chunk.goal_sequence > 0
        and (chunk.goal_source_sequence, chunk.goal_stamp_ns) in goals
        and chunk.observation_sequence > 0
        and chunk.observation_stamp_ns in stamps
    )
