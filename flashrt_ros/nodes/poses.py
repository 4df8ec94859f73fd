"""A pose from ROS as values of a goal: a point, or position and orientation."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import Pose

from flashrt_ros.engine.protocol import FieldInfo
from flashrt_ros.errors import NonFiniteError, PayloadRangeError, PayloadShapeError
from flashrt_ros.nodes.frames import Frames

_UNIT_WITHIN = 0.01


def pose_goal(
    pose: Pose, field: FieldInfo, frames: Frames, *, source: str, target: str
) -> list[float]:
    """Return a pose in the goal's frame as values of a goal field.

    Two values are x and y, three x, y and z, and seven the position and a unit
    quaternion x, y, z, w whose w is not negative.

    Args:
        pose: As it came; m.
        field: A goal field of 2, 3 or 7 values.
        frames: Transforms known.
        source: Frame of the pose.
        target: Frame of the goal, "" where goals have none.

    Raises:
        PayloadShapeError: The field takes no pose.
        NonFiniteError: A number that counts is NaN or Inf.
        PayloadRangeError: The orientation is no unit quaternion.
        FrameError: No transform is known.
    """
    count = math.prod(field.shape)
    if count not in (2, 3, 7):
        raise PayloadShapeError(
            f"goal field '{field.name}' takes no pose",
            expected="2, 3 or 7 values",
            found=tuple(field.shape),
        )
    place, turn = pose.position, pose.orientation
    position = np.array([place.x, place.y, place.z][: min(count, 3)])
    quaternion = np.array([turn.x, turn.y, turn.z, turn.w])
    _require_finite(position if count < 7 else np.concatenate([position, quaternion]))
    target = target or source
    moved = frames.points(position, source=source, target=target)
    if count < 7:
        return [float(value) for value in moved]
    norm = float(np.linalg.norm(quaternion))
    if abs(norm - 1.0) > _UNIT_WITHIN:
        raise PayloadRangeError(
            "the pose's orientation is no unit quaternion", expected="a norm of 1", found=norm
        )
    turned = frames.turn(quaternion / norm, source=source, target=target)
    return [float(value) for value in (*moved, *turned)]


def _require_finite(values: npt.NDArray[np.float64]) -> None:
    if not np.isfinite(values).all():
        raise NonFiniteError("the pose is not finite", found=values.tolist())
