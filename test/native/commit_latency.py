"""Measure a commit from C and from Python, in turns: ``python test/native/commit_latency.py``.

The goal has 4 KB, then 1 MB. "commit" hands a written slot over and takes the next one; "write"
copies a payload into the slot, checks every number and commits. The engine ticks nothing. Prints
a table in microseconds.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.native import source_folder

HERE = Path(__file__).parent
NAME = "latency"
ROUNDS = 10
COUNT = 1000
CLIENTS = ("C", "Python")


def compile_program(folder: Path) -> Path:
    """Compile the C side with the library's sources."""
    program = folder / "latency"
    include = f"-I{source_folder() / 'include'}"
    sources = [HERE / "latency.c", *source_folder().glob("*.c")]
    subprocess.run(["cc", "-std=c11", "-O3", include, *sources, "-o", program], check=True)
    return program


@contextmanager
def serving(factory: str) -> Iterator[None]:
    """Run an engine of a policy of ``wide_policy``."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "flashrt_ros.engine", "--config", "-", "--name", NAME),
            *("--model-factory", f"wide_policy:{factory}"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({}))
        process.stdin.close()
        assert process.stdout.readline().startswith("ready")
        yield
    finally:
        process.terminate()
        process.wait(60)


def measure_c(program: Path, *, writes: bool) -> list[int]:
    """Time commits from C, in ns."""
    arguments: list[str | Path] = [program, NAME, str(COUNT), str(int(writes))]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return [int(line) for line in done.stdout.split()]


def measure_python(*, writes: bool) -> list[int]:
    """Time the same from Python, in ns."""
    times = []
    with EngineClient(NAME) as client:
        writer = client.open_writer("goal")
        fields = writer.channel.fields
        payload = {part.name: np.zeros(part.shape, part.dtype) for part in fields}  # as in C
        for index in range(COUNT):
            started_ns = time.perf_counter_ns()
            if writes:
                writer.write(stamp_ns=index, source_sequence=index, lifetime_ns=0, **payload)
            else:
                loan = writer.loan()
                for name, value in payload.items():
                    loan.fields[name][...] = value
                started_ns = time.perf_counter_ns()
                writer.commit(loan, stamp_ns=index, source_sequence=index, loan_next=True)
            times.append(time.perf_counter_ns() - started_ns)
    return times


def main() -> int:
    """Measure, and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLASHRT_RUNTIME_DIR"] = folder
        program = compile_program(Path(folder))
        print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print("payload  what    client     p50     p99")
        for size, factory in (("4 KB", "make_4kb"), ("1 MB", "make_1mb")):
            with serving(factory):
                for writes in (False, True):
                    times: dict[str, list[int]] = {client: [] for client in CLIENTS}
                    for turn in range(ROUNDS):
                        # The second finds a warm cache: each is second as often as the other.
                        for client in CLIENTS if turn % 2 else reversed(CLIENTS):
                            times[client] += (
                                measure_c(program, writes=writes)
                                if client == "C"
                                else measure_python(writes=writes)
                            )
                    for client, found in times.items():
                        cuts = [cut / 1000 for cut in statistics.quantiles(found, n=100)]
                        what = "write" if writes else "commit"
                        print(f"{size:8} {what:7} {client:7} {cuts[49]:7.1f} {cuts[98]:7.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
