from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import DescribeParameters, SetParameters
from rclpy.qos import ReliabilityPolicy
from rosgraph_msgs.msg import Clock  # type: ignore[import-untyped]
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.msg import ActionChunk, EngineStatus, ExecutionEvent, Subgoal
from flashrt_ros.srv import Interrupt, ResetEpisode

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Child, Peer

MEASURED = [0.125, 0.25]


@pytest.fixture
def bench(fresh_bench: Bench) -> Bench:
    """Processes of one test's own."""
    return fresh_bench


@pytest.fixture
def peer(fresh_peer: Peer) -> Peer:
    """A node of one test's own."""
    return fresh_peer


class Driver:
    """Publishes joint states without pause, in the order that the policy does not use."""

    def __init__(self, peer: Peer, topic: str = "joint_states") -> None:
        self.peer = peer
        self._publisher = peer.node.create_publisher(JointState, topic, 10)
        peer.node.create_timer(0.02, self.observe)

    def observe(self) -> None:
        message = JointState(name=["y", "x"], position=MEASURED[::-1])
        message.header.stamp = self.peer.now()
        self._publisher.publish(message)

    def give_goal(self, node: str, sequence: int = 1) -> None:
        goal = Subgoal(planner="test", sequence=sequence, values=[0.9, -0.9])
        goal.header.stamp = self.peer.now()
        goal.header.frame_id = "table"
        reply = self.peer.call(Interrupt, f"{node}/interrupt", has_goal=True, goal=goal)
        assert reply.success, reply.error_msg


def test_configure_without_an_engine_fails_and_says_why(bench: Bench, peer: Peer) -> None:
    node = bench.policy(connect_timeout_s=0.2)
    statuses = peer.listen(EngineStatus, "policy_node/status")
    assert not peer.change("policy_node", "configure")
    assert peer.state("policy_node") == "unconfigured"
    peer.until(lambda: [s for s in statuses if "ENGINE_GONE" in s.detail], "a reason")
    node.wait_for_line("ENGINE_GONE")
    bench.engine()
    peer.bring_up("policy_node")


def test_services_answer_while_configure_waits(bench: Bench, peer: Peer) -> None:
    bench.policy(connect_timeout_s=60)
    statuses = peer.listen(EngineStatus, "policy_node/status")
    configured = peer.send(
        ChangeState,
        "policy_node/change_state",
        ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE)),
    )
    peer.until(lambda: [s for s in statuses if "waiting for engine" in s.detail], "progress")
    assert peer.state("policy_node") == "configuring"
    reply = peer.call(Trigger, "policy_node/reset")
    assert not reply.success
    assert reply.message.startswith("NOT_ACTIVE: ")
    assert not configured.done()
    bench.engine()
    peer.until(configured.done, "configure")
    assert configured.result().success


def test_every_transition_and_back(bench: Bench, peer: Peer) -> None:
    bench.engine()
    bench.policy()
    for _ in range(2):
        peer.bring_up("policy_node")
        assert not peer.change("policy_node", "configure")
        assert peer.change("policy_node", "deactivate")
        assert peer.change("policy_node", "activate")
        assert peer.change("policy_node", "deactivate")
        assert peer.change("policy_node", "cleanup")
        assert peer.state("policy_node") == "unconfigured"
    assert not peer.change("policy_node", "activate")
    assert not peer.change("policy_node", "no_such_transition")
    assert peer.change("policy_node", "shutdown")
    assert peer.state("policy_node") == "finalized"


def test_an_environment_that_is_not_there_is_refused(bench: Bench, peer: Peer) -> None:
    bench.engine()
    node = bench.policy(env_index=5)
    assert not peer.change("policy_node", "configure")
    node.wait_for_line("UNKNOWN_ENVIRONMENT")
    assert peer.state("policy_node") == "unconfigured"


def test_a_field_that_nothing_fills_is_refused(bench: Bench, peer: Peer) -> None:
    bench.engine()
    node = bench.policy(joint_names=["x"])
    assert not peer.change("policy_node", "configure")
    node.wait_for_line("CONFIG")
    assert peer.state("policy_node") == "unconfigured"


