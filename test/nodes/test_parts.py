from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

import rclpy
from builtin_interfaces.msg import Duration
from rclpy.clock_type import ClockType
from rclpy.context import Context
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.time import Time
from std_srvs.srv import SetBool, Trigger

from flashrt_ros.engine.protocol import ChannelInfo, FieldInfo, ModelInfo
from flashrt_ros.errors import (
    ConfigError,
    FrameError,
    GoalExpiredError,
    PayloadRangeError,
    UnknownChannelError,
    UnsupportedError,
)
from flashrt_ros.msg import Subgoal
from flashrt_ros.nodes.arbitration import Arbiter, Rank
from flashrt_ros.nodes.conversions import ns_to_stamp, stamp_to_ns
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.frames import Frames
from flashrt_ros.nodes.goals import GoalChecker, goal_channel, only_field
from flashrt_ros.nodes.process import shut_down, start_node
from flashrt_ros.nodes.reports import Reports
from flashrt_ros.nodes.services import fill_failure
from flashrt_ros.nodes.spinning import Spinner
from flashrt_ros.srv import ResetEpisode

S = 1_000_000_000


@pytest.fixture
def node() -> Iterator[Node]:
    context = Context()
    rclpy.init(context=context)
    node = Node("parts", context=context, enable_rosout=False)
    yield node
    node.destroy_node()
    context.try_shutdown()


class TestReports:
    def test_time_is_the_nodes_clock_whenever_that_is_simulated(self, node: Node) -> None:
        """Read without the clock where it is the system's: the change must not be missed."""
        reports = Reports(node, "engine")

        def simulate(is_wanted: bool) -> None:
            parameter = Parameter("use_sim_time", Parameter.Type.BOOL, is_wanted)
            assert all(result.successful for result in node.set_parameters([parameter]))

        before_ns = time.time_ns()
        assert before_ns <= reports.now_ns() <= time.time_ns()
        simulate(True)
        clock: Any = node.get_clock()
        clock.set_ros_time_override(Time(nanoseconds=5, clock_type=ClockType.ROS_TIME))
        assert reports.now_ns() == 5
        later = Reports(node, "engine")
        assert later.now_ns() == 5
        later.close()
        later.close()
        simulate(False)
        assert before_ns <= reports.now_ns() <= time.time_ns()
        reports.close()


class TestFailures:
    @pytest.mark.parametrize("kind", [Trigger, SetBool])
    def test_replies_of_std_srvs_start_with_the_name(self, node: Node, kind: Any) -> None:
        response = kind.Response(success=True)
        fill_failure(node, "~/service", FrameError("no such frame"), response)
        assert not response.success
        assert response.message == "FRAME: no such frame"

    def test_replies_of_ours_hold_the_code(self, node: Node) -> None:
        response = ResetEpisode.Response()
        fill_failure(node, "~/service", FrameError("no such frame"), response)
        assert response.error_code == FrameError.code
        assert response.error_msg == "no such frame"


class TestStart:
    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (["--params-file", "my.yaml"], "behind --ros-args, found --params-file my.yaml"),
            (["--ros-args", "--params-file", "/nowhere/my.yaml"], "/nowhere/my.yaml"),
            (["--ros-args", "-r", "__ns:=/1bad"], "__ns:=/1bad"),
            (["--ros-args", "-p", "rate"], "rate"),
        ],
    )
    def test_arguments_that_can_not_be_used_are_refused(
        self, capsys: pytest.CaptureFixture[str], words: list[str], text: str
    ) -> None:
        assert start_node(lambda: pytest.fail("a node was made"), ["node", *words]) is None
        error = capsys.readouterr().err
        assert error.startswith("CONFIG (500): ")
        assert text in error


class TestShutDown:
    def test_a_node_whose_callback_does_not_return_is_left_alone(self, node: Node) -> None:
        is_inside, may_end = threading.Event(), threading.Event()

        def block() -> None:
            is_inside.set()
            may_end.wait(60)

        node.create_timer(0.001, block)
        spinner = Spinner(node, "stuck")
        closed: list[bool] = []
        try:
            assert is_inside.wait(60)
            shut_down([spinner], lambda: closed.append(True), [node])
            assert closed
            node.get_clock().now()
            assert list(node.timers), "the node was destroyed under its callback"
        finally:
            may_end.set()
            assert spinner.close(60)

    def test_an_idle_node_is_destroyed(self, node: Node) -> None:
        node.create_timer(60.0, lambda: None)
        shut_down([Spinner(node, "idle")], lambda: None, [node])
        assert not list(node.timers)


