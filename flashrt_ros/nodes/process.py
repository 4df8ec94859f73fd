"""The process around a node: signals, executors, and one order of shutdown."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import try_shutdown

from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes.session import SessionNode
from flashrt_ros.nodes.spinning import Spinner

BAD_CONFIGURATION = 2
"""Exit code of a node that was given parameters it can't use."""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event, in the main thread.

    rclpy's own handlers would invalidate the context under running threads.
    """
    stop = threading.Event()

    def set_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, set_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_node(make: Callable[[], SessionNode], args: Sequence[str]) -> int:
    """Run a session node until SIGINT, SIGTERM or the end of the ROS context.

    Order of shutdown: stop, executors leave, reader joined, clients closed (both in
    ``close``), nodes destroyed, rclpy shut down.

    Args:
        make: Builds the node; called once rclpy is up.
        args: The process's arguments, ROS arguments among them.

    Returns:
        0 after a stop that was asked for, 2 for parameters that can't be used.
    """
    with stop_signals() as stop:
        rclpy.init(args=list(args), signal_handler_options=SignalHandlerOptions.NO)
        try:
            node = make()
        except FlashrtError as error:
            print(f"{error.name} ({error.code}): {error}", file=sys.stderr, flush=True)
            try_shutdown()
            return BAD_CONFIGURATION
        node.context.on_shutdown(stop.set)
        spinners = [Spinner(node, "verbs"), Spinner(node.inputs, "inputs")]
        if node.settings.boolean("autostart"):
            node.begin()
        stop.wait()
        shut_down(spinners, node.close, (node, node.inputs))
    return 0


def shut_down(
    spinners: Sequence[Spinner], close: Callable[[], None], nodes: Sequence[Node]
) -> None:
    """End a process's nodes in the one order that leaves no thread with a dead handle.

    A node whose callback does not come back is left as it is, for the end of the process.
    """
    busy = [spinner.node for spinner in spinners if not spinner.close()]
    for node in busy:
        node.get_logger().error("a callback did not return; the node is left to the process's end")
    close()
    for node in nodes:
        if node not in busy:
            node.destroy_node()
    if not busy:
        try_shutdown()
