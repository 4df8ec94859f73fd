"""A planner engine behind the planner node: instructions go in, subgoals come out in order."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from flashrt_ros.engine import protocol
from flashrt_ros.errors import (
    BusyError,
    ConfigError,
    FlashrtError,
    NotActiveError,
    UnknownEnvironmentError,
    UnsupportedError,
    from_wire,
)
from flashrt_ros.nodes.capsule_services import CapsuleServices
from flashrt_ros.nodes.conversions import joint_positions
from flashrt_ros.nodes.episode_part import EpisodePartService
from flashrt_ros.nodes.episode_planner import PlannerPart
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.goals import only_field
from flashrt_ros.nodes.interrupt_service import fill_interrupt
from flashrt_ros.nodes.links import Link
from flashrt_ros.nodes.outputs import OutputReader
from flashrt_ros.nodes.parameters import Settings
from flashrt_ros.nodes.reports import GOAL_QOS
from flashrt_ros.nodes.services import serve
from flashrt_ros.nodes.session import SessionNode
from flashrt_ros.nodes.subgoals import SubgoalSequence, SubgoalThread
from flashrt_ros.srv import Interrupt


class HostedModel:
    """The node's session with a planner engine, from :meth:`open` to :meth:`close`.

    The services over capsules, ``~/reset``, ``~/interrupt`` and ``~/resume`` appear with
    the first session, and concern the planner's text, not the policy.

    Args:
        node: Owner.
        on_subgoal: Makes a goal of a subgoal, in the channel's frame, in a thread of the
            model's own; returns the policy engine's number of it, 0 where it was refused.
        on_refusal: Told that an instruction can't be followed, in another thread of its own.

    Attributes:
        scene: Line that the next instructions are read after.
        is_held: Whether instructions are refused, because an episode is taken or restored.
        last_turn: Number of the turn begun last, 0 for none.
        has_first_channel: Whether subgoals go to the policy's first goal channel, which the
            numbers of goals in its chunks are of.
    """

    def __init__(
        self,
        node: SessionNode,
        *,
        on_subgoal: Callable[[tuple[float, ...]], int],
        on_refusal: Callable[[FlashrtError], None],
    ) -> None:
        self._node = node
        self._on_subgoal = on_subgoal
        self._on_refusal = on_refusal
        self._link = Link(node.fault)
        self._fence = Fence()
        self._reader: OutputReader | None = None
        self._thread: SubgoalThread | None = None
        self._joint_names: tuple[str, ...] = ()
        self.scene = ""
        self.is_held = False
        self.last_turn = 0
        self.has_first_channel = True
        self._part: EpisodePartService | None = None
        self._has_interfaces = False
        self._listens_to_joints = False

    @property
    def is_open(self) -> bool:
        """Whether the node hosts a model now."""
        return self._reader is not None

    @property
    def thread(self) -> SubgoalThread:
        """Makes goals of subgoals.

        Raises:
            NotActiveError: The node hosts no model now.
        """
        if self._thread is None:
            raise NotActiveError("the node has no session with a planner engine")
        return self._thread

    @property
    def num_waiting(self) -> int:
        """Subgoals that are not goals yet."""
        return self._thread.num_waiting if self._thread is not None else 0

    def open(
        self, settings: Settings, channel: protocol.ChannelInfo, joint_names: tuple[str, ...]
    ) -> None:
        """Attach to the planner engine, waiting while it loads and builds its prefixes.

        Args:
            settings: Parameters in force, ``model_engine`` among them.
            channel: Goal channel that subgoals go to.
            joint_names: Joints whose positions say where the robot is.

        Raises:
            EngineGoneError: No engine answered in time.
            ConfigError: It is no planner's, or its subgoals don't fit the channel.
            UnknownEnvironmentError: It has no such environment.
        """
        name = settings.text("model_engine")
        wait_s = settings.number("connect_timeout_s")
        env_index = settings.integer("env_index")
        client = self._node.connect(
            "model", wait_s=wait_s, engine=name, start_with="python -m flashrt_ros.planner"
        )
        self._link.attach(client)
        check_subgoals(client.model, channel)
        if env_index >= client.model.num_environments:
            raise UnknownEnvironmentError(
                f"planner engine '{name}' has no environment {env_index}",
                expected=f"env_index below {client.model.num_environments}",
                found=env_index,
            )
        self._fence.attach(client.engine_epoch)
        self.last_turn = 0
        assert self._node.model is not None
        goals = [one.name for one in self._node.model.channels if one.role == "goal"]
        self.has_first_channel = channel.name == goals[0]
        self._joint_names = joint_names
        self._thread = SubgoalThread(
            SubgoalSequence(
                dwell_ns=settings.seconds_ns("subgoal_dwell_s"),
                reached_m=settings.number("subgoal_reached_m"),
            ),
            now_ns=self._node.reports.now_ns,
            commit=self._on_subgoal,
            on_error=self._node.log_error,
        )
        self._reader = OutputReader(
            self._node.connect("model_events", engine=name),
            env_index=env_index,
            fence=self._fence,
            on_event=self._take_event,
            on_gone=self._node.fault,
            on_error=self._node.log_error,
        )
        self._offer_interfaces(env_index, listens=settings.number("subgoal_reached_m") > 0)

    def instruct(self, text: str) -> int:
        """Begin a turn as the parameters say; the one under way is abandoned.

        Returns:
            The turn's number.

        Raises:
            BusyError: An episode is being taken or restored.
            FlashrtError: The engine refused the instruction.
        """
        if self.is_held:
            raise BusyError("an episode is being taken or restored", fix="say it again after it")
        settings = self._node.settings
        count = settings.integer("num_candidates")
        with self._link as client:
            begun = client.begin_turn(
                text,
                env_index=settings.integer("env_index"),
                context=self.scene,
                mode=settings.text("instruction_mode"),
                seeds=tuple(range(count)) if count > 1 else (),
                temperature=settings.number("plan_temperature"),
                scorer=settings.text("plan_scorer"),
            )
        self.last_turn = begun.turn
        return begun.turn

    def stop(self, env_index: int) -> None:
        """End the turn under way, and forget what of plans is not a goal yet."""
        request = protocol.CancelTurn(0, env_index)
        try:
            with self._link as client:
                client.call(request, protocol.Moved, timeout_s=self._node.patience_s)
        except NotActiveError:
            pass  # there was none
        except FlashrtError as error:
            self._node.log_error(f"the planner's turn could not be ended: {error}")
        if self._thread is not None:
            self._thread.clear()
        self.scene = ""

    def close(self) -> None:
        """End the session: threads joined, connections closed. Idempotent."""
        if self._part is not None:
            self._part.end()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        self._link.close()

    def cut(self) -> None:
        """End every wait for the engine, from any thread."""
        self._link.cut()

    def _take_event(self, event: protocol.Event) -> None:
        self._node.reports.event(event)
        if self._thread is not None:
            self._thread.note(event)
        refusal = read_refusal(event)
        if refusal is not None:
            self._on_refusal(refusal)

    # interfaces ------------------------------------------------------------------------------

    def _offer_interfaces(self, env_index: int, *, listens: bool) -> None:
        """Create what only a node with a model has, once."""
        node = self._node
        if not self._has_interfaces:
            self._has_interfaces = True
            CapsuleServices(
                node,
                self._link,
                self._fence,
                env_index=lambda: node.settings.integer("env_index"),
                now_ns=node.reports.now_ns,
            )
            serve(node, Interrupt, "~/interrupt", self._interrupt)
            self._part = EpisodePartService(
                node,
                PlannerPart(
                    self,
                    self._link,
                    env_index=lambda: node.settings.integer("env_index"),
                    on_moved=self._note_moved,
                ),
                env_index=lambda: node.settings.integer("env_index"),
                is_offered=lambda: self.is_open,
            )
            node.inputs.create_subscription(
                String,
                "scene",
                self._take_scene,
                GOAL_QOS,
                event_callbacks=node.reports.subscription_events("scene"),
            )
        if listens and not self._listens_to_joints:
            self._listens_to_joints = True
            node.inputs.create_subscription(
                JointState,
                "joint_states",
                self._take_joints,
                copy.copy(qos_profile_sensor_data),  # an override is written into it
                event_callbacks=node.reports.subscription_events("joint_states"),
            )

    def _note_moved(self, moved: protocol.Moved) -> None:
        self._fence.raise_to(self._node.settings.integer("env_index"), moved.generation)

    def _take_scene(self, message: String) -> None:
        self.scene = message.data

    def _take_joints(self, message: JointState) -> None:
        if self._thread is None:
            return
        try:
            self._thread.note_position(joint_positions(message, self._joint_names).tolist())
        except FlashrtError as error:
            self._node.reports.refused("joint_states", error)

    def _interrupt(self, request: Interrupt.Request, response: Interrupt.Response) -> None:
        if request.has_goal:
            raise UnsupportedError(
                "a planner's turn can't be interrupted with a goal",
                fix="call ~/interrupt of the policy node, or publish an instruction",
            )
        with self._link as client:
            reply = client.interrupt(
                env_index=request.env_index, reason=request.reason, hold=request.hold
            )
        self._fence.raise_to(request.env_index, reply.generation)
        fill_interrupt(response, reply, self._fence)


def read_refusal(event: protocol.Event) -> FlashrtError | None:
    """Return what a turn says that failed, or made a plan without a subgoal; else None."""
    if event.kind != protocol.EventKind.TURN:
        return None
    said = protocol.parse_detail(event.detail)
    if said.word == "failed":
        turn, code = said.facts["turn"], int(said.facts["code"])
        return from_wire(code, f"turn {turn} failed: {said.text}")
    if said.word != "done" or said.facts["subgoals"] != "0":
        return None
    return UnsupportedError(
        "the instruction can't be followed",
        expected="words, and a scene where they need one, that the planner's model was made for",
        found=f"a plan without a subgoal, turn {said.facts['turn']}",
    )


def check_subgoals(model: protocol.ModelInfo, channel: protocol.ChannelInfo) -> None:
    """Return unless a planner's subgoals can be no goals of a channel.

    Args:
        model: What the planner engine said of its model.
        channel: Of the policy.

    Raises:
        ConfigError: The engine is no planner's, or numbers, range or frame differ.
    """
    offered = next((one for one in model.channels if one.role == "subgoal"), None)
    if offered is None:
        raise ConfigError(
            f"parameter 'model_engine' names an engine of the model '{model.name}'",
            expected="a planner engine",
        )
    made, taken = only_field(offered), only_field(channel)
    if math.prod(made.shape) != math.prod(taken.shape) or taken.dtype != "float32":
        raise ConfigError(
            f"the planner's subgoals don't fit goal channel '{channel.name}'",
            expected=f"{taken.dtype}{list(taken.shape)}",
            found=f"{made.dtype}{list(made.shape)}",
        )
    low, high = _range(taken)
    made_low, made_high = _range(made)
    if made_low < low or made_high > high:
        raise ConfigError(
            f"the planner's subgoals leave the range of goal channel '{channel.name}'",
            expected=f"within {low:g} to {high:g}",
            found=f"{made_low:g} to {made_high:g}",
            fix="set subgoal_low and subgoal_high of the planner engine",
        )
    if channel.frame and offered.frame != channel.frame:
        raise ConfigError(
            f"the planner's subgoals stand in another frame than goal channel '{channel.name}'",
            expected=channel.frame,
            found=offered.frame or "none",
            fix="set subgoal_frame of the planner engine",
        )


def _range(field: protocol.FieldInfo) -> tuple[float, float]:
    low = -math.inf if field.low is None else field.low
    high = math.inf if field.high is None else field.high
    return low, high