class TestFence:
    def fence(self) -> Fence:
        fence = Fence()
        fence.attach(7)
        fence.open()
        return fence

    def passes(self, fence: Fence, *, epoch: int = 7, generation: int = 1, tick: int = 1) -> bool:
        published: list[int] = []
        passed = fence.pass_through(epoch, 0, generation, tick, lambda: published.append(1))
        assert passed == bool(published)
        return passed

    def test_shut_lets_nothing_pass(self) -> None:
        fence = self.fence()
        assert self.passes(fence)
        fence.shut()
        assert not self.passes(fence)
        assert fence.num_dropped == 1

    def test_an_older_generation_is_dropped_and_a_newer_one_raises(self) -> None:
        fence = self.fence()
        fence.raise_to(0, 3)
        assert not self.passes(fence, generation=2)
        assert self.passes(fence, generation=3)
        assert self.passes(fence, generation=4)
        assert not self.passes(fence, generation=3)

    def test_it_never_lowers(self) -> None:
        fence = self.fence()
        fence.raise_to(0, 5)
        fence.raise_to(0, 2)
        assert fence.generation(0) == 5

    def test_another_engine_is_dropped(self) -> None:
        fence = self.fence()
        assert not self.passes(fence, epoch=8)
        fence.attach(8)
        assert self.passes(fence, epoch=8)

    def test_environments_have_generations_of_their_own(self) -> None:
        fence = self.fence()
        fence.raise_to(1, 9)
        assert self.passes(fence, generation=1)

    def test_ticks_up_to_the_last_one_are_dropped_until_the_generation_grows(self) -> None:
        fence = self.fence()
        fence.note(0, 1, tick=10)
        assert not self.passes(fence, tick=10)
        assert self.passes(fence, tick=11)
        assert self.passes(fence, generation=2, tick=1)

    def test_shut_waits_for_a_publication_in_progress(self) -> None:
        fence = self.fence()
        is_inside, may_end = threading.Event(), threading.Event()
        order: list[str] = []

        def publish() -> None:
            is_inside.set()
            assert may_end.wait(30)
            order.append("published")

        def shut() -> None:
            fence.shut()
            order.append("shut")

        first = threading.Thread(target=lambda: fence.pass_through(7, 0, 1, 1, publish))
        second = threading.Thread(target=shut)
        first.start()
        assert is_inside.wait(30)
        second.start()
        may_end.set()
        first.join(30)
        second.join(30)
        assert order == ["published", "shut"]


class TestFrames:
    half = math.sqrt(0.5)

    def test_the_same_frame_needs_no_transform(self) -> None:
        values = np.array([1.0, 2.0, 3.0, 4.0])
        assert Frames().points(values, source="a", target="a") is values

    def test_both_ways_and_over_several_edges(self) -> None:
        frames = Frames(
            [f"world table 1 0 0 0 0 {self.half} {self.half}", "table shelf 0 2 0 0 0 0 1"]
        )
        there = frames.points(np.array([1.0, 0.0]), source="shelf", target="world")
        assert np.allclose(there, [1.0 - 2.0, 1.0])
        back = frames.points(there, source="world", target="shelf")
        assert np.allclose(back, [1.0, 0.0])

    def test_rows_of_three(self) -> None:
        frames = Frames(["a b 1 2 3 0 0 0 2"])  # quaternions are normalised
        moved = frames.points(np.zeros((2, 3)), source="b", target="a")
        assert moved.tolist() == [[1, 2, 3], [1, 2, 3]]

    def test_an_unknown_frame_is_refused(self) -> None:
        with pytest.raises(FrameError, match="'moon'"):
            Frames(["a b 0 0 0 0 0 0 1"]).points(np.zeros(2), source="moon", target="a")

    def test_what_is_no_point_is_refused(self) -> None:
        with pytest.raises(FrameError, match="7"):
            Frames(["a b 0 0 0 0 0 0 1"]).points(np.zeros(7), source="b", target="a")

    @pytest.mark.parametrize(
        "text", ["", "a b", "a b 0 0 0 0 0 0", "a b 0 0 0 0 0 0 0", "a b x 0 0 0 0 0 1", "nan"]
    )
    def test_an_entry_that_can_not_be_read_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError):
            Frames([text])


