"""In lockstep, on recorded observations: what a restore and a resume bring back, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.trace import Point
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.demo.witness import Chunk, Frame

NUM_CHUNKS = 3
"""Chunks after a restore that are compared with those before it."""

BOUNDARY = "demo_boundary"
"""Capsule between two chunks."""

MID_CHUNK = "demo_mid_chunk"
"""Capsule in the middle of a chunk."""

MID_TICKS = 3
"""Actions of a chunk that are popped before it is interrupted."""

_WARM_UP = 2  # chunks before the snapshot, so that the history is not empty
_NUM_FRAMES = _WARM_UP + NUM_CHUNKS + 2
_SEED = 4242
_RECORD_S = 5.0


def enter_lab(scene: Scene, goal: Point) -> None:
    """Stop the robot's time, tick by hand, and begin an episode on recorded observations.

    Raises:
        ScenarioError: Too few observations were recorded.
    """
    frames = scene.stage.news.wait(
        lambda: list(scene.witness.frames) if len(scene.witness.frames) >= _NUM_FRAMES else None,
        _RECORD_S,
        f"{_NUM_FRAMES} recorded observations",
    )
    scene.services.pause_simulator()
    scene.lab_frames = frames[-_NUM_FRAMES:]
    scene.services.tick_by("step")
    scene.reset_policy("lab", _SEED)
    scene.services.send_goal(goal)
    scene.chunks_on(scene.lab_frames[:_WARM_UP])


def check_replay(scene: Scene) -> None:
    """Restore a capsule: three chunks from the same observations must be the same bytes."""
    frames = _after_warm_up(scene)[:NUM_CHUNKS]
    client, services, report = scene.stage.client, scene.services, scene.report
    before = client.inspect()
    services.snapshot(BOUNDARY)
    first = scene.chunks_on(frames)
    reply = services.restore(BOUNDARY)
    restored = client.inspect()
    second = scene.chunks_on(frames)
    is_equal = (
        len(first) == NUM_CHUNKS
        and equal_bytes(first, second)
        and restored.state_digest == before.state_digest
    )
    report.check(
        "replay_byte_exact",
        is_equal,
        expected=f"{NUM_CHUNKS} chunks after a restore equal those after the snapshot",
        is_held=is_equal,
    )
    scene.view.say(f"restore by {reply.path}: {NUM_CHUNKS} chunks compared byte for byte")
    # The noise alone is put back: what differs now is the history in STATE.
    client.reseed(before.noise_seed, counter=before.noise_counter)
    third = scene.chunks_on(frames)
    is_same = equal_bytes(first, third)
    report.control(
        "replay_without_restore",
        "replay_byte_exact",
        "the restore skipped, the same noise and observations",
        is_same,
        expected="no",
        is_held=not is_same,
    )


def check_resume(scene: Scene, other_goal: Point) -> None:
    """Interrupt in the middle of a chunk and resume: the same state, then the same chunk.

    The reference is what comes after the boundary when nobody interrupts. The control
    leaves the resume out.
    """
    during, after = _after_warm_up(scene)[0], _after_warm_up(scene)[1]
    barged = _after_warm_up(scene)[2]
    client, services, report = scene.stage.client, scene.services, scene.report
    services.restore(BOUNDARY)
    scene.step_on(during, MID_TICKS)
    boundary = client.inspect()
    services.snapshot(MID_CHUNK)
    reference = _next_chunk(scene, during, after)
    found = []
    for has_resume in (True, False):
        services.restore(MID_CHUNK)
        services.interrupt(other_goal)
        scene.step_on(barged, MID_TICKS)
        if has_resume:
            services.resume()
        state = client.inspect()
        chunk = _next_chunk(scene, during, after)
        found.append(
            (state.state_digest == boundary.state_digest, equal_bytes([reference], [chunk]))
        )
    is_exact = all(found[0])
    report.check(
        "resume_byte_exact",
        is_exact,
        expected="STATE as interrupted, and the next chunk as without the interrupt",
        is_held=is_exact,
    )
    is_same = any(found[1])
    report.control(
        "resume_skipped",
        "resume_byte_exact",
        "the resume left out",
        is_same,
        expected="neither STATE nor chunk equal",
        is_held=not is_same,
    )


def control_latency(scene: Scene, other_goal: Point) -> None:
    """Send a goal in the middle of a chunk without an interrupt: the chunk is finished first."""
    frame = _after_warm_up(scene)[0]
    services = scene.services
    services.restore(BOUNDARY)
    scene.step_on(frame, MID_TICKS)
    number = services.send_goal(other_goal)
    ticks, is_under_goal = 0, False
    while not is_under_goal and ticks <= scene.execute_horizon:
        ticks += 1
        made = services.step(1).chunks
        is_under_goal = any(chunk.goal_source_sequence == number for chunk in made)
    scene.report.control(
        "goal_without_interrupt",
        "interrupt_latency_ticks",
        "a goal in the middle of a chunk without an interrupt",
        ticks,
        expected="more than 1",
        is_held=is_under_goal and ticks > 1,
    )


def equal_bytes(first: Sequence[Chunk], second: Sequence[Chunk]) -> bool:
    """Tell whether two runs made the same chunks."""
    return [chunk.actions for chunk in first] == [chunk.actions for chunk in second]


def _after_warm_up(scene: Scene) -> list[Frame]:
    return scene.lab_frames[_WARM_UP:]


def _next_chunk(scene: Scene, during: Frame, after: Frame) -> Chunk:
    """Pop what is left of the chunk, then return the one made on ``after``."""
    scene.step_on(during, scene.execute_horizon - MID_TICKS)
    made = scene.step_on(after, 1).chunks
    if len(made) != 1:
        raise ScenarioError(f"a tick with an empty queue made {len(made)} chunks instead of one")
    return made[0]
