"""Calls the nodes' services from the demo's main thread, each with a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import SetParameters
from rclpy.client import Client
from rclpy.node import Node
from rclpy.parameter import Parameter
from std_srvs.srv import SetBool

from flashrt_ros.demo.planner_link import PLANNER, PlannerLink
from flashrt_ros.demo.trace import Point
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.msg import Subgoal
from flashrt_ros.nodes.conversions import ns_to_duration, ns_to_stamp
from flashrt_ros.nodes.meeting import Meeting
from flashrt_ros.srv import (
    ForkCapsule,
    Interrupt,
    ResetEpisode,
    ResetSimulator,
    RestoreCapsule,
    Resume,
    SelectBranch,
    SnapshotCapsule,
    Step,
)

CALL_S = 10.0
"""Longest wait for an answer, and for a service to appear."""

_LOOK_S = 0.2

POLICY = "policy_node"
"""Name of the policy node."""


class Services:
    """One client for each service, made when it is first used.

    A reply without ``success`` is a :class:`ScenarioError`, with the service's own
    words, unless the caller asks for the reply itself.

    Args:
        node: Spun by another thread.
        check: Called before each call and now and then during one; raises when there is
            no point in waiting.
    """

    def __init__(self, node: Node, check: Callable[[], None] = lambda: None) -> None:
        self._node = node
        self._check = check
        self._clients: dict[str, Client] = {}
        self._planner = PlannerLink(node, check)

    def call(self, kind: Any, name: str, request: Any, *, may_fail: bool = False) -> Any:
        """Call a service and wait for its answer.

        Args:
            kind: Class of the service.
            name: Name of the service.
            request: Of that class.
            may_fail: Return an answer without ``success`` instead of raising.

        Raises:
            ScenarioError: It is not there, does not answer, or refuses.
        """
        return self._ask(self._client(kind, name), name, request, may_fail=may_fail)

    def call_once(self, kind: Any, name: str, request: Any) -> Any:
        """Call a service with a client that comes for this call and goes after it.

        Args:
            kind: As in :meth:`call`.
            name: As in :meth:`call`.
            request: As in :meth:`call`.

        Raises:
            ScenarioError: It is not there, does not answer, or refuses.
        """
        self._check()
        client = self._node.create_client(kind, name)
        try:
            self._meet(client, name)
            return self._ask(client, name, request, may_fail=False)
        finally:
            self._node.destroy_client(client)

    def _client(self, kind: Any, name: str) -> Client:
        """Return the client of a service that is there."""
        self._check()
        client = self._clients.get(name)
        if client is None:
            client = self._node.create_client(kind, name)
            self._meet(client, name)
            self._clients[name] = client
        _wait_for(client, name)
        return client

    def _meet(self, client: Client, name: str) -> None:
        """Wait until the service is there and its node knows the client."""
        _wait_for(client, name)
        deadline = time.monotonic() + CALL_S
        with Meeting(self._node, client) as meeting:
            while not meeting.look():
                self._check()
                if time.monotonic() > deadline:
                    raise ScenarioError(f"the node of '{name}' did not answer within {CALL_S:g} s")
                meeting.answered.wait(_LOOK_S)

    def _ask(self, client: Client, name: str, request: Any, *, may_fail: bool) -> Any:
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        deadline = time.monotonic() + CALL_S
        try:
            while not done.wait(_LOOK_S):
                self._check()
                if time.monotonic() > deadline:
                    raise ScenarioError(f"service '{name}' did not answer within {CALL_S:g} s")
        finally:
            client.remove_pending_request(future)
        reply = future.result()
        if not may_fail and not getattr(reply, "success", True):
            words = getattr(reply, "error_msg", "") or getattr(reply, "message", "")
            raise ScenarioError(f"service '{name}' refused: {words}")
        return reply

    # robot -----------------------------------------------------------------------------------

    def reset_simulator(self, seed: int) -> Any:
        """Begin an episode of the simulator; the reply names the first observation's stamp."""
        request = ResetSimulator.Request(has_seed=True, seed=seed)
        return self.call(ResetSimulator, "sim/reset", request)

    def pause_simulator(self) -> None:
        """Let the simulator's time stand still from here on."""
        self.call(SetBool, "sim/pause", SetBool.Request(data=True))

    # policy ----------------------------------------------------------------------------------

    def reset_episode(self, episode_id: str, seed: int) -> Any:
        """Bring the policy back to ``home``; the reply names the barrier."""
        request = ResetEpisode.Request(
            capsule="home", has_seed=True, seed=seed, episode_id=episode_id
        )
        return self.call(ResetEpisode, f"{POLICY}/reset_episode", request)

    def snapshot(self, name: str) -> Any:
        """Freeze the last boundary, in place of an older capsule of that name."""
        request = SnapshotCapsule.Request(name=name, replace=True)
        return self.call(SnapshotCapsule, f"{POLICY}/capsule/snapshot", request)

    def restore(self, capsule: str) -> Any:
        """Bring a capsule back, with its goal and its noise."""
        request = RestoreCapsule.Request(capsule=capsule)
        return self.call(RestoreCapsule, f"{POLICY}/capsule/restore", request)

    def fork(self, seeds: list[int]) -> Any:
        """Make a branch for each seed."""
        request = ForkCapsule.Request(count=len(seeds), seeds=seeds)
        return self.call(ForkCapsule, f"{POLICY}/capsule/fork", request)

    def try_fork(self, seeds: list[int]) -> Any:
        """Make a branch for each seed, or return the refusal."""
        request = ForkCapsule.Request(count=len(seeds), seeds=seeds)
        return self.call(ForkCapsule, f"{POLICY}/capsule/fork", request, may_fail=True)

    def select(self, branch: int) -> Any:
        """Make a branch the environment, and end the others."""
        request = SelectBranch.Request(branch=branch, release_others=True)
        return self.call(SelectBranch, f"{POLICY}/capsule/select", request)

    def step(
        self,
        count: int,
        *,
        branch: int = -1,
        min_stamp_ns: int = 0,
        timeout_s: float = 2.0,
        may_fail: bool = False,
    ) -> Any:
        """Run ticks; the reply holds chunks and actions.

        Args:
            count: Ticks.
            branch: A branch, or -1 for the environment.
            min_stamp_ns: Wait for an observation not older than this; 0 takes any.
            timeout_s: How long to wait for it.
            may_fail: Return a refusal instead of raising.

        Raises:
            ScenarioError: As :meth:`call`.
        """
        request = Step.Request(
            count=count,
            branch=branch,
            min_observation_stamp=ns_to_stamp(min_stamp_ns),
            timeout=ns_to_duration(int(timeout_s * 1e9)),
        )
        return self.call(Step, f"{POLICY}/step", request, may_fail=may_fail)

    def tick_by(self, source: str) -> None:
        """Choose what asks for ticks: deactivate, set the parameter, activate.

        Raises:
            ScenarioError: The node refuses the parameter or a transition, and may be left inactive.
        """
        self.transition(Transition.TRANSITION_DEACTIVATE)
        request = SetParameters.Request(
            parameters=[Parameter("tick_source", value=source).to_parameter_msg()]
        )
        reply = self.call(SetParameters, f"{POLICY}/set_parameters", request)
        if not all(result.successful for result in reply.results):
            raise ScenarioError(f"parameter 'tick_source' refused: {reply.results[0].reason}")
        self.transition(Transition.TRANSITION_ACTIVATE)

    def transition(self, number: int) -> None:
        """Take the policy node through a lifecycle transition."""
        request = ChangeState.Request(transition=Transition(id=number))
        self.call(ChangeState, f"{POLICY}/change_state", request)

    def state(self, node: str) -> str:
        """Return the lifecycle state of a node, in words."""
        reply = self.call(GetState, f"{node}/get_state", GetState.Request())
        return str(reply.current_state.label)

    # planner ---------------------------------------------------------------------------------

    def send_goal(self, goal: Point, *, stamp_ns: int = 0) -> int:
        """Let the planner process publish a goal; returns the planner's number of it.

        Args:
            goal: m, table frame.
            stamp_ns: A stamp to send it with, once; 0 stamps it now and waits until the
                planner node has accepted it.
        """
        return self._planner.send(_subgoal(goal, stamp_ns))

    def prepare_interrupt(self) -> None:
        """Connect to the planner, so that the first interrupt takes as long as the others."""
        self._client(Interrupt, f"{PLANNER}/interrupt")

    def interrupt(self, goal: Point) -> Any:
        """Let the planner process barge in with a goal; the reply is the policy node's."""
        request = Interrupt.Request(reason="demo", has_goal=True, goal=_subgoal(goal))
        return self.call(Interrupt, f"{PLANNER}/interrupt", request)

    def resume(self) -> Any:
        """Let the planner process go back to what it interrupted."""
        return self.call(Resume, f"{PLANNER}/resume", Resume.Request())


def _wait_for(client: Client, name: str) -> None:
    if not client.service_is_ready() and not client.wait_for_service(CALL_S):
        raise ScenarioError(f"service '{name}' did not appear within {CALL_S:g} s")


def _subgoal(goal: Point, stamp_ns: int = 0) -> Any:
    message = Subgoal(values=list(goal), shape=[2])
    message.header.stamp = ns_to_stamp(stamp_ns)
    return message
