from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("gym_pusht")

from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import SetBool

from flashrt_ros import errors
from flashrt_ros.models.planner_text import scene_text
from flashrt_ros.nodes.conversions import stamp_to_ns
from flashrt_ros.sim.table import block_center
from flashrt_ros.srv import ResetSimulator

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer


class Table:
    """Commands a simulated robot and collects what it publishes."""

    def __init__(self, peer: Peer, namespace: str) -> None:
        self.peer = peer
        self.namespace = namespace
        self.images: list[Image] = peer.listen(Image, f"{namespace}/image")
        self.joints: list[JointState] = peer.listen(JointState, f"{namespace}/joint_states")
        self.truths: list[JointState] = peer.listen(JointState, f"{namespace}/sim/ground_truth")
        self._commands = peer.publisher(Float64MultiArray, f"{namespace}/commands")

    def command(self, *values: float) -> None:
        self._commands.publish(Float64MultiArray(data=values))

    def stamps(self) -> set[int]:
        return {stamp_to_ns(joints.header.stamp) for joints in self.joints}

    def reset(self, seed: int, episode_id: str = "") -> ResetSimulator.Response:
        reply = self.peer.call(
            ResetSimulator,
            f"{self.namespace}/sim/reset",
            has_seed=True,
            seed=seed,
            episode_id=episode_id,
        )
        assert reply.success, reply.error_msg
        return reply

    def newest_after(self, stamp_ns: int) -> tuple[Image, JointState, JointState]:
        """Wait for image, joints and ground truth with one stamp, later than a given one."""

        def found() -> tuple[Image, JointState, JointState] | None:
            truths = {stamp_to_ns(m.header.stamp): m for m in self.truths}
            joints = {stamp_to_ns(m.header.stamp): m for m in self.joints}
            for image in reversed(self.images):
                at = stamp_to_ns(image.header.stamp)
                if at > stamp_ns and at in joints and at in truths:
                    return image, joints[at], truths[at]
            return None

        found_now = self.peer.until(found, "a whole observation")
        assert isinstance(found_now, tuple)
        return found_now


@pytest.fixture(scope="module")
def lockstep(bench: Bench, peer: Peer) -> Table:
    bench.node("flashrt_ros.sim.node", "__ns:=/lock", mode="lockstep", republish_s=0.1, rate_hz=50)
    return Table(peer, "/lock")


@pytest.fixture(scope="module")
def realtime(bench: Bench, peer: Peer) -> Table:
    bench.node("flashrt_ros.sim.node", "__ns:=/real", rate_hz=50)
    return Table(peer, "/real")


def test_image_joints_and_truth_share_a_stamp(lockstep: Table) -> None:
    image, joints, truth = lockstep.newest_after(0)
    assert (image.height, image.width, image.step, image.encoding) == (96, 96, 288, "rgb8")
    assert image.header.frame_id == "camera"
    assert list(joints.name) == ["agent_x", "agent_y"]
    assert all(0.0 < value < 0.512 for value in joints.position)
    assert list(truth.position[:2]) == list(joints.position)
    assert "block_angle" in truth.name
    assert np.frombuffer(image.data, np.uint8).std() > 0


def test_lockstep_passes_one_tick_for_each_command(lockstep: Table) -> None:
    stamp_ns = stamp_to_ns(lockstep.reset(1_000_000).stamp)
    _, joints, _ = lockstep.newest_after(stamp_ns - 1)
    x, y = joints.position
    lockstep.joints.clear()
    lockstep.peer.until(lambda: len(lockstep.joints) >= 5, "the same observation again")
    assert lockstep.stamps() == {stamp_ns}
    for number in range(1, 4):
        lockstep.command(x + 0.01, y)
        lockstep.newest_after(max(lockstep.stamps()))
        assert len(lockstep.stamps()) == number + 1
    _, joints, _ = lockstep.newest_after(stamp_ns)
    assert x < joints.position[0] <= x + 0.011


def test_equal_seeds_begin_alike(lockstep: Table) -> None:
    observations = []
    for seed in (1_000_001, 1_000_002, 1_000_001):
        stamp_ns = stamp_to_ns(lockstep.reset(seed).stamp)
        image, joints, truth = lockstep.newest_after(stamp_ns - 1)
        observations.append((bytes(image.data), tuple(joints.position), tuple(truth.position)))
    assert observations[0] == observations[2]
    assert observations[0] != observations[1]


def test_a_repeated_episode_id_begins_nothing(lockstep: Table) -> None:
    first = lockstep.reset(1_000_003, "e1")
    again = lockstep.reset(1_000_003, "e1")
    other = lockstep.reset(1_000_003, "e2")
    assert first.stamp == again.stamp
    assert stamp_to_ns(other.stamp) > stamp_to_ns(first.stamp)


