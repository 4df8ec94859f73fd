"""A policy in a ROS node of its own, to which goals come by topic: the peer of an interrupt.

python -m flashrt_ros.bench.goal_node CONFIG PREFIX RATE_HZ

CONFIG is an engine's configuration as JSON. The node runs the same captured plan as an engine
process does, from a timer; a goal's callback copies its values to where the plan reads them,
and the plan under way is finished first. It answers each goal with its number and the time at
which its first action was made (CLOCK_MONOTONIC, ns).
"""

from __future__ import annotations

import sys
import time

import msgspec
import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import Float64MultiArray, UInt64MultiArray

from flashrt_ros.engine import protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.models.flow_network import IMAGE_PX
from flashrt_ros.models.registry import create

DEPTH = 1
"""Of the goals' queue: the newest counts."""


def main(arguments: list[str]) -> int:
    """Tick and answer until a signal comes."""
    config = msgspec.json.decode(arguments[0], type=EngineConfig)
    prefix, rate_hz = arguments[1], float(arguments[2])
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.ALL)
    node = rclpy.create_node(f"{prefix}_policy")
    answers = node.create_publisher(UInt64MultiArray, f"{prefix}_answer", DEPTH)
    with Engine(create(config.model), config) as engine:
        goals = EmbeddedWriter(engine, "goal")
        observations = EmbeddedWriter(engine, "observation")
        image = np.zeros((IMAGE_PX, IMAGE_PX, 3), np.uint8)
        observations.write(stamp_ns=1, image=image, agent_pos=np.full(2, 0.25, np.float32))
        goals.write(stamp_ns=1, values=np.full(2, 0.25, np.float32))
        engine.handle(protocol.Activate(0, 0, "step", 0.0))
        answered = [0]

        def take(message: Float64MultiArray) -> None:
            number, *values = message.data
            goals.write(
                stamp_ns=int(number),
                source_sequence=int(number),
                values=np.array(values, np.float32),
            )

        def tick() -> None:
            done = engine.step(protocol.Step(0, 0, 1, -1, 0, 0))
            made_ns = time.monotonic_ns()
            number = done.actions[0].provenance.goal_source_sequence
            if number != answered[0]:
                answered[0] = number
                answers.publish(UInt64MultiArray(data=[number, made_ns]))

        node.create_subscription(Float64MultiArray, f"{prefix}_goal", take, DEPTH)
        node.create_timer(1.0 / rate_hz, tick)
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        try:
            executor.spin()
        except (ExternalShutdownException, KeyboardInterrupt):
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
