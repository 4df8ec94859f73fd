"""The planner process against a planner node and a policy node that only pretend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="the planner process is a ROS node")

import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import try_shutdown

from flashrt_ros.demo import planner_link
from flashrt_ros.demo.planner_process import NAME, PlannerProcess
from flashrt_ros.demo.services import Services
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.msg import Subgoal
from flashrt_ros.nodes.conversions import stamp_to_ns
from flashrt_ros.nodes.reports import GOAL_QOS
from flashrt_ros.nodes.spinning import Spinner
from flashrt_ros.srv import Interrupt, Resume


class Pretender(Node):
    """Accepts every second goal, and answers for the policy node."""

    def __init__(self) -> None:
        super().__init__("pretender")
        self.seen: list[Any] = []
        self.accepts = True
        self.interrupts: list[Any] = []
        self._accepted = self.create_publisher(Subgoal, "planner_node/accepted", GOAL_QOS)
        self.create_subscription(Subgoal, "subgoal", self._take, GOAL_QOS)
        self.create_service(Interrupt, "policy_node/interrupt", self._interrupt)
        self.create_service(Resume, "policy_node/resume", self._resume)

    def _take(self, goal: Any) -> None:
        self.seen.append(goal)
        if self.accepts and len(self.seen) % 2 == 0:
            self._accepted.publish(goal)

    def _interrupt(
        self, request: Interrupt.Request, response: Interrupt.Response
    ) -> Interrupt.Response:
        self.interrupts.append(request.goal)
        response.success = True
        response.goal_sequence = 77
        return response

    def _resume(self, request: Resume.Request, response: Resume.Response) -> Resume.Response:
        response.error_msg = "nothing to resume"
        return response


@pytest.fixture
def stage() -> Iterator[tuple[Pretender, Services]]:
    rclpy.init(
        domain_id=int(os.environ["ROS_DOMAIN_ID"]), signal_handler_options=SignalHandlerOptions.NO
    )
    pretender, planner, caller = Pretender(), PlannerProcess(), Node("caller")
    nodes: list[Node] = [pretender, planner, caller]
    spinners = [Spinner(node, node.get_name()) for node in nodes]
    yield pretender, Services(caller)
    for spinner in spinners:
        spinner.close()
    for node in nodes:
        node.destroy_node()
    try_shutdown()


def test_goals_are_sent_until_accepted(stage: tuple[Pretender, Services]) -> None:
    pretender, services = stage
    first = services.send_goal((0.25, 0.125))
    second = services.send_goal((0.5, 0.25))
    assert second > first
    goal = pretender.seen[-1]
    assert goal.planner == NAME
    assert goal.sequence == second
    assert list(goal.values) == [0.5, 0.25]
    assert goal.header.frame_id == "table"
    numbers = [one.sequence for one in pretender.seen]
    assert numbers == sorted(set(numbers))
    assert all(stamp_to_ns(one.header.stamp) > 0 for one in pretender.seen)


def test_a_stamped_goal_is_sent_once_as_it_is(stage: tuple[Pretender, Services]) -> None:
    pretender, services = stage
    number = services.send_goal((0.25, 0.125), stamp_ns=1_234)
    services.send_goal((0.5, 0.25))
    stamps = [stamp_to_ns(one.header.stamp) for one in pretender.seen if one.sequence == number]
    assert stamps in ([1_234], [])  # the first one may leave before it is known who listens


def test_a_goal_that_nobody_accepts_is_an_error(
    stage: tuple[Pretender, Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretender, services = stage
    monkeypatch.setattr(planner_link, "_SENT_S", 1.2)
    monkeypatch.setattr(pretender, "accepts", False)
    with pytest.raises(ScenarioError, match="accepted by the planner node"):
        services.send_goal((0.25, 0.125))
    assert pretender.seen


def test_an_interrupt_is_passed_on(stage: tuple[Pretender, Services]) -> None:
    pretender, services = stage
    assert services.interrupt((0.25, 0.125)).goal_sequence == 77
    assert list(pretender.interrupts[0].values) == [0.25, 0.125]
    assert stamp_to_ns(pretender.interrupts[0].header.stamp) > 0


def test_a_refusal_is_passed_on(stage: tuple[Pretender, Services]) -> None:
    with pytest.raises(ScenarioError, match="nothing to resume"):
        stage[1].resume()
