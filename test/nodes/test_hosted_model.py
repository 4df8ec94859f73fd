"""Instruction to subgoal to goal channel to moving policy, with real processes over DDS."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")

from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

from flashrt_ros import errors
from flashrt_ros.engine.protocol import ChannelInfo, FieldInfo, ModelInfo
from flashrt_ros.msg import ActionChunk, ExecutionEvent, Subgoal
from flashrt_ros.nodes.hosted_model import check_subgoals
from flashrt_ros.srv import (
    ForkCapsule,
    Interrupt,
    ListCapsules,
    RestoreCapsule,
    Resume,
    SnapshotCapsule,
)

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Child, Peer

NODE = "planner_node"
PLANNER = Path(__file__).resolve().parents[1] / "planner"


def start_planner_engine(bench: Bench, name: str = "planner_engine", **config: Any) -> Child:
    bench.environment["PYTHONPATH"] = str(PLANNER)
    file = bench.folder / f"{name.replace('/', '_')}.json"
    given = {
        "name": name,
        "max_tokens": 48,
        "prefixes": ["persona = You move a pusher."],
        "may_refuse": False,
    }
    file.write_text(json.dumps({**given, **config}))
    child = bench.start(
        [
            *(sys.executable, "-m", "flashrt_ros.planner", "--config", str(file)),
            *("--model-factory", "toy_planner:make"),
        ]
    )
    child.wait_for_line("ready")
    return child


class Talk:
    """Says something and waits for what comes of it."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.accepted = peer.listen(Subgoal, f"{NODE}/accepted")
        self.events = peer.listen(ExecutionEvent, f"{NODE}/events")
        self._instruction = peer.publisher(String, "instruction")
        self._scene = peer.publisher(String, "scene")

    def say(self, text: str) -> None:
        self.accepted.clear()
        self.events.clear()
        self._instruction.publish(String(data=text))

    def set_scene(self, text: str) -> None:
        self._scene.publish(String(data=text))

    def event(self, kind: int, text: str) -> ExecutionEvent:
        found = self.peer.until(
            lambda: [e for e in self.events if e.kind == kind and text in e.detail],
            f"an event {kind} with {text!r}",
        )
        event: ExecutionEvent = found[-1]
        return event

    def subgoals(self) -> list[str]:
        return [
            event.detail.partition("values=")[2]
            for event in self.events
            if event.kind == ExecutionEvent.SUBGOAL
        ]

    def goals(self) -> list[str]:
        return [" ".join(f"{value:.6g}" for value in goal.values) for goal in self.accepted]

    def plan(self, text: str) -> list[str]:
        """Say something, and wait until every subgoal of the plan was a goal."""
        self.say(text)
        self.event(ExecutionEvent.TURN, "done turn=")
        self.peer.until(lambda: len(self.goals()) >= len(self.subgoals()), "all of the goals")
        assert self.goals() == self.subgoals()
        return self.subgoals()


@pytest.fixture(scope="module")
def talk(bench: Bench, peer: Peer) -> Talk:
    bench.engine()
    start_planner_engine(bench)
    bench.policy(goal_lifetime_s=30)
    bench.planner(
        model_engine="planner_engine",
        goal_lifetime_s=30,
        subgoal_dwell_s=0.05,
        named_goals=["home = 0.25 0.25"],
    )
    peer.bring_up(NODE)
    peer.bring_up("policy_node")
    return Talk(peer)


def test_an_instruction_becomes_subgoals_that_the_policy_follows(talk: Talk) -> None:
    peer = talk.peer
    joints = peer.publisher(JointState, "joint_states")
    commands = peer.listen(Float64MultiArray, "policy_node/commands")
    chunks = peer.listen(ActionChunk, "policy_node/action_chunk")
    told = talk.plan("go left")
    assert told

    def followed() -> bool:
        state = JointState(name=["x", "y"], position=[0.9, 0.9])
        state.header.stamp = peer.now()
        joints.publish(state)
        return any(chunk.goal_source_sequence == talk.accepted[-1].sequence for chunk in chunks)

    peer.until(followed, "a chunk made under the plan's last subgoal")
    peer.until(lambda: commands, "a command")


