"""The planner node: goals from ROS topics into the engine's goal slots."""

from __future__ import annotations

import array
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient, Writer
from flashrt_ros.engine.leaving import leave
from flashrt_ros.errors import FlashrtError, NotActiveError, PayloadShapeError
from flashrt_ros.msg import Subgoal
from flashrt_ros.nodes import messages
from flashrt_ros.nodes.arbitration import Arbiter, Rank, parse_ranks
from flashrt_ros.nodes.clocks import ClockWatch
from flashrt_ros.nodes.conversions import duration_to_ns, joint_positions
from flashrt_ros.nodes.declarations import PLANNER
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.goals import Goal, GoalChecker, only_field, require_frame
from flashrt_ros.nodes.hosted_model import HostedModel
from flashrt_ros.nodes.links import Link
from flashrt_ros.nodes.names import check_planner, one_word
from flashrt_ros.nodes.outputs import OutputReader
from flashrt_ros.nodes.parameters import Settings
from flashrt_ros.nodes.poses import pose_goal
from flashrt_ros.nodes.process import run_node
from flashrt_ros.nodes.reports import GOAL_QOS
from flashrt_ros.nodes.routes import Routes, check_named_goals, parse_routes
from flashrt_ros.nodes.schema import apply_schema, parse_schema
from flashrt_ros.nodes.session import SessionNode
from flashrt_ros.nodes.words import is_named, parse_named_goals

NAME = "planner_node"

_FORWARDED = frozenset(
    {protocol.EventKind.GOAL, protocol.EventKind.STALE, protocol.EventKind.FAULT}
)


