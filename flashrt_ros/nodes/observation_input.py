"""Camera and joint topics into the engine's observation slots."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription
from sensor_msgs.msg import Image, JointState

from flashrt_ros.engine.client import Writer
from flashrt_ros.engine.payload import PAYLOAD_ERRORS
from flashrt_ros.errors import FlashrtError, StaleStampError
from flashrt_ros.nodes.clocks import ClockWatch
from flashrt_ros.nodes.conversions import joint_positions, stamp_to_ns
from flashrt_ros.nodes.links import Link
from flashrt_ros.nodes.observations import ObservationMap, StampSync, prepare
from flashrt_ros.nodes.reports import Reports

JOINTS = "joint_states"


class ObservationInput:
    """Subscriptions that turn matched messages into commits, in the node's executor thread.

    Every part is judged before a slot is touched. A refused message costs itself: it
    is counted and logged by code, and the next one is tried. One that was good, but
    found no room, may come again with its stamp unchanged.

    Args:
        node: Node whose executor serves the subscriptions; not the one of services.
        reports: Told of refusals and incompatible QoS.
        link: Connection that the writer belongs to.
        writer: Of the observation channel.
        plan: Which topic fills which field.
        env_index: Environment that the writer belongs to.
        slop_ns: Largest difference between the stamps of one observation.
        patience_ns: Longest wait for the parts of one, by stamps.
        command_names: Joints in the order of a command.
        on_measured: Told the joint positions in command order.
        on_observed: Told the stamp of each observation that the engine has.
    """

    def __init__(
        self,
        node: Node,
        reports: Reports,
        link: Link,
        writer: Writer,
        plan: ObservationMap,
        *,
        env_index: int,
        slop_ns: int,
        patience_ns: int,
        command_names: tuple[str, ...],
        on_measured: Callable[[tuple[float, ...]], None],
        on_observed: Callable[[int], None],
    ) -> None:
        self._node = node
        self._reports = reports
        self._link = link
        self._writer = writer
        self._plan = plan
        self._env_index = env_index
        self._command_names = command_names
        self._on_measured = on_measured
        self._on_observed = on_observed
        self._lock = threading.Lock()
        self._is_closed = False
        self.num_committed = 0
        sources: list[str] = [*plan.cameras, *([JOINTS] if plan.joints is not None else [])]
        self._lead = sources[0]
        self._clock = ClockWatch(slop_ns)
        self._sync = StampSync(sources, slop_ns=slop_ns, patience_ns=patience_ns)
        self._subscriptions: list[Subscription] = [
            self._subscribe(Image, camera, partial(self._take, camera)) for camera in plan.cameras
        ]
        # Subscribed even where the policy does not look at joints: the safety action does.
        self._subscriptions.append(self._subscribe(JointState, JOINTS, self._joints))

    @property
    def num_alone(self) -> int:
        """Messages of the first source that found no partner in time."""
        return self._sync.num_alone[self._lead]

    def facts(self) -> dict[str, object]:
        """Return what diagnostics say of the observations."""
        return {
            "observations committed": self.num_committed,
            **{f"without partner: {name}": n for name, n in self._sync.num_alone.items()},
        }

    def close(self) -> None:
        """Unsubscribe after the callback in progress; idempotent."""
        with self._lock:
            self._is_closed = True
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()

    def forget(self) -> None:
        """Take the last observation again, should it be repeated; from any thread.

        For when the engine asks anew, and the robot waits for it with time standing still.
        """
        with self._lock:
            self._sync.forget()

    def _subscribe(self, kind: Any, topic: str, callback: Callable[[Any], None]) -> Subscription:
        return self._node.create_subscription(
            kind,
            topic,
            callback,
            copy.copy(qos_profile_sensor_data),  # an override is written into it
            event_callbacks=self._reports.subscription_events(topic),
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )

    def _joints(self, message: JointState) -> None:
        try:
            self._on_measured(tuple(joint_positions(message, self._command_names).tolist()))
        except FlashrtError as error:
            # Refused once more, and counted, where the observation needs the joints.
            if self._plan.joints is None:
                self._reports.refused(JOINTS, error)
        if self._plan.joints is not None:
            self._take(JOINTS, message)

    def _take(self, source: str, message: Image | JointState) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._sync.rewind(self._reports.now_ns())
            num_alone = self.num_alone
            complete = self._sync.add(source, stamp_to_ns(message.header.stamp), message)
            if self.num_alone > num_alone:
                self._reports.warn(
                    "observation",
                    f"{self.num_alone} messages of '{self._lead}' found no partner within "
                    "slop_s and partner_timeout_s: look at the stamps of the other sources",
                )
            if complete is None:
                return
            stamp_ns, parts = complete
            joints = parts.pop(JOINTS, None)
            try:
                self._follow_clock(self._reports.now_ns())
                self._write(stamp_ns, prepare(self._plan, parts, joints))
                self.num_committed += 1
                self._on_observed(stamp_ns)
            except FlashrtError as error:
                self._reports.refused("observation", error)

    def _follow_clock(self, now_ns: int) -> None:
        """Have the engine let new time in after the clock was set back: the last reset is ahead."""
        if self._clock.is_set_back(now_ns):
            with self._link as client:
                client.rewind(now_ns, env_index=self._env_index)
            self._clock.accept(now_ns)
            self._reports.warn("clock", "it was set back: stamps of the new time count")

    def _write(self, stamp_ns: int, values: Mapping[str, Any]) -> None:
        try:
            with self._link:
                self._writer.write(stamp_ns=stamp_ns, **values)
        except (StaleStampError, *PAYLOAD_ERRORS):
            raise  # it would be refused again
        except FlashrtError:
            self._sync.forget()
            raise
