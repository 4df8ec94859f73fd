from __future__ import annotations

import array
import math
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest

pytest.importorskip("rclpy")

from hypothesis import given
from hypothesis import strategies as st
from rclpy.qos import QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState

from flashrt_ros.engine.payload import check_payload
from flashrt_ros.engine.protocol import ChannelInfo, FieldInfo, ModelInfo
from flashrt_ros.errors import (
    ConfigError,
    FlashrtError,
    JointStateError,
    NoFreeSlotError,
    NonFiniteError,
    PayloadRangeError,
    PayloadShapeError,
    PayloadTypeError,
    StaleStampError,
    UnknownChannelError,
)
from flashrt_ros.nodes.conversions import ns_to_stamp
from flashrt_ros.nodes.observation_input import JOINTS, ObservationInput
from flashrt_ros.nodes.observations import StampSync, map_observation, prepare

IMAGE = FieldInfo("image", (4, 4, 3), "uint8", 0, None, None, "")
AGENT = FieldInfo("agent", (2,), "float32", 256, 0.0, 0.512, "m")
MS = 1_000_000


def model(*fields: FieldInfo, role: str = "observation") -> ModelInfo:
    channel = ChannelInfo("observation", role, "", 512, 4, 4096, fields)
    return ModelInfo("m", 4, 2, 2, ("agent_x", "agent_y"), 100 * MS, (channel,), "f", 1, 0, 1024)


def mapped(*fields: FieldInfo, **changes: object) -> object:
    arguments: dict[str, object] = {
        "cameras": ["image"],
        "camera_fields": [],
        "joint_field": "",
        "joint_names": [],
        **changes,
    }
    return map_observation(model(*fields), **arguments)  # type: ignore[arg-type]


class TestStampSync:
    def test_equal_stamps_make_a_set(self) -> None:
        sync = StampSync(["image", "joints"], slop_ns=0, patience_ns=10**9)
        assert sync.add("image", 5, "i5") is None
        assert sync.add("joints", 5, "j5") == (5, {"image": "i5", "joints": "j5"})

    def test_one_source_makes_a_set_alone(self) -> None:
        sync = StampSync(["image"], slop_ns=0, patience_ns=10**9)
        assert sync.add("image", 5, "i5") == (5, {"image": "i5"})

    def test_the_nearest_within_the_slop_is_taken(self) -> None:
        sync = StampSync(["image", "joints"], slop_ns=10, patience_ns=10**9)
        sync.add("joints", 90, "j90")
        sync.add("joints", 97, "j97")
        assert sync.add("image", 100, "i100") == (100, {"image": "i100", "joints": "j97"})

    def test_beyond_the_slop_nothing_matches(self) -> None:
        sync = StampSync(["image", "joints"], slop_ns=10, patience_ns=10**9)
        sync.add("joints", 89, "j89")
        assert sync.add("image", 100, "i100") is None

    def test_a_source_that_matched_exactly_is_waited_for(self) -> None:
        sync = StampSync(["image", "joints"], slop_ns=10, patience_ns=10**9)
        sync.add("joints", 0, "j0")
        assert sync.add("image", 0, "i0") is not None
        sync.add("joints", 95, "j95")
        assert sync.add("image", 100, "i100") is None
        assert sync.add("joints", 100, "j100") == (100, {"image": "i100", "joints": "j100"})

    def test_it_is_not_waited_for_once_a_later_one_came(self) -> None:
        sync = StampSync(["image", "joints"], slop_ns=10, patience_ns=10**9)
        sync.add("joints", 0, "j0")
        sync.add("image", 0, "i0")
        sync.add("joints", 95, "j95")
        sync.add("image", 100, "i100")
        assert sync.add("joints", 120, "j120") == (100, {"image": "i100", "joints": "j95"})

    def test_late_and_repeated_messages_complete_nothing_twice(self) -> None:
        sync = StampSync(["image", "joints"], slop_ns=0, patience_ns=10**9)
        sync.add("image", 5, "i5")
        sync.add("joints", 5, "j5")
        assert sync.add("image", 5, "i5") is None
        assert sync.add("joints", 5, "j5") is None
        assert sync.add("joints", 3, "j3") is None

    def test_a_stamp_from_the_future_does_not_shut_out_the_present(self) -> None:
        sync = StampSync(["image"], slop_ns=10, patience_ns=10**9)
        sync.add("image", 1000, "future")
        sync.rewind(1000)
        assert sync.add("image", 100, "now") is None
        sync.rewind(100)
        assert sync.add("image", 100, "now") == (100, {"image": "now"})

    def test_what_was_forgotten_comes_again(self) -> None:
        sync = StampSync(["image", "joints"], slop_ns=0, patience_ns=10**9)
        sync.add("image", 5, "i5")
        assert sync.add("joints", 5, "j5") is not None
        sync.add("image", 5, "again")
        sync.forget()
        assert sync.add("joints", 5, "again") == (5, {"image": "again", "joints": "again"})

    def test_what_finds_no_partner_in_time_is_counted(self) -> None:
        sync = StampSync(["image", "joints"], slop_ns=5, patience_ns=50)
        sync.add("image", 100, "i100")
        sync.add("joints", 140, "j140")
        assert sync.num_alone == {"image": 0, "joints": 0}
        sync.add("joints", 160, "j160")  # i100 has waited too long
        assert sync.num_alone == {"image": 1, "joints": 0}
        assert sync.add("image", 160, "i160") is not None
        assert sync.num_alone == {"image": 1, "joints": 1}  # j140 was left behind

    def test_what_was_in_a_set_is_not_counted_when_it_is_repeated(self) -> None:
        sync = StampSync(["image", "joints"], slop_ns=5, patience_ns=50)
        for stamp_ns in (100, 120, 140):
            for _ in range(3):
                sync.add("image", stamp_ns, "i")
                sync.add("joints", stamp_ns, "j")
        assert sync.num_alone == {"image": 0, "joints": 0}

    def test_too_many_are_counted_too(self) -> None:
        sync = StampSync(["image", "joints"], slop_ns=5, patience_ns=10**9)
        for stamp_ns in range(1, 40):
            sync.add("image", stamp_ns, "i")
        assert sync.num_alone["image"] == 39 - 16

    @given(st.permutations([(s, t) for s in ("image", "joints", "depth") for t in range(4)]))
    def test_sets_come_in_order_and_never_mix_stamps(self, arrivals: list[tuple[str, int]]) -> None:
        sync = StampSync(["image", "joints", "depth"], slop_ns=0, patience_ns=10**9)
        stamps = []
        for source, stamp in arrivals:
            complete = sync.add(source, stamp, (source, stamp))
            if complete is not None:
                assert complete[1] == {s: (s, complete[0]) for s in ("image", "joints", "depth")}
                stamps.append(complete[0])
        assert stamps == sorted(set(stamps))
        assert stamps[-1] == 3


