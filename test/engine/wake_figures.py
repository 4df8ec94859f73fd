"""How late a loop at 100 Hz meets its deadlines beside a thread that computes in Python.

``python test/engine/wake_figures.py [SECONDS]``, that long for each cell. Not a test: the machine
decides. Figures: docs/adr/0011-the-loop-is-awake-at-a-deadline.md.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.protocol import ModelInfo
from flashrt_ros.engine.server import EngineServer

PERIOD_NS = 10_000_000
BURSTS_NS = {"alone": 0, "bursts of 0.5 ms": 500_000, "bursts of 3 ms": 3_000_000}
"""How long the other thread computes at a stretch; half a millisecond is about what the Python
of a capsule's load takes out of cold caches, the file's bytes apart.
"""

REST_S = 0.002


@dataclass(frozen=True, slots=True)
class Way:
    """A way to wait, as of the host."""

    name: str
    wake_early_us: int
    owns_process: bool


WAYS = (
    Way("asleep until the deadline", 0, owns_process=False),
    Way("awake 200 us before", 200, owns_process=False),
    Way("and a switch interval of 20 us", 200, owns_process=True),
)


class Ticker:
    """An engine with deadlines, and nothing else; notes how late it is told of each."""

    sink: Any = None
    epoch = 1
    info = ModelInfo("ticker", 1, 2, 1, (), 1, (), "", 2, 0, 0)
    has_work = is_waiting = False

    def __init__(self) -> None:
        self.due_ns = time.monotonic_ns() + PERIOD_NS
        self.late_ns: list[int] = []

    def next_deadline_ns(self) -> int:
        """Return when it is due."""
        return self.due_ns

    def on_deadline(self, now_ns: int) -> None:
        """Note how late it is."""
        self.late_ns.append(now_ns - self.due_ns)
        self.due_ns += PERIOD_NS * ((now_ns - self.due_ns) // PERIOD_NS + 1)

    def next_background_ns(self) -> None:
        """Have nothing to do in between."""


def measure(way: Way, burst_ns: int, seconds: float) -> str:
    """Return the percentiles of one way to wait, us."""
    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            until_ns = time.monotonic_ns() + burst_ns
            while time.monotonic_ns() < until_ns:
                pass
            time.sleep(REST_S)

    engine: Any = Ticker()
    with ExitStack() as exits:
        address = exits.enter_context(EngineSocket("wake_figures"))
        server = exits.enter_context(
            EngineServer(
                engine, address, wake_early_us=way.wake_early_us, owns_process=way.owns_process
            )
        )
        other = threading.Thread(target=compute if burst_ns else is_over.wait, daemon=True)
        for thread in (other, threading.Timer(seconds, server.stop)):
            thread.start()
        server.run()
        is_over.set()
        other.join()
    found = np.percentile(np.array(engine.late_ns) / 1e3, [50, 90, 99])
    return "".join(f"{us:8.1f}" for us in found)


def main() -> None:
    """Print a row for each way to wait."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    print(f"{'late, us: p50, p90, p99':32}" + "".join(f"{name:>24}" for name in BURSTS_NS))
    with TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        for way in WAYS:
            cells = [measure(way, burst_ns, seconds) for burst_ns in BURSTS_NS.values()]
            print(f"{way.name:32}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