def test_the_same_instruction_is_the_same_plan_and_another_one_another(talk: Talk) -> None:
    first = talk.plan("go left")
    assert talk.plan("go round the far side of it, please") != first
    assert talk.plan("go left") == first


def test_a_scene_is_read_before_the_instruction(talk: Talk) -> None:
    without = talk.plan("go left")
    talk.set_scene("block at 0.1 0.3")
    talk.peer.until(lambda: talk.plan("go left") != without, "another plan")
    talk.set_scene("")
    talk.peer.until(lambda: talk.plan("go left") == without, "the plan of before")


def test_a_named_goal_needs_no_plan(talk: Talk) -> None:
    talk.say("Home")
    talk.peer.until(lambda: talk.accepted, "the goal")
    assert talk.goals() == ["0.25 0.25"]
    assert not talk.subgoals()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("  ", errors.PayloadShapeError),
        ("geh zur Tür", errors.PayloadRangeError),
        ("x" * 2000, errors.PayloadShapeError),
    ],
)
def test_a_bad_instruction_is_refused_with_its_code(
    talk: Talk, text: str, error: type[errors.FlashrtError]
) -> None:
    talk.say(text)
    event = talk.event(ExecutionEvent.GOAL, "refused topic=instruction")
    assert f"code={error.code} name={error.name}" in event.detail


def test_an_instruction_takes_over_from_the_one_before(talk: Talk) -> None:
    alone = talk.plan("stop")
    for _ in range(3):
        talk.say("go round the block, " * 8)
    talk.events.clear()
    assert talk.plan("stop")[-len(alone) :] == alone


def test_capsules_and_resets_are_the_planners(talk: Talk) -> None:
    peer = talk.peer
    talk.plan("go left")
    names = [
        info.name or info.parent
        for info in peer.call(ListCapsules, f"{NODE}/capsule/list").capsules
    ]
    assert "prefix.persona" in names
    assert "home" in names
    made = peer.call(SnapshotCapsule, f"{NODE}/capsule/snapshot", name="said", align_down=True)
    assert made.success, made.error_msg
    moved = peer.call(RestoreCapsule, f"{NODE}/capsule/restore", capsule="said")
    assert moved.success, moved.error_msg
    reset = peer.call(Trigger, f"{NODE}/reset")
    assert reset.success, reset.message
    refused = peer.call(ForkCapsule, f"{NODE}/capsule/fork", count=2)
    assert refused.error_code == errors.UnsupportedError.code


def test_an_interrupt_without_a_turn_and_a_resume_without_one_are_refused(talk: Talk) -> None:
    peer = talk.peer
    peer.call(Trigger, f"{NODE}/reset")
    assert peer.call(Interrupt, f"{NODE}/interrupt").error_code == errors.NotActiveError.code
    assert peer.call(Resume, f"{NODE}/resume").error_code == errors.NothingToResumeError.code
    reply = peer.call(Interrupt, f"{NODE}/interrupt", has_goal=True)
    assert reply.error_code == errors.UnsupportedError.code


def test_deactivation_ends_the_turn(talk: Talk) -> None:
    peer = talk.peer
    talk.say("go round the block, " * 8)
    talk.event(ExecutionEvent.TURN, "begun turn=")
    assert peer.change(NODE, "deactivate")
    assert peer.change(NODE, "activate")
    assert talk.plan("go left")


def test_the_best_of_several_plans_is_followed(talk: Talk) -> None:
    peer = talk.peer
    likeliest = talk.plan("go left")
    assert peer.change(NODE, "deactivate")
    assert peer.change(NODE, "cleanup")
    parameters = [
        Parameter("num_candidates", value=3).to_parameter_msg(),
        Parameter("plan_temperature", value=2.0).to_parameter_msg(),
    ]
    answer = peer.call(SetParameters, f"{NODE}/set_parameters", parameters=parameters)
    assert all(result.successful for result in answer.results)
    peer.bring_up(NODE)
    best = talk.plan("go left")
    assert talk.plan("go left") == best != likeliest


