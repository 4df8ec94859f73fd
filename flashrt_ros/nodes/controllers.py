"""What a trajectory controller still holds, and how it is made to let go of it."""

from __future__ import annotations

from collections.abc import Callable

from action_msgs.srv import CancelGoal
from rclpy.client import Client
from rclpy.node import Node
from rclpy.publisher import Publisher

from flashrt_ros.engine import protocol
from flashrt_ros.msg import ActionChunk
from flashrt_ros.nodes import messages
from flashrt_ros.nodes.safety import SafetyAction


class GoalCanceller:
    """Cancels what action servers have in progress, whoever asked for it.

    Every action is cancelled by the same service, so that this needs no message of the
    controller's. Its clients stay for as long as the node: a server that finds none to answer
    takes that for a failure of its own.

    Args:
        node: Gets the clients.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clients: dict[str, Client] = {}

    def meet(self, action: str) -> None:
        """Look out for an action, such as ``controller/follow_joint_trajectory``."""
        if action not in self._clients:
            self._clients[action] = self._node.create_client(
                CancelGoal, f"{action}/_action/cancel_goal"
            )

    def cancel(self, action: str) -> bool:
        """Ask for it, from any thread, without waiting for an answer.

        Args:
            action: One that :meth:`meet` was called for.

        Returns:
            False if no server is there.
        """
        client = self._clients[action]
        if not client.service_is_ready():
            return False
        client.call_async(CancelGoal.Request())  # neither a goal's id nor a stamp: all of them
        return True


class TrajectoryOutlet:
    """Sends chunks to a trajectory controller, and overrides them.

    Args:
        publisher: Of ``trajectory_msgs/JointTrajectory``; borrowed.
        model: Names the joints.
        sends_chunks: Whether chunks go out as trajectories.
        stop: One of :data:`~flashrt_ros.nodes.safety.TRAJECTORY_STOPS`.
        pose_time_s: Time that a trajectory to the safe pose takes.
        cancel: Cancels the goals of the controller's action, False if it is not there.
    """

    def __init__(
        self,
        publisher: Publisher,
        model: protocol.ModelInfo,
        *,
        sends_chunks: bool,
        stop: str,
        pose_time_s: float,
        cancel: Callable[[], bool],
    ) -> None:
        self._publisher = publisher
        self._model = model
        self._sends_chunks = sends_chunks
        self._stop = stop
        self._pose_time_s = pose_time_s
        self._cancel = cancel

    def send(self, chunk: ActionChunk) -> None:
        """Publish a chunk as a trajectory, where that is wanted."""
        if self._sends_chunks:
            self._publisher.publish(messages.joint_trajectory(chunk))

    def stop(self, kind: str, safety: SafetyAction) -> str:
        """Override what the controller holds, as the YAML says; return what was done, in words.

        A controller takes no trajectory without points for one (``joint_trajectory_controller``
        since 4.5): what is on its topic ends by another one. So "cancel" sends that too, and a
        trajectory without points only where there is nothing else to send.

        Args:
            kind: Of the safety action that goes with it.
            safety: Knows the measured positions and the safe pose.
        """
        if self._stop == "none":
            return ""
        done = ""
        if self._stop == "cancel":
            done = "; action: " + ("cancelled" if self._cancel() else "not there")
        is_pose = kind == "safe_pose"
        positions = safety.target("safe_pose" if is_pose else "hold")
        if positions is not None:
            time_ns = round(self._pose_time_s * 1e9) if is_pose else self._model.step_ns
            self._publisher.publish(
                messages.hold_trajectory(self._model, positions, time_ns=time_ns)
            )
            return f"{done}; trajectory: {'safe_pose' if is_pose else 'hold'}"
        if self._stop == "cancel":
            self._publisher.publish(messages.empty_trajectory(self._model))
            return f"{done}; trajectory: emptied, because no joint positions were measured"
        return "; trajectory: nothing is sent, because no joint positions were measured"
