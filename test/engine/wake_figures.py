"""How late a loop at 100 Hz meets its deadlines beside a thread that computes in Python.

``python test/engine/wake_figures.py [SECONDS]``, that long for each row. Not a test: the machine
decides. Figures: docs/adr/0011-the-loop-is-awake-at-a-deadline.md.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from flashrt_ros.engine import linux
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.protocol import ModelInfo
from flashrt_ros.engine.server import EngineServer

PERIOD_NS = 10_000_000
BURST_NS = 600_000
"""About what the Python of a capsule's load takes out of cold caches, the files' bytes apart."""

REST_S = 0.002
ROWS = {
    "asleep until the deadline": (0, False),
    "awake 200 us before": (200, False),
    "awake, and the lock is asked for at once": (200, True),
}


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


def measure(wake_early_us: int, *, owns_process: bool, has_bursts: bool, seconds: float) -> str:
    """Return the percentiles of one way to wait, us."""
    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            until_ns = time.monotonic_ns() + BURST_NS
            while time.monotonic_ns() < until_ns:
                pass
            time.sleep(REST_S)

    engine: Any = Ticker()
    with ExitStack() as exits:
        address = exits.enter_context(EngineSocket("wake_figures"))
        server = exits.enter_context(
            EngineServer(engine, address, wake_early_us=wake_early_us, owns_process=owns_process)
        )
        linux.set_timer_slack(1 if owns_process else 50_000)
        other = threading.Thread(target=compute if has_bursts else is_over.wait, daemon=True)
        end = threading.Timer(seconds, server.stop)
        for thread in (other, end):
            thread.start()
        server.run()
        is_over.set()
        other.join()
    found = np.percentile(np.array(engine.late_ns) / 1e3, [50, 90, 99])
    return "".join(f"{us:8.1f}" for us in found)


def main() -> None:
    """Print a row for each way to wait, beside nothing and beside bursts."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    print(f"{'late, us: p50, p90, p99':44}{'alone':>24}{'beside bursts':>24}")
    with TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        for name, (early_us, owns) in ROWS.items():
            cells = [
                measure(early_us, owns_process=owns, has_bursts=has_bursts, seconds=seconds)
                for has_bursts in (False, True)
            ]
            print(f"{name:44}{cells[0]}{cells[1]}", flush=True)


if __name__ == "__main__":
    main()
