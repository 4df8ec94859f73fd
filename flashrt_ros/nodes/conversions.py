"""ROS messages into arrays: checked, without copying what need not be copied."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Duration, Time
from sensor_msgs.msg import Image, JointState

from flashrt_ros.engine.protocol import FieldInfo
from flashrt_ros.errors import (
    JointStateError,
    NonFiniteError,
    PayloadShapeError,
    PayloadTypeError,
)

Array = npt.NDArray[np.generic]

_NS = 1_000_000_000
_LAST_STAMP_NS = 2**31 * _NS - 1
_CHANNEL_ORDER = {"rgb8": slice(None), "bgr8": slice(None, None, -1)}


def stamp_to_ns(stamp: Time) -> int:
    """Return a stamp as nanoseconds on its own clock."""
    return int(stamp.sec) * _NS + int(stamp.nanosec)


def ns_to_stamp(stamp_ns: int) -> Time:
    """Return nanoseconds as a stamp; anything before zero is zero.

    So is anything beyond the last stamp that there is (2038) that one: the end of a goal whose
    lifetime is the longest that a message can say lies there.
    """
    seconds, rest = divmod(min(max(0, stamp_ns), _LAST_STAMP_NS), _NS)
    return Time(sec=seconds, nanosec=rest)


def duration_to_ns(duration: Duration) -> int:
    """Return a duration as nanoseconds."""
    return int(duration.sec) * _NS + int(duration.nanosec)


def ns_to_duration(duration_ns: int) -> Duration:
    """Return nanoseconds as a duration."""
    seconds, rest = divmod(duration_ns, _NS)
    return Duration(sec=seconds, nanosec=rest)


def image_view(image: Image) -> npt.NDArray[np.uint8]:
    """View an image as ``uint8[height, width, 3]`` in RGB order, without a copy.

    Padding at the end of rows (``step`` above ``3 * width``) is legal and left out of
    the view; bgr8 is a view with a negative stride. The view borrows the message's
    bytes: keep the message until the view was used.

    Args:
        image: Encoding rgb8 or bgr8.

    Raises:
        PayloadTypeError: Another encoding.
        PayloadShapeError: ``step`` or the number of bytes contradicts height and width.
    """
    order = _CHANNEL_ORDER.get(image.encoding)
    if order is None:
        raise PayloadTypeError(
            "the image has an encoding that the policy does not take",
            expected=" or ".join(_CHANNEL_ORDER),
            found=repr(image.encoding),
            fix="convert it where it is made",
        )
    height, width, step = int(image.height), int(image.width), int(image.step)
    if step < 3 * width or height < 1 or width < 1:
        raise PayloadShapeError(
            "the image's step is shorter than a row, or the image is empty",
            expected=f"step >= 3 * width = {3 * width}",
            found=f"{height} rows of {width} pixels, step {step}",
        )
    if len(image.data) != height * step:
        raise PayloadShapeError(
            "the image's data does not fit its size",
            expected=f"height * step = {height * step} bytes",
            found=f"{len(image.data)} bytes",
        )
    rows = np.frombuffer(image.data, dtype=np.uint8).reshape(height, step)
    return rows[:, : 3 * width].reshape(height, width, 3)[:, :, order]


def fit_image(pixels: npt.NDArray[np.uint8], field: FieldInfo) -> npt.NDArray[np.uint8]:
    """View an image in a field's layout, rows first or channels first.

    Args:
        pixels: ``uint8[height, width, 3]``.
        field: An observation field of dtype uint8.

    Raises:
        PayloadShapeError: The image has another size than the field.
    """
    if pixels.shape == field.shape:
        return pixels
    channels_first = pixels.transpose(2, 0, 1)
    if channels_first.shape == field.shape:
        return channels_first
    raise PayloadShapeError(
        f"the image does not fit observation field '{field.name}'",
        expected=field.shape,
        found=pixels.shape,
        fix="resize it where it is made, or name another camera",
    )


@functools.lru_cache(maxsize=64)
def _places(names: tuple[str, ...], wanted: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """Return ``intp[len(wanted)]``, where each wanted joint stands in ``names``.

    Cached, for a driver names its joints alike in every message; shared, so not to be written.

    Raises:
        JointStateError: A joint is missing or named twice.
    """
    places = {name: index for index, name in enumerate(names)}
    if len(places) != len(names):
        raise JointStateError("the joint state names a joint twice", found=", ".join(names))
    missing = [name for name in wanted if name not in places]
    if missing:
        raise JointStateError(
            f"the joint state lacks '{missing[0]}'",
            expected=", ".join(wanted),
            found=", ".join(names) or "no joints",
            fix="publish it, or set joint_names",
        )
    return np.array([places[name] for name in wanted], dtype=np.intp)


def joint_positions(state: JointState, names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return positions in the order of ``names``, whatever the order of the message.

    Args:
        state: May hold more joints than needed.
        names: Joints wanted.

    Returns:
        ``float64[len(names)]``, metres or radians as the message has them.

    Raises:
        JointStateError: A joint is missing or named twice, or names and positions
            differ in number.
        NonFiniteError: A position wanted is NaN or Inf.
    """
    if len(state.name) != len(state.position):
        raise JointStateError(
            "the joint state has not one position for each name",
            expected=f"{len(state.name)} positions",
            found=len(state.position),
        )
    places = _places(tuple(state.name), tuple(names))
    positions = np.asarray(state.position, dtype=np.float64)[places]
    if not np.isfinite(positions).all():
        bad = names[int(np.flatnonzero(~np.isfinite(positions))[0])]
        raise NonFiniteError(f"the position of joint '{bad}' is not finite")
    return positions


def goal_array(values: Sequence[float], shape: Sequence[int], field: FieldInfo) -> Array:
    """Return goal values in a field's shape, without checking what they are.

    Args:
        values: Row-major.
        shape: As the sender says; empty means one row of all values.
        field: A goal field of a floating dtype.

    Raises:
        PayloadShapeError: Shape or number of values differ from the field.
        PayloadTypeError: The field takes no floating values.
    """
    if not field.dtype.startswith("float"):
        raise PayloadTypeError(
            f"goal field '{field.name}' takes no numbers",
            expected=field.dtype,
            found="float32",
        )
    said = tuple(int(extent) for extent in shape) or (len(values),)
    if math.prod(said) != len(values) or (said != field.shape and len(shape) > 0):
        raise PayloadShapeError(
            f"the goal does not fit field '{field.name}'",
            expected=field.shape,
            found=f"{len(values)} values of shape {said}",
        )
    if len(values) != math.prod(field.shape):
        raise PayloadShapeError(
            f"the goal does not fit field '{field.name}'",
            expected=f"{math.prod(field.shape)} values of shape {field.shape}",
            found=f"{len(values)} values",
        )
    return np.asarray(values, dtype=field.dtype).reshape(field.shape)
