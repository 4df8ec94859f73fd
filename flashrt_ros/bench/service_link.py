"""Calls services from the thread that times them; needs ROS."""

from __future__ import annotations

from collections.abc import Callable

from std_srvs.srv import Trigger

from flashrt_ros.bench.context import Crew
from flashrt_ros.bench.engines import START_S, wait_for
from flashrt_ros.bench.failures import BenchError
from flashrt_ros.bench.ros_link import RosLink
from flashrt_ros.nodes.meeting import Meeting

_ANSWER_S = 5.0
_LOOK_S = 0.2


class ServiceLink(RosLink):
    """A node that calls.

    Args:
        crew: Runs the node that is called.
    """

    def __init__(self, crew: Crew) -> None:
        super().__init__("bench_stopwatch")
        self._crew = crew

    def caller(self, name: str) -> Callable[[], str]:
        """Return a call of a ``Trigger`` service, once it succeeds; it returns the message.

        Raises:
            BenchError: It does not appear, or refuses.
        """
        client = self.node.create_client(Trigger, name)
        wait_for(self._crew, client.service_is_ready, f"service '{name}'")
        request = Trigger.Request()

        with Meeting(self.node, client) as meeting:
            wait_for(self._crew, lambda: self.spin_until(meeting.look, _LOOK_S), f"'{name}'")

        def ask() -> Trigger.Response:
            future = client.call_async(request)
            if not self.spin_until(future.done, _ANSWER_S):
                client.remove_pending_request(future)
                raise BenchError(f"service '{name}' did not answer within {_ANSWER_S:g} s")
            reply = future.result()
            if reply is None:
                raise BenchError(f"service '{name}' ended without an answer")
            return reply

        def call() -> str:
            reply = ask()
            if not reply.success:
                raise BenchError(f"service '{name}' refused: {reply.message or 'no reason'}")
            return str(reply.message)

        # Until the node is active, its verbs refuse.
        wait_for(self._crew, lambda: ask().success, f"service '{name}'", START_S)
        return call
