"""What a controller gets when there is no policy: measured positions, zeros, or nothing."""

from __future__ import annotations

import threading

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.timer import Timer

from flashrt_ros.nodes import messages


class SafetyAction:
    """Publishes the safety action once, or again and again until told to stop.

    "hold" sends the joint positions measured last before it was asked for, never a
    command of the policy's; with no measurement nothing is sent.

    Args:
        node: Owner of the timer.
        publisher: Of ``std_msgs/Float64MultiArray``; borrowed.
        kind: "hold", "zeros" or "stop".
        num_joints: Length of a command.
        rate_hz: Rate of repetition; 0 never repeats.
    """

    def __init__(
        self, node: Node, publisher: Publisher, *, kind: str, num_joints: int, rate_hz: float
    ) -> None:
        self._node = node
        self._publisher = publisher
        self._kind = kind
        self._num_joints = num_joints
        self._rate_hz = rate_hz
        self._lock = threading.Lock()
        self._measured: tuple[float, ...] | None = None
        self._values: tuple[float, ...] | None = None
        self._timer: Timer | None = None

    def measured(self, positions: tuple[float, ...]) -> None:
        """Remember the joint positions of the newest observation, in command order."""
        self._measured = positions

    def take(self, *, repeat: bool) -> str:
        """Send the safety action now, and with ``repeat`` until :meth:`end`.

        Returns:
            What was done, in words.
        """
        with self._lock:
            self._values = self._choose()
            if self._values is None:
                return (
                    "stop: nothing is sent"
                    if self._kind == "stop"
                    else (
                        f"{self._kind}: nothing is sent, because no joint positions were measured"
                    )
                )
            self._publisher.publish(messages.command(self._values))
            if repeat and self._rate_hz > 0 and self._timer is None:
                self._timer = self._node.create_timer(1.0 / self._rate_hz, self._again)
            shown = ", ".join(f"{value:.4f}" for value in self._values)
            return f"{self._kind}: sent [{shown}]" + (
                f" and repeated at {self._rate_hz:g} Hz" if self._timer is not None else ""
            )

    def end(self) -> None:
        """Stop repeating; nothing is sent after it returned. Idempotent."""
        with self._lock:
            self._values = None
            if self._timer is not None:
                self._node.destroy_timer(self._timer)
                self._timer = None

    def _choose(self) -> tuple[float, ...] | None:
        if self._kind == "zeros":
            return (0.0,) * self._num_joints
        if self._kind == "hold" and self._measured is not None:
            return self._measured if len(self._measured) == self._num_joints else None
        return None

    def _again(self) -> None:
        with self._lock:
            if self._values is not None:
                self._publisher.publish(messages.command(self._values))
