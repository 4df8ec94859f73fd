from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("rclpy")

from builtin_interfaces.msg import Duration
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger

from flashrt_ros import errors
from flashrt_ros.msg import ActionChunk, CapsuleInfo, EngineStatus, ExecutionEvent, Subgoal
from flashrt_ros.nodes.conversions import stamp_to_ns
from flashrt_ros.srv import (
    DropCapsule,
    DropEpisode,
    ForkCapsule,
    Interrupt,
    ListCapsules,
    LoadCapsule,
    PinCapsule,
    ResetEpisode,
    RestoreCapsule,
    RestoreEpisode,
    Resume,
    RollbackCapsule,
    SaveCapsule,
    SelectBranch,
    SnapshotCapsule,
    SnapshotEpisode,
    Step,
)

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

NODE = "policy_node"
HOME_OF_NONE = {"capsule": "home", "env_index": 7}
BIG_SEED = {"capsule": "home", "has_seed": True, "seed": 2**63}


class Robot:
    """Feeds the policy node: joint states on demand, subgoals through interrupts."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.sequence = 0
        self.chunks = peer.listen(ActionChunk, f"{NODE}/action_chunk")
        self.commands = peer.listen(Float64MultiArray, f"{NODE}/commands")
        self.events = peer.listen(ExecutionEvent, f"{NODE}/events")
        self.statuses = peer.listen(EngineStatus, f"{NODE}/status")
        self._joints = peer.publisher(JointState, "joint_states")
        self._timer = peer.node.create_timer(0.02, self.observe)

    def observe(self) -> None:
        message = JointState(name=["y", "x"], position=[0.25, 0.125])
        message.header.stamp = self.peer.now()
        self._joints.publish(message)

    def goal(self, sequence: int, **changes: object) -> Subgoal:
        goal = Subgoal(planner="test", sequence=sequence, values=[0.5, -0.5])
        goal.header.stamp = self.peer.now()
        goal.header.frame_id = "table"
        for name, value in changes.items():
            setattr(goal, name, value)
        return goal

    def give_goal(self) -> Interrupt.Response:
        self.sequence += 1
        reply = self.peer.call(
            Interrupt,
            f"{NODE}/interrupt",
            reason="goal",
            has_goal=True,
            goal=self.goal(self.sequence),
        )
        assert reply.success, reply.error_msg
        return reply

    def run(self, num_chunks: int = 2) -> Interrupt.Response:
        """Give a goal and wait until chunks made under it came; returns the interrupt's answer."""
        reply = self.give_goal()
        self.chunks.clear()
        self.peer.until(lambda: len(self.chunks) >= num_chunks, "chunks")
        return reply


@pytest.fixture(scope="module")
def robot(bench: Bench, peer: Peer) -> Iterator[Robot]:
    bench.engine(
        num_environments=2,
        num_branch_lanes=3,
        interrupt_depth=3,
        rollback_depth=4,
        capsule_folder=str(bench.folder / "capsules"),
    )
    bench.policy()
    peer.bring_up(NODE)
    robot = Robot(peer)
    yield robot
    peer.node.destroy_timer(robot._timer)


@pytest.fixture(autouse=True)
def fresh(robot: Robot) -> None:
    reply = robot.peer.call(ResetEpisode, f"{NODE}/reset_episode")
    assert reply.success, reply.error_msg
    robot.events.clear()


def code(error: type[errors.FlashrtError]) -> int:
    return error.code


def test_a_chunk_says_what_it_was_made_from(robot: Robot) -> None:
    robot.run()
    chunk = robot.chunks[-1]
    assert chunk.goal_sequence > 0
    assert chunk.goal_source_sequence == robot.sequence
    assert chunk.observation_sequence > 0
    assert chunk.observation_stamp.sec > 0
    assert chunk.engine_epoch > 0
    assert chunk.branch == -1
    assert list(chunk.joint_names) == ["x", "y"]
    assert len(chunk.actions) == chunk.horizon * chunk.action_dim
    assert chunk.step.nanosec == 100_000_000


