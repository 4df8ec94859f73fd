from __future__ import annotations

import array
import math

import numpy as np
import pytest

pytest.importorskip("rclpy")

from builtin_interfaces.msg import Time
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image, JointState

from flashrt_ros.engine.protocol import FieldInfo
from flashrt_ros.errors import (
    JointStateError,
    NonFiniteError,
    PayloadShapeError,
    PayloadTypeError,
)
from flashrt_ros.nodes.conversions import (
    duration_to_ns,
    fit_image,
    goal_array,
    image_view,
    joint_positions,
    ns_to_duration,
    ns_to_stamp,
    stamp_to_ns,
)

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def image(*, encoding: str = "rgb8", padding: int = 0, pixels: np.ndarray = PIXELS) -> Image:
    rows = pixels.reshape(len(pixels), -1)
    padded = np.full((len(rows), rows.shape[1] + padding), 255, np.uint8)
    padded[:, : rows.shape[1]] = rows
    return Image(
        height=pixels.shape[0],
        width=pixels.shape[1],
        encoding=encoding,
        step=padded.shape[1],
        data=array.array("B", padded.tobytes()),
    )


@pytest.mark.parametrize("padding", [0, 1, 11])
def test_rgb8_is_viewed_without_its_padding(padding: int) -> None:
    message = image(padding=padding)
    view = image_view(message)
    assert np.array_equal(view, PIXELS)
    assert np.shares_memory(view, np.frombuffer(message.data, np.uint8))


def test_bgr8_is_swapped_without_a_copy() -> None:
    message = image(encoding="bgr8", padding=3, pixels=PIXELS[..., ::-1])
    view = image_view(message)
    assert np.array_equal(view, PIXELS)
    assert np.shares_memory(view, np.frombuffer(message.data, np.uint8))


@pytest.mark.parametrize("encoding", ["rgba8", "mono8", "32FC1", "", "RGB8", "yuv422_yuy2"])
def test_another_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(PayloadTypeError, match="encoding"):
        image_view(image(encoding=encoding))


def test_a_step_shorter_than_a_row_is_refused() -> None:
    message = image()
    message.step = 20
    with pytest.raises(PayloadShapeError, match="step"):
        image_view(message)


@pytest.mark.parametrize("change", [-1, 1])
def test_data_of_another_length_is_refused(change: int) -> None:
    message = image(padding=2)
    data = bytes(message.data)
    message.data = array.array("B", data[:change] if change < 0 else data + b"\0")
    with pytest.raises(PayloadShapeError, match="data"):
        image_view(message)


def test_an_empty_image_is_refused() -> None:
    with pytest.raises(PayloadShapeError):
        image_view(Image(encoding="rgb8"))


def field(shape: tuple[int, ...], dtype: str = "uint8") -> FieldInfo:
    return FieldInfo("image", shape, dtype, 0, None, None, "")


def test_an_image_fits_rows_first_and_channels_first() -> None:
    assert np.array_equal(fit_image(PIXELS, field((5, 7, 3))), PIXELS)
    assert np.array_equal(fit_image(PIXELS, field((3, 5, 7))), PIXELS.transpose(2, 0, 1))


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(PayloadShapeError, match="96"):
        fit_image(PIXELS, field((96, 96, 3)))


def state(names: list[str], positions: list[float]) -> JointState:
    return JointState(name=names, position=positions)


def test_shuffled_joints_are_mapped_by_name() -> None:
    found = joint_positions(state(["c", "b", "a"], [3.0, 2.0, 1.0]), ["a", "b", "c"])
    assert found.tolist() == [1.0, 2.0, 3.0]


def test_joints_that_nobody_asked_for_are_left_out() -> None:
    found = joint_positions(state(["gripper", "b", "a"], [math.nan, 2.0, 1.0]), ["a", "b"])
    assert found.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("names", "positions", "text"),
    [
        (["a"], [1.0], "lacks 'b'"),
        ([], [], "lacks 'a'"),
        (["a", "b"], [1.0], "one position for each name"),
        (["a", "a"], [1.0, 2.0], "twice"),
    ],
)
def test_a_joint_state_that_lacks_something_is_refused(
    names: list[str], positions: list[float], text: str
) -> None:
    with pytest.raises(JointStateError, match=text):
        joint_positions(state(names, positions), ["a", "b"])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_position_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(NonFiniteError, match="'b'"):
        joint_positions(state(["a", "b"], [1.0, bad]), ["a", "b"])


def test_goal_values_take_the_fields_shape() -> None:
    goal = field((2, 3), "float32")
    values = goal_array([1, 2, 3, 4, 5, 6], [2, 3], goal)
    assert values.shape == (2, 3)
    assert values.dtype == np.float32
    assert goal_array([1, 2, 3, 4, 5, 6], [], goal).tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("values", "shape"),
    [([1, 2], [3]), ([1, 2, 3], [3]), ([1], []), ([], []), ([1, 2], [2, 1]), ([1, 2], [1, 2])],
)
def test_goal_values_of_another_shape_are_refused(values: list[float], shape: list[int]) -> None:
    with pytest.raises(PayloadShapeError):
        goal_array(values, shape, field((2,), "float32"))


def test_numbers_for_a_field_of_words_are_refused() -> None:
    with pytest.raises(PayloadTypeError):
        goal_array([1.0], [], field((1,), "int64"))


@pytest.mark.parametrize("stamp_ns", [0, 1, 999_999_999, 1_000_000_000, 1_700_000_000_123_456_789])
def test_stamps_survive_a_round_trip(stamp_ns: int) -> None:
    assert stamp_to_ns(ns_to_stamp(stamp_ns)) == stamp_ns
    assert duration_to_ns(ns_to_duration(stamp_ns)) == stamp_ns


def test_a_stamp_before_zero_is_zero() -> None:
    assert ns_to_stamp(-1) == Time()


def test_a_stamp_beyond_the_last_one_is_the_last_one() -> None:
    endless_ns = (1_800_000_000 + 2**31 - 1) * 1_000_000_000
    last = ns_to_stamp(endless_ns)
    assert (last.sec, last.nanosec) == (2**31 - 1, 999_999_999)
    assert deserialize_message(serialize_message(last), Time) == last
