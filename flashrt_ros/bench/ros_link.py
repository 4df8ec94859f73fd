"""A ROS node that is spun by whoever times it: a thread in between would be timed too."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions


class RosLink:
    """Owner of a node, its executor and a context of their own.

    Args:
        name: Of the node.

    Attributes:
        node: The node.
    """

    def __init__(self, name: str) -> None:
        self._context = Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = Node(name, context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)

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
        if self._context.ok():
            self._executor.shutdown()
            self.node.destroy_node()
            rclpy.shutdown(context=self._context)

    def spin_until(self, is_there: Callable[[], bool], seconds: float) -> bool:
        """Spin until something is there; False if it does not come in time."""
        deadline = time.monotonic() + seconds
        while not is_there():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._executor.spin_once(timeout_sec=left_s)
        return True