class PlannerNode(SessionNode):
    """Arbitrates between planners and commits the goals that win.

    A higher priority wins, then the newest stamp; each planner's sequence must grow,
    and what is too old, in an unknown frame, of another shape or not finite is refused
    with its code, in the log and as an event. Goals count only while the node is active.
    """

    def __init__(self, *, cli_args: Sequence[str] = ()) -> None:
        super().__init__(NAME, PLANNER, cli_args=cli_args)
        self._slots = Link(self.fault)
        self._fence = Fence()
        self._writers: dict[str, Writer] = {}
        self._arbiter: Arbiter | None = None
        self._checker: GoalChecker | None = None
        self._routes: Routes | None = None
        self._joint_names: tuple[str, ...] = ()
        self._outputs: OutputReader | None = None
        self._model = HostedModel(
            self,
            on_subgoal=self._take_subgoal,
            on_refusal=lambda error: self._refuse("instruction", None, error),
        )
        self._named_goals: dict[str, tuple[float, ...]] = {}
        self._clock_watch = ClockWatch()
        self._is_active = False
        self._lock = threading.Lock()
        self._num_accepted = 0
        self._accepted = self.reports.publisher(Subgoal, "~/accepted", GOAL_QOS)
        self._listen(Subgoal, "subgoal", lambda message: message)
        self._listen(PoseStamped, "goal_pose", self._from_pose)
        self._listen(JointState, "goal_joints", self._from_joints)
        self._listen(String, "instruction", self._from_text)

    # lifecycle -------------------------------------------------------------------------------

    def open_session(self, settings: Settings, client: EngineClient) -> None:
        """Open a writer of each goal channel served, and listen to the engine's events."""
        model = apply_schema(client.model, parse_schema(settings.texts("goal_schema")))
        env_index = settings.integer("env_index")
        routes = parse_routes(settings.texts("channels"), settings.text("channel"), model)
        self._routes = routes
        self._joint_names = settings.texts("joint_names") or model.joint_names
        future_ns = settings.seconds_ns("future_tolerance_s")
        lease_ns = settings.seconds_ns("lease_s")
        named_goals = parse_named_goals(settings.texts("named_goals"))
        self._arbiter = Arbiter(
            parse_ranks(settings.texts("planners"), lease_ns=lease_ns),
            Rank(settings.integer("default_priority"), lease_ns),
            max_planners=settings.integer("max_planners"),
            tolerance_ns=future_ns,
        )
        self._clock_watch = ClockWatch(future_ns)
        self._checker = GoalChecker(
            model,
            self.frames,
            lifetime_ns=settings.seconds_ns("goal_lifetime_s"),
            future_ns=future_ns,
            arbiter=self._arbiter,
            named_goals=named_goals,
        )
        check_named_goals(routes, named_goals)
        self._fence.attach(client.engine_epoch)
        slots = self.connect("slots")
        self._slots.attach(slots)
        self._writers = {name: slots.open_writer(name, env_index) for name in routes.channels}
        self._outputs = OutputReader(
            self.connect("outputs"),
            env_index=env_index,
            fence=self._fence,
            on_event=self._forward,
            on_gone=self.fault,
            on_error=self.log_error,
        )
        self._named_goals = named_goals
        if settings.text("model_engine"):
            self._model.open(settings, routes.channel("instruction"), self._joint_names)

    def activate(self) -> None:
        """Take goals from here on; planners may number from the start again."""
        with self._lock:
            assert self._checker is not None
            self._checker.forget()
            self._is_active = True
        self.log.info("active")

    def deactivate(self) -> None:
        """Take no goal any more; returns after the one in progress."""
        with self._lock:
            self._is_active = False
        if self._model.is_open:
            self._model.stop(self.settings.integer("env_index"))

    def lost(self, error: FlashrtError) -> None:
        """Say that goals lead nowhere; called with a goal in progress, perhaps."""
        self._is_active = False
        self.say(protocol.EventKind.FAULT, f"{error.name}: {error}", epoch=self._fence.epoch)

    def close_session(self) -> None:
        """Join the reader, close the connections."""
        with self._lock:
            self._is_active = False
            self._writers = {}
            self._checker = None
            self._arbiter = None
        self._model.close()
        if self._outputs is not None:
            self._outputs.close()
            self._outputs = None
        self._slots.close()

    def cut(self) -> None:
        """End every wait for the engine; a goal in progress fails."""
        super().cut()
        self._slots.cut()
        self._model.cut()

    def facts(self) -> dict[str, object]:
        """Return what diagnostics add for this node; refusals are counted beside them."""
        arbiter, routes = self._arbiter, self._routes
        facts: dict[str, object] = {"goals accepted": self._num_accepted}
        if arbiter is None or routes is None:
            return facts
        for name in routes.channels:
            of = "" if len(routes.channels) == 1 else f" of {name}"
            place = (self.settings.integer("env_index"), name)
            holder = arbiter.holder(place, self.reports.now_ns())
            facts[f"planners{of} known"] = arbiter.num_known(place)
            if holder is not None:
                facts[f"goal{of} from"] = (
                    f"{holder.planner} (priority {holder.priority}, "
                    f"lease {holder.left_ns / 1e9:.2f} s)"
                )
        facts["hand-overs"] = arbiter.num_hand_overs
        facts["planners forgotten"] = arbiter.num_forgotten
        if self._model.is_open:
            facts["subgoals waiting"] = self._model.num_waiting
        return facts

    def _forward(self, event: protocol.Event) -> None:
        """Pass on what became of goals; the policy node tells the rest."""
        if event.kind in _FORWARDED:
            self.reports.event(event)

    # goals -----------------------------------------------------------------------------------

    def _listen(self, kind: Any, topic: str, convert: Callable[[Any], Subgoal | None]) -> None:
        def take(message: Any) -> None:
            with self._lock:
                try:
                    if not self._is_active:
                        raise NotActiveError(
                            "the node takes no goals now",
                            expected="state active",
                            found=self.state_label,
                        )
                    goal = convert(message)
                    if goal is not None:
                        self._commit(topic, goal)
                except FlashrtError as error:
                    self._refuse(topic, message, error)

        self.inputs.create_subscription(
            kind,
            topic,
            take,
            GOAL_QOS,
            event_callbacks=self.reports.subscription_events(topic),
        )

    def _commit(self, topic: str, goal: Subgoal) -> int:
        """Check and commit a goal; return the engine's number of it."""
        assert self._checker is not None
        assert self._routes is not None
        goal.planner = goal.planner or topic  # who says no name is one with the topic's others
        check_planner(goal.planner)
        goal.channel = self._routes.channel(topic, goal.channel).name
        env_index = self.settings.integer("env_index")
        now_ns = self.reports.now_ns()
        checked = self._checker.check(goal, env_index=env_index, now_ns=now_ns)
        with self._slots as client:
            if self._clock_watch.is_set_back(now_ns):
                client.rewind(now_ns, env_index=env_index)
                self._clock_watch.accept(now_ns)
            sequence = self._writers[checked.channel].write(
                stamp_ns=checked.stamp_ns,
                source_sequence=checked.sequence,
                lifetime_ns=duration_to_ns(goal.lifetime),
                **{checked.field: checked.values},
            )
        self._checker.accept(goal, checked, now_ns=now_ns)
        self._num_accepted += 1
        self._accepted.publish(self._as_accepted(goal, checked))
        ruling = checked.ruling
        detail = protocol.format_detail(
            "accepted",
            topic=topic,
            planner=goal.planner,
            channel=checked.channel if checked.channel != self._routes.first else None,
            won=ruling.reason,
            over=ruling.over or None,
            restarted="true" if ruling.is_restart else None,
            sequence=goal.sequence,
            engine_sequence=sequence,
        )
        self.say(
            protocol.EventKind.GOAL,
            detail,
            epoch=self._fence.epoch,
            generation=self._fence.generation(goal.env_index),
        )
        return sequence

    def _as_accepted(self, goal: Subgoal, checked: Goal) -> Subgoal:
        """Return the goal as it was committed: in the channel's frame and shape."""
        assert self._routes is not None
        goal.header.frame_id = self._routes.channels[checked.channel].frame or goal.header.frame_id
        if checked.values.dtype.kind == "f":
            goal.values = array.array("f", checked.values.ravel().tolist())
            goal.shape = array.array("I", checked.values.shape)
        return goal

    def _refuse(self, topic: str, message: Any, error: FlashrtError) -> None:
        self.reports.refused(topic, error)
        sender = message if isinstance(message, Subgoal) else None
        detail = protocol.format_detail(
            "refused",
            topic=topic,
            planner=one_word(sender.planner) if sender is not None else None,
            sequence=sender.sequence if sender is not None else None,
            code=error.code,
            name=error.name,
            text=str(error),
        )
        self.say(protocol.EventKind.GOAL, detail, epoch=self._fence.epoch)

    def _from_pose(self, pose: PoseStamped) -> Subgoal:
        channel = self._channel_of("goal_pose")
        frame, target = pose.header.frame_id, channel.frame
        require_frame(frame, target)
        field = only_field(channel)
        values = pose_goal(pose.pose, field, self.frames, source=frame, target=target)
        pose.header.frame_id = target
        return self._subgoal("goal_pose", pose.header, values)

    def _from_joints(self, state: JointState) -> Subgoal:
        """Joints are named, so that they need no frame; the channel's own counts."""
        values = joint_positions(state, self._joint_names).tolist()
        state.header.frame_id = self._channel_of("goal_joints").frame
        return self._subgoal("goal_joints", state.header, values)

    def _from_text(self, text: String) -> Subgoal | None:
        """Return a goal in words, or begin a plan and return None.

        Words have no stamp: they were said when they came.
        """
        if not text.data.strip():
            raise PayloadShapeError("the instruction is empty", expected="words")
        if self._model.is_open and not is_named(text.data, self._named_goals):
            self._model.instruct(text.data)
            return None
        goal = self._subgoal("instruction", messages.header(self.reports.now_ns()), [])
        goal.text = text.data
        return goal

    def _take_subgoal(self, values: tuple[float, ...]) -> int:
        """Make a goal of a plan's subgoal and return its number, 0 where it is none.

        Called in the model's thread.
        """
        with self._lock:
            if not self._is_active or self._routes is None:
                return 0
            frame = self._channel_of("instruction").frame
            header = messages.header(self.reports.now_ns(), frame)
            goal = self._subgoal("instruction", header, list(values))
            try:
                return self._commit("instruction", goal)
            except FlashrtError as error:
                self._refuse("instruction", goal, error)
                return 0

    def _subgoal(self, planner: str, header: Any, values: list[float]) -> Subgoal:
        assert self._checker is not None
        env_index, channel = self.settings.integer("env_index"), self._channel_of(planner).name
        goal = Subgoal(header=header, planner=planner, env_index=env_index, channel=channel)
        goal.sequence = self._checker.next_sequence(planner, env_index=env_index, channel=channel)
        goal.values = array.array("f", values)
        return goal

    def _channel_of(self, topic: str) -> protocol.ChannelInfo:
        assert self._routes is not None
        return self._routes.channel(topic)


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until it is told to stop; returns the exit code."""
    return run_node(PlannerNode, sys.argv if args is None else list(args))


if __name__ == "__main__":
    leave(main())
