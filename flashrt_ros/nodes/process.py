"""The process around a node: signals, executors, and one order of shutdown."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args, try_shutdown

from flashrt_ros.errors import ConfigError, FlashrtError
from flashrt_ros.nodes.lifecycle import PATIENCE_S
from flashrt_ros.nodes.session import SessionNode
from flashrt_ros.nodes.spinning import Spinner

_Node = TypeVar("_Node", bound=Node)

BAD_CONFIGURATION = 2
"""Exit code of a node that was given arguments or parameters it can't use."""

AUTOSTART_FAILED = 3
"""Exit code of a node that could not configure and activate itself as it was told to."""

END_S = 10.0
"""A node that has not left by then, s, shows where its threads stand and ends with code 1."""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn SIGINT, SIGTERM and SIGHUP into an event, in the main thread.

    SIGHUP stays ignored where it was, for ``nohup``. rclpy's own handlers would
    invalidate the context under running threads.
    """
    stop = threading.Event()

    def set_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, set_stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start_node(make: Callable[[], _Node], args: Sequence[str]) -> _Node | None:
    """Bring rclpy up, with the signal handlers as they are, and build a node.

    Args:
        make: Builds the node; called once rclpy is up.
        args: The process's arguments.

    Returns:
        The node; None, with the reason on stderr, where arguments or parameters can't be used.
    """
    try:
        _init(list(args))
        return make()
    except FlashrtError as error:
        print(f"{error.name} ({error.code}): {error}", file=sys.stderr, flush=True)
        try_shutdown()
        return None


def _init(args: list[str]) -> None:
    """Bring rclpy up; what is not for it would be passed over without a word.

    Raises:
        ConfigError: Arguments are no ROS arguments, or rclpy can't do with them.
    """
    try:
        others = remove_ros_args(args)[1:]
        if not others:
            rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:
        raise ConfigError("ROS can't be brought up with these arguments", found=error) from error
    if others:
        raise ConfigError(
            "the node takes no such arguments",
            expected="ROS arguments, behind --ros-args",
            found=" ".join(others),
        )


def run_node(make: Callable[[], SessionNode], args: Sequence[str]) -> int:
    """Run a session node until a signal, a failed autostart or the end of the ROS context.

    Order of shutdown: the node stops acting, executors leave, reader joined, clients closed
    (both in ``close``), nodes destroyed, rclpy shut down. An engine that hangs does not
    delay it by more than a second.

    Args:
        make: Builds the node; called once rclpy is up.
        args: The process's arguments, ROS arguments among them.

    Returns:
        0 after a stop that was asked for, 2 for arguments or parameters that can't be used,
        3 after a failed autostart.
    """
    has_failed = threading.Event()
    with stop_signals() as stop:
        node = start_node(make, args)
        if node is None:
            return BAD_CONFIGURATION
        node.context.on_shutdown(stop.set)
        spinners = [Spinner(node, "verbs"), Spinner(node.inputs, "inputs")]

        def fail() -> None:
            has_failed.set()
            stop.set()

        if node.settings.boolean("autostart"):
            node.begin(fail)
        stop.wait()
        faulthandler.dump_traceback_later(END_S, exit=True)
        node.is_closing.set()
        node.retire()
        shut_down(spinners, node.close, (node, node.inputs), cut=node.cut)
        faulthandler.cancel_dump_traceback_later()
    return AUTOSTART_FAILED if has_failed.is_set() else 0


def shut_down(
    spinners: Sequence[Spinner],
    close: Callable[[], None],
    nodes: Sequence[Node],
    *,
    cut: Callable[[], None] | None = None,
) -> None:
    """End a process's nodes in the one order that leaves no thread with a dead handle.

    A node whose callback does not come back is left as it is, for the end of the process.

    Args:
        spinners: Of the nodes.
        close: Frees what the nodes hold, once the executors have left.
        nodes: Destroyed after it.
        cut: Ends what callbacks wait for, where they don't come back by themselves.
    """
    left = _not_closed(spinners)
    if left:
        if cut is not None:
            cut()
        left = _not_closed(left)
    busy = [spinner.node for spinner in left]
    for node in busy:
        node.get_logger().error("a callback did not return; the node is left to the process's end")
    close()
    for node in nodes:
        if node not in busy:
            node.destroy_node()
    if not busy:
        try_shutdown()


def _not_closed(spinners: Sequence[Spinner]) -> list[Spinner]:
    """Close executors, together within the patience; return those still busy then."""
    deadline = time.monotonic() + PATIENCE_S
    return [s for s in spinners if not s.close(max(0.0, deadline - time.monotonic()))]
