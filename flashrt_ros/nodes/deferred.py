"""Services that may take long: answered from a thread of their own, one at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.task import Future

from flashrt_ros.errors import BusyError
from flashrt_ros.nodes.services import SERVICE_QOS, fill_failure

_Job = Callable[[], None]


class DeferredServices:
    """Runs handlers in one thread, so that the node's executor answers everything else.

    A request that comes while one is carried out is refused with BUSY, never queued.

    Args:
        node: Gets the services.
        name: Of the thread.
    """

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._busy = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._group = ReentrantCallbackGroup()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def serve(self, kind: Any, name: str, handler: Callable[[Any, Any], None]) -> None:
        """Create a service whose handler fills the reply or raises, as ``services.serve``."""

        async def answer(request: Any, response: Any) -> Any:
            if not self._busy.acquire(blocking=False):
                try:
                    raise BusyError(f"{name} can't begin", found="another request in progress")
                except BusyError as error:
                    fill_failure(self._node, name, error, response)
                    return response
            executor = self._node.executor
            done: Future = Future(executor=executor)

            def run() -> None:
                outcome = response
                try:
                    handler(request, response)
                    response.success = True
                except Exception as error:  # noqa: BLE001 - the boundary of a service
                    outcome = kind.Response()
                    fill_failure(self._node, name, error, outcome)
                finally:
                    self._busy.release()
                    done.set_result(outcome)
                    if executor is not None:
                        executor.wake()

            self._jobs.put(run)
            return await done

        self._node.create_service(
            kind, name, answer, qos_profile=SERVICE_QOS, callback_group=self._group
        )

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread after the request in progress; idempotent."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
