"""Static transforms between frames, for goals that stand in another frame than the policy's.

They come from the ``transforms`` parameter. Where ``tf2_ros`` is installed its buffer
answers for what the parameter does not; without it such a goal is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.errors import ConfigError, FrameError

if TYPE_CHECKING:
    from rclpy.node import Node

Matrix = npt.NDArray[np.float64]


class Frames:
    """Known transforms, as ``float64[4, 4]`` from a child frame into its parent.

    Args:
        transforms: ``"parent child x y z qx qy qz qw"`` each, metres and a unit quaternion.

    Raises:
        ConfigError: An entry can't be read, or its quaternion has no direction.
    """

    def __init__(self, transforms: Sequence[str] = ()) -> None:
        self._edges: dict[tuple[str, str], Matrix] = {}
        self._listener: _Tf2 | None = None
        for text in transforms:
            parent, child, matrix = _parse(text)
            self._edges[parent, child] = matrix
            self._edges[child, parent] = np.linalg.inv(matrix).astype(np.float64)

    def close(self) -> None:
        """Listen to tf2 no more. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def listen(
        self, node: Node, *, now_ns: Callable[[], int] = lambda: 0, lifetime_ns: int = 0
    ) -> bool:
        """Ask tf2 too, from here on until :meth:`close`.

        Args:
            node: Hears the transforms.
            now_ns: The node's clock.
            lifetime_ns: Age at which a transform that moves is unknown again; 0 for never.

        Returns:
            False where ``tf2_ros`` is not installed; nothing changes then.
        """
        try:
            self._listener = _Tf2(node, now_ns, lifetime_ns)
        except ImportError:
            return False
        return True

    def points(self, values: Matrix, *, source: str, target: str) -> Matrix:
        """Return points of one frame in another.

        Args:
            values: ``float64[..., 2]`` or ``[..., 3]``, metres; with two columns z is 0
                before and dropped after.
            source: Frame that the points stand in.
            target: Frame wanted.

        Raises:
            FrameError: No transform is known, or the values are no points.
        """
        if source == target:
            return values
        matrix = self._lookup(source, target)
        columns = values.shape[-1]
        if columns not in (2, 3):
            raise FrameError(
                f"values in frame '{source}' can't be brought into '{target}'",
                expected="points of 2 or 3 coordinates",
                found=f"rows of {columns}",
            )
        flat = values.reshape(-1, columns)
        homogeneous = np.zeros((len(flat), 4))
        homogeneous[:, :columns] = flat
        homogeneous[:, 3] = 1.0
        moved: Matrix = (homogeneous @ matrix.T)[:, :columns]
        return moved.reshape(values.shape)

    def turn(self, quaternion: Matrix, *, source: str, target: str) -> Matrix:
        """Return an orientation of one frame in another.

        Args:
            quaternion: ``float64[4]``, x y z w, of norm 1.
            source: Frame that it stands in.
            target: Frame wanted.

        Returns:
            Its like with a w that is not negative, of two that mean the same.

        Raises:
            FrameError: No transform is known.
        """
        turned = quaternion
        if source != target:
            turned = _product(_quaternion(self._lookup(source, target)), quaternion)
        return -turned if turned[3] < 0 else turned

    def _lookup(self, source: str, target: str) -> Matrix:
        """Walk the tree of static transforms, nearest first, then ask tf2."""
        reached = {source: np.eye(4)}
        border = [source]
        while border:
            here = border.pop(0)
            for (parent, child), matrix in self._edges.items():
                if child == here and parent not in reached:
                    reached[parent] = matrix @ reached[here]
                    border.append(parent)
        if target in reached:
            return reached[target]
        found = self._listener.lookup(source, target) if self._listener is not None else None
        if found is None:
            known = sorted({name for edge in self._edges for name in edge} | {target})
            raise FrameError(
                f"no transform is known from frame '{source}' to '{target}'",
                expected=f"one of {', '.join(known)}",
                found=repr(source),
                fix="send the goal in that frame, or set the parameter 'transforms'",
            )
        return found


