"""A ROS node that is spun by whoever times it: a thread in between would be timed too."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from flashrt_ros.bench.context import Crew
from flashrt_ros.bench.engines import wait_for


class RosLink:
    """Owner of a node, its executor and a context of their own.

    Args:
        name: Of the node.

    Attributes:
        node: The node.
    """

    def __init__(self, name: str) -> None:
        context = Context()
        with ExitStack() as exits:
            rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
            exits.callback(context.try_shutdown)
            self.node = Node(name, context=context)
            exits.callback(self.node.destroy_node)
            self._executor = SingleThreadedExecutor(context=context)
            exits.callback(self._executor.shutdown)
            self._executor.add_node(self.node)
            self._exits = exits.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the node. Idempotent."""
        self._exits.close()

    def spin_until(self, is_there: Callable[[], bool], seconds: float) -> bool:
        """Spin until something is there; False if it does not come in time."""
        deadline = time.monotonic() + seconds
        while not is_there():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._executor.spin_once(timeout_sec=left_s)
        return True

    def wait_for_peer(self, crew: Crew, publisher: Any, answers: str, what: str) -> None:
        """Wait until a peer listens to a publisher of this node, and can be heard.

        Args:
            crew: Runs the peer.
            publisher: Of this node.
            answers: Topic that the peer publishes.
            what: The peer, in words.

        Raises:
            BenchError: It does not come.
        """
        wait_for(
            crew,
            lambda: (
                publisher.get_subscription_count() > 0 and self.node.count_publishers(answers) > 0
            ),
            what,
        )