def test_a_deactivated_node_takes_the_safety_action_and_then_sends_nothing(
    bench: Bench, peer: Peer
) -> None:
    bench.engine()
    bench.policy()
    driver = Driver(peer)
    chunks = peer.listen(ActionChunk, "policy_node/action_chunk")
    commands = peer.listen(Float64MultiArray, "policy_node/commands")
    events = peer.listen(ExecutionEvent, "policy_node/events")
    peer.bring_up("policy_node")
    driver.give_goal("policy_node")
    peer.until(lambda: len(commands) > 10 and chunks, "commands")
    assert peer.change("policy_node", "deactivate")
    peer.until(lambda: [e for e in events if e.kind == ExecutionEvent.SAFETY], "an event")
    peer.until(lambda: list(commands[-1].data) == MEASURED, "the measured position")
    commands.clear()
    num_statuses = len(peer.listen(EngineStatus, "policy_node/status"))
    peer.until(lambda: len(peer.received["policy_node/status"]) > num_statuses + 5)
    assert not commands
    # What the engine still had queued was made before, and stays unsent: the first command is the
    # first action of a chunk made after the activation.
    chunks.clear()
    assert peer.change("policy_node", "activate")
    peer.until(lambda: commands and chunks, "commands after activation")
    assert list(chunks[0].actions[:2]) == list(commands[0].data)


@pytest.mark.parametrize(
    ("action", "expected"), [("hold", MEASURED), ("zeros", [0.0, 0.0]), ("stop", None)]
)
def test_an_engine_that_dies_leads_to_the_safety_action_and_a_way_back(
    bench: Bench, peer: Peer, action: str, expected: list[float] | None
) -> None:
    engine = bench.engine()
    node = bench.policy(safety_action=action, safety_rate_hz=50, connect_timeout_s=0.5)
    bench.planner()
    driver = Driver(peer)
    commands = peer.listen(Float64MultiArray, "policy_node/commands")
    events = peer.listen(ExecutionEvent, "policy_node/events")
    statuses = peer.listen(EngineStatus, "policy_node/status")
    diagnostics = peer.listen(DiagnosticArray, "/diagnostics")
    peer.bring_up("policy_node")
    peer.bring_up("planner_node")
    driver.give_goal("policy_node")
    peer.until(lambda: len(commands) > 10, "commands")

    engine.kill()
    peer.until(lambda: [e for e in events if e.kind == ExecutionEvent.SAFETY], "an event")
    assert [e for e in events if e.kind == ExecutionEvent.FAULT and "ENGINE_GONE" in e.detail]
    peer.until(lambda: peer.state("policy_node") == "unconfigured")
    peer.until(lambda: peer.state("planner_node") == "unconfigured")
    peer.until(lambda: statuses[-1].state == "error" and "ENGINE_GONE" in statuses[-1].detail)
    peer.until(lambda: _level(diagnostics, "policy_node") == DiagnosticStatus.ERROR)
    node.wait_for_line("fault: ENGINE_GONE")
    if expected is not None:
        peer.until(lambda: list(commands[-1].data) == expected, "the safety action")
    # From here on nothing but the safety action comes, and it is repeated.
    peer.spin_some()
    commands.clear()
    count = len(statuses)
    peer.until(lambda: len(statuses) > count + 5)
    assert all(list(command.data) == expected for command in commands)
    assert bool(commands) == (expected is not None)

    reply = peer.call(ResetEpisode, "policy_node/reset_episode")
    assert reply.error_code == ResetEpisode.Response.NOT_ACTIVE

    # An attempt that fails changes none of that, early or late.
    assert not peer.change("policy_node", "configure")
    bench.engine()
    _set_joint_names(peer, ["x", "elbow", "wrist"])
    assert not peer.change("policy_node", "configure")
    _set_joint_names(peer, [""])
    assert statuses[-1].state == "error"
    peer.spin_some()
    commands.clear()
    statuses.clear()
    peer.until(lambda: len(statuses) > 5)
    assert {status.state for status in statuses} == {"error"}
    if expected is not None:
        # More than may have waited in the subscription, so that they are being sent now.
        peer.until(lambda: len(commands) > 150, "the safety action, again and again")
    assert all(list(command.data) == expected for command in commands)

    peer.bring_up("policy_node")
    peer.bring_up("planner_node")
    peer.until(lambda: statuses[-1].state == "active", "an end of the error")
    peer.spin_some()
    commands.clear()
    statuses.clear()
    peer.until(lambda: len(statuses) > 5)
    assert not commands, "the old safety action goes on"
    driver.give_goal("policy_node", sequence=1)
    peer.until(lambda: len({tuple(c.data) for c in commands}) > 3, "the policy's commands")