class _Tf2:
    """The latest transforms that tf2 knows, unless nobody has told them for too long."""

    def __init__(self, node: Node, now_ns: Callable[[], int], lifetime_ns: int) -> None:
        self._now_ns = now_ns
        self._lifetime_ns = lifetime_ns
        self._ros: Any = importlib.import_module("tf2_ros")
        self._buffer: Any = self._ros.Buffer()
        self._listener: Any = self._ros.TransformListener(self._buffer, node)

    def close(self) -> None:
        self._listener.unregister()

    def lookup(self, source: str, target: str) -> Matrix | None:
        from rclpy.time import Time

        try:
            found = self._buffer.lookup_transform(target, source, Time())
        except self._ros.TransformException:  # unknown, apart, too old, or no name of a frame
            return None
        # What is fixed has no stamp, and what moves the oldest on the way.
        stamp_ns = found.header.stamp.sec * 1_000_000_000 + found.header.stamp.nanosec
        age_ns = self._now_ns() - stamp_ns
        if stamp_ns and 0 < self._lifetime_ns < age_ns:
            raise FrameError(
                f"nobody has told the transform from frame '{source}' to '{target}' any more",
                expected=f"one of the last {self._lifetime_ns / 1e9:g} s",
                found=f"{age_ns / 1e9:.3f} s old",
                fix="see what publishes it on /tf, or raise transform_lifetime_s",
            )
        move, turn = found.transform.translation, found.transform.rotation
        return _matrix(np.array([move.x, move.y, move.z, turn.x, turn.y, turn.z, turn.w]))


def _parse(text: str) -> tuple[str, str, Matrix]:
    parts = text.split()
    try:
        numbers = np.array([float(part) for part in parts[2:]])
    except ValueError:
        numbers = np.array([np.nan])
    norm = float(np.linalg.norm(numbers[3:])) if numbers.shape == (7,) else 0.0
    if not (np.isfinite(numbers).all() and norm > 1e-6):
        raise ConfigError(
            "an entry of parameter 'transforms' can't be read",
            expected="'parent child x y z qx qy qz qw'",
            found=repr(text),
        )
    return parts[0], parts[1], _matrix(numbers)


def _matrix(numbers: Matrix) -> Matrix:
    """Return x y z qx qy qz qw as a matrix; the quaternion is normalised."""
    x, y, z, w = numbers[3:] / np.linalg.norm(numbers[3:])
    matrix = np.eye(4)
    matrix[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    matrix[:3, 3] = numbers[:3]
    return matrix


def _quaternion(matrix: Matrix) -> Matrix:
    """Return the rotation of a matrix as x y z w (Shepperd's method: the largest part first)."""
    m = matrix[:3, :3]
    squares = np.array([m[0, 0], m[1, 1], m[2, 2], np.trace(m)])
    largest = int(np.argmax(squares))
    if largest == 3:
        parts = [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], 1 + squares[3]]
    else:
        i, j, k = largest, (largest + 1) % 3, (largest + 2) % 3
        parts = [0.0, 0.0, 0.0, m[k, j] - m[j, k]]
        parts[i] = 1 + m[i, i] - m[j, j] - m[k, k]
        parts[j] = m[j, i] + m[i, j]
        parts[k] = m[k, i] + m[i, k]
    found = np.array(parts)
    unit: Matrix = found / np.linalg.norm(found)
    return unit


def _product(first: Matrix, second: Matrix) -> Matrix:
    """Return the quaternion of the second turn and then the first, x y z w."""
    vector = first[3] * second[:3] + second[3] * first[:3] + np.cross(first[:3], second[:3])
    scalar = first[3] * second[3] - first[:3] @ second[:3]
    return np.array([*vector, scalar])
