"""What a node tells people: events, status, diagnostics and counted refusals."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import JumpHandle, JumpThreshold, TimeJump
from rclpy.event_handler import (
    PublisherEventCallbacks,
    QoSOfferedIncompatibleQoSInfo,
    QoSRequestedIncompatibleQoSInfo,
    SubscriptionEventCallbacks,
)
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import (
    DurabilityPolicy,
    QoSProfile,
    ReliabilityPolicy,
    qos_policy_name_from_kind,
)

from flashrt_ros.engine import protocol
from flashrt_ros.errors import FlashrtError
from flashrt_ros.msg import EngineStatus, ExecutionEvent
from flashrt_ros.nodes import messages

COMMAND_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
GOAL_QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
EVENT_QOS = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
FACT_QOS = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)

_LOG_PERIOD_S = 1.0


class Reports:
    """Publishes ``~/events``, ``~/status`` and ``/diagnostics`` for a node.

    Safe from every thread of the node.

    Args:
        node: Its owner, which destroys the publishers with itself.
        hardware_id: What diagnostics name as the thing diagnosed.
    """

    def __init__(self, node: Node, hardware_id: str) -> None:
        self._node = node
        self._clock = node.get_clock().handle
        # until close(), for the clock holds no reference to what it calls
        self._on_change: JumpHandle | None = node.get_clock().create_jump_callback(
            JumpThreshold(min_forward=None, min_backward=None, on_clock_change=True),
            post_callback=self._note_clock,
        )
        self._is_simulated = self._has_simulated_time()  # after it: no change is missed
        self._hardware_id = hardware_id
        self._refusals: Counter[str] = Counter()
        self._incompatible: Counter[str] = Counter()
        self._said: dict[str, float] = {}
        self._events = self.publisher(ExecutionEvent, "~/events", EVENT_QOS)
        self._status = self.publisher(EngineStatus, "~/status", FACT_QOS)
        self._diagnostics = node.create_publisher(DiagnosticArray, "/diagnostics", 10)

    def close(self) -> None:
        """Hear of no change of the clock any more; before the node is destroyed. Idempotent."""
        on_change, self._on_change = self._on_change, None
        if on_change is not None:
            on_change.unregister()

    def now_ns(self) -> int:
        """Return the node's clock, ns; simulated time where the node uses it."""
        # A reset waits for it, so that nothing is asked or made that need not be.
        if not self._is_simulated:
            return time.time_ns()
        with self._clock:
            return int(self._clock.get_now().nanoseconds)

    def _note_clock(self, _: TimeJump) -> None:
        self._is_simulated = self._has_simulated_time()

    def _has_simulated_time(self) -> bool:
        with self._clock:
            return bool(self._clock.get_ros_time_override_is_enabled())

    def event(self, event: protocol.Event) -> None:
        """Publish an event of the engine's or the node's own."""
        self._events.publish(messages.execution_event(event, stamp_ns=self.now_ns()))

    def refused(self, source: str, error: FlashrtError) -> None:
        """Count a refused message; log it, at most once a second by source and code."""
        key = f"{source} {error.name}"
        self._refusals[key] += 1
        self.warn(key, f"{source} refused: {error.name} ({error.code}): {error}")

    def warn(self, key: str, text: str) -> None:
        """Log a warning, at most once a second for each key."""
        now = time.monotonic()
        if now - self._said.get(key, -_LOG_PERIOD_S) >= _LOG_PERIOD_S:
            self._said[key] = now
            self._node.get_logger().warning(text)

    @property
    def refusals(self) -> dict[str, int]:
        """Refused messages by ``"<source> <code name>"``."""
        return dict(self._refusals)

    def status(self, message: EngineStatus) -> None:
        """Publish a status; the header is filled in here."""
        message.header = messages.header(self.now_ns())
        self._status.publish(message)

    def diagnose(self, level: bytes, summary: str, facts: dict[str, object]) -> None:
        """Publish diagnostics: a summary, the caller's facts, refusals and QoS trouble.

        Args:
            level: One of ``DiagnosticStatus``'s; raised to WARN by incompatible QoS.
            summary: One line for people.
            facts: More, by name.
        """
        if self._incompatible and level == DiagnosticStatus.OK:
            level, summary = (
                DiagnosticStatus.WARN,
                "incompatible QoS on " + ", ".join(sorted(self._incompatible)),
            )
        pairs = {
            **facts,
            **{f"refused: {key}": count for key, count in sorted(self._refusals.items())},
            **{f"incompatible QoS: {key}": n for key, n in sorted(self._incompatible.items())},
        }
        status = DiagnosticStatus(
            level=level,
            name=self._node.get_fully_qualified_name().lstrip("/"),
            message=summary,
            hardware_id=self._hardware_id,
            values=[KeyValue(key=key, value=str(value)) for key, value in pairs.items()],
        )
        self._diagnostics.publish(
            DiagnosticArray(header=messages.header(self.now_ns()), status=[status])
        )

    def subscription_events(self, topic: str) -> SubscriptionEventCallbacks:
        """Return callbacks that report publishers with incompatible QoS."""
        return SubscriptionEventCallbacks(
            incompatible_qos=self._incompatible_on(topic, "publisher")
        )

    def publisher(self, kind: Any, topic: str, qos: QoSProfile) -> Publisher:
        """Create a publisher of the node that reports subscriptions with incompatible QoS."""
        events = PublisherEventCallbacks(
            incompatible_qos=self._incompatible_on(topic, "subscription")
        )
        return self._node.create_publisher(kind, topic, qos, event_callbacks=events)

    def _incompatible_on(
        self, topic: str, peer: str
    ) -> Callable[[QoSOfferedIncompatibleQoSInfo | QoSRequestedIncompatibleQoSInfo], None]:
        def report(
            info: QoSOfferedIncompatibleQoSInfo | QoSRequestedIncompatibleQoSInfo,
        ) -> None:
            policy = qos_policy_name_from_kind(info.last_policy_kind)
            self._incompatible[topic] += int(info.total_count_change)
            text = f"a {peer} on '{topic}' has incompatible QoS ({policy}); nothing passes to it"
            self._node.get_logger().error(text)
            self.event(
                protocol.Event(
                    kind=protocol.EventKind.FAULT,
                    engine_epoch=0,
                    env_index=0,
                    generation=0,
                    tick=0,
                    capsule_id="",
                    duration_ns=0,
                    detail=f"{text} topic={topic} policy={policy}",
                )
            )

        return report