def shared_segments(process_id: int) -> set[Path]:
    """Files of DDS that the process has mapped, its peers' too; ports are in common use."""
    maps = Path(f"/proc/{process_id}/maps").read_text().splitlines()
    files = {Path(line.split()[-1]) for line in maps if "/dev/shm/fastrtps_" in line}
    return {file for file in files if "port" not in file.name}


def _set_joint_names(peer: Peer, names: list[str]) -> None:
    value = ParameterValue(type=ParameterType.PARAMETER_STRING_ARRAY, string_array_value=names)
    parameter = Parameter(name="joint_names", value=value)
    reply = peer.call(SetParameters, "policy_node/set_parameters", parameters=[parameter])
    assert reply.results[0].successful, reply.results[0].reason


def _wait_for_state(peer: Peer, node: str, state: str) -> None:
    peer.until(lambda: peer.state(node) == state, f"{node} in state {state}")


def _level(diagnostics: list[DiagnosticArray], name: str) -> bytes | None:
    found = [s for d in diagnostics for s in d.status if s.name == name]
    return found[-1].level if found else None


def test_an_engine_that_dies_while_nothing_moves(bench: Bench, peer: Peer) -> None:
    engine = bench.engine()
    bench.policy()
    assert peer.change("policy_node", "configure")
    engine.kill()
    peer.until(lambda: peer.state("policy_node") == "unconfigured")
    bench.engine()
    peer.bring_up("policy_node")


def test_an_engine_that_stops_answering_counts_as_lost(bench: Bench, peer: Peer) -> None:
    engine = bench.engine()
    bench.policy(request_timeout_s=2.0)
    driver = Driver(peer)
    commands = peer.listen(Float64MultiArray, "policy_node/commands")
    peer.bring_up("policy_node")
    driver.give_goal("policy_node")
    peer.until(lambda: len(commands) > 10, "commands")
    engine.process.send_signal(signal.SIGSTOP)
    peer.until(lambda: peer.state("policy_node") == "unconfigured")
    peer.until(lambda: list(commands[-1].data) == MEASURED, "the measured position")


