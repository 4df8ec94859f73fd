"""A robot's sensors: two cameras and joints at their rates; a process of its own, without torch.

python -m flashrt_ros.bench.robot_publisher [joints]
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image, JointState

CAMERAS = ("image_left", "image_right")
"""Topics of the cameras."""

CAMERA_HZ = 30.0
"""Pictures a second, of each camera."""

JOINTS_HZ = 200.0
"""Joint states a second."""

HEIGHT, WIDTH = 480, 640
"""Of a picture, px."""

ONLY_JOINTS = "joints"
"""Argument that leaves the cameras out."""

JOINT_NAMES = ("x", "y")
"""In the order that a joint state names them in."""


def pixels(camera: str) -> npt.NDArray[np.uint8]:
    """Return the picture that a camera always shows: ``uint8[480, 640, 3]`` of noise."""
    rng = np.random.default_rng(CAMERAS.index(camera))
    return rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


class Robot(Node):
    """Publishes both cameras under one stamp, and the joints.

    Args:
        has_cameras: Whether it publishes pictures too.
    """

    def __init__(self, *, has_cameras: bool) -> None:
        super().__init__("bench_robot")
        self._images = {}
        for camera in CAMERAS if has_cameras else ():
            image = Image(height=HEIGHT, width=WIDTH, encoding="rgb8", step=3 * WIDTH)
            image.data = array("B", pixels(camera).tobytes())
            publisher = self.create_publisher(Image, camera, qos_profile_sensor_data)
            self._images[camera] = (image, publisher)
        self._joints = JointState(name=list(JOINT_NAMES), position=[0.0, 0.0])
        self._publisher = self.create_publisher(JointState, "joint_states", qos_profile_sensor_data)
        if has_cameras:
            self._every(CAMERA_HZ, self._see)
        self._every(JOINTS_HZ, self._feel)

    def _every(self, rate_hz: float, act: Callable[[], None]) -> None:
        self.create_timer(1.0 / rate_hz, act)

    def _see(self) -> None:
        stamp = self.get_clock().now().to_msg()
        for image, publisher in self._images.values():
            image.header.stamp = stamp
            publisher.publish(image)

    def _feel(self) -> None:
        self._joints.header.stamp = self.get_clock().now().to_msg()
        self._publisher.publish(self._joints)


def main(arguments: Sequence[str]) -> int:
    """Publish until a signal comes.

    Args:
        arguments: ``joints`` for those alone, nothing for all.

    Raises:
        SystemExit: Something else.
    """
    if list(arguments) not in ([], [ONLY_JOINTS]):
        raise SystemExit(f"expected nothing or '{ONLY_JOINTS}', found '{' '.join(arguments)}'")
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.ALL)
    executor = SingleThreadedExecutor()
    executor.add_node(Robot(has_cameras=not arguments))
    try:
        executor.spin()
    except (ExternalShutdownException, KeyboardInterrupt):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
