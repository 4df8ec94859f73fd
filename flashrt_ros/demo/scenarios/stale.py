"""The reset as a barrier: what was made before it is sent after it, and must not act."""

from __future__ import annotations

from functools import partial
from typing import Any

from flashrt_ros.demo.scene import STEP_TIMEOUT, Scene
from flashrt_ros.demo.trace import Point
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.demo.witness import Chunk

NUM_STALE = 5
"""Frames, and goals, sent too late."""

STALE_STAMP = "STALE_STAMP"

_REFUSED_S = 5.0
_NOTHING_S = 0.3


def check_stale(scene: Scene, goal: Point) -> None:
    """Send frames and goals stamped before a reset after it; then fresh ones, as the control.

    Nothing else is there to act on: the robot's time stands still.
    """
    witness, services, report = scene.witness, scene.services, scene.report
    frame = scene.lab_frames[-1]
    stamps = [witness.now_ns() for _ in range(NUM_STALE)]
    generation = scene.reset_policy("stale", 1)
    refused = witness.refusals.get(f"observation {STALE_STAMP}", 0)
    for stamp_ns in stamps:
        scene.show(frame, stamp_ns)
        number = services.send_goal(goal, stamp_ns=stamp_ns)
        scene.stage.news.wait(
            partial(_is_refused, witness.goal_events, number),
            _REFUSED_S,
            "the refusal of a goal from before the reset",
        )
    scene.stage.news.wait(
        lambda: witness.refusals.get(f"observation {STALE_STAMP}", 0) > refused,
        _REFUSED_S,
        "the refusal of an observation from before the reset",
    )
    reply = services.step(1, timeout_s=_NOTHING_S, may_fail=True)
    acted = len(reply.chunks)
    if not reply.success and reply.error_code != STEP_TIMEOUT:
        raise ScenarioError(f"a step without goal and observation: {reply.error_msg}")
    acted += len(stale_chunks(witness.chunks, scene.barriers))
    report.check(
        "stale_after_reset",
        acted,
        expected=f"0, of {NUM_STALE} frames and goals sent late and of the whole run",
        is_held=acted == 0,
    )
    scene.view.say(f"{NUM_STALE} frames and goals from before the reset: {acted} acted")
    services.send_goal(goal)
    made = scene.step_on(frame, 1).chunks
    fresh = [chunk for chunk in made if chunk.generation >= generation]
    report.control(
        "fresh_after_reset",
        "stale_after_reset",
        "the same frame and goal with stamps from after the reset",
        len(fresh),
        expected="1 chunk",
        is_held=len(fresh) == 1 and not stale_chunks(fresh, scene.barriers),
    )


def stale_chunks(chunks: list[Chunk], barriers: list[tuple[int, int]]) -> list[Chunk]:
    """Find chunks made from a goal or an observation older than the last reset before them.

    Args:
        chunks: As published.
        barriers: Of every reset, oldest first: its generation and its stamp.
    """
    stale = []
    for chunk in chunks:
        stamps = [stamp_ns for since, stamp_ns in barriers if since <= chunk.generation]
        oldest = min(chunk.goal_stamp_ns, chunk.observation_stamp_ns)
        if stamps and oldest < stamps[-1]:
            stale.append(chunk)
    return stale


def _is_refused(events: list[Any], number: int) -> bool:
    """Tell whether the planner node said that it refused a goal, by the planner's number."""
    return any(
        event.detail.startswith("refused") and f"sequence={number} " in event.detail
        for event in events
    )