def test_a_chunk_says_until_when_its_goal_may_be_acted_on(robot: Robot) -> None:
    robot.run()
    assert stamp_to_ns(robot.chunks[-1].goal_expires) == 0
    robot.sequence += 1
    goal = robot.goal(robot.sequence, lifetime=Duration(sec=30, nanosec=5))
    reply = robot.peer.call(Interrupt, f"{NODE}/interrupt", reason="goal", has_goal=True, goal=goal)
    assert reply.success, reply.error_msg
    robot.chunks.clear()
    robot.peer.until(
        lambda: any(chunk.goal_sequence == reply.goal_sequence for chunk in robot.chunks), "a chunk"
    )
    chunk = robot.chunks[-1]
    assert chunk.goal_stamp == goal.header.stamp
    assert stamp_to_ns(chunk.goal_expires) == stamp_to_ns(chunk.goal_stamp) + 30_000_000_005


def test_an_episode_of_a_policy_that_a_timer_ticks(robot: Robot) -> None:
    robot.run()
    made = robot.peer.call(SnapshotEpisode, f"{NODE}/episode/snapshot", name="timed")
    assert made.success, made.error_msg
    assert list(made.episode.participants) == ["policy"]
    assert list(made.episode.absent) == ["planner", "sim"]
    assert made.episode.goal_sequence
    robot.chunks.clear()
    robot.peer.until(lambda: len(robot.chunks) >= 2, "chunks after the snapshot")
    moved = robot.peer.call(RestoreEpisode, f"{NODE}/episode/restore", name="timed")
    assert moved.success, moved.error_msg
    assert moved.tick == made.episode.tick
    robot.peer.until(
        lambda: any(chunk.generation == moved.generation for chunk in robot.chunks), "a chunk"
    )
    chunk = next(one for one in robot.chunks if one.generation == moved.generation)
    assert chunk.goal_sequence == made.episode.goal_sequence
    assert chunk.capsule_id == made.episode.capsule_id
    robot.statuses.clear()
    robot.peer.until(lambda: robot.statuses, "a status")
    assert robot.statuses[-1].tick_source == "timer"
    dropped = robot.peer.call(DropEpisode, f"{NODE}/episode/drop", name="timed")
    assert dropped.success, dropped.error_msg


def test_every_action_comes_as_a_command(robot: Robot) -> None:
    robot.run()
    robot.commands.clear()
    robot.peer.until(lambda: len(robot.commands) >= 5)
    for command in robot.commands:
        assert len(command.data) == 2
        assert command.layout.dim[0].size == 2


def test_trigger_resets_to_home(robot: Robot) -> None:
    robot.run()
    before = robot.chunks[-1].generation
    reply = robot.peer.call(Trigger, f"{NODE}/reset")
    assert reply.success
    assert reply.message.startswith("home restored by ")
    assert f"generation {before + 1}" in reply.message


def test_nothing_from_before_a_reset_comes_after_it(robot: Robot) -> None:
    robot.run()
    reply = robot.peer.call(ResetEpisode, f"{NODE}/reset_episode", capsule="home")
    robot.peer.spin_some()
    robot.chunks.clear()
    robot.commands.clear()
    robot.run(3)
    assert all(chunk.generation > reply.generation - 1 for chunk in robot.chunks)
    assert all(chunk.observation_stamp.sec >= reply.barrier.sec for chunk in robot.chunks)


def test_a_repeated_episode_reset_answers_as_the_first_did(robot: Robot) -> None:
    first = robot.peer.call(ResetEpisode, f"{NODE}/reset_episode", episode_id="e1")
    again = robot.peer.call(ResetEpisode, f"{NODE}/reset_episode", episode_id="e1")
    other = robot.peer.call(ResetEpisode, f"{NODE}/reset_episode", episode_id="e2")
    assert (first.generation, first.barrier) == (again.generation, again.barrier)
    assert other.generation == first.generation + 1


