"""Compares rclpy's executors of one thread: what a message costs, and what may come and go.

``python test/nodes/executors.py cost|churn single|events [SECONDS]``. Not a test: one of them ends
the process. Figures: docs/adr/0010-nodes-keep-one-executor-a-thread.md.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable

import rclpy
from rclpy.context import Context
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.experimental.events_executor import EventsExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import JointState

MAKE: dict[str, Callable[..., Executor]] = {
    "single": SingleThreadedExecutor,
    "events": EventsExecutor,
}
QOS = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
NUM_TOPICS = 3


def start(name: str) -> Node:
    """Return a node in a context of its own."""
    context = Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    return Node(name, context=context, start_parameter_services=False, enable_rosout=False)


class Sender:
    """Publishes joint states from a thread of its own, until the process ends."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._node = start("sender")
        topics = [f"joints_{number}" for number in range(NUM_TOPICS)]
        self._publishers = [self._node.create_publisher(JointState, topic, QOS) for topic in topics]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        message = JointState(name=["x", "y"], position=[0.0, 1.0])
        while True:
            for publisher in self._publishers:
                publisher.publish(message)
            time.sleep(self._period_s)


def cost(kind: str, seconds: float) -> None:
    """Print the spinning thread's processor time for a message, with a callback that is empty."""
    num_messages = 0

    def take(message: JointState) -> None:
        nonlocal num_messages
        num_messages += 1

    _sender = Sender(0.005)
    node = start("receiver")
    node.create_subscription(JointState, "joints_0", take, QOS)
    executor = MAKE[kind](context=node.context)
    executor.add_node(node)
    while num_messages < 50:
        executor.spin_once(timeout_sec=1.0)
    before, begin_s, end_s = num_messages, time.thread_time(), time.monotonic() + seconds
    while time.monotonic() < end_s:
        executor.spin_once(timeout_sec=1.0)
    spent_us = (time.thread_time() - begin_s) * 1e6
    print(f"{kind}: {spent_us / (num_messages - before):.0f} us a message", flush=True)


def churn(kind: str, seconds: float) -> None:
    """Subscribe and unsubscribe under messages, as nodes do that are activated and deactivated.

    The publisher does not offer what one of the subscriptions asks for, so that its event comes.
    """
    num_messages = num_events = num_rounds = 0

    def note(information: object) -> None:
        nonlocal num_events
        num_events += 1

    def take(message: JointState) -> None:
        nonlocal num_messages
        num_messages += 1

    _sender = Sender(0.0005)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        node, is_over = start("receiver"), threading.Event()
        executor = MAKE[kind](context=node.context)
        executor.add_node(node)
        thread = threading.Thread(target=_spin, args=(executor, is_over))
        thread.start()
        for _ in range(12):
            subscriptions = [
                node.create_subscription(
                    JointState,
                    f"joints_{number}",
                    take,
                    QOS if number else 10,  # a plain depth asks for what is reliable
                    event_callbacks=SubscriptionEventCallbacks(incompatible_qos=note),
                )
                for number in range(NUM_TOPICS)
            ]
            time.sleep(0.03 * (num_rounds % 4))
            while subscriptions:
                node.destroy_subscription(subscriptions.pop())
            gc.collect()  # an event handler and its subscription hold each other
        is_over.set()
        executor.create_task(lambda: None)
        thread.join()
        executor.shutdown()
        node.destroy_node()
        node.context.try_shutdown()
        num_rounds += 1
    print(f"{kind}: {num_rounds} rounds, {num_messages} messages, {num_events} events", flush=True)


def _spin(executor: Executor, is_over: threading.Event) -> None:
    while not is_over.is_set():
        executor.spin_once(timeout_sec=1.0)


if __name__ == "__main__":
    what, kind, *rest = sys.argv[1:]
    {"cost": cost, "churn": churn}[what](kind, float(rest[0]) if rest else 20.0)
    os._exit(0)  # whatever the threads of the middleware wait for
