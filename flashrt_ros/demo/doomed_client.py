"""A client that dies with a slot on loan; a process of its own, without ROS or torch.

python -m flashrt_ros.demo.doomed_client ENGINE
"""

from __future__ import annotations

import signal
import sys

from flashrt_ros.engine.client import EngineClient


def main(arguments: list[str]) -> int:
    """Hold a ring, a loan and a subscription, say so on stdout, and wait to be killed."""
    with EngineClient(arguments[0], client="demo/doomed") as client:
        client.subscribe(actions=True, chunks=True, events=True)
        client.open_writer("goal").loan()
        print("ready", flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