@pytest.mark.parametrize("between", ["reset", "restore"])
def test_an_episode_id_used_again_after_another_move_is_a_new_reset(
    robot: Robot, between: str
) -> None:
    first = robot.peer.call(ResetEpisode, f"{NODE}/reset_episode", episode_id="ep0")
    if between == "reset":
        robot.peer.call(ResetEpisode, f"{NODE}/reset_episode", episode_id="ep1")
    else:
        robot.peer.call(RestoreCapsule, f"{NODE}/capsule/restore", capsule="home")
    now_ns = stamp_to_ns(robot.peer.now())
    again = robot.peer.call(ResetEpisode, f"{NODE}/reset_episode", episode_id="ep0")
    assert again.generation == first.generation + 2
    assert stamp_to_ns(again.barrier) >= now_ns > stamp_to_ns(first.barrier)


def test_an_interrupt_of_another_environment_takes_its_own_goals(robot: Robot) -> None:
    """A newer goal of environment 0 says nothing of environment 1."""
    older = robot.goal(1, env_index=1)
    robot.give_goal()
    reply = robot.peer.call(Interrupt, f"{NODE}/interrupt", env_index=1, has_goal=True, goal=older)
    assert reply.success, reply.error_msg
    assert reply.goal_sequence > 0
    robot.give_goal()
    mixed = robot.peer.call(Interrupt, f"{NODE}/interrupt", has_goal=True, goal=older)
    assert mixed.error_code == code(errors.PayloadRangeError)


def test_an_interrupt_says_at_which_tick(robot: Robot) -> None:
    robot.run()
    reply = robot.peer.call(Interrupt, f"{NODE}/interrupt", hold=True)
    events = robot.peer.until(
        lambda: [e for e in robot.events if e.generation == reply.generation], "an event"
    )
    assert events[0].kind == ExecutionEvent.INTERRUPT
    assert reply.tick == events[0].tick > 0


def test_home_is_told_to_those_who_come_late_and_when_it_changes(robot: Robot) -> None:
    from rclpy.qos import DurabilityPolicy, QoSProfile

    qos = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    homes = robot.peer.listen(CapsuleInfo, f"{NODE}/home", qos)
    robot.peer.until(lambda: homes, "home")
    listed = robot.peer.call(ListCapsules, f"{NODE}/capsule/list")
    assert homes[-1].id in [c.id for c in listed.capsules if c.name == "home"]
    made = robot.peer.call(SnapshotCapsule, f"{NODE}/capsule/snapshot", name="home", replace=True)
    assert made.success, made.error_msg
    robot.peer.until(lambda: homes[-1].id == made.capsule.id, "the new home")


def test_home_of_another_environment_is_that_environments(robot: Robot) -> None:
    """Environment 1 was never active and has none."""
    for kind, name in ((PinCapsule, "pin"), (DropCapsule, "drop")):
        mine = robot.peer.call(kind, f"{NODE}/capsule/{name}", capsule="home", env_index=0)
        assert mine.error_code == code(errors.CapsulePinnedError)
        reply = robot.peer.call(kind, f"{NODE}/capsule/{name}", capsule="home", env_index=1)
        assert reply.error_code == code(errors.CapsuleNotFoundError), reply.error_msg


def test_snapshot_and_restore(robot: Robot) -> None:
    robot.run()
    made = robot.peer.call(
        SnapshotCapsule, f"{NODE}/capsule/snapshot", name="a", labels=["k=v"], replace=True
    )
    assert made.success, made.error_msg
    assert made.capsule.name == "a"
    assert list(made.capsule.labels) == ["k=v"]
    robot.run()
    back = robot.peer.call(
        RestoreCapsule, f"{NODE}/capsule/restore", capsule="a", has_seed=True, seed=2**63 - 1
    )
    assert back.success, back.error_msg
    assert back.tick == made.capsule.tick
    assert back.capsule_id == made.capsule.id


def test_pinned_capsules_stay_until_they_are_unpinned(robot: Robot) -> None:
    name = "pinned"
    robot.peer.call(SnapshotCapsule, f"{NODE}/capsule/snapshot", name=name, pinned=True)
    listed = robot.peer.call(ListCapsules, f"{NODE}/capsule/list")
    assert name in [capsule.name for capsule in listed.capsules]
    assert listed.total == len(listed.capsules)
    refused = robot.peer.call(DropCapsule, f"{NODE}/capsule/drop", capsule=name)
    assert refused.error_code == code(errors.CapsulePinnedError)
    assert not robot.peer.call(
        PinCapsule, f"{NODE}/capsule/pin", capsule=name, pinned=False
    ).capsule.pinned
    assert robot.peer.call(DropCapsule, f"{NODE}/capsule/drop", capsule=name).success
    gone = robot.peer.call(DropCapsule, f"{NODE}/capsule/drop", capsule=name)
    assert gone.error_code == code(errors.CapsuleNotFoundError)


