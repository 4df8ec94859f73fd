"""What a controller was given stays; where a chunk or a resume begins, the jump is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.protocol import OutputKind
from flashrt_ros.errors import ConfigError
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.models.seam import SeamPolicy

MakeRig = Callable[..., Any]
BOUND = 0.05
PERIOD_NS = 100_000_000


def actions(rig: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return every action published, in order."""
    found = [out for kind, _, _, out in rig.recorder.outputs if kind is OutputKind.ACTION]
    return np.array([np.frombuffer(payload, np.float32) for payload in found])


def jumps(rig: Any) -> float:
    """Return the largest change of a joint from one published action to the next."""
    return float(np.abs(np.diff(actions(rig).astype(np.float64), axis=0)).max())


def hurry(rig: Any) -> None:
    """Drive to and fro, with an interrupt and its resume."""
    rig.ready()
    rig.step(5)
    rig.goal(-0.9, 0.9)
    rig.step(6)
    rig.interrupt()
    rig.goal(0.9, -0.9)
    rig.step(7)
    rig.resume()
    rig.observe(0.6, -0.2)
    rig.step(6)


@pytest.mark.parametrize("blend_steps", [0, 3])
def test_no_published_action_jumps_by_more_than_the_bound(
    make_rig: MakeRig, blend_steps: int
) -> None:
    bounded = make_rig(seam_blend_steps=blend_steps, seam_max_step=[BOUND, BOUND])
    hurry(bounded)
    assert jumps(bounded) <= BOUND + 1e-6
    plain = make_rig()
    hurry(plain)
    assert jumps(plain) > 4 * BOUND  # the control


def test_a_blend_alone_shortens_the_jumps(make_rig: MakeRig) -> None:
    plain, blended = make_rig(), make_rig(seam_blend_steps=3)
    for rig in (plain, blended):
        hurry(rig)
    seams = [4, 8, 11, 15, 18, 20]
    ratio = [
        np.abs(actions(rig)[seams] - actions(rig)[[s - 1 for s in seams]]).sum()
        for rig in (blended, plain)
    ]
    assert ratio[0] < 0.5 * ratio[1]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    verbs=st.lists(
        st.sampled_from(["goal", "observe", "step", "interrupt", "hold", "resume", "plan"]),
        min_size=4,
        max_size=25,
    ),
    numbers=st.lists(st.floats(-1, 1, width=32), min_size=50, max_size=50),
)
def test_whatever_interrupts_and_resumes_come_the_bound_holds(
    make_rig: MakeRig, verbs: list[str], numbers: list[float]
) -> None:
    rig = make_rig(
        seam_blend_steps=2, seam_max_step=[BOUND, 2 * BOUND], retarget=True, replan_threshold=2
    )
    try:
        rig.start("timer", 1e9 / PERIOD_NS)
        rig.goal(0.9, -0.9)
        rig.observe(0.0, 0.0)
        rig.run(rig.now_ns + PERIOD_NS)
        x = iter(numbers)
        for verb in verbs:
            if verb == "goal":
                rig.goal(next(x), next(x))
            elif verb == "observe":
                rig.observe(next(x), next(x))
            elif verb == "step":
                rig.run(rig.now_ns + PERIOD_NS)
            elif verb == "plan":  # a tick whose plan is left where it stands
                rig.now_ns = rig.engine.next_deadline_ns()
                rig.engine.on_deadline(rig.now_ns)
                rig.advance()
            elif verb == "resume" and rig.status().interrupt_depth:
                rig.resume()
            elif verb in ("interrupt", "hold") and rig.status().interrupt_depth < 8:
                rig.interrupt(hold=verb == "hold")
        rig.drain()
        found = actions(rig).astype(np.float64)
        assert (np.abs(np.diff(found, axis=0)) <= np.array([BOUND, 2 * BOUND]) + 1e-6).all()
    finally:
        rig.engine.close()