def model(*channels: ChannelInfo) -> ModelInfo:
    return ModelInfo("m", 4, 2, 2, ("x", "y"), S // 10, channels, "f", 1, 0, 1024)


def channel(name: str = "goal", *, role: str = "goal", fields: int = 1) -> ChannelInfo:
    parts = tuple(FieldInfo(f"v{n}", (2,), "float32", 0, -1.0, 1.0, "m") for n in range(fields))
    return ChannelInfo(name, role, "table", 256, 4, 4096, parts)


class TestGoals:
    def checker(self, **named_goals: tuple[float, ...]) -> GoalChecker:
        return GoalChecker(
            model(channel()),
            Frames(),
            lifetime_ns=5 * S,
            future_ns=S // 10,
            arbiter=Arbiter({}, Rank(), tolerance_ns=S // 10),
            named_goals=named_goals,
        )

    def goal(self, stamp_ns: int, sequence: int = 1, planner: str = "p") -> Subgoal:
        goal = Subgoal(planner=planner, sequence=sequence, values=[0.5, 0.25])
        goal.header.frame_id = "table"
        goal.header.stamp = ns_to_stamp(stamp_ns)
        return goal

    def accept(self, checker: GoalChecker, goal: Subgoal) -> None:
        now_ns = stamp_to_ns(goal.header.stamp)
        checked = checker.check(goal, env_index=goal.env_index, now_ns=now_ns)
        checker.accept(goal, checked, now_ns=now_ns)

    @pytest.mark.parametrize("now_ns", [S, 100 * S])
    def test_no_stamp_is_no_age(self, now_ns: int) -> None:
        with pytest.raises(GoalExpiredError, match="no stamp"):
            self.checker().check(self.goal(0), env_index=0, now_ns=now_ns)

    @pytest.mark.parametrize("ahead_ns", [0, S // 11])
    def test_a_lifetime_is_not_negative(self, ahead_ns: int) -> None:
        goal = self.goal(100 * S + ahead_ns)
        goal.lifetime = Duration(sec=-1, nanosec=10**9 - 1)
        with pytest.raises(PayloadRangeError, match="lifetime is negative"):
            self.checker().check(goal, env_index=0, now_ns=100 * S)

    def test_checking_remembers_nothing_and_accepting_does(self) -> None:
        checker = self.checker()
        goal = self.goal(100 * S)
        checker.check(goal, env_index=0, now_ns=100 * S)
        assert checker.check(goal, env_index=0, now_ns=100 * S).sequence == 1
        self.accept(checker, goal)
        with pytest.raises(GoalExpiredError, match="sequence above 1"):
            checker.check(goal, env_index=0, now_ns=100 * S)
        checker.forget()
        checker.check(goal, env_index=0, now_ns=100 * S)

    def test_environments_have_goals_of_their_own(self) -> None:
        checker = self.checker()
        self.accept(checker, self.goal(100 * S, sequence=9))
        older = self.goal(99 * S, sequence=1)
        older.env_index = 1
        with pytest.raises(PayloadRangeError, match="another environment"):
            checker.check(older, env_index=0, now_ns=100 * S)
        assert checker.check(older, env_index=1, now_ns=100 * S).sequence == 1
        assert checker.next_sequence("p", env_index=1) == 1
        with pytest.raises(GoalExpiredError, match="made later"):
            checker.check(self.goal(99 * S, sequence=10), env_index=0, now_ns=100 * S)

    def test_words_beside_values_are_refused(self) -> None:
        goal = self.goal(100 * S)
        goal.text = "go left"
        with pytest.raises(UnsupportedError, match="words"):
            self.checker(**{"go left": (0.0, 0.0)}).check(goal, env_index=0, now_ns=100 * S)

    def test_words_with_a_name_are_its_values(self) -> None:
        goal = Subgoal(planner="p", sequence=1, text=" Go  left")
        goal.header.stamp = ns_to_stamp(100 * S)
        checked = self.checker(**{"go left": (-0.5, 0.0)}).check(goal, env_index=0, now_ns=100 * S)
        assert checked.values.tolist() == [-0.5, 0.0]
        goal.text = "go right"
        with pytest.raises(UnsupportedError, match="'go left'"):
            self.checker(**{"go left": (-0.5, 0.0)}).check(goal, env_index=0, now_ns=100 * S)

    def test_ages_at_the_limits(self) -> None:
        checker = self.checker()
        checker.check(self.goal(95 * S), env_index=0, now_ns=100 * S)
        with pytest.raises(GoalExpiredError, match="older"):
            checker.check(self.goal(95 * S - 1), env_index=0, now_ns=100 * S)
        checker.check(self.goal(100 * S + S // 10), env_index=0, now_ns=100 * S)
        with pytest.raises(GoalExpiredError, match="future"):
            checker.check(self.goal(100 * S + S // 10 + 1), env_index=0, now_ns=100 * S)

    def test_a_clock_set_back_does_not_lock_planners_out(self) -> None:
        checker = self.checker()
        self.accept(checker, self.goal(1000 * S, sequence=50))
        checker.check(self.goal(10 * S, sequence=1), env_index=0, now_ns=10 * S)

    def test_senders_without_numbers_get_growing_ones(self) -> None:
        checker = self.checker()
        assert checker.next_sequence("pose", env_index=0) == 1
        self.accept(checker, self.goal(S, sequence=1, planner="pose"))
        assert checker.next_sequence("pose", env_index=0) == 2

    def test_one_of_several_channels_must_be_named(self) -> None:
        several = model(channel("a"), channel("b"), channel("o", role="observation"))
        assert goal_channel(several, "b").name == "b"
        for name in ("", "o", "c"):
            with pytest.raises(UnknownChannelError):
                goal_channel(several, name)

    def test_a_channel_of_several_fields_takes_no_row_of_values(self) -> None:
        with pytest.raises(UnsupportedError):
            only_field(channel(fields=2))
