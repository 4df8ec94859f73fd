"""Calls services from the thread that times them; needs ROS."""

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
from std_srvs.srv import Trigger

from flashrt_ros.bench.context import Crew
from flashrt_ros.bench.engines import START_S, wait_for
from flashrt_ros.bench.failures import BenchError

_ANSWER_S = 5.0
_LOOK_S = 1.0


class ServiceLink:
    """A node whose caller spins it: a thread in between would be timed too.

    Args:
        crew: Runs the node that is called.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._context = Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self._node = Node("bench_stopwatch", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)

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
            self._node.destroy_node()
            rclpy.shutdown(context=self._context)

    def caller(self, name: str) -> Callable[[], None]:
        """Return a call of a ``Trigger`` service, once it succeeds.

        Raises:
            BenchError: It does not appear, or refuses.
        """
        client = self._node.create_client(Trigger, name)
        wait_for(self._crew, client.service_is_ready, f"service '{name}'")
        request = Trigger.Request()

        def ask() -> str:
            future = client.call_async(request)
            deadline = time.monotonic() + _ANSWER_S
            while not future.done():
                self._executor.spin_once(timeout_sec=_LOOK_S)
                if time.monotonic() > deadline:
                    raise BenchError(f"service '{name}' did not answer within {_ANSWER_S:g} s")
            reply = future.result()
            return "" if reply is not None and reply.success else getattr(reply, "message", "?")

        def call() -> None:
            refusal = ask()
            if refusal:
                raise BenchError(f"service '{name}' refused: {refusal}")

        # Until the node is active, its verbs refuse.
        wait_for(self._crew, lambda: not ask(), f"service '{name}'", START_S)
        return call