class TestMap:
    def test_one_camera_and_one_vector_need_no_names(self) -> None:
        plan = map_observation(
            model(IMAGE, AGENT), cameras=["front"], camera_fields=[], joint_field="", joint_names=[]
        )
        assert plan.cameras == {"front": IMAGE}
        assert plan.joints == AGENT
        assert plan.joint_names == ("agent_x", "agent_y")

    def test_several_cameras_fill_the_fields_of_their_names(self) -> None:
        wrist = FieldInfo("wrist", (4, 4, 3), "uint8", 512, None, None, "")
        plan = map_observation(
            model(IMAGE, wrist),
            cameras=["cam/wrist", "cam/image"],
            camera_fields=[],
            joint_field="",
            joint_names=[],
        )
        assert plan.cameras == {"cam/wrist": wrist, "cam/image": IMAGE}
        assert plan.joints is None

    @pytest.mark.parametrize(
        "changes",
        [
            {"cameras": []},
            {"camera_fields": ["image", "image"]},
            {"camera_fields": ["front"]},
            {"joint_field": "gripper"},
            {"joint_field": "image"},
            {"joint_names": ["agent_x"]},
        ],
    )
    def test_a_field_left_empty_or_unknown_is_refused(self, changes: dict[str, object]) -> None:
        with pytest.raises(ConfigError):
            mapped(IMAGE, AGENT, **changes)

    def test_who_has_no_image_field_is_told_how_to_name_no_camera(self) -> None:
        with pytest.raises(ConfigError, match=r'cameras: \[""\]'):
            mapped(AGENT)
        assert mapped(AGENT, cameras=[])

    def test_a_model_without_observations_is_refused(self) -> None:
        with pytest.raises(UnknownChannelError):
            map_observation(
                model(AGENT, role="goal"),
                cameras=[],
                camera_fields=[],
                joint_field="",
                joint_names=[],
            )


class Writer:
    """Refuses as often as it was told to, then keeps what comes."""

    def __init__(self) -> None:
        self.refusals: list[FlashrtError] = []
        self.stamps: list[int] = []

    def write(self, *, stamp_ns: int, **fields: object) -> None:
        if self.refusals:
            raise self.refusals.pop()
        self.stamps.append(stamp_ns)