def test_capsules_are_saved_loaded_and_found(robot: Robot) -> None:
    call = robot.peer.call
    made = call(SnapshotCapsule, f"{NODE}/capsule/snapshot", name="file", persist=True).capsule
    assert made.persist
    assert made.tier == "host"
    saved = call(SaveCapsule, f"{NODE}/capsule/save", capsule="file", file="shelf")
    assert saved.success, saved.error_msg
    assert saved.file == "shelf"
    assert saved.num_bytes > made.num_bytes
    taken = call(SaveCapsule, f"{NODE}/capsule/save", capsule="home", file="shelf")
    assert taken.error_code == code(errors.CapsuleNameTakenError)
    loaded = call(LoadCapsule, f"{NODE}/capsule/load", file="shelf", name="back", pinned=True)
    assert loaded.success, loaded.error_msg
    assert loaded.capsule.digest == saved.digest
    for path in ("../shelf", "/shelf", ""):
        refused = call(LoadCapsule, f"{NODE}/capsule/load", file=path)
        assert refused.error_code == code(errors.CapsuleNameError)

    def found(**filters: object) -> set[str]:
        reply = call(ListCapsules, f"{NODE}/capsule/list", **filters)
        assert reply.success, reply.error_msg
        return {one.name for one in reply.capsules if one.name}

    assert found(name_prefix="b") == {"back"}
    assert {"back", "home"} <= found(only_pinned=True)
    assert "file" in found(only_unpinned=True, tier="host")
    assert found(since=made.created, until=made.created) == {"file", "back"}
    both = call(ListCapsules, f"{NODE}/capsule/list", only_pinned=True, only_unpinned=True)
    assert both.error_code == code(errors.SpecError)
    robot.peer.until(lambda: robot.statuses and robot.statuses[-1].tiers, "a status")
    assert list(robot.statuses[-1].tiers) == ["host", "disk"]
    call(PinCapsule, f"{NODE}/capsule/pin", capsule="back", pinned=False)
    for name in ("back", "file"):
        assert call(DropCapsule, f"{NODE}/capsule/drop", capsule=name).success


def test_a_bad_file_is_refused_with_its_reason_and_nothing_else_is_lost(
    robot: Robot, bench: Bench
) -> None:
    call = robot.peer.call
    folder = bench.folder / "capsules"
    assert call(SnapshotCapsule, f"{NODE}/capsule/snapshot", name="good").success
    assert call(SaveCapsule, f"{NODE}/capsule/save", capsule="good").success
    whole = (folder / "good.capsule").read_bytes()

    def state() -> object:
        listed = call(ListCapsules, f"{NODE}/capsule/list", label="")
        return {one.id for one in listed.capsules if "automatic=boundary" not in one.labels}

    bad = {
        "short": (whole[:5000], errors.CapsuleArchiveError, "cut short"),
        "flipped": (whole[:-1] + bytes([whole[-1] ^ 1]), errors.CapsuleArchiveError, "damaged"),
        "newer": (whole[:8] + b"\x09" + whole[9:], errors.CapsuleVersionError, "version 9"),
        "pickled": (pickle.dumps({"a": 1}), errors.CapsuleArchiveError, "a pickle"),
    }
    before = state()
    for name, (data, error, words) in bad.items():
        (folder / f"{name}.capsule").write_bytes(data)
        refused = call(LoadCapsule, f"{NODE}/capsule/load", file=name, name="bad")
        assert (refused.success, refused.error_code) == (False, code(error)), name
        assert words in refused.error_msg
    (folder / "link.capsule").symlink_to(folder / "good.capsule")
    refused = call(LoadCapsule, f"{NODE}/capsule/load", file="link", name="bad")
    assert refused.error_code == code(errors.CapsuleArchiveError)
    assert "is a link" in refused.error_msg
    assert state() == before
    loaded = call(LoadCapsule, f"{NODE}/capsule/load", file="good", name="again")
    assert loaded.success, loaded.error_msg
    for name in ("good", "again"):
        assert call(DropCapsule, f"{NODE}/capsule/drop", capsule=name).success


