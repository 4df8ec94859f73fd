"""The clock of the bench ``ttft``."""

from __future__ import annotations

import time
from collections.abc import Callable

from flashrt_ros.bench.devices import Device
from flashrt_ros.bench.sampling import Sample, Timer


def timer_for(device: Device) -> Timer:
    """Return what times a call until its token is on the host.

    On a GPU the host's clock, until nothing runs on the device any more. On a CPU the time
    that this thread computes: it does everything itself, and what other processes take away
    says nothing of the calls that are compared.
    """
    return time_thread if device.name == "cpu" else device.time_wall


def time_thread(run: Callable[[], object]) -> tuple[Sample, object]:
    """Time a call by the processor time of this thread."""
    begun = time.thread_time_ns()
    answer = run()
    spent_ns = time.thread_time_ns() - begun
    return Sample(spent_ns, spent_ns), answer


def in_words(ms: float) -> str:
    """Say a time: "2.31 ms", "239 ms"."""
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"
