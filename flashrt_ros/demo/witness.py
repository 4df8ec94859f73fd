"""The demo's own node: hears what is published, and keeps what the checks need of it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String

from flashrt_ros.demo.trace import Point, Pose
from flashrt_ros.demo.waiting import News
from flashrt_ros.msg import ActionChunk, EngineStatus, ExecutionEvent, Subgoal
from flashrt_ros.nodes.conversions import stamp_to_ns
from flashrt_ros.nodes.reports import EVENT_QOS, FACT_QOS, GOAL_QOS

NUM_FRAMES = 24
"""Camera frames kept, the newest ones."""

_WORDS = "instruction"  # as the planner node names what makes goals of words
_ROBOT_QOS = QoSProfile(depth=2, reliability=ReliabilityPolicy.RELIABLE)


@dataclass(frozen=True, slots=True)
class Truth:
    """Where everything is, as the simulator knows it; m and rad, table frame.

    Attributes:
        stamp_ns: Of the observation with the same stamp.
        agent: x, y.
        block: x, y, angle.
    """

    stamp_ns: int
    agent: Point
    block: Pose


@dataclass(frozen=True, slots=True)
class Chunk:
    """A published chunk and what it says it was made from; names as in ``ActionChunk``."""

    generation: int
    sequence: int
    tick: int
    goal_sequence: int
    goal_source_sequence: int
    goal_stamp_ns: int
    observation_sequence: int
    observation_stamp_ns: int
    score: float
    horizon: int
    action_dim: int
    actions: bytes

    @staticmethod
    def of(message: Any) -> Chunk:
        """Read a message."""
        return Chunk(
            generation=message.generation,
            sequence=message.sequence,
            tick=message.tick,
            goal_sequence=message.goal_sequence,
            goal_source_sequence=message.goal_source_sequence,
            goal_stamp_ns=stamp_to_ns(message.goal_stamp),
            observation_sequence=message.observation_sequence,
            observation_stamp_ns=stamp_to_ns(message.observation_stamp),
            score=message.score,
            horizon=message.horizon,
            action_dim=message.action_dim,
            actions=bytes(memoryview(message.actions).cast("B")),
        )


@dataclass(frozen=True, slots=True)
class Frame:
    """A recorded observation.

    Attributes:
        stamp_ns: When it was taken.
        image: The camera's message.
        joints: The joints' message of the same stamp.
    """

    stamp_ns: int
    image: Any
    joints: Any


@dataclass(frozen=True, slots=True)
class WordGoal:
    """A goal that the planner node made of words.

    Attributes:
        values: Its coordinates, m.
        heard_ns: When it was heard of, CLOCK_MONOTONIC.
    """

    values: tuple[float, ...]
    heard_ns: int


class Witness(Node):
    """Subscribes to everything the demo looks at.

    Callbacks run in an executor's thread; whoever reads a list while they run does so
    in ``news.wait`` or under ``news.change``.

    Args:
        news: Told of each message.

    Attributes:
        truths: Ground truth of the running episode; :meth:`begin_episode` empties it.
        frame_stamps: Stamps of every observation ever published, those of the demo too.
        frames: The newest camera frames with their joints.
        chunks: Every chunk published, oldest first.
        events: Every event of the policy node, oldest first.
        goal_events: Every event of the planner node, oldest first.
        goals: Number and stamp of every goal that the planner process sent, or that the
            planner node made of words.
        from_words: Goals that the planner node made of words, in order.
        scenes: What the robot said of where things are, in order.
        refusals: What the policy node's diagnostics count, by ``"<source> <code name>"``.
        commands: Every command to the robot ever published, oldest first.
        status: The policy node's newest status.
        images: Publisher of camera pictures, as the robot's.
        joints: Publisher of joint states, as the robot's.
        words: Publisher of instructions.
    """

    def __init__(self, news: News) -> None:
        super().__init__("demo")
        self.news = news
        self.truths: list[Truth] = []
        self.frame_stamps: set[int] = set()
        self.frames: deque[Frame] = deque(maxlen=NUM_FRAMES)
        self.chunks: list[Chunk] = []
        self.events: list[Any] = []
        self.goal_events: list[Any] = []
        self.goals: set[tuple[int, int]] = set()
        self.from_words: list[WordGoal] = []
        self.scenes: list[str] = []
        self.refusals: dict[str, int] = {}
        self.commands: list[tuple[float, ...]] = []
        self.status: Any = None
        self._joints: dict[int, Any] = {}
        self.images = self.create_publisher(Image, "image", _ROBOT_QOS)
        self.joints = self.create_publisher(JointState, "joint_states", _ROBOT_QOS)
        self.words = self.create_publisher(String, "instruction", GOAL_QOS)
        for kind, topic, take, qos in (
            (JointState, "sim/ground_truth", self._take_truth, _ROBOT_QOS),
            (JointState, "joint_states", self._take_joints, qos_profile_sensor_data),
            (Image, "image", self._take_image, qos_profile_sensor_data),
            (ActionChunk, "policy_node/action_chunk", self._take_chunk, EVENT_QOS),
            (ExecutionEvent, "policy_node/events", self._take_event, EVENT_QOS),
            (ExecutionEvent, "planner_node/events", self._take_goal_event, EVENT_QOS),
            (Float64MultiArray, "policy_node/commands", self._take_command, EVENT_QOS),
            (EngineStatus, "policy_node/status", self._take_status, FACT_QOS),
            (Subgoal, "demo_planner/sent", self._take_goal, GOAL_QOS),
            (Subgoal, "planner_node/accepted", self._take_accepted, GOAL_QOS),
            (String, "scene", self._take_scene, GOAL_QOS),
            (DiagnosticArray, "/diagnostics", self._take_diagnostics, 10),
        ):
            self.create_subscription(kind, topic, take, qos)

    def begin_episode(self) -> None:
        """Forget the ground truth heard so far."""
        with self.news.change():
            self.truths.clear()

    def now_ns(self) -> int:
        """Return the node's clock, ns."""
        return int(self.get_clock().now().nanoseconds)

    def agent_at(self, stamp_ns: int) -> Point | None:
        """Return where the joint states of a stamp have the agent, None if they are not kept.

        Those of the newest :data:`NUM_FRAMES` observations are; call it under the lock.
        """
        message = self._joints.get(stamp_ns)
        if message is None:
            return None
        values = dict(zip(message.name, message.position, strict=True))
        return values["agent_x"], values["agent_y"]

    def _take_truth(self, message: Any) -> None:
        values = dict(zip(message.name, message.position, strict=True))
        truth = Truth(
            stamp_to_ns(message.header.stamp),
            (values["agent_x"], values["agent_y"]),
            (values["block_x"], values["block_y"], values["block_angle"]),
        )
        with self.news.change():
            self.truths.append(truth)

    def _take_joints(self, message: Any) -> None:
        stamp_ns = stamp_to_ns(message.header.stamp)
        with self.news.change():
            self._joints[stamp_ns] = message
            self.frame_stamps.add(stamp_ns)
            while len(self._joints) > NUM_FRAMES:
                self._joints.pop(min(self._joints))

    def _take_image(self, message: Any) -> None:
        stamp_ns = stamp_to_ns(message.header.stamp)
        with self.news.change():
            joints = self._joints.get(stamp_ns)
            if joints is not None and (not self.frames or self.frames[-1].stamp_ns < stamp_ns):
                self.frames.append(Frame(stamp_ns, message, joints))

    def _take_chunk(self, message: Any) -> None:
        chunk = Chunk.of(message)
        with self.news.change():
            self.chunks.append(chunk)

    def _take_event(self, message: Any) -> None:
        with self.news.change():
            self.events.append(message)

    def _take_goal_event(self, message: Any) -> None:
        with self.news.change():
            self.goal_events.append(message)

    def _take_goal(self, message: Any) -> None:
        with self.news.change():
            self.goals.add((message.sequence, stamp_to_ns(message.header.stamp)))

    def _take_accepted(self, message: Any) -> None:
        if message.planner != _WORDS:
            return
        goal = WordGoal(tuple(message.values), time.monotonic_ns())
        with self.news.change():
            self.goals.add((message.sequence, stamp_to_ns(message.header.stamp)))
            self.from_words.append(goal)

    def _take_scene(self, message: Any) -> None:
        with self.news.change():
            self.scenes.append(message.data)

    def _take_command(self, message: Any) -> None:
        with self.news.change():
            self.commands.append(tuple(message.data))

    def _take_status(self, message: Any) -> None:
        with self.news.change():
            self.status = message

    def _take_diagnostics(self, message: Any) -> None:
        counts = {
            value.key.removeprefix("refused: "): int(value.value)
            for status in message.status
            if status.name.endswith("policy_node")
            for value in status.values
            if value.key.startswith("refused: ")
        }
        if counts:
            with self.news.change():
                self.refusals.update(counts)
