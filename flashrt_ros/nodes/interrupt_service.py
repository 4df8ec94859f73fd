"""``~/interrupt``, with the goal that takes over in the same instant."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient, Writer
from flashrt_ros.errors import NotActiveError
from flashrt_ros.msg import Subgoal
from flashrt_ros.nodes.clocks import ClockWatch
from flashrt_ros.nodes.conversions import duration_to_ns
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.goals import GoalChecker
from flashrt_ros.nodes.links import Link
from flashrt_ros.nodes.services import serve
from flashrt_ros.srv import Interrupt


class InterruptService:
    """Answers ``~/interrupt``.

    Args:
        node: Gets the service.
        link: Connection for the verbs; the goal is committed through it too.
        fence: Raised before the answer.
        now_ns: The node's clock.
        on_goal: Told of each goal before the engine has it.
        on_hold: Told the environment that an interrupt made hold, before the answer.
    """

    def __init__(
        self,
        node: Node,
        link: Link,
        fence: Fence,
        *,
        now_ns: Callable[[], int],
        on_goal: Callable[[Subgoal], None],
        on_hold: Callable[[int], None],
    ) -> None:
        self._on_goal = on_goal
        self._on_hold = on_hold
        self._link = link
        self._fence = fence
        self._now_ns = now_ns
        self._checker: GoalChecker | None = None
        self._writers: dict[tuple[int, str], Writer] = {}
        self._clocks: dict[int, ClockWatch] = {}
        serve(node, Interrupt, "~/interrupt", self._answer)

    def begin(self, checker: GoalChecker) -> None:
        """Take goals for a session; writers are opened when a goal first needs one."""
        self._checker = checker
        self._clocks.clear()

    def end(self) -> None:
        """Forget the session; its writers close with the connection. Idempotent."""
        self._checker = None
        self._writers.clear()

    def _answer(self, request: Interrupt.Request, response: Interrupt.Response) -> None:
        checker = self._checker
        if checker is None:
            raise NotActiveError(
                "the node has no session with an engine", fix="configure and activate it"
            )
        goal = (
            checker.check(request.goal, env_index=request.env_index, now_ns=self._now_ns())
            if request.has_goal
            else None
        )
        if goal is not None:
            self._on_goal(request.goal)
        with self._link as client:
            if goal is None:
                reply = client.interrupt(
                    env_index=request.env_index, reason=request.reason, hold=request.hold
                )
            else:
                self._follow_clock(client, request.env_index)
                place = (request.env_index, goal.channel)
                writer = self._writers.get(place)
                if writer is None:
                    writer = client.open_writer(goal.channel, request.env_index)
                    self._writers[place] = writer
                reply = client.interrupt(
                    env_index=request.env_index,
                    reason=request.reason,
                    hold=request.hold,
                    goal=writer.prepare(
                        stamp_ns=goal.stamp_ns,
                        source_sequence=goal.sequence,
                        lifetime_ns=duration_to_ns(request.goal.lifetime),
                        **{goal.field: goal.values},
                    ),
                )
        self._fence.raise_to(request.env_index, reply.generation)
        if goal is not None:
            checker.accept(request.goal, goal, now_ns=self._now_ns())
        if request.hold:
            self._on_hold(request.env_index)
        fill_interrupt(response, reply, self._fence)

    def _follow_clock(self, client: EngineClient, env_index: int) -> None:
        """Have the engine let new time in after the clock was set back: the last reset is ahead."""
        clock = self._clocks.setdefault(env_index, ClockWatch())
        now_ns = self._now_ns()
        if clock.is_set_back(now_ns):
            client.rewind(now_ns, env_index=env_index)
            clock.accept(now_ns)


def fill_interrupt(response: Interrupt.Response, reply: protocol.Interrupted, fence: Fence) -> None:
    """Put an engine's answer to an interrupt into a service's."""
    response.capsule_id = reply.capsule_id
    response.depth = reply.depth
    response.boundary = reply.boundary
    response.engine_epoch = fence.epoch
    response.generation = reply.generation
    response.tick = reply.tick
    response.goal_sequence = reply.goal_sequence