def test_a_repeated_episode_id_with_another_seed_is_refused(lockstep: Table) -> None:
    first = lockstep.reset(1_000_003, "e3")
    service = f"{lockstep.namespace}/sim/reset"
    refused = lockstep.peer.call(
        ResetSimulator, service, has_seed=True, seed=1_000_004, episode_id="e3"
    )
    assert not refused.success
    assert refused.error_code == errors.SpecError.code
    again = lockstep.peer.call(ResetSimulator, service, episode_id="e3")
    assert again.stamp == first.stamp
    assert again.seed == 1_000_003


def test_the_plain_reset_says_seed_and_stamp(lockstep: Table) -> None:
    service = f"{lockstep.namespace}/sim/reset"
    reply = lockstep.peer.call(ResetSimulator, service, has_seed=True, seed=1_000_004)
    assert reply.success
    assert reply.seed == 1_000_004
    lockstep.newest_after(stamp_to_ns(reply.stamp) - 1)
    assert lockstep.peer.call(ResetSimulator, service).seed == 1_000_005


def test_a_bad_reset_is_refused(lockstep: Table) -> None:
    service = f"{lockstep.namespace}/sim/reset"
    reply = lockstep.peer.call(ResetSimulator, service, env_index=1)
    assert reply.error_code == errors.UnknownEnvironmentError.code


@pytest.mark.parametrize("bad", [(0.1,), (0.1, 0.2, 0.3), (math.nan, 0.1), (), (0.1, math.inf)])
def test_a_bad_command_moves_nothing(lockstep: Table, bad: tuple[float, ...]) -> None:
    stamp_ns = stamp_to_ns(lockstep.reset(1_000_006).stamp)
    lockstep.command(*bad)
    lockstep.joints.clear()
    lockstep.peer.until(lambda: len(lockstep.joints) >= 5, "the same observation again")
    assert max(lockstep.stamps()) == stamp_ns


def test_real_time_goes_on_without_commands_and_stops_when_paused(realtime: Table) -> None:
    realtime.newest_after(0)
    count = len(realtime.stamps())
    realtime.peer.until(lambda: len(realtime.stamps()) > count + 5, "new observations")
    paused = realtime.peer.call(SetBool, f"{realtime.namespace}/sim/pause", data=True)
    assert paused.success

    # Whatever was under way or waited to be taken comes first.
    def stands() -> bool:
        newest = [stamp_to_ns(joints.header.stamp) for joints in realtime.joints[-3:]]
        return len(newest) == 3 and len(set(newest)) == 1

    realtime.joints.clear()
    realtime.peer.until(stands, "the same observation again")
    stood_ns = stamp_to_ns(realtime.joints[-1].header.stamp)
    realtime.joints.clear()
    realtime.peer.until(lambda: len(realtime.joints) >= 2, "the same observation still")
    assert realtime.stamps() == {stood_ns}
    realtime.peer.call(SetBool, f"{realtime.namespace}/sim/pause", data=False)
    count = len(realtime.stamps())
    realtime.peer.until(lambda: len(realtime.stamps()) > count + 5, "new observations")


def test_real_time_follows_the_last_command(realtime: Table) -> None:
    stamp_ns = stamp_to_ns(realtime.reset(1_000_000).stamp)
    _, joints, _ = realtime.newest_after(stamp_ns - 1)
    x, y = joints.position
    realtime.command(x + 0.02, y)
    realtime.peer.until(
        lambda: abs(realtime.joints[-1].position[0] - x - 0.02) < 0.002, "the target"
    )


def test_a_bad_parameter_ends_the_simulator(fresh_bench: Bench) -> None:
    node = fresh_bench.node("flashrt_ros.sim.node", mode="slow")
    assert node.wait() == 2
    assert "PARAMETER_RANGE" in node.output


def test_the_scene_is_told_when_it_changes_and_now_and_then(lockstep: Table) -> None:
    peer = lockstep.peer
    scenes: list[String] = peer.listen(String, f"{lockstep.namespace}/scene")
    stamp_ns = stamp_to_ns(lockstep.reset(1_000_005).stamp)
    _, _, truth = lockstep.newest_after(stamp_ns - 1)
    values = dict(zip(truth.name, truth.position, strict=True))
    agent = values["agent_x"], values["agent_y"]
    pose = values["block_x"], values["block_y"], values["block_angle"]
    before = scene_text(block_center(pose), agent)
    peer.until(lambda: [each.data for each in scenes].count(before) >= 3, "the scene again")
    first = [each.data for each in scenes].index(before)  # after what the reset has ended
    assert {each.data for each in scenes[first:]} == {before}
    lockstep.command(agent[0] + 0.02, agent[1])
    moved = peer.until(
        lambda: [each.data for each in scenes[first:] if each.data != before], "a change"
    )
    assert isinstance(moved, list)
    block, _, pusher = before.partition("; ")
    assert moved[0].startswith(block)
    assert pusher not in moved[0]
