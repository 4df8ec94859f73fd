"""One executor, its node and its thread, with an end that does not wait for a timeout."""

from __future__ import annotations

import threading
import traceback

from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

_WAIT_S = 1.0


class Spinner:
    """Runs a node's callbacks in a thread of its own until :meth:`close`.

    A callback that raises costs itself only: its traceback goes to the node's log.
    ``SingleThreadedExecutor`` with ``spin_once``: the multi-threaded one takes several times the
    round trip, and the events executor may end the process, when a subscription that had an event
    is let go of (ADR 10).

    Args:
        node: Borrowed; destroy it after :meth:`close`.
        name: Name of the thread.
    """

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._is_stopped = threading.Event()
        # A guard of the node is work, so that triggering it ends spin_once at once; the
        # executor's own only makes it look again.
        self._wake = node.create_guard_condition(lambda: None)
        self._thread = threading.Thread(target=self._spin, name=name, daemon=True)
        self._thread.start()

    @property
    def node(self) -> Node:
        """The node whose callbacks run here."""
        return self._node

    @property
    def executor(self) -> SingleThreadedExecutor:
        """The executor, for futures that its callbacks wait for."""
        return self._executor

    def close(self, timeout_s: float = 2.0) -> bool:
        """End the thread after the callback in progress; a second call does nothing.

        Returns:
            False if the thread was still busy after the timeout.
        """
        self._is_stopped.set()
        if self._thread.is_alive():
            self._wake.trigger()
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._executor.shutdown()
        return True

    def _spin(self) -> None:
        while not self._is_stopped.is_set() and self._node.context.ok():
            try:
                self._executor.spin_once(timeout_sec=_WAIT_S)
            except ExternalShutdownException:
                return
            except Exception:  # noqa: BLE001 - the boundary of a callback
                if self._is_stopped.is_set() or not self._node.context.ok():
                    return
                self._node.get_logger().error(f"a callback failed\n{traceback.format_exc()}")