def test_list_takes_more_than_one_page(robot: Robot) -> None:
    for number in range(70):
        reply = robot.peer.call(
            SnapshotCapsule, f"{NODE}/capsule/snapshot", name=f"n{number}", labels=["page=1"]
        )
        assert reply.success, reply.error_msg
    listed = robot.peer.call(ListCapsules, f"{NODE}/capsule/list", label="page=1")
    assert listed.total == len(listed.capsules) == 70
    part = robot.peer.call(ListCapsules, f"{NODE}/capsule/list", label="page=1", offset=60, limit=5)
    assert [capsule.name for capsule in part.capsules] == [f"n{n}" for n in range(60, 65)]
    for number in range(70):
        assert robot.peer.call(DropCapsule, f"{NODE}/capsule/drop", capsule=f"n{number}").success


def test_fork_step_and_select(robot: Robot) -> None:
    robot.run()
    forked = robot.peer.call(ForkCapsule, f"{NODE}/capsule/fork", count=3, seeds=[11, 12, 13])
    assert forked.success, forked.error_msg
    assert list(forked.seeds) == [11, 12, 13]
    chunks = []
    for branch in forked.branches:
        stepped = robot.peer.call(Step, f"{NODE}/step", branch=branch, count=8)
        assert stepped.success, stepped.error_msg
        assert len(stepped.actions) == 8 * stepped.action_dim
        assert stepped.chunks[-1].branch == branch
        chunks.append(tuple(stepped.chunks[-1].actions))
    assert len(set(chunks)) == 3
    full = robot.peer.call(ForkCapsule, f"{NODE}/capsule/fork", count=1)
    assert full.error_code == code(errors.NoFreeLaneError)
    selected = robot.peer.call(
        SelectBranch, f"{NODE}/capsule/select", branch=forked.branches[1], release_others=True
    )
    assert selected.success, selected.error_msg
    gone = robot.peer.call(SelectBranch, f"{NODE}/capsule/select", branch=forked.branches[0])
    assert gone.error_code == code(errors.BranchNotFoundError)


def test_rollback(robot: Robot) -> None:
    robot.run(4)
    back = robot.peer.call(RollbackCapsule, f"{NODE}/capsule/rollback", boundaries=2)
    assert back.success, back.error_msg
    far = robot.peer.call(RollbackCapsule, f"{NODE}/capsule/rollback", boundaries=99)
    assert far.error_code == code(errors.NoBoundaryError)


def test_interrupt_and_resume(robot: Robot) -> None:
    robot.run()
    reply = robot.peer.call(Interrupt, f"{NODE}/interrupt", reason="human", hold=True)
    assert reply.success, reply.error_msg
    robot.peer.until(
        lambda: [e for e in robot.events if e.kind == ExecutionEvent.INTERRUPT], "an event"
    )
    back = robot.peer.call(Resume, f"{NODE}/resume")
    assert back.success, back.error_msg
    assert back.capsule_id == reply.capsule_id
    assert back.depth == reply.depth - 1
    assert back.generation > reply.generation