def test_an_environment_that_something_else_deactivates_is_told_of(
    bench: Bench, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.engine()
    bench.policy()
    statuses = peer.listen(EngineStatus, "policy_node/status")
    diagnostics = peer.listen(DiagnosticArray, "/diagnostics")
    peer.bring_up("policy_node")
    monkeypatch.setenv("XDG_RUNTIME_DIR", bench.environment["XDG_RUNTIME_DIR"])
    with EngineClient("engine", client="second") as other:
        other.deactivate()
    peer.until(lambda: [s for s in statuses if "by another client" in s.detail], "a warning")
    peer.until(lambda: _level(diagnostics, "policy_node") == DiagnosticStatus.WARN)
    assert peer.change("policy_node", "deactivate")
    assert peer.change("policy_node", "activate")
    statuses.clear()
    peer.until(lambda: len(statuses) > 2)
    assert (statuses[-1].state, statuses[-1].detail) == ("active", "")


@pytest.mark.parametrize(("action", "expected"), [("hold", MEASURED), ("zeros", [0.0, 0.0])])
def test_a_signal_while_the_engine_hangs_leads_to_the_safety_action(
    bench: Bench, peer: Peer, action: str, expected: list[float]
) -> None:
    engine = bench.engine()
    node = bench.policy(safety_action=action, request_timeout_s=600, watchdog_ticks=0)
    driver = Driver(peer)
    commands = peer.listen(Float64MultiArray, "policy_node/commands")
    events = peer.listen(ExecutionEvent, "policy_node/events")
    peer.bring_up("policy_node")
    driver.give_goal("policy_node")
    peer.until(lambda: len(commands) > 10, "commands")
    peer.meet(Trigger, "policy_node/reset")
    engine.process.send_signal(signal.SIGSTOP)
    # Services wait for the engine now, as does whatever writes observations.
    peer.send(Trigger, "policy_node/reset", Trigger.Request())
    node.process.send_signal(signal.SIGTERM)
    peer.until(lambda: [e for e in events if e.kind == ExecutionEvent.SAFETY], "an event")
    peer.until(lambda: list(commands[-1].data) == expected, "the safety action")
    peer.until(lambda: node.process.poll() is not None, "the end of the node")
    assert node.wait() == 0, node.output
    assert "Traceback" not in node.output
    assert "did not return" not in node.output
    assert len([e for e in events if e.kind == ExecutionEvent.SAFETY]) == 1


def test_a_node_that_can_not_start_itself_ends(bench: Bench) -> None:
    bench.engine()
    node = bench.policy(env_index=5, autostart=True)
    assert node.wait() == 3, node.output
    assert "UNKNOWN_ENVIRONMENT" in node.output
    assert "could not configure and activate itself" in node.output


def test_sessions_leave_nothing_behind(bench: Bench, peer: Peer) -> None:
    bench.engine()
    node = bench.policy()
    process = Path(f"/proc/{node.process.pid}")
    driver = Driver(peer)
    counts = []
    for number in range(6):
        peer.bring_up("policy_node")
        driver.give_goal("policy_node", sequence=number + 1)
        assert peer.change("policy_node", "deactivate")
        assert peer.change("policy_node", "cleanup")
        mappings = (process / "maps").read_text().count("memfd:")
        counts.append((len(list((process / "fd").iterdir())), mappings))
    assert counts[-1] == counts[1]


def test_the_clock_of_the_simulation_counts_where_the_node_uses_it(
    bench: Bench, peer: Peer
) -> None:
    bench.engine()
    bench.planner(use_sim_time=True, goal_lifetime_s=2.0)
    accepted = peer.listen(Subgoal, "planner_node/accepted")
    events = peer.listen(ExecutionEvent, "planner_node/events")
    clock = peer.publisher(Clock, "/clock")
    goals = peer.publisher(Subgoal, "subgoal")
    peer.bring_up("planner_node")

    numbers = iter(range(1, 1000))

    def reached(second: int, wanted: Callable[[], object]) -> bool:
        """Let the clock stand at a second and send a goal that was made at 100."""
        clock.publish(Clock(clock=Time(sec=second)))
        goal = Subgoal(planner="test", sequence=next(numbers), values=[0.5, 0.5])
        goal.header.stamp = Time(sec=100)
        goal.header.frame_id = "table"
        goals.publish(goal)
        return bool(wanted())

    peer.until(lambda: reached(100, lambda: accepted), "acceptance")
    peer.until(lambda: reached(110, lambda: [e for e in events if "older" in e.detail]), "refusal")


@pytest.mark.parametrize("section", ["/**", "/**/policy_node"])
def test_qos_overrides_reach_the_sensor_subscriptions(
    bench: Bench, peer: Peer, section: str
) -> None:
    bench.engine()
    bench.policy(
        section=section, **{"qos_overrides./joint_states.subscription.reliability": "reliable"}
    )
    assert peer.change("policy_node", "configure")
    found = peer.until(lambda: peer.node.get_subscriptions_info_by_topic("/joint_states"))
    assert found[0].qos_profile.reliability == ReliabilityPolicy.RELIABLE


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("state", ["unconfigured", "configuring", "active"])
def test_a_signal_ends_the_node_in_every_state(
    bench: Bench, peer: Peer, stop: signal.Signals, state: str
) -> None:
    node = bench.policy(connect_timeout_s=600)
    planner = bench.planner(connect_timeout_s=600)
    children: list[Child] = [node, planner]
    if state == "active":
        bench.engine()
        peer.bring_up("policy_node")
        peer.bring_up("planner_node")
    peer.until(lambda: peer.state("policy_node") and peer.state("planner_node"))
    if state == "configuring":
        for name in ("policy_node", "planner_node"):
            request = ChangeState.Request(transition=Transition(label="configure"))
            peer.send(ChangeState, f"{name}/change_state", request)
            _wait_for_state(peer, name, "configuring")
    # One after the other: a participant of Fast DDS that is destroyed while it hears of another's
    # end may wait for itself (where its library was built without pthread_cond_clockwait).
    for child in children:
        child.process.send_signal(stop)
        assert child.wait() == 0, child.output
        assert "Traceback" not in child.output
        assert "terminate called" not in child.output


def test_a_node_that_ends_leaves_nothing_in_shared_memory(bench: Bench, peer: Peer) -> None:
    before = set(Path("/dev/shm").iterdir())
    bench.engine()
    node = bench.policy()
    peer.bring_up("policy_node")
    own = shared_segments(node.process.pid) - before
    assert own, "DDS uses no shared memory here"
    assert node.interrupt() == 0, node.output
    assert not {file for file in own if file.exists()}


def test_namespaces_remapping_and_autostart(bench: Bench, peer: Peer) -> None:
    bench.engine("robot1/engine")
    bench.policy("__ns:=/robot1", "joint_states:=arm/joints", "__node:=pilot", autostart=True)
    commands = peer.listen(Float64MultiArray, "/robot1/pilot/commands")
    driver = Driver(peer, "/robot1/arm/joints")
    peer.until(lambda: peer.state("/robot1/pilot") == "active")
    driver.give_goal("/robot1/pilot")
    peer.until(lambda: commands, "commands")
    nodes = {("pilot", "/robot1"), ("pilot_inputs", "/robot1")}
    peer.until(lambda: nodes <= set(peer.node.get_node_names_and_namespaces()), "both nodes")
    names = peer.node.get_node_names_and_namespaces()
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"rate_hy": 10.0}, "UNKNOWN_PARAMETER (501)"),
        ({"rate_hz": "fast"}, "PARAMETER_TYPE (502)"),
        ({"rate_hz": -1.0}, "PARAMETER_RANGE (503)"),
        ({"transforms": []}, "PARAMETER_TYPE (502)"),
    ],
)
def test_a_bad_parameter_ends_the_process_with_its_code(
    bench: Bench, parameters: dict[str, Any], text: str
) -> None:
    node = bench.policy(**parameters)
    assert node.wait() == 2, node.output
    assert text in node.output
    assert "Traceback" not in node.output


