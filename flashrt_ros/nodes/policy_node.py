"""The policy node: observations in, actions out, and the verbs as services."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from functools import partial

from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from rclpy.subscription import Subscription
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.leaving import leave
from flashrt_ros.errors import FlashrtError, NotActiveError
from flashrt_ros.msg import ActionChunk, CapsuleInfo, Subgoal
from flashrt_ros.nodes import messages
from flashrt_ros.nodes.acting import Acting, Outlets
from flashrt_ros.nodes.arbitration import Arbiter, Rank
from flashrt_ros.nodes.capsule_services import HOME, CapsuleServices
from flashrt_ros.nodes.conduct import make_acting, make_trajectory_outlet
from flashrt_ros.nodes.controllers import GoalCanceller
from flashrt_ros.nodes.conversions import duration_to_ns, stamp_to_ns
from flashrt_ros.nodes.declarations import POLICY
from flashrt_ros.nodes.episode_services import EpisodeServices
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.goals import GoalChecker
from flashrt_ros.nodes.interrupt_service import InterruptService
from flashrt_ros.nodes.lifetimes import GoalLifetimes
from flashrt_ros.nodes.links import Link
from flashrt_ros.nodes.observation_input import ObservationInput
from flashrt_ros.nodes.observations import map_observation
from flashrt_ros.nodes.outputs import MOVES, OutputReader
from flashrt_ros.nodes.parameters import Settings
from flashrt_ros.nodes.process import run_node
from flashrt_ros.nodes.reports import COMMAND_QOS, EVENT_QOS, FACT_QOS, GOAL_QOS
from flashrt_ros.nodes.services import serve
from flashrt_ros.nodes.session import SessionNode
from flashrt_ros.nodes.step_service import StepService

NAME = "policy_node"

_MAX_PLANNERS = 16
"""Senders of interrupts with a goal remembered in each environment."""

# After these the engine ticks again only on an observation that is committed anew.
_ASKS_FOR_OBSERVATION = frozenset(
    {protocol.EventKind.RESET, protocol.EventKind.RESTORE, protocol.EventKind.ROLLBACK}
)


class PolicyNode(SessionNode):
    """Connects a robot's topics to an environment of the engine.

    Slots are written in the executor thread of :attr:`inputs`, verbs are served by
    this node's own executor, outputs are published by a reader thread; each has a
    connection of its own.
    """

    def __init__(self, *, cli_args: Sequence[str] = ()) -> None:
        super().__init__(NAME, POLICY, cli_args=cli_args)
        self._fence = Fence()
        self._slots = Link(self.fault)
        self._observations: ObservationInput | None = None
        self._outputs: OutputReader | None = None
        self._acting: Acting | None = None
        self._next_acting: Acting | None = None
        self._canceller = GoalCanceller(self.inputs)
        self._lifetimes = GoalLifetimes(0)
        self._goals: Subscription | None = None
        self._is_acting = False
        self._acting_lock = threading.Lock()  # a signal may come upon a transition
        self._commands = self.reports.publisher(Float64MultiArray, "~/commands", COMMAND_QOS)
        self._chunks = self.reports.publisher(ActionChunk, "~/action_chunk", EVENT_QOS)
        self._trajectories = self.reports.publisher(
            JointTrajectory, "~/joint_trajectory", COMMAND_QOS
        )
        self._home = self.reports.publisher(CapsuleInfo, "~/home", FACT_QOS)
        now_ns = self.reports.now_ns
        CapsuleServices(
            self,
            self.verbs,
            self._fence,
            env_index=lambda: self.settings.integer("env_index"),
            now_ns=now_ns,
        )
        serve(self, Trigger, "~/ping", self._ping)
        self._interrupts = InterruptService(
            self,
            self.verbs,
            self._fence,
            now_ns=now_ns,
            on_goal=self._remember_goal,
            on_hold=self._hold_trajectory,
        )
        self._steps = StepService(
            self,
            self._fence,
            connect=self._connect_step,
            timeout_ns=lambda: self.settings.seconds_ns("step_timeout_s"),
            frame=lambda: self.settings.text("action_frame"),
            now_ns=now_ns,
            on_gone=self.fault,
        )
        self._timer_hz: float | None = None
        self._episodes = EpisodeServices(
            self,
            self.inputs,
            self.verbs,
            self._fence,
            rate_hz=lambda: self._timer_hz,
            goal_sequence=lambda: self._outputs.goal_sequence if self._outputs else 0,
        )

    # lifecycle -------------------------------------------------------------------------------

    def open_session(self, settings: Settings, client: EngineClient) -> None:
        """Open slots and outputs, and subscribe."""
        model = client.model
        env_index = settings.integer("env_index")
        self._lifetimes = GoalLifetimes(settings.seconds_ns("acting_lifetime_s"))
        trajectories = make_trajectory_outlet(settings, model, self._trajectories, self._canceller)
        # Takes over in `configured`: until then a lost session's own goes on.
        acting = self._next_acting = make_acting(
            settings,
            model,
            self._fence,
            self._lifetimes,
            Outlets(self._commands, self._chunks, trajectories),
            now_ns=self.reports.now_ns,
            has_real_ages=not self.uses_sim_time,
            say=self._say_safety,
        )
        plan = map_observation(
            model,
            cameras=settings.texts("cameras"),
            camera_fields=settings.texts("camera_fields"),
            joint_field=settings.text("joint_field"),
            joint_names=settings.texts("joint_names"),
        )
        future_ns = settings.seconds_ns("future_tolerance_s")
        checker = GoalChecker(
            model,
            self.frames,
            lifetime_ns=settings.seconds_ns("goal_lifetime_s"),
            future_ns=future_ns,
            arbiter=Arbiter({}, Rank(), max_planners=_MAX_PLANNERS, tolerance_ns=future_ns),
        )
        self._fence.attach(client.engine_epoch)
        slots = self.connect("slots")
        self._slots.attach(slots)
        writer = slots.open_writer(plan.channel.name, env_index)
        self._interrupts.begin(checker)
        self._episodes.begin(settings)
        if settings.text("trajectory_stop") != "none":
            self._fence.expect(env_index)
        self._outputs = OutputReader(
            self.connect("outputs"),
            env_index=env_index,
            fence=self._fence,
            on_event=partial(self._hear, acting),
            on_gone=self.fault,
            on_action=acting.publish_action,
            on_chunk=acting.publish_chunk,
            on_error=self.log_error,
        )
        self._observations = ObservationInput(
            self.inputs,
            self.reports,
            self._slots,
            writer,
            plan,
            env_index=env_index,
            slop_ns=settings.seconds_ns("slop_s"),
            patience_ns=settings.seconds_ns("partner_timeout_s"),
            command_names=model.joint_names,
            on_measured=acting.safety.measured,
            on_observed=acting.observed,
        )
        if settings.text("accepted_topic"):
            self._goals = self.inputs.create_subscription(
                Subgoal,
                settings.text("accepted_topic"),
                self._remember_goal,
                GOAL_QOS,
                event_callbacks=self.reports.subscription_events("accepted_topic"),
            )

    def configured(self) -> None:
        """Let the new session's safety action take the place of the last one's."""
        if self._acting is not None:
            self._acting.safety.end()
        self._acting, self._next_acting = self._next_acting, None

    def activate(self) -> None:
        """Start ticking; the fence opens first, so that the first action passes.

        What asks for ticks, and how often, is read here: both may change while inactive.
        """
        env_index = self.settings.integer("env_index")
        settings = self.read_settings()
        tick_source, rate_hz = settings.text("tick_source"), settings.number("rate_hz")
        assert self._acting is not None
        self._acting.begin(period_s=1.0 / rate_hz if tick_source == "timer" else None)
        self._take_over(env_index)
        self._is_acting = True
        self._timer_hz = rate_hz if tick_source == "timer" else None
        self._fence.open()
        try:
            with self.verbs as client:
                moved = client.activate(
                    env_index=env_index, tick_source=tick_source, rate_hz=rate_hz
                )
        except FlashrtError:
            self._is_acting = False
            self._fence.shut()
            raise
        self._fence.note(env_index, moved.generation)
        self._publish_home()
        pace = "stepped" if tick_source == "step" else f"ticking at {rate_hz:g} Hz"
        self.log.info(f"active: {pace}")

    def _take_over(self, env_index: int) -> None:
        """Stop ticks that a node which was killed has left going: what they queued is older."""
        with self.verbs as client:
            if client.status(env_index=env_index).state == "active":
                moved = client.deactivate(env_index=env_index)
                self._fence.note(env_index, moved.generation, moved.tick)

    def deactivate(self) -> None:
        """Take the safety action, then let the engine stop ticking at a boundary.

        In this order, because an engine that hangs answers late or never.
        """
        env_index = self.settings.integer("env_index")
        self._stop_acting()
        request = protocol.Deactivate(0, env_index)
        with self.verbs as client:
            moved = client.call(request, protocol.Moved, timeout_s=self.patience_s)
        self._fence.note(env_index, moved.generation, moved.tick)

    def retire(self) -> None:
        """Take the safety action at once if the policy acts; a step in progress fails."""
        if self._is_acting:
            self._stop_acting()
        self._steps.cut()

    def cut(self) -> None:
        """End every wait for the engine: verbs, observations, a step."""
        super().cut()
        self._slots.cut()
        self._steps.cut()

    def lost(self, error: FlashrtError) -> None:
        """Let nothing of the policy pass any more, and take the safety action."""
        self._fence.shut()
        self._is_acting = False
        self._say(protocol.EventKind.FAULT, f"{error.name}: {error}")
        self._safe(error.name, repeat=True)

    def close_session(self) -> None:
        """Unsubscribe, join the reader, close the connections."""
        self._fence.shut()
        self._fence.expect_nothing()
        if self._goals is not None:
            self.inputs.destroy_subscription(self._goals)
            self._goals = None
        if self._observations is not None:
            self._observations.close()
            self._observations = None
        if self._outputs is not None:
            self._outputs.close()
            self._outputs = None
        self._interrupts.end()
        self._episodes.end()
        self._steps.reset()
        self._slots.close()
        if self._next_acting is not None:
            self._next_acting.close()
            self._next_acting = None
        if self._acting is not None:
            self._acting.close()
            if not self.is_faulty:
                self._acting.safety.end()

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End the session, and the safety action of a lost one: the node was told to leave."""
        outcome = super().on_shutdown(state)
        if self._acting is not None:
            self._acting.safety.end()
        return outcome

    def close(self) -> None:
        """End everything that has a thread; idempotent."""
        super().close()
        if self._acting is not None:
            self._acting.safety.end()
        self._steps.close()
        self._episodes.close()

    # events ----------------------------------------------------------------------------------

    def _hear(self, acting: Acting, event: protocol.Event) -> None:
        """Publish an event; act on those that make the node's own knowledge old."""
        self.reports.event(event)
        if event.kind in MOVES:
            acting.moved(is_stop=event.kind in _ASKS_FOR_OBSERVATION)
        if event.kind in _ASKS_FOR_OBSERVATION and self._observations is not None:
            self._observations.forget()
        if event.kind == protocol.EventKind.SNAPSHOT and event.detail.split(".")[0] == HOME:
            self._publish_home()

    def _publish_home(self) -> None:
        """Publish what ``home`` is, for those who come later too; a failure is only logged."""
        env_index = self.settings.integer("env_index")
        try:
            # Not over the verbs' connection, which a save may hold for as long as a disk takes:
            # the thread that hears of a new home publishes the actions too.
            with self.connect("home") as client:
                # A home stays pinned, so that this changes nothing and answers with what it is.
                home = client.pin(HOME, pinned=True, env_index=env_index).capsule
        except FlashrtError as error:
            self.log.error(f"~/home is not published: {error.name} ({error.code}): {error}")
            return
        self._home.publish(messages.capsule_info(home))

    # outputs ---------------------------------------------------------------------------------

    def _stop_acting(self) -> None:
        """Let nothing more of the policy pass; the safety action, once for each activation."""
        self._fence.shut()
        with self._acting_lock:
            was_acting, self._is_acting = self._is_acting, False
        if was_acting:
            self._safe("deactivated", repeat=False)

    def _safe(self, cause: str, *, repeat: bool) -> None:
        if self._acting is not None:
            self._say_safety(cause, self._acting.stop(cause, repeat=repeat))

    def _say_safety(self, cause: str, detail: str) -> None:
        self.log.warning(f"safety action ({cause}): {detail}")
        self._say(protocol.EventKind.SAFETY, f"{cause}: {detail}")

    def _remember_goal(self, goal: Subgoal) -> None:
        self._lifetimes.remember(
            stamp_ns=stamp_to_ns(goal.header.stamp),
            sequence=int(goal.sequence),
            lifetime_ns=duration_to_ns(goal.lifetime),
        )

    def _hold_trajectory(self, env_index: int) -> None:
        if self._acting is not None and env_index == self.settings.integer("env_index"):
            self._acting.hold_trajectory()

    def _say(self, kind: protocol.EventKind, detail: str) -> None:
        generation = self._fence.generation(self.settings.integer("env_index"))
        self.say(kind, detail, epoch=self._fence.epoch, generation=generation)

    def _ping(self, request: Trigger.Request, response: Trigger.Response) -> None:
        """Do nothing: what is left is the price of a service call."""

    def _connect_step(self) -> EngineClient:
        if self.model is None:
            raise NotActiveError(
                "the node has no session with an engine", fix="configure and activate it"
            )
        return self.connect("step")

    def doubt(self, status: protocol.Status) -> str:
        """Return what keeps an active policy from ticking that nobody asked this node for."""
        if status.state != "inactive":
            return ""
        return (
            f"environment {self.settings.integer('env_index')} was deactivated by another client "
            "of the engine: deactivate this node and activate it again"
        )

    def facts(self) -> dict[str, object]:
        """Return what diagnostics add for this node."""
        outputs, observations, acting = self._outputs, self._observations, self._acting
        return {
            **(observations.facts() if observations else {"observations committed": 0}),
            "outputs missed": outputs.num_missed if outputs else 0,
            "stale outputs dropped": self._fence.num_dropped,
            **(acting.facts() if acting else {}),
        }


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until it is told to stop; returns the exit code."""
    return run_node(PolicyNode, sys.argv if args is None else list(args))


if __name__ == "__main__":
    leave(main())
