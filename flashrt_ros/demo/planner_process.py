"""A planner as somebody else would write it: a process that knows ROS and nothing else of us.

Where to go it is told from outside, so that the demo decides when: a goal on ``~/go_to``
goes to the topic ``subgoal`` until the planner node accepts it, ``~/interrupt`` barges in on
the policy with a new goal, ``~/resume`` lets it go back. Every goal that leaves stands on
``~/sent`` too, with the number it got, for who wants to compare.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

import rclpy
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from rclpy.utilities import try_shutdown

from flashrt_ros.msg import Subgoal
from flashrt_ros.srv import Interrupt, Resume

NAME = "demo_planner"
"""Name of the node."""

FRAME = "table"
"""Frame of the goals it sends."""

ACCEPT_S = 5.0
"""How long a goal is repeated before it is given up, s."""

_REPEAT_S = 0.5
_GOAL_QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)


class PlannerProcess(Node):
    """Sends goals in the table's frame, numbered and stamped by itself."""

    def __init__(self) -> None:
        super().__init__(NAME)
        self._sequence = 0
        self._waiting: dict[int, Future] = {}
        self._goals = self.create_publisher(Subgoal, "subgoal", _GOAL_QOS)
        self._sent = self.create_publisher(Subgoal, "~/sent", _GOAL_QOS)
        self.create_subscription(Subgoal, "planner_node/accepted", self._accepted, _GOAL_QOS)
        self._interrupts = self.create_client(Interrupt, "policy_node/interrupt")
        self._resumes = self.create_client(Resume, "policy_node/resume")
        # Apart from the default group: a service that awaits would keep it from hearing the answer.
        group = ReentrantCallbackGroup()
        # The executor awaits a callback that is a coroutine; rclpy's types do not say so.
        go_to: Any = self._go_to
        self.create_subscription(Subgoal, "~/go_to", go_to, _GOAL_QOS, callback_group=group)
        self.create_service(Interrupt, "~/interrupt", self._interrupt, callback_group=group)
        self.create_service(Resume, "~/resume", self._resume, callback_group=group)

    async def _go_to(self, goal: Any) -> None:
        """Publish a goal; one that comes with a stamp keeps it and is sent only once."""
        if goal.header.stamp.sec or goal.header.stamp.nanosec:
            self._publish(self._number(goal))
            return
        for _ in range(round(ACCEPT_S / _REPEAT_S)):
            if await self._is_accepted(self._stamp(self._number(goal))):
                return
        self.get_logger().error(  # type: ignore[no-untyped-call]
            f"no planner node accepted a goal within {ACCEPT_S:g} s"
        )

    async def _interrupt(
        self, request: Interrupt.Request, response: Interrupt.Response
    ) -> Interrupt.Response:
        request.goal = self._stamp(self._number(request.goal))
        self._sent.publish(request.goal)
        answer: Interrupt.Response = await self._interrupts.call_async(request)
        return answer

    async def _resume(self, request: Resume.Request, response: Resume.Response) -> Resume.Response:
        answer: Resume.Response = await self._resumes.call_async(request)
        return answer

    def _number(self, goal: Any) -> Any:
        self._sequence += 1
        goal.sequence = self._sequence
        goal.planner = NAME
        goal.header.frame_id = FRAME
        return goal

    def _stamp(self, goal: Any) -> Any:
        goal.header.stamp = self.get_clock().now().to_msg()
        return goal

    async def _is_accepted(self, goal: Any) -> bool:
        future: Future = Future(executor=self.executor)
        self._waiting[goal.sequence] = future
        timer = self.create_timer(_REPEAT_S, lambda: _finish(future, False))
        self._publish(goal)
        try:
            return bool(await future)
        finally:
            del self._waiting[goal.sequence]
            self.destroy_timer(timer)

    def _publish(self, goal: Any) -> None:
        self._sent.publish(goal)
        self._goals.publish(goal)

    def _accepted(self, goal: Any) -> None:
        future = self._waiting.get(goal.sequence) if goal.planner == NAME else None
        if future is not None:
            _finish(future, True)


def _finish(future: Future, is_accepted: bool) -> None:
    if not future.done():
        future.set_result(is_accepted)


def main() -> int:
    """Run until SIGINT or SIGTERM."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        wake.trigger()

    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = PlannerProcess()
    wake = node.create_guard_condition(lambda: None)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    signal.signal(signal.SIGINT, ask)
    signal.signal(signal.SIGTERM, ask)
    try:
        while not stop.is_set() and node.context.ok():
            executor.spin_once(timeout_sec=0.5)
    except ExternalShutdownException:
        pass
    executor.shutdown()
    node.destroy_node()  # type: ignore[no-untyped-call]
    try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