def test_parameters_are_described_and_checked_at_run_time(bench: Bench, peer: Peer) -> None:
    bench.policy(rate_hz=25)
    described = peer.call(
        DescribeParameters, "policy_node/describe_parameters", names=["rate_hz", "slop_s"]
    ).descriptors
    assert described[0].description.endswith("[Hz]")
    assert described[0].additional_constraints == "float 0.1 to 1000"

    def set_parameter(name: str, **value: object) -> tuple[bool, str]:
        parameter = Parameter(name=name, value=ParameterValue(**value))
        result = peer.call(SetParameters, "policy_node/set_parameters", parameters=[parameter])
        return result.results[0].successful, result.results[0].reason

    assert set_parameter("rate_hz", type=2, integer_value=30)[0]
    assert not set_parameter("rate_hz", type=3, double_value=-1.0)[0]
    refused, reason = set_parameter("rate_hx", type=3, double_value=1.0)
    assert not refused
    assert reason.startswith("UNKNOWN_PARAMETER")
    assert "rate_hz" in reason
    refused, reason = set_parameter("rate_hz", type=4, string_value="ten")
    assert not refused
    assert reason.startswith("PARAMETER_TYPE")


@pytest.mark.parametrize("module", ["policy_node", "planner_node"])
def test_a_node_imports_no_torch(bench: Bench, module: str) -> None:
    child = bench.start(
        [
            sys.executable,
            "-c",
            f"import sys, flashrt_ros.nodes.{module}; print('torch:', 'torch' in sys.modules)",
        ]
    )
    assert child.wait() == 0, child.output
    assert "torch: False" in child.output
