"""What a robot gets when there is no policy: measured positions, zeros, a pose, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from flashrt_ros.errors import ConfigError
from flashrt_ros.nodes.entries import parse_entries

Command = tuple[float, ...]

KINDS = ("hold", "zeros", "stop", "safe_pose")
"""What a safety action may be."""

TRAJECTORY_STOPS = ("none", "hold", "cancel")
"""How a trajectory controller may be made to let go of what it holds."""


def parse_pose(texts: Sequence[str], joint_names: Sequence[str]) -> Command | None:
    """Read the parameter ``safe_pose``.

    Args:
        texts: ``"joint position=0.1"`` for each joint of a command, or none.
        joint_names: Joints in the order of a command.

    Returns:
        The pose in that order; None where the parameter is empty.

    Raises:
        ConfigError: It names other joints than a command has, or one twice.
    """
    if not texts:
        return None
    entries = parse_entries("safe_pose", texts, ("position",))
    pose = {entry.name: entry.number("position", 0.0) for entry in entries}
    bare = [entry for entry in entries if "position" not in entry.values]
    if bare:
        raise bare[0].refused("an entry says no position", expected="'joint position=0.1'")
    if pose.keys() != {*joint_names} or len(entries) != len(pose):
        raise ConfigError(
            "parameter 'safe_pose' does not name every joint of a command once",
            expected=", ".join(joint_names),
            found=", ".join(entry.name for entry in entries),
        )
    return tuple(pose[name] for name in joint_names)


class SafetyAction:
    """Sends a safety action once, or again and again until told to stop.

    "hold" sends the joint positions measured last before it was asked for, never a
    command of the policy's; with no measurement nothing is sent. It repeats in a thread
    of its own: executors may wait for an engine that hangs, and the node's clock may
    stand still.

    Args:
        send: Publishes a command; called with nothing of the policy's in between.
        num_joints: Length of a command.
        rate_hz: Rate of repetition; 0 never repeats.
        pose: For "safe_pose".
        approach: Returns the next command on the way to a pose, within the limits of the
            joints; takes the pose and the time since the command before it, s.
    """

    def __init__(
        self,
        send: Callable[[Command], None],
        *,
        num_joints: int,
        rate_hz: float,
        pose: Command | None = None,
        approach: Callable[[Command, float], Command] = lambda pose, period_s: pose,
    ) -> None:
        self._send = send
        self._num_joints = num_joints
        self._rate_hz = rate_hz
        self._pose = pose
        self._approach = approach
        self._lock = threading.Lock()
        self._measured: Command | None = None
        self._values: Command | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def positions(self) -> Command | None:
        """Joint positions measured last, in command order; None before any."""
        return self._measured

    def measured(self, positions: Command) -> None:
        """Remember the joint positions of the newest observation, in command order."""
        self._measured = positions

    def target(self, kind: str) -> Command | None:
        """Return what an action of a kind would lead to now, None for nothing."""
        if kind == "zeros":
            return (0.0,) * self._num_joints
        if kind == "safe_pose":
            return self._pose
        if kind == "hold" and self._measured is not None:
            return self._measured if len(self._measured) == self._num_joints else None
        return None

    def take(self, kind: str, *, repeat: bool) -> str:
        """Send a safety action now, and with ``repeat`` until :meth:`pause` or :meth:`end`.

        A pose that limits put out of reach of one command is approached command by
        command, also without ``repeat``.

        Args:
            kind: One of :data:`KINDS`.
            repeat: Whether to go on once it is reached.

        Returns:
            What was done, in words.
        """
        with self._lock:
            self._forget()
            values = self._values = self.target(kind)
            if values is None:
                why = "" if kind == "stop" else ", because no joint positions were measured"
                return f"{kind}: nothing is sent{why}"
            period_s = 1.0 / self._rate_hz if self._rate_hz > 0 else 0.0
            sent = self._next(kind, values, period_s)
            is_there = sent == values
            if period_s and (repeat or not is_there):
                self._start(kind, values, period_s, repeat)
            shown = ", ".join(f"{value:.4f}" for value in sent)
            again = f" and repeated at {self._rate_hz:g} Hz" if self._thread is not None else ""
            return f"{kind}: sent [{shown}]{again}"

    def pause(self) -> None:
        """Send nothing more until the next :meth:`take`; returns after a send in progress."""
        with self._lock:
            self._forget()

    def end(self) -> None:
        """Pause, and join the thread. Idempotent."""
        thread = self._thread
        self.pause()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)

    def _forget(self) -> None:
        self._values = None
        self._stop.set()
        self._thread = None

    def _start(self, kind: str, values: Command, period_s: float, repeat: bool) -> None:
        stop = self._stop = threading.Event()

        def again() -> None:
            while not stop.wait(period_s):
                with self._lock:
                    if stop.is_set():
                        return
                    if self._next(kind, values, period_s) == values and not repeat:
                        return

        self._thread = threading.Thread(target=again, name="safety", daemon=True)
        self._thread.start()

    def _next(self, kind: str, values: Command, period_s: float) -> Command:
        command = self._approach(values, period_s) if kind == "safe_pose" else values
        self._send(command)
        return command
