"""How the demo tells the planner process where to go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.node import Node

from flashrt_ros.demo.waiting import News
from flashrt_ros.msg import Subgoal
from flashrt_ros.nodes.conversions import stamp_to_ns
from flashrt_ros.nodes.reports import GOAL_QOS

PLANNER = "demo_planner"
"""Name of the planner process's node."""

_THERE_S = 10.0
_SENT_S = 10.0


class PlannerLink:
    """Publishes on the planner's ``~/go_to`` and hears what becomes of it; one at a time.

    Args:
        node: Spun by another thread.
        check: Called now and then during a wait; raises when there is no point in it.
    """

    def __init__(self, node: Node, check: Callable[[], None] = lambda: None) -> None:
        self._news = News(check)
        self._sent: Any = Subgoal()
        self._accepted: Any = Subgoal()
        self._wanted = node.create_publisher(Subgoal, f"{PLANNER}/go_to", GOAL_QOS)
        node.create_subscription(Subgoal, f"{PLANNER}/sent", self._take_sent, GOAL_QOS)
        node.create_subscription(Subgoal, "planner_node/accepted", self._take_accepted, GOAL_QOS)

    def send(self, goal: Any) -> int:
        """Let the planner send a goal; returns the planner's number of it.

        One without a stamp is stamped by the planner and sent until the planner node has
        accepted it, which this waits for. One with a stamp is sent once, as it is.

        Raises:
            ScenarioError: The planner is not there, or no goal was sent or accepted in time.
        """
        self._news.wait(
            lambda: self._wanted.get_subscription_count() > 0, _THERE_S, "the planner process"
        )
        stamp_ns = stamp_to_ns(goal.header.stamp)
        with self._news.change():
            before = max(self._sent.sequence, self._accepted.sequence)
        self._wanted.publish(goal)

        def answer() -> int | None:
            found = self._sent if stamp_ns else self._accepted
            is_it = (
                found.sequence > before
                and stamp_ns in (0, stamp_to_ns(found.header.stamp))
                and np.array_equal(found.values, goal.values)
            )
            return int(found.sequence) if is_it else None

        what = "a goal with a stamp sent on" if stamp_ns else "a goal accepted by the planner node"
        return self._news.wait(answer, _SENT_S, what)

    def _take_sent(self, goal: Any) -> None:
        with self._news.change():
            self._sent = goal

    def _take_accepted(self, goal: Any) -> None:
        if goal.planner == PLANNER:
            with self._news.change():
                self._accepted = goal