class Feed:
    """An input of joint states alone, with nothing of ROS behind it."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.observed: list[int] = []
        self.profiles: list[QoSProfile] = []
        self._callbacks: dict[str, Callable[[Any], None]] = {}
        node, reports, link = MagicMock(), MagicMock(), MagicMock()
        node.create_subscription = self._subscribe
        self.now_ns = 1000
        reports.now_ns = lambda: self.now_ns
        self.rewinds = link.__enter__.return_value.rewind
        plan = map_observation(
            model(AGENT), cameras=[], camera_fields=[], joint_field="", joint_names=[]
        )
        self.input = ObservationInput(
            node,
            reports,
            link,
            cast(Any, self.writer),
            plan,
            env_index=0,
            slop_ns=0,
            patience_ns=1000,
            command_names=("agent_x", "agent_y"),
            on_measured=lambda positions: None,
            on_observed=self.observed.append,
        )

    def _subscribe(
        self, kind: Any, topic: str, callback: Callable[[Any], None], qos: QoSProfile, **_: Any
    ) -> object:
        self.profiles.append(qos)
        self._callbacks[topic] = callback
        return object()

    def send(self, stamp_ns: int) -> None:
        message = JointState(name=["agent_x", "agent_y"], position=[0.1, 0.2])
        message.header.stamp = ns_to_stamp(stamp_ns)
        self._callbacks[JOINTS](message)


class TestInput:
    def test_a_clock_that_was_set_back_is_told_to_the_engine_once(self) -> None:
        feed = Feed()
        feed.send(900)
        assert not feed.rewinds.call_args_list
        feed.now_ns = 100
        for stamp_ns in (50, 60):
            feed.send(stamp_ns)
        assert [call.args for call in feed.rewinds.call_args_list] == [(100,)]
        assert feed.observed == [900, 50, 60]

    def test_a_repeated_observation_is_written_once(self) -> None:
        feed = Feed()
        for _ in range(3):
            feed.send(100)
        assert feed.writer.stamps == [100]

    def test_one_that_found_no_room_may_come_again(self) -> None:
        feed = Feed()
        feed.writer.refusals.append(NoFreeSlotError("full"))
        feed.send(100)
        assert feed.writer.stamps == []
        feed.send(100)
        assert feed.writer.stamps == [100]

    def test_one_from_before_a_barrier_is_not_tried_again(self) -> None:
        feed = Feed()
        feed.writer.refusals.append(StaleStampError("old"))
        feed.send(100)
        feed.send(100)
        assert feed.writer.stamps == []

    @pytest.mark.parametrize(
        "kind", [PayloadShapeError, PayloadTypeError, NonFiniteError, PayloadRangeError]
    )
    def test_one_that_is_no_good_is_not_tried_again(self, kind: type[FlashrtError]) -> None:
        feed = Feed()
        feed.writer.refusals.append(kind("bad"))
        feed.send(100)
        feed.send(100)
        assert feed.writer.stamps == []

    def test_one_that_was_forgotten_is_written_again(self) -> None:
        feed = Feed()
        feed.send(100)
        feed.input.forget()
        feed.send(100)
        assert feed.writer.stamps == [100, 100]

    def test_the_profile_of_a_topic_is_its_own(self) -> None:
        """An override is written into the profile, which must not be ROS's shared one."""
        assert Feed().profiles[0] is not qos_profile_sensor_data


class TestPrepare:
    plan = map_observation(
        model(IMAGE, AGENT), cameras=["image"], camera_fields=[], joint_field="", joint_names=[]
    )
    pixels = Image(
        height=4, width=4, encoding="rgb8", step=14, data=array.array("B", bytes(range(56)))
    )

    def joints(self, x: float, y: float) -> JointState:
        return JointState(name=["agent_y", "agent_x"], position=[y, x])

    def test_values_come_by_field_in_the_declared_dtype(self) -> None:
        values = prepare(self.plan, {"image": self.pixels}, self.joints(0.1, 0.2))
        assert values["image"].shape == (4, 4, 3)
        assert values["image"][1, 0, 0] == 14
        assert np.shares_memory(values["image"], np.frombuffer(self.pixels.data, np.uint8))
        assert values["agent"].tolist() == np.array([0.1, 0.2], np.float32).tolist()

    def test_ranges_are_left_to_the_writer(self) -> None:
        values = prepare(self.plan, {"image": self.pixels}, self.joints(0.1, 0.6))
        with pytest.raises(PayloadRangeError):
            check_payload(self.plan.channel, values)

    def test_bad_parts_are_refused_by_their_code(self) -> None:
        with pytest.raises(NonFiniteError):
            prepare(self.plan, {"image": self.pixels}, self.joints(math.nan, 0.2))
        with pytest.raises(JointStateError):
            prepare(self.plan, {"image": self.pixels}, JointState(name=["agent_x"], position=[0.1]))
        small = Image(height=2, width=2, encoding="rgb8", step=6, data=array.array("B", bytes(12)))
        with pytest.raises(PayloadShapeError):
            prepare(self.plan, {"image": small}, self.joints(0.1, 0.2))
