"""Tick: how late ticks start while images stream, in a process of their own and in a thread.

In a process of their own also without the loop's waking up before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from flashrt_ros.bench.checksums import checksum, read_checksum
from flashrt_ros.bench.context import Cast, Context, Crew
from flashrt_ros.bench.devices import MIN_CORES, num_cores
from flashrt_ros.bench.engines import engine_parameters, hired, wait_for, why_no_ros
from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.bench.result import Bar, BarPanel, Result, Row, absent, at_most
from flashrt_ros.demo.domain import ros_domain
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.protocol import Output
from flashrt_ros.engine.stats import WINDOW
from flashrt_ros.nodes.commands import python_module
from flashrt_ros.nodes.parameters import Value

RATE_HZ = 100.0
"""Of the control loop."""

MAX_LATENESS_US = 200.0
"""p99, on a machine with enough cores."""

_FACTORY = "flashrt_ros.bench.models:camera_policy"
_MIN_S = 1.0
_WARM_UP_S = 0.5
_START_S = 8.0
"""About what it takes to start the processes of one variant."""

_CHUNK_S = 20.0


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run the loop.

    Attributes:
        name: For rows.
        in_one_process: With the node, in a thread.
        switch_interval_us: Of the interpreter; 0 for the default.
        is_asleep: Until the tick is due, instead of waking up before.
    """

    name: str
    in_one_process: bool
    switch_interval_us: int = 0
    is_asleep: bool = False


VARIANTS = (
    Variant("in the engine's process", in_one_process=False),
    Variant("in the engine's process, asleep until the tick", in_one_process=False, is_asleep=True),
    Variant("in a thread of the node's process", in_one_process=True),
    Variant("in a thread, switch interval 50 us", in_one_process=True, switch_interval_us=50),
)
"""Ours first."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """What an engine says of its ticks.

    Attributes:
        median_us: Of their lateness.
        p99_us: Of their lateness.
        num_missed: Ticks without an action, or skipped.
        num_ticks: Ticks that were due.
    """

    median_us: float
    p99_us: float
    num_missed: int
    num_ticks: int


def run(context: Context) -> Result:
    """Run each variant for a while, in random order.

    They can't be interleaved tick by tick: each is a set of processes of its own.

    Args:
        context: Device, budget, chance, and who starts processes.

    Returns:
        A row for each variant, and bars.

    Raises:
        WrongResultError: A chunk was not made from the images that were published.
        BenchError: A process did not do its part.
    """
    why = why_no_ros()
    if why:
        rows = [absent(f"lateness {variant.name}", "us", why) for variant in VARIANTS]
        return context.result("tick", rows, [], f"ticks at {RATE_HZ:g} Hz: nothing without ROS")
    order = list(VARIANTS[:1] if context.is_tiny else VARIANTS)
    context.rng.shuffle(order)
    found: dict[Variant, Lateness] = {}
    with ros_domain():
        for number, variant in enumerate(order):
            seconds = context.budget.share_s(len(order) - number) - _START_S
            # the engine's figures are of the last WINDOW ticks: more would tell of the end only
            seconds = min(max(_MIN_S, seconds), WINDOW / RATE_HZ)
            found[variant] = _measure(context, variant, seconds)
    rows = _rows(found)
    bars = [
        Bar(variant.name, lateness.median_us, lateness.p99_us, variant is VARIANTS[0])
        for variant, lateness in sorted(found.items(), key=lambda item: VARIANTS.index(item[0]))
    ]
    # No line where no row is bound by it.
    limit = MAX_LATENESS_US if num_cores() >= MIN_CORES else None
    panel = BarPanel("lateness of a tick's start, µs", bars, limit)
    summary = f"ticks at {RATE_HZ:g} Hz beside two cameras at 30 Hz and joints at 200 Hz"
    return context.result("tick", rows, [panel], summary, has_sizes=False)


def _measure(context: Context, variant: Variant, seconds: float) -> Lateness:
    context.say(f"ticks {variant.name}: starting")
    node: dict[str, Value] = {
        "cameras": ["image_left", "image_right"],
        "joint_field": "position",
        "rate_hz": RATE_HZ,
    }
    publisher = python_module("flashrt_ros.bench.robot_publisher")
    early = {"wake_early_us": 0} if variant.is_asleep else {}
    cast = Cast(
        engine_parameters(context, replan_threshold=1, **early),
        _FACTORY,
        policy_node=node,
        in_one_process=variant.in_one_process,
        switch_interval_us=variant.switch_interval_us,
        others=[("robot", publisher)],
    )
    with hired(context, cast) as (client, crew), _goal(client):
        wait_for(crew, lambda: client.status().state == "active", "an active environment")
        context.say(f"ticks {variant.name}: comparing images")
        _check(client, crew)
        time.sleep(_WARM_UP_S)
        # Figures begin anew with an activation.
        client.activate(tick_source="timer", rate_hz=RATE_HZ)
        first = client.status().tick
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            context.say(f"ticks {variant.name}")
            time.sleep(0.1)
            ended = crew.ended()
            if ended is not None:
                raise BenchError(f"{ended}, unasked")
        status = client.status()
    return Lateness(
        status.lateness_p50_us,
        status.lateness_p99_us,
        status.deadline_misses,
        status.tick - first + status.deadline_misses,
    )


@contextmanager
def _goal(client: EngineClient) -> Iterator[None]:
    """Have a goal in force."""
    with client.open_writer("goal") as writer:
        writer.write(stamp_ns=1, values=np.zeros(2, np.float32))
        yield


def _check(client: EngineClient, crew: Crew) -> None:
    """A chunk must carry the sum of the images that the robot publishes."""
    from flashrt_ros.bench.robot_publisher import CAMERAS, pixels

    expected = checksum(*(pixels(camera) for camera in CAMERAS))
    client.subscribe(chunks=True)

    def chunk() -> Output | None:
        message = client.receive(0.1)
        if not isinstance(message, Output):
            return None
        client.release(message)
        return message

    made = wait_for(crew, chunk, "a chunk", _CHUNK_S)
    client.subscribe()
    found = read_checksum(bytes(client.payload(made)))
    if found != expected:
        raise WrongResultError(f"a chunk was made from images with sum {found}, not {expected}")


def _rows(found: dict[Variant, Lateness]) -> list[Row]:
    rows = []
    ours = found.get(VARIANTS[0])
    for variant in VARIANTS:
        name = f"lateness {variant.name}"
        lateness = found.get(variant)
        if lateness is None:
            rows.append(absent(name, "us", "budget too small"))
            continue
        is_ours = variant is VARIANTS[0]
        has_cores = num_cores() >= MIN_CORES
        rows.append(
            Row(
                name,
                "us",
                lateness.median_us,
                lateness.p99_us,
                lateness.p99_us / ours.p99_us if ours and ours.p99_us else None,
                at_most("p99", MAX_LATENESS_US) if is_ours and has_cores else None,
                "" if not is_ours or has_cores else f"target from {MIN_CORES} cores up",
            )
        )
        missed = 100.0 * lateness.num_missed / max(1, lateness.num_ticks)
        rows.append(Row(f"ticks missed {variant.name}", "%", missed))
    return rows