def test_the_published_chunk_is_what_is_executed(make_rig: MakeRig) -> None:
    rig = make_rig(seam_blend_steps=2, seam_max_step=[BOUND, BOUND])
    rig.ready()
    rig.step(4)
    rig.goal(-0.9, 0.9)
    done = rig.step(4)
    chunk = np.frombuffer(done.chunks[0].actions, np.float32).reshape(-1, 2)
    taken = np.array([np.frombuffer(a.values, np.float32) for a in done.actions])
    assert (chunk[:4] == taken).all()


def test_what_the_controller_was_given_while_a_plan_ran_is_not_changed_by_it(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(replan_threshold=3)
    rig.start("timer", 1e9 / PERIOD_NS)
    rig.goal(0.5, -0.5)
    rig.observe(0.1, 0.2)
    rig.run(rig.now_ns + PERIOD_NS)  # the first chunk, and its first action
    first = np.frombuffer(rig.recorder.outputs[0][3], np.float32).reshape(-1, 2)
    rig.goal(-0.9, 0.9)
    for _ in range(3):  # the second chunk is in the making for three ticks
        rig.now_ns = rig.engine.next_deadline_ns()
        rig.engine.on_deadline(rig.now_ns)
        rig.advance()
        rig.take_in()
    assert (actions(rig) == first[:4]).all()
    rig.drain()
    kind, made, _, payload = rig.recorder.outputs[-1]
    assert kind is OutputKind.CHUNK
    elapsed = made.tick - made.latched_tick
    assert elapsed == 2
    assert (actions(rig) == first[:4]).all()
    second = np.frombuffer(payload, np.float32).reshape(-1, 2)
    rig.run(rig.engine.next_deadline_ns())
    assert (actions(rig)[4] == second[elapsed]).all()  # it goes on at the tick that comes


def test_bytes_are_a_function_of_state_and_what_was_executed(make_rig: MakeRig) -> None:
    rig = make_rig(seam_blend_steps=3, seam_max_step=[BOUND, BOUND])
    rig.ready()
    rig.step(3)
    rig.snapshot("here")

    def go_on() -> list[bytes]:
        rig.restore("here")
        rig.observe(0.3, 0.3)
        return [record.values for record in rig.step(6).actions]

    once = go_on()
    assert go_on() == once

    # a resume is the boundary, with the queue led there from where the robot is
    def resumed(away: float) -> tuple[bytes, list[bytes]]:
        rig.restore("here")
        rig.observe(0.3, 0.3)
        before = rig.state()
        rig.interrupt()
        if away:
            rig.goal(away, away)
            rig.step(5)
        rig.resume()
        after = rig.state()
        rig.observe(0.3, 0.3)
        changed = [
            place.spec.name
            for place in rig.engine.core.layout.placements
            if place.offset < len(before)
            and before[place.offset : place.offset + place.spec.num_bytes]
            != after[place.offset : place.offset + place.spec.num_bytes]
        ]
        assert set(changed) <= {"queue", "last_action"}
        return after, [record.values for record in rig.step(2).actions]

    assert resumed(-0.9) == resumed(-0.9) != resumed(0.9)
    layout = rig.engine.core.layout
    offset = layout.by_name["tick"].offset
    assert resumed(0.0)[0][offset : offset + 8] == (3).to_bytes(8, "little")


def test_off_is_the_model_as_it_was(make_rig: MakeRig) -> None:
    rig, core = make_rig(), make_rig(seam_blend_steps=1).engine.core
    assert isinstance(rig.engine.core.model, MinimalPolicy)
    assert isinstance(core.model, SeamPolicy)
    assert "last_action" not in rig.engine.core.layout.by_name
    assert core.fingerprint != rig.engine.core.fingerprint
    assert core.fingerprint != make_rig(seam_blend_steps=2).engine.core.fingerprint


@pytest.mark.parametrize(
    "options",
    [
        {"seam_max_step": [0.1]},
        {"seam_max_step": [0.1, 0.0]},
        {"seam_max_step": [0.1, float("nan")]},
        {"seam_blend_steps": -1},
    ],
)
def test_bounds_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"seam"):
        Engine(MinimalPolicy(), EngineConfig(model="minimal", **options))
