from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.errors import ConfigError
from flashrt_ros.nodes.limits import Limits, Values, parse_limits
from flashrt_ros.nodes.safety import Command, SafetyAction, parse_pose

NAMES = ("x", "y")


class Wire:
    """Keeps what was sent, and lets a test wait for it."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.sent: list[Command] = []

    def send(self, values: Command) -> None:
        with self.condition:
            self.sent.append(values)
            self.condition.notify_all()

    def wait_for(self, count: int) -> None:
        with self.condition:
            assert self.condition.wait_for(lambda: len(self.sent) >= count, 30)


def limits(*texts: str) -> Limits:
    return Limits(parse_limits(texts), NAMES)


class TestLimits:
    def apply(self, found: Limits, values: list[float], previous: list[float] | None) -> str:
        limited, violation = found.apply(
            np.array(values),
            previous=None if previous is None else np.array(previous),
            period_s=0.1,
        )
        assert bool(violation) == (limited.tolist() != values)
        return f"{limited.tolist()} {violation}"

    def test_range_step_and_velocity(self) -> None:
        found = limits("x lower=-1 upper=1", "y step=0.5 velocity=2")
        assert "limit=range value=3 lower=-1 upper=1" in self.apply(found, [3.0, 0.0], None)
        assert "limit=velocity change=0.4 largest=0.2" in self.apply(found, [0.0, 0.4], [0, 0])
        assert self.apply(found, [0.5, 0.1], [0.0, 0.0]).startswith("[0.5, 0.1]")
        assert "joint=y limit=step" in self.apply(limits("y step=0.05"), [0, 0.4], [0, 0])

    def test_without_a_command_before_there_is_no_step(self) -> None:
        assert self.apply(limits("x step=0.1"), [9.0, 9.0], None) == "[9.0, 9.0] "

    def test_from_outside_the_range_a_joint_comes_back_in_steps(self) -> None:
        limited, _ = limits("x upper=1 step=0.1").apply(
            np.array([0.5, 0.0]), previous=np.array([2.0, 0.0]), period_s=0.1
        )
        assert limited.tolist() == [1.9, 0.0]

    def test_the_star_stands_for_the_others(self) -> None:
        found = limits("x upper=5", "* upper=1")
        assert self.apply(found, [4.0, 4.0], None).startswith("[4.0, 1.0]")

    @given(
        st.lists(st.tuples(*[st.floats(-10, 10)] * 2), min_size=1, max_size=20),
        st.floats(0.01, 1.0),
    )
    def test_rows_never_leave_the_limits(
        self, rows: list[tuple[float, float]], period_s: float
    ) -> None:
        found = limits("* lower=-1 upper=1 velocity=0.5 step=0.2")
        start: Values = np.zeros(2)
        limited, _ = found.apply_rows(np.array(rows), previous=start, period_s=period_s)
        steps = np.abs(np.diff(np.vstack([start, limited]), axis=0))
        assert (steps <= min(0.2, 0.5 * period_s) + 1e-12).all()
        assert (np.abs(limited) <= 1).all()
        again, violation = found.apply_rows(limited, previous=start, period_s=period_s)
        assert violation == ""
        assert np.allclose(again, limited)

    @pytest.mark.parametrize(
        "text", ["x lower=1 upper=0", "x lower=nan", "x step=-1", "x speed=1", "x lower", "a=1"]
    )
    def test_an_entry_that_can_not_be_read_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="joint_limits"):
            parse_limits([text])

    def test_a_joint_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="'elbow'"):
            limits("elbow upper=1")
        with pytest.raises(ConfigError, match="two entries"):
            limits("x upper=1", "x lower=0")

    def test_a_pose_beyond_them_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="'y'"):
            limits("y upper=1").require_within((0.0, 2.0), "safe_pose")


class TestPose:
    def test_it_is_read_in_the_order_of_a_command(self) -> None:
        assert parse_pose(["y position=2", "x position=-1"], NAMES) == (-1.0, 2.0)
        assert parse_pose([], NAMES) is None

    @pytest.mark.parametrize(
        "texts",
        [
            ["x position=1"],
            ["x position=1", "y"],
            ["x position=1", "x position=2"],
            ["x position=a"],
        ],
    )
    def test_a_pose_that_is_not_whole_is_refused(self, texts: list[str]) -> None:
        with pytest.raises(ConfigError, match="safe_pose"):
            parse_pose(texts, NAMES)


class TestSafetyAction:
    def action(self, wire: Wire, *, rate_hz: float = 1000.0, **more: object) -> SafetyAction:
        return SafetyAction(wire.send, num_joints=2, rate_hz=rate_hz, **more)  # type: ignore[arg-type]

    def test_each_kind(self) -> None:
        wire = Wire()
        action = self.action(wire, pose=(0.5, 0.25))
        assert "no joint positions were measured" in action.take("hold", repeat=False)
        action.measured((1.0, 2.0))
        for kind in ("hold", "zeros", "stop", "safe_pose"):
            assert action.take(kind, repeat=False).startswith(kind)
        assert wire.sent == [(1.0, 2.0), (0.0, 0.0), (0.5, 0.25)]

    def test_it_repeats_until_paused_and_holds_what_was_measured_then(self) -> None:
        wire = Wire()
        action = self.action(wire)
        action.measured((1.0, 2.0))
        assert "repeated at 1000 Hz" in action.take("hold", repeat=True)
        action.measured((9.0, 9.0))
        wire.wait_for(5)
        action.pause()
        count = len(wire.sent)
        action.end()
        assert len(wire.sent) == count
        assert set(wire.sent) == {(1.0, 2.0)}

    def test_another_action_takes_the_place_of_the_one_in_progress(self) -> None:
        wire = Wire()
        action = self.action(wire)
        action.measured((1.0, 2.0))
        action.take("hold", repeat=True)
        wire.wait_for(3)
        action.take("zeros", repeat=True)
        place = wire.sent.index((0.0, 0.0))
        wire.wait_for(place + 5)
        action.end()
        assert set(wire.sent[place:]) == {(0.0, 0.0)}

    def test_a_pose_out_of_reach_is_approached_also_without_repetition(self) -> None:
        wire = Wire()

        def approach(pose: Command, period_s: float) -> Command:
            before = wire.sent[-1] if wire.sent else (0.0, 0.0)
            limited, _ = limits("* step=0.25").apply(
                np.array(pose), previous=np.array(before), period_s=period_s
            )
            return tuple(limited.tolist())

        action = self.action(wire, pose=(1.0, 0.5), approach=approach)
        action.take("safe_pose", repeat=False)
        wire.wait_for(4)
        action.end()
        assert wire.sent == [(0.25, 0.25), (0.5, 0.5), (0.75, 0.5), (1.0, 0.5)]

    def test_a_rate_of_zero_sends_once(self) -> None:
        wire = Wire()
        action = self.action(wire, rate_hz=0.0)
        action.take("zeros", repeat=True)
        action.end()
        assert wire.sent == [(0.0, 0.0)]
