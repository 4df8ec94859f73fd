"""``~/step``: the one verb that waits, so it has a connection and a thread of its own."""

from __future__ import annotations

import array
import queue
import threading
from collections.abc import Callable

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.task import Future

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import BusyError, FlashrtError
from flashrt_ros.nodes import messages
from flashrt_ros.nodes.conversions import duration_to_ns, stamp_to_ns
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.links import Link
from flashrt_ros.nodes.services import SERVICE_QOS, fill_failure
from flashrt_ros.srv import Step

_Job = Callable[[], None]


class StepService:
    """Answers ``~/step`` while every other service goes on.

    One step at a time: a second one is refused with BUSY, never queued. A reset,
    restore or interrupt ends it with ABANDONED, whether it runs or still waits for its
    observation: what was asked before does not act after.

    Args:
        node: Gets the service.
        fence: Holds the engine's epoch.
        connect: Opens a connection, at the first step of a session.
        timeout_ns: Longest wait where a request names none.
        frame: Frame of the chunks.
        now_ns: The node's clock.
        on_gone: As to :class:`~flashrt_ros.nodes.links.Link`.
    """

    def __init__(
        self,
        node: Node,
        fence: Fence,
        *,
        connect: Callable[[], EngineClient],
        timeout_ns: Callable[[], int],
        frame: Callable[[], str],
        now_ns: Callable[[], int],
        on_gone: Callable[[FlashrtError], None],
    ) -> None:
        self._node = node
        self._fence = fence
        self._connect = connect
        self._timeout_ns = timeout_ns
        self._frame = frame
        self._now_ns = now_ns
        self._link = Link(on_gone)
        self._is_linked = False
        self._busy = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="step", daemon=True)
        self._thread.start()
        node.create_service(
            Step,
            "~/step",
            self._answer,
            qos_profile=SERVICE_QOS,
            callback_group=ReentrantCallbackGroup(),
        )

    def reset(self) -> None:
        """End the session; the next step opens another. Waits for a step in progress."""
        self._link.close()
        self._is_linked = False

    def cut(self) -> None:
        """Fail the step in progress; from any thread."""
        self._link.cut()

    def close(self) -> None:
        """End session and thread; idempotent."""
        self._jobs.put(None)
        self._thread.join(2.0)
        self.reset()

    async def _answer(self, request: Step.Request, response: Step.Response) -> Step.Response:
        if not self._busy.acquire(blocking=False):
            try:
                raise BusyError("another step is in progress", fix="wait for its answer")
            except BusyError as error:
                fill_failure(self._node, "~/step", error, response)
                return response
        executor = self._node.executor
        future: Future = Future(executor=executor)

        def run() -> None:
            try:
                self._step(request, response)
                response.success = True
            except Exception as error:  # noqa: BLE001 - the boundary of a service
                fill_failure(self._node, "~/step", error, response)
            finally:
                self._busy.release()
                future.set_result(True)
                if executor is not None:
                    executor.wake()

        self._jobs.put(run)
        await future
        return response

    def _step(self, request: Step.Request, response: Step.Response) -> None:
        if not self._is_linked:
            self._link.attach(self._connect())
            self._is_linked = True
        with self._link as client:
            stepped = client.step(
                request.count,
                env_index=request.env_index,
                branch=request.branch,
                min_observation_stamp_ns=stamp_to_ns(request.min_observation_stamp),
                timeout_ns=duration_to_ns(request.timeout) or self._timeout_ns(),
            )
            model = client.model
        self._fill(response, stepped, model)

    def _fill(
        self, response: Step.Response, stepped: protocol.Stepped, model: protocol.ModelInfo
    ) -> None:
        now_ns = self._now_ns()
        response.engine_epoch = self._fence.epoch
        response.generation = stepped.generation
        response.tick = stepped.tick
        response.chunks = [
            messages.action_chunk(
                model,
                chunk.provenance,
                chunk.actions,
                stamp_ns=now_ns,
                frame=self._frame(),
                score=chunk.score,
            )
            for chunk in stepped.chunks
        ]
        actions = array.array("f")
        for action in stepped.actions:
            actions.frombytes(action.values)
        response.action_dim = model.action_dim
        response.actions = actions
        response.action_indices = [action.index for action in stepped.actions]

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
