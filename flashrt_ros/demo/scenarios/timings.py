"""What a reset costs: as a service and from a client, each beside an empty call of its kind."""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_srvs.srv import Trigger

from flashrt_ros.demo.report import quantiles
from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.nodes.meeting import Meeting

NUM_CALLS = 100
"""Of each kind."""

PAUSE_S = 0.012
"""Between two calls: longer than the refill of the lane that a reset has left."""

_ANSWER_S = 5.0
_LOOK_S = 0.2
_WARM_UP = 5


def measure(scene: Scene) -> None:
    """Time four kinds of calls at one pace, in random order.

    The caller spins its own node: a thread in between would be timed too.
    """
    node = Node("demo_stopwatch")
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        paths: Counter[str] = Counter()
        with EngineClient(scene.stage.engine, client="demo/stopwatch") as client:

            def reset() -> None:
                paths[client.reset().path] += 1

            kinds: dict[str, Callable[[], Any]] = {
                "reset_service_us": _caller(node, executor, "policy_node/reset"),
                "trigger_us": _caller(node, executor, "policy_node/ping"),
                "client_reset_us": reset,
                "ping_us": client.ping,
            }
            samples = _sample(kinds, scene.stage.require_alive)
    finally:
        executor.shutdown()
        node.destroy_node()
    for name, values in samples.items():
        scene.report.note(name, quantiles(values))
    scene.report.note("client_reset_paths", dict(paths))
    scene.view.say(
        ", ".join(
            f"{name.removesuffix('_us')} p50 {scene.report.figures[name]['p50']:.0f} µs"
            for name in kinds
        )
    )


def _sample(kinds: dict[str, Callable[[], Any]], check: Callable[[], None]) -> dict[str, list[int]]:
    for call in kinds.values():
        for _ in range(_WARM_UP):
            call()
            time.sleep(PAUSE_S)
    order = [name for name in kinds for _ in range(NUM_CALLS)]
    random.Random(0).shuffle(order)
    samples: dict[str, list[int]] = {name: [] for name in kinds}
    gc.collect()
    gc.disable()
    try:
        for name in order:
            check()
            time.sleep(PAUSE_S)
            begun = time.perf_counter_ns()
            kinds[name]()
            samples[name].append(time.perf_counter_ns() - begun)
    finally:
        gc.enable()
    return samples


def _caller(node: Node, executor: SingleThreadedExecutor, name: str) -> Callable[[], None]:
    client = node.create_client(Trigger, name)
    if not client.wait_for_service(_ANSWER_S):
        raise ScenarioError(f"service '{name}' did not appear within {_ANSWER_S:g} s")
    deadline = time.monotonic() + _ANSWER_S
    with Meeting(node, client) as meeting:
        while not meeting.look():
            executor.spin_once(timeout_sec=_LOOK_S)
            if time.monotonic() > deadline:
                raise ScenarioError(f"the node of '{name}' did not answer within {_ANSWER_S:g} s")
    request = Trigger.Request()

    def call() -> None:
        future = client.call_async(request)
        deadline = time.monotonic() + _ANSWER_S
        while not future.done():
            executor.spin_once(timeout_sec=_ANSWER_S)
            if time.monotonic() > deadline:
                raise ScenarioError(f"service '{name}' did not answer within {_ANSWER_S:g} s")
        reply = future.result()
        if reply is None or not reply.success:
            raise ScenarioError(f"service '{name}' refused: {getattr(reply, 'message', '')}")

    return call