def model(name: str, **changes: Any) -> ModelInfo:
    """A model with one channel, of a policy or of a planner."""
    given: dict[str, Any] = {"role": "goal", "frame": "table", "low": -1.0, "high": 1.0}
    given = {**given, "shape": (2,), "dtype": "float32", **changes}
    bounds = given["low"], given["high"]
    field = FieldInfo("values", given["shape"], given["dtype"], 0, *bounds, "m")
    channel = ChannelInfo("goal", given["role"], given["frame"], 64, 4, 256, (field,))
    return ModelInfo(name, 1, 2, 1, (), 1, (channel,), "", 1, 0, 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"role": "goal"}, "expected a planner engine"),
        ({"high": 2.0}, "leave the range of goal channel 'goal'"),
        ({"low": None}, "leave the range of goal channel 'goal'"),
        ({"shape": (3,)}, "don't fit goal channel 'goal'"),
        ({"frame": "world"}, "stand in another frame"),
        ({"frame": ""}, "found none"),
    ],
)
def test_a_planner_that_does_not_fit_the_policy_is_refused(
    changes: dict[str, Any], says: str
) -> None:
    policy = model("policy").channels[0]
    check_subgoals(model("planner", role="subgoal", low=0.0), policy)
    with pytest.raises(errors.ConfigError, match=says):
        check_subgoals(model("planner", **{"role": "subgoal", **changes}), policy)


def test_subgoals_are_no_goals_of_a_channel_of_words() -> None:
    words = model("reader", shape=(2,), dtype="uint8").channels[0]
    with pytest.raises(errors.ConfigError, match="don't fit"):
        check_subgoals(model("planner", role="subgoal"), words)


def test_an_engine_that_is_no_planner_fails_configure(talk: Talk, bench: Bench, peer: Peer) -> None:
    node = bench.planner("__ns:=/misfit", engine="/engine", model_engine="/engine")
    assert not peer.change(f"misfit/{NODE}", "configure")
    node.wait_for_line("expected a planner engine")


def test_a_planner_engine_that_hangs_does_not_hold_up_a_node_that_leaves(
    talk: Talk, bench: Bench, peer: Peer
) -> None:
    planner = start_planner_engine(bench, "hangs/planner_engine")
    node = bench.planner("__ns:=/hangs", engine="/engine", model_engine="planner_engine")
    peer.bring_up(f"hangs/{NODE}")
    planner.process.send_signal(signal.SIGSTOP)
    try:
        assert node.interrupt() == 0, node.output
    finally:
        planner.process.send_signal(signal.SIGCONT)


def test_a_planner_engine_that_is_not_there_is_waited_for_with_a_word(
    talk: Talk, bench: Bench, peer: Peer
) -> None:
    node = bench.planner(
        "__ns:=/lone", engine="/engine", model_engine="nobody", connect_timeout_s=0.5
    )
    assert not peer.change(f"lone/{NODE}", "configure")
    node.wait_for_line("start it: python -m flashrt_ros.planner --name lone/nobody")
    node.wait_for_line("no engine 'lone/nobody' answered within 0.5 s")


def test_the_end_of_the_planner_engine_is_a_fault(talk: Talk, bench: Bench, peer: Peer) -> None:
    planner = start_planner_engine(bench, "lost/planner_engine")
    node = bench.planner("__ns:=/lost", engine="/engine", model_engine="planner_engine")
    peer.bring_up(f"lost/{NODE}")
    planner.kill()
    node.wait_for_line("fault: ENGINE_GONE")
    peer.until(lambda: peer.state(f"lost/{NODE}") == "unconfigured", "error processing")
