"""The reset as a barrier: what was made before it is sent after it, and must not act."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.trace import Point
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.demo.witness import Chunk, Frame
from flashrt_ros.engine.protocol import parse_detail
from flashrt_ros.errors import StaleStampError, StepTimeoutError

NUM_STALE = 5
"""Frames, and goals, sent too late."""

_REFUSED_S = 5.0
_SHOWN = 5  # best-effort readers may lose a frame on a busy machine
_SHOWN_S = 1.0
_LOOK_S = 0.005
_NOTHING_S = 0.3
_COMMAND_S = 5.0


@dataclass(frozen=True, slots=True)
class Round:
    """What came of late messages of one kind, with fresh ones of the other kind beside them.

    Attributes:
        num_acted: Chunks made and commands sent while only late messages of the kind were there.
        fresh: Chunks made once a fresh message of the kind came.
        num_commands: Commands heard then.
    """

    num_acted: int
    fresh: list[Chunk]
    num_commands: int


def check_stale(scene: Scene, goal: Point) -> None:
    """Send frames and goals stamped before a reset after it; then fresh ones, as the control.

    Nothing else is there to act on: the robot's time stands still. In each of two rounds
    only one kind is late, so that it alone keeps the policy from acting.
    """
    witness, report = scene.witness, scene.report
    rounds = {"frame": _late_frames(scene, goal), "goal": _late_goals(scene, goal)}
    stale = stale_chunks(witness.chunks, scene.barriers)
    acted = sum(one.num_acted for one in rounds.values()) + len(stale)
    report.check(
        "stale_after_reset",
        acted,
        expected=f"0, of {NUM_STALE} frames and {NUM_STALE} goals sent late and of the whole run",
        is_held=acted == 0,
    )
    scene.view.say(f"{NUM_STALE} frames and {NUM_STALE} goals from before a reset: {acted} acted")
    for kind, one in rounds.items():
        report.control(
            f"fresh_{kind}_after_reset",
            "stale_after_reset",
            f"a {kind} with a stamp from after the reset instead",
            len(one.fresh) + one.num_commands,
            expected="2: a chunk and a command",
            is_held=len(one.fresh) == 1 == one.num_commands
            and not stale_chunks(one.fresh, scene.barriers),
        )
    generation, barrier_ns = scene.barriers[-1]
    whole = replace(rounds["goal"].fresh[0], generation=generation)
    forged = [
        replace(whole, goal_stamp_ns=barrier_ns - 1),
        replace(whole, observation_stamp_ns=barrier_ns - 1),
    ]
    found = len(stale_chunks(forged, scene.barriers))
    report.control(
        "forged_stale_chunks",
        "stale_after_reset",
        "two chunks that name a goal or an observation from before the reset",
        found,
        expected="2",
        is_held=found == len(forged),
    )


def _late_frames(scene: Scene, goal: Point) -> Round:
    """Late frames, a fresh goal: a step must find no observation."""
    witness = scene.witness
    frame = scene.lab_frames[-1]
    stamps = _reset(scene, "stale-frames", NUM_STALE + _SHOWN)
    num_commands, num_refused = len(witness.commands), _refused_frames(scene)
    for stamp_ns in stamps:
        # One at a time, and another one for each that is lost on its way.
        scene.show(frame, stamp_ns)
        more = partial(_has_more_refused, scene, _refused_frames(scene))
        with contextlib.suppress(ScenarioError):
            scene.stage.news.wait(more, _SHOWN_S, "the refusal of a late frame")
        if _refused_frames(scene) >= num_refused + NUM_STALE:
            break
    else:
        found = _refused_frames(scene) - num_refused
        raise ScenarioError(f"{found} of {NUM_STALE} frames from before the reset were refused")
    number = scene.services.send_goal(goal)
    acted = _act_without(scene, "observation") + len(witness.commands) - num_commands
    fresh = scene.step_on(frame, 1).chunks
    made = [chunk for chunk in fresh if chunk.goal_source_sequence == number]
    return Round(acted, made, _commands_since(scene, num_commands + acted))


def _late_goals(scene: Scene, goal: Point) -> Round:
    """Late goals, a fresh frame: a step must find no goal."""
    witness, services = scene.witness, scene.services
    frame = scene.lab_frames[-1]
    stamps = _reset(scene, "stale-goals", NUM_STALE)
    num_commands = len(witness.commands)
    for stamp_ns in stamps:
        number = services.send_goal(goal, stamp_ns=stamp_ns)
        scene.stage.news.wait(
            partial(is_refused, witness.goal_events, number),
            _REFUSED_S,
            "the refusal of a goal from before the reset",
        )
    shown_ns = _show_surely(scene, frame)
    acted = _act_without(scene, "goal") + len(witness.commands) - num_commands
    services.send_goal(goal)
    reply = services.step(1, min_stamp_ns=shown_ns)
    made = [
        chunk for chunk in map(Chunk.of, reply.chunks) if chunk.observation_stamp_ns == shown_ns
    ]
    return Round(acted, made, _commands_since(scene, num_commands + acted))


def _reset(scene: Scene, episode_id: str, count: int) -> list[int]:
    """Reset; returns stamps that lie between the call and its barrier, in order."""
    called_ns = scene.witness.now_ns()
    scene.reset_policy(episode_id, 1)
    barrier_ns = scene.barriers[-1][1]
    if barrier_ns - called_ns <= count:
        raise ScenarioError(f"a reset's barrier lies {barrier_ns - called_ns} ns after its call")
    return [called_ns + (barrier_ns - called_ns) * place // count for place in range(count)]


def _show_surely(scene: Scene, frame: Frame) -> int:
    """Show an observation until the engine has it; returns its stamp.

    Raises:
        ScenarioError: It never came through.
    """
    client = scene.stage.client
    for _ in range(_SHOWN):
        stamp_ns, shown_ns = scene.witness.now_ns(), time.monotonic_ns()
        scene.show(frame, stamp_ns)
        while (waited_ns := time.monotonic_ns() - shown_ns) < _SHOWN_S * 1e9:
            if 0 <= client.status().observation_age_ns < waited_ns:
                return stamp_ns
            time.sleep(_LOOK_S)
    raise ScenarioError("no observation from after the reset came through")


def _act_without(scene: Scene, channel: str) -> int:
    """Ask for a tick that must wait in vain for one channel alone; returns the chunks made.

    Raises:
        ScenarioError: It was refused for another reason, or waits for something else.
    """
    waiting_for = scene.stage.client.status().waiting_for
    if waiting_for != channel:
        raise ScenarioError(f"the engine waits for '{waiting_for}' instead of '{channel}'")
    reply = scene.services.step(1, timeout_s=_NOTHING_S, may_fail=True)
    if not reply.success and reply.error_code != StepTimeoutError.code:
        raise ScenarioError(f"a step without {channel}: {reply.error_msg}")
    return len(reply.chunks)


def _commands_since(scene: Scene, before: int) -> int:
    """Return how many commands came, once one did."""
    commands = scene.witness.commands
    scene.stage.news.wait(lambda: len(commands) > before, _COMMAND_S, "a command to the robot")
    return len(commands) - before


def _refused_frames(scene: Scene) -> int:
    return scene.witness.refusals.get(f"observation {StaleStampError.name}", 0)


def _has_more_refused(scene: Scene, before: int) -> bool:
    return _refused_frames(scene) > before


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


def is_refused(events: list[Any], number: int) -> bool:
    """Tell whether the planner node refused a goal as older than a reset.

    Args:
        events: Of the planner node.
        number: The planner's, of the goal.
    """
    wanted = {"sequence": str(number), "code": str(StaleStampError.code)}
    return any(
        said.word == "refused" and wanted.items() <= said.facts.items()
        for said in (parse_detail(event.detail) for event in events)
    )
