"""What nodes publish of goals and chunks, as records of the engine, for a trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from flashrt_ros.engine.protocol import Event, GoalSource, OutputKind, Provenance
from flashrt_ros.msg import ActionChunk, ExecutionEvent
from flashrt_ros.nodes.conversions import stamp_to_ns
from flashrt_ros.nodes.reports import EVENT_QOS

_WAIT_S = 0.1


def listen(
    namespace: str,
    *,
    policy: str,
    planner: str,
    env_index: int,
    on_event: Callable[[Event, int], None],
    on_output: Callable[[Provenance, OutputKind, int], None],
    on_found: Callable[[str], None],
    on_heard: Callable[[str], None],
    stop: Callable[[], bool],
) -> None:
    """Listen to a policy node and a planner node until told to stop.

    Commands carry no provenance: a chunk counts as its first action, when it is published.

    Args:
        namespace: Of the nodes.
        policy: Name of the policy node.
        planner: Name of the planner node.
        env_index: Environment to listen to.
        on_event: Told each event and the wall time at which it was published, ns.
        on_output: Told what each chunk was made from, and when, wall time in ns.
        on_found: Told each topic once a node that publishes it has been found. That node may
            not have found this one yet, and sends it nothing until then.
        on_heard: Told each topic with its first message: its publisher knows of the trace.
        stop: Asked again and again.
    """

    def take_event(message: Any, info: Any) -> None:
        if message.env_index == env_index:
            on_event(_event(message), _published_ns(info))

    def take_chunk(message: Any, info: Any) -> None:
        if message.env_index == env_index and message.branch < 0:
            made = _provenance(message)
            at_ns = _published_ns(info)
            on_output(made, OutputKind.CHUNK, at_ns)
            on_output(made, OutputKind.ACTION, at_ns)

    context = Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = Node("trace", namespace=namespace or None, context=context, enable_rosout=False)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    takers: tuple[tuple[Any, str, Any], ...] = (
        (ExecutionEvent, f"{policy}/events", take_event),
        (ExecutionEvent, f"{planner}/events", take_event),
        (ActionChunk, f"{policy}/action_chunk", take_chunk),
    )
    heard: set[str] = set()

    def hearing(topic: str, take: Callable[[Any, Any], None]) -> Any:
        def hear(message: Any, info: Any) -> None:
            if topic not in heard:
                heard.add(topic)
                on_heard(node.resolve_topic_name(topic))
            take(message, info)

        return hear

    try:
        missing = [
            node.create_subscription(kind, topic, hearing(topic, take), EVENT_QOS)
            for kind, topic, take in takers
        ]
        while not stop():
            for subscription in [one for one in missing if one.get_publisher_count() > 0]:
                missing.remove(subscription)
                on_found(subscription.topic_name)
            executor.spin_once(timeout_sec=_WAIT_S)
    finally:
        executor.shutdown()
        node.destroy_node()
        context.try_shutdown()


def _published_ns(info: Any) -> int:
    """Return when a message was published, wall time; some middleware does not say."""
    return int(info["source_timestamp"]) or time.time_ns()


def _event(message: Any) -> Event:
    return Event(
        kind=message.kind,
        engine_epoch=message.engine_epoch,
        env_index=message.env_index,
        generation=message.generation,
        tick=message.tick,
        capsule_id=message.capsule_id,
        duration_ns=message.duration_ns,
        detail=message.detail,
    )


def _provenance(message: Any) -> Provenance:
    return Provenance(
        engine_epoch=message.engine_epoch,
        env_index=message.env_index,
        branch=message.branch,
        generation=message.generation,
        sequence=message.sequence,
        tick=message.tick,
        latched_tick=message.latched_tick,
        goal_sequence=message.goal_sequence,
        goal_source_sequence=message.goal_source_sequence,
        goal_stamp_ns=stamp_to_ns(message.goal_stamp),
        observation_sequence=message.observation_sequence,
        observation_stamp_ns=stamp_to_ns(message.observation_stamp),
        capsule_id=message.capsule_id,
        other_goals=tuple(
            GoalSource(channel, int(sequence), int(source_sequence), stamp_to_ns(stamp), 0)
            for channel, sequence, source_sequence, stamp in zip(
                message.goal_channels[1:],
                message.goal_sequences[1:],
                message.goal_source_sequences[1:],
                message.goal_stamps[1:],
                strict=True,
            )
        ),
    )