@pytest.mark.parametrize(
    ("kind", "name", "fields", "error"),
    [
        (RestoreCapsule, "capsule/restore", {"capsule": "nope"}, errors.CapsuleNotFoundError),
        (ResetEpisode, "reset_episode", {"capsule": "nope"}, errors.CapsuleNotFoundError),
        (SnapshotCapsule, "capsule/snapshot", {"name": "../x"}, errors.CapsuleNameError),
        (SnapshotCapsule, "capsule/snapshot", {"name": "home"}, errors.CapsuleNameTakenError),
        (SnapshotCapsule, "capsule/snapshot", {"env_index": 7}, errors.UnknownEnvironmentError),
        (RestoreCapsule, "capsule/restore", BIG_SEED, errors.PayloadRangeError),
        (ForkCapsule, "capsule/fork", {"seeds": [2**63]}, errors.PayloadRangeError),
        (ForkCapsule, "capsule/fork", {"count": 99}, errors.NoFreeLaneError),
        (ForkCapsule, "capsule/fork", {"capsule": "nope"}, errors.CapsuleNotFoundError),
        (SelectBranch, "capsule/select", {"branch": 9}, errors.BranchNotFoundError),
        (PinCapsule, "capsule/pin", {"capsule": "nope"}, errors.CapsuleNotFoundError),
        (PinCapsule, "capsule/pin", HOME_OF_NONE, errors.UnknownEnvironmentError),
        (DropCapsule, "capsule/drop", HOME_OF_NONE, errors.UnknownEnvironmentError),
        (ListCapsules, "capsule/list", {"env_index": 7}, errors.UnknownEnvironmentError),
        (Step, "step", {"branch": 9}, errors.BranchNotFoundError),
        (Step, "step", {}, errors.TickSourceError),
        (Resume, "resume", {}, errors.NothingToResumeError),
        (Interrupt, "interrupt", {"env_index": 7}, errors.UnknownEnvironmentError),
    ],
)
def test_a_refused_verb_answers_with_its_code_and_changes_nothing(
    robot: Robot,
    kind: type,
    name: str,
    fields: dict[str, object],
    error: type[errors.FlashrtError],
) -> None:
    before = robot.peer.call(ListCapsules, f"{NODE}/capsule/list")
    reply = robot.peer.call(kind, f"{NODE}/{name}", **fields)
    assert not reply.success
    assert reply.error_code == error.code, reply.error_msg
    assert reply.error_msg
    after = robot.peer.call(ListCapsules, f"{NODE}/capsule/list")
    assert [c.id for c in after.capsules] == [c.id for c in before.capsules]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"values": [float("nan"), 0.0]}, errors.NonFiniteError),
        ({"values": [0.0]}, errors.PayloadShapeError),
        ({"values": [0.0, 0.0], "shape": [1, 2]}, errors.PayloadShapeError),
        ({"values": [0.0, 2.0]}, errors.PayloadRangeError),
        ({"channel": "nope"}, errors.UnknownChannelError),
        ({"env_index": 3}, errors.PayloadRangeError),
        ({"values": [], "text": "go left"}, errors.UnsupportedError),
        ({"text": "go left"}, errors.UnsupportedError),
    ],
)
def test_an_interrupt_with_a_bad_goal_interrupts_nothing(
    robot: Robot, changes: dict[str, object], error: type[errors.FlashrtError]
) -> None:
    before = robot.run()
    goal = robot.goal(10_000, **changes)
    reply = robot.peer.call(Interrupt, f"{NODE}/interrupt", has_goal=True, goal=goal)
    assert reply.error_code == error.code, reply.error_msg
    good = robot.peer.call(Interrupt, f"{NODE}/interrupt")
    assert (good.depth, good.generation) == (before.depth + 1, before.generation + 1)


def test_status_has_the_engines_figures(robot: Robot) -> None:
    robot.run()
    robot.statuses.clear()
    robot.peer.until(lambda: robot.statuses)
    status = robot.statuses[-1]
    assert status.engine == "engine"
    assert status.model == "minimal"
    assert status.state == "active"
    assert status.fingerprint
    assert status.tick_source == "timer"
    assert status.lanes_total >= status.lanes_used > 0
    assert list(status.tiers) == ["host", "disk"]  # the robot's engine has a folder


def test_a_subscription_with_incompatible_qos_is_reported(robot: Robot) -> None:
    from rclpy.qos import DurabilityPolicy, QoSProfile

    qos = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    subscription = robot.peer.node.create_subscription(
        Float64MultiArray, f"{NODE}/commands", lambda message: None, qos
    )
    robot.peer.until(
        lambda: [e for e in robot.events if "incompatible QoS" in e.detail], "a report"
    )
    robot.peer.node.destroy_subscription(subscription)
