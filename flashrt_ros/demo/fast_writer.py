"""A writer that commits goals as fast as it can; a process of its own, without ROS or torch.

python -m flashrt_ros.demo.fast_writer ENGINE SECONDS
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import NoFreeSlotError

_LOOK_EVERY = 64


def main(arguments: list[str]) -> int:
    """Write until the time is up; prints what was done as one line of JSON."""
    engine, seconds = arguments[0], float(arguments[1])
    num_goals = num_full = 0
    with EngineClient(engine, client="demo/fast_writer") as client:
        writer = client.open_writer("goal")
        values = np.zeros(2, np.float32)
        begun = time.monotonic()
        stamp_ns = time.time_ns()
        elapsed = 0.0
        while elapsed < seconds:
            for _ in range(_LOOK_EVERY):
                values[:] = 0.1 + 0.3 * (num_goals % 1000) / 1000
                try:
                    writer.write(stamp_ns=stamp_ns, source_sequence=num_goals + 1, values=values)
                    num_goals += 1
                except NoFreeSlotError:
                    num_full += 1
            elapsed = time.monotonic() - begun
    print(json.dumps({"goals": num_goals, "full": num_full, "seconds": elapsed}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
