"""A planner as somebody else would write it: a process that knows ROS and nothing else of us.

Where to go it is told by services of its own, so that the demo decides when:
``~/send`` publishes a goal on the topic ``subgoal`` until the planner node accepts it,
``~/interrupt`` barges in on the policy with a new goal, ``~/resume`` lets it go back.
Every goal stands on ``~/sent`` too, for who wants to compare.
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
FRAME = "table"
ACCEPT_S = 5.0
"""How long ``~/send`` goes on before it gives up, s."""

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
        self.create_service(Interrupt, "~/send", self._send, callback_group=group)
        self.create_service(Interrupt, "~/interrupt", self._interrupt, callback_group=group)
        self.create_service(Resume, "~/resume", self._resume, callback_group=group)

    async def _send(
        self, request: Interrupt.Request, response: Interrupt.Response
    ) -> Interrupt.Response:
        """Publish a goal; one that comes with a stamp keeps it and is sent only once."""
        stamp = request.goal.header.stamp
        if stamp.sec or stamp.nanosec:
            goal = self._number(request.goal)
            self._publish(goal)
            response.goal_sequence = goal.sequence
            response.success = True
            return response
        for _ in range(round(ACCEPT_S / _REPEAT_S)):
            goal = self._stamp(self._number(request.goal))
            if await self._is_accepted(goal):
                response.goal_sequence = goal.sequence
                response.success = True
                return response
        response.error_msg = f"no planner node accepted the goal within {ACCEPT_S:g} s"
        return response

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
