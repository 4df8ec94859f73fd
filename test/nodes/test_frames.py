"""tf2 has no wheels: it is tested through the import that finds it, with a double in its place."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("rclpy")

from geometry_msgs.msg import Pose, TransformStamped
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.engine.protocol import FieldInfo
from flashrt_ros.errors import FrameError, NonFiniteError, PayloadRangeError, PayloadShapeError
from flashrt_ros.nodes.frames import Frames
from flashrt_ros.nodes.poses import pose_goal

HALF = math.sqrt(0.5)


class _TransformError(Exception):
    """What all that tf2 raises derives from."""


class _LookupError(_TransformError):
    pass


class _InvalidArgumentError(_TransformError):
    pass


class Tf2(ModuleType):
    """As much of ``tf2_ros`` as the package uses, and what it was asked."""

    TransformException = _TransformError

    def __init__(self) -> None:
        super().__init__("tf2_ros")
        self.known: dict[tuple[str, str], TransformStamped] = {}
        self.listeners: list[Any] = []
        self.num_unregistered = 0
        self.Buffer = lambda: SimpleNamespace(lookup_transform=self._lookup)
        self.TransformListener = self._listen

    def _listen(self, buffer: Any, node: Any) -> Any:
        self.listeners.append((buffer, node))

        def unregister() -> None:
            self.num_unregistered += 1

        return SimpleNamespace(unregister=unregister)

    def _lookup(self, target: str, source: str, when: Any) -> TransformStamped:
        assert when.nanoseconds == 0  # the latest
        if source.startswith("/"):
            raise _InvalidArgumentError("frame_ids cannot start with a '/'")
        try:
            return self.known[target, source]
        except KeyError:
            raise _LookupError(f"{source} to {target}") from None


@pytest.fixture
def tf2(monkeypatch: pytest.MonkeyPatch) -> Tf2:
    double = Tf2()
    transform = TransformStamped()
    transform.transform.translation.x = 1.0
    transform.transform.rotation.z = transform.transform.rotation.w = HALF
    double.known["table", "camera"] = transform
    monkeypatch.setitem(sys.modules, "tf2_ros", double)
    return double


def test_tf2_answers_for_what_the_parameter_does_not(tf2: Tf2) -> None:
    frames = Frames(["table shelf 5 0 0 0 0 0 1"])
    node = cast(Any, object())
    assert frames.listen(node)
    assert tf2.listeners[0][1] is node
    assert np.allclose(frames.points(np.array([2.0, 0.0]), source="camera", target="table"), [1, 2])
    assert np.allclose(frames.points(np.zeros(2), source="shelf", target="table"), [5, 0])


def test_what_tf2_does_not_know_is_refused_by_name(tf2: Tf2) -> None:
    frames = Frames()
    frames.listen(cast(Any, object()))
    for source in ("moon", "/camera"):
        with pytest.raises(FrameError, match=f"'{source}'"):
            frames.points(np.zeros(2), source=source, target="table")


def test_a_transform_that_nobody_tells_any_more_is_refused(tf2: Tf2) -> None:
    now_ns = 10_000_000_000
    frames = Frames()
    frames.listen(cast(Any, object()), now_ns=lambda: now_ns, lifetime_ns=2_000_000_000)

    def moved() -> None:
        frames.points(np.zeros(2), source="camera", target="table")

    moved()  # without a stamp: it is fixed
    tf2.known["table", "camera"].header.stamp.sec = 8
    moved()
    now_ns += 1
    with pytest.raises(FrameError, match="any more"):
        moved()
    frames.listen(cast(Any, object()), now_ns=lambda: now_ns)
    moved()


def test_a_closed_one_listens_no_more(tf2: Tf2) -> None:
    frames = Frames()
    frames.listen(cast(Any, object()))
    frames.close()
    frames.close()
    assert tf2.num_unregistered == 1
    with pytest.raises(FrameError):
        frames.points(np.zeros(2), source="camera", target="table")


def test_without_tf2_such_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tf2_ros", None)
    frames = Frames()
    assert not frames.listen(cast(Any, object()))
    with pytest.raises(FrameError, match="'camera'"):
        frames.points(np.zeros(2), source="camera", target="table")


def field(*shape: int) -> FieldInfo:
    return FieldInfo("values", shape, "float32", 0, None, None, "m")


def pose(*, w: float = 1.0, z: float = 0.0, height: float = 3.0) -> Pose:
    found = Pose()
    found.position.x, found.position.y, found.position.z = 1.0, 2.0, height
    found.orientation.w, found.orientation.z = w, z
    return found


class TestPoses:
    def test_two_three_or_seven_values(self) -> None:
        def values(*shape: int) -> list[float]:
            return pose_goal(pose(), field(*shape), Frames(), source="t", target="t")

        assert values(2) == [1.0, 2.0]
        assert values(1, 3) == [1.0, 2.0, 3.0]
        assert values(7) == [1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 1.0]
        with pytest.raises(PayloadShapeError, match="no pose"):
            values(6)

    def test_position_and_orientation_are_transformed(self) -> None:
        frames = Frames([f"table shelf 10 0 0 0 0 {HALF} {HALF}"])
        found = pose_goal(pose(w=HALF, z=HALF), field(7), frames, source="shelf", target="table")
        assert np.allclose(found, [8.0, 1.0, 3.0, 0.0, 0.0, 1.0, 0.0])

    def test_what_does_not_count_may_be_anything(self) -> None:
        odd = pose(w=math.nan, height=math.inf)
        assert pose_goal(odd, field(2), Frames(), source="t", target="t") == [1.0, 2.0]
        for shape in (3, 7):
            with pytest.raises(NonFiniteError):
                pose_goal(odd, field(shape), Frames(), source="t", target="t")

    def test_an_orientation_of_no_length_is_refused(self) -> None:
        with pytest.raises(PayloadRangeError, match="unit quaternion"):
            pose_goal(pose(w=0.0), field(7), Frames(), source="t", target="t")

    def test_an_unknown_frame_is_refused(self) -> None:
        with pytest.raises(FrameError, match="'moon'"):
            pose_goal(pose(), field(2), Frames(), source="moon", target="table")


_UNIT = st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(
    lambda q: float(np.linalg.norm(q)) > 0.1
)


@given(_UNIT, _UNIT)
def test_turns_there_and_back_are_the_same(edge: list[float], start: list[float]) -> None:
    frames = Frames(["a b 1 2 3 " + " ".join(map(repr, edge))])
    quaternion = np.array(start) / np.linalg.norm(start)
    there = frames.turn(quaternion, source="b", target="a")
    back = frames.turn(there, source="a", target="b")
    assert np.isclose(abs(float(back @ quaternion)), 1.0)
    assert there[3] >= 0
    assert np.isclose(np.linalg.norm(there), 1.0)
    # The same as turning the points of the frame.
    points = frames.points(np.eye(3), source="b", target="a")
    origin = frames.points(np.zeros(3), source="b", target="a")
    one = frames.turn(np.array([0.0, 0.0, 0.0, 1.0]), source="b", target="a")
    assert np.allclose(points - origin, _matrix(one).T, atol=1e-9)


def _matrix(q: Any) -> Any:
    x, y, z, w = q
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + 2 * (w * cross + cross @ cross)
