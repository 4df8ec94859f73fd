"""The table as a robot: a camera, two joints, position commands in, and a reset of its own."""

from __future__ import annotations

import array
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from rclpy.impl.rcutils_logger import RcutilsLogger
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import SetBool

from flashrt_ros.engine.leaving import leave
from flashrt_ros.errors import (
    BusyError,
    ConfigError,
    FlashrtError,
    NonFiniteError,
    PayloadShapeError,
    SpecError,
    UnknownEnvironmentError,
)
from flashrt_ros.models.planner_text import scene_text
from flashrt_ros.nodes.conversions import ns_to_stamp
from flashrt_ros.nodes.declarations import SIM
from flashrt_ros.nodes.episode_part import EpisodePartService
from flashrt_ros.nodes.messages import header
from flashrt_ros.nodes.parameters import construct, declare, read
from flashrt_ros.nodes.process import (
    BAD_CONFIGURATION,
    shut_down,
    start_node,
    stop_signals,
)
from flashrt_ros.nodes.reports import GOAL_QOS
from flashrt_ros.nodes.services import serve
from flashrt_ros.nodes.spinning import Spinner
from flashrt_ros.sim.episodes import Episode, sample_episode
from flashrt_ros.sim.state import SimPart, SimState
from flashrt_ros.sim.table import Table, TableState
from flashrt_ros.srv import ResetSimulator

NAME = "sim"
"""Name of the node."""

SCENE_S = 1.0
"""How often the scene is told while nothing moves, s."""

# Reliable and two deep: a best-effort reader is served as well, and a reliable one loses
# no frame in lockstep, where the next one waits for the answer to this one.
_SENSOR_QOS = QoSProfile(depth=2, reliability=ReliabilityPolicy.RELIABLE)
_COMMAND_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)


@dataclass(frozen=True, slots=True)
class _Begun:
    """The answer to a reset."""

    episode_id: str
    seed: int
    stamp_ns: int


class SimNode(Node):
    """Publishes ``image`` and ``joint_states`` with one stamp, takes ``commands``.

    In real time a tick passes at ``rate_hz`` whether or not a command came; in
    lockstep one tick passes for each command, so that nothing depends on the clock.
    Positions are metres in the table's frame. ``~/ground_truth`` holds the block's
    pose and the subgoal by name, for scoring only. ``scene`` tells in words where block and
    pusher are, for a planner that reads: whenever it has changed by a millimetre, and every
    :data:`SCENE_S`, so that one who comes late hears it too.

    Args:
        cli_args: ROS arguments for this node alone.

    Raises:
        ConfigError: ``joint_names`` has not two names.
        UnknownParameterError: A parameter was given that nothing declares.
        ParameterTypeError: A parameter has another type than declared.
        ParameterRangeError: A parameter lies outside its range.
    """

    def __init__(self, *, cli_args: Sequence[str] = ()) -> None:
        construct(
            lambda: Node.__init__(
                self,
                NAME,
                cli_args=list(cli_args),
                allow_undeclared_parameters=True,
                automatically_declare_parameters_from_overrides=True,
            )
        )
        self._log = cast(RcutilsLogger, cast(Any, self).get_logger())
        declare(self, SIM)
        settings = read(self, SIM)
        self._joint_names = list(settings.texts("joint_names"))
        if len(self._joint_names) != 2:
            raise ConfigError(
                "parameter 'joint_names' does not fit the simulated robot",
                expected="2 names",
                found=", ".join(self._joint_names),
            )
        self._camera_frame = settings.text("camera_frame")
        self._table_frame = settings.text("table_frame")
        self._is_lockstep = settings.text("mode") == "lockstep"
        self._republish_ns = settings.seconds_ns("republish_s")
        self._table = Table()
        self._is_paused = False
        self._target: tuple[float, float] | None = None
        self._stamp_ns = 0
        self._sent_ns = 0
        self._episode: Episode | None = None
        self._observation: tuple[Image, JointState, JointState] | None = None
        self._images = self.create_publisher(Image, "image", _SENSOR_QOS)
        self._joints = self.create_publisher(JointState, "joint_states", _SENSOR_QOS)
        self._truth = self.create_publisher(JointState, "~/ground_truth", _SENSOR_QOS)
        self._scenes = self.create_publisher(String, "scene", GOAL_QOS)
        self._scene = ""
        self._told_ns = 0
        self.create_subscription(Float64MultiArray, "commands", self._command, _COMMAND_QOS)
        serve(self, ResetSimulator, "~/reset", self._reset)
        serve(self, SetBool, "~/pause", self._pause)
        self._part = SimPart(self._state, self._put_state, self._go_on)
        EpisodePartService(self, self._part)
        self._is_due = False
        self._begun = self._begin(settings.integer("seed"), "")
        rate_hz = settings.number("rate_hz")
        self.create_timer(1.0 / rate_hz, self._tick)
        pace = "a tick for each command" if self._is_lockstep else f"{rate_hz:g} Hz"
        self._log.info(f"publishing: seed {self._begun.seed}, {pace}")

    def close(self) -> None:
        """Free the simulator; idempotent."""
        self._table.close()

    # time ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Let a tick pass in real time; otherwise repeat what nobody answered."""
        if self._part.is_held:
            return
        if not self._is_lockstep and not self._is_paused:
            self._advance()
        elif time.monotonic_ns() - self._sent_ns >= self._republish_ns:
            self._publish()
        self._tell_scene()

    def _command(self, message: Float64MultiArray) -> None:
        values = np.asarray(message.data, np.float64)
        try:
            if values.shape != (2,):
                raise PayloadShapeError(
                    "the command does not fit the robot", expected="2 positions", found=values.size
                )
            if not np.isfinite(values).all():
                raise NonFiniteError("the command holds NaN or Inf", found=values.tolist())
        except FlashrtError as error:
            self._log.error(
                f"commands refused: {error.name} ({error.code}): {error}",
                throttle_duration_sec=1.0,
            )
            return
        self._target = (float(values[0]), float(values[1]))
        self._is_due = self._is_lockstep and self._part.is_held
        if self._is_lockstep and not self._is_paused and not self._is_due:
            self._advance()

    def _advance(self) -> None:
        self._table.step(self._target if self._target is not None else self._table.agent())
        self._observe()
        self._publish()

    # observations ----------------------------------------------------------------------------

    def _observe(self) -> None:
        """Take a picture and the poses under one new stamp, later than any before."""
        self._stamp_ns = max(int(self.get_clock().now().nanoseconds), self._stamp_ns + 1)
        pixels = self._table.render()
        agent, block = self._table.agent(), self._table.block()
        subgoal = self._episode.subgoal if self._episode is not None else agent
        camera, table = (
            header(self._stamp_ns, frame) for frame in (self._camera_frame, self._table_frame)
        )
        image = Image(
            header=camera,
            height=pixels.shape[0],
            width=pixels.shape[1],
            encoding="rgb8",
            step=pixels.shape[1] * 3,
            data=array.array("B", pixels.tobytes()),
        )
        joints = JointState(header=table, name=self._joint_names, position=array.array("d", agent))
        truth = JointState(
            header=table,
            name=[
                "agent_x",
                "agent_y",
                "block_x",
                "block_y",
                "block_angle",
                "subgoal_x",
                "subgoal_y",
            ],
            position=array.array("d", (*agent, *block, *subgoal)),
        )
        self._observation = image, joints, truth

    def _publish(self) -> None:
        assert self._observation is not None
        image, joints, truth = self._observation
        self._truth.publish(truth)
        self._joints.publish(joints)
        self._images.publish(image)
        self._sent_ns = time.monotonic_ns()
        self._tell_scene()

    def _tell_scene(self) -> None:
        """Publish the scene if it has changed, or if it is long since it was told."""
        scene = scene_text(self._table.block_center(), self._table.agent())
        now_ns = time.monotonic_ns()
        if scene == self._scene and now_ns - self._told_ns < SCENE_S * 1e9:
            return
        self._scene, self._told_ns = scene, now_ns
        self._scenes.publish(String(data=scene))

    # episodes --------------------------------------------------------------------------------

    def _state(self) -> SimState:
        state = self._table.state()
        self._table.set_state(state)
        return SimState(
            seed=self._begun.seed,
            episode_id=self._begun.episode_id,
            agent=state.agent,
            agent_velocity=state.agent_velocity,
            block=state.block,
            target=self._target,
            is_due=self._is_due,
        )

    def _put_state(self, state: SimState) -> None:
        self._episode = sample_episode(state.seed)
        self._begun = _Begun(state.episode_id, state.seed, self._stamp_ns)
        self._table.set_state(TableState(state.agent, state.agent_velocity, state.block))
        self._target = state.target
        self._is_due = state.is_due

    def _go_on(self, was_put: bool) -> None:
        is_due, self._is_due = self._is_due, False
        if was_put:
            self._observe()
            self._publish()
        if is_due and not self._is_paused:
            self._advance()

    # services --------------------------------------------------------------------------------

    def _begin(self, seed: int, episode_id: str) -> _Begun:
        self._episode = self._table.reset(seed)
        self._target = None
        self._observe()
        self._publish()
        return _Begun(episode_id, seed, self._stamp_ns)

    def _reset(self, request: ResetSimulator.Request, response: ResetSimulator.Response) -> None:
        if request.env_index != 0:
            raise UnknownEnvironmentError(
                f"the simulator has no environment {request.env_index}",
                expected="0",
                found=request.env_index,
            )
        if self._part.is_held:
            raise BusyError("an episode is being taken or restored", fix="ask again after it")
        last = self._begun
        if not request.episode_id or request.episode_id != last.episode_id:
            seed = request.seed if request.has_seed else last.seed + 1
            self._begun = self._begin(int(seed), request.episode_id)
        elif request.has_seed and request.seed != last.seed:
            raise SpecError(
                f"episode '{last.episode_id}' was reset already, with another seed",
                expected=last.seed,
                found=request.seed,
                fix="give a new episode an id of its own",
            )
        response.seed = self._begun.seed
        response.stamp = ns_to_stamp(self._begun.stamp_ns)

    def _pause(self, request: SetBool.Request, response: SetBool.Response) -> None:
        self._is_paused = request.data
        response.message = "paused" if request.data else "running"


def main(args: Sequence[str] | None = None) -> int:
    """Run the simulator until it is told to stop; returns the exit code."""
    with stop_signals() as stop:
        node = start_node(SimNode, sys.argv if args is None else args)
        if node is None:
            return BAD_CONFIGURATION
        node.context.on_shutdown(stop.set)
        spinner = Spinner(node, "sim")
        stop.wait()
        shut_down([spinner], node.close, [node])
    return 0


if __name__ == "__main__":
    leave(main())
