"""Steady state: what thousands of ticks leave behind in memory, which should be nothing."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import numpy as np

from flashrt_ros.bench.context import Context
from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.bench.result import Line, LinePanel, Result, Row, absent, at_most
from flashrt_ros.bench.stand import Stand
from flashrt_ros.engine import protocol
from flashrt_ros.models.registry import create

NUM_TICKS = 10_000
"""That are watched, after those that warm up."""

MAX_GROWTH_BYTES = 128 * 1024
"""Of the host's resident memory over :data:`NUM_TICKS`: a leak of 13 bytes a tick shows."""

_WARM_UP = 500
_LOOK_EVERY = 50
_MIN_TICKS = 100
_SAFE = 0.9


def run(context: Context) -> Result:
    """Tick, each time with a new observation, and look at the memory.

    Args:
        context: Device, budget and chance.

    Returns:
        Rows of device and host memory, and lines over the ticks.

    Raises:
        WrongResultError: A tick did not make the actions that it should.
    """
    context.say("building the policy")
    with Stand(
        context.device, create("flow_policy"), num_standby_lanes=1, rollback_depth=8
    ) as stand:
        stand.activate()
        stand.feed()
        _tick(stand, _WARM_UP)
        _check(stand)
        gc.collect()
        allocated = context.device.num_allocations
        before = resident_bytes()
        seen: list[tuple[int, int]] = [(0, 0)]
        num_ticks = 0
        while num_ticks < NUM_TICKS:
            share = num_ticks / NUM_TICKS
            if num_ticks >= _MIN_TICKS and context.budget.spent > _SAFE:
                break
            context.tell(max(share, context.budget.spent), f"tick {num_ticks}")
            _tick(stand, _LOOK_EVERY)
            num_ticks += _LOOK_EVERY
            seen.append((num_ticks, resident_bytes() - before))
        gc.collect()
        growth = resident_bytes() - before
        rows = [
            _device_row(context, allocated, num_ticks),
            _host_row(growth, num_ticks),
        ]
    ticks, grown = zip(*seen, strict=True)
    kib = [value / 1024 for value in grown]
    line = Line("resident memory", ticks, kib, (), is_ours=True)
    limit = None if rows[1].target is None else MAX_GROWTH_BYTES / 1024
    panel = LinePanel("growth of host memory, KiB", "ticks", [line], limit, log_y=False)
    summary = f"{num_ticks} ticks: {growth / 1024:.0f} KiB of host memory more"
    return context.result("steady", rows, [panel], summary, has_sizes=False)


def resident_bytes() -> int:
    """Return the process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize()


def _tick(stand: Stand, count: int) -> None:
    for _ in range(count):
        stand.feed()
        stand.step()


def _check(stand: Stand) -> None:
    """The queue must pop what the chunk says, tick by tick."""
    stand.engine.handle(protocol.Deactivate(0, 0))
    stand.activate()
    stand.feed()
    stepped = stand.step(stand.model.execute_horizon)
    chunk = np.frombuffer(stepped.chunks[-1].actions, np.float32).reshape(stand.model.horizon, -1)
    popped = np.stack([np.frombuffer(action.values, np.float32) for action in stepped.actions])
    if not np.array_equal(popped, chunk[: len(popped)]):
        raise WrongResultError("the actions popped are not those of the chunk")
    if len({row.tobytes() for row in popped}) < 2:
        raise WrongResultError("all actions are alike, so that comparing them proves nothing")


def _device_row(context: Context, allocated: int | None, num_ticks: int) -> Row:
    # What the runtime allocates by itself, torch's allocator does not know.
    name = f"allocations of torch's allocator over {num_ticks} ticks"
    now = context.device.num_allocations
    if allocated is None or now is None:
        return absent(name, "allocations", "the device's memory is the host's")
    return Row(name, "allocations", float(now - allocated), target=at_most("median", 0))


def _host_row(growth: int, num_ticks: int) -> Row:
    is_bound = num_ticks >= NUM_TICKS
    return Row(
        f"growth of host memory over {num_ticks} ticks",
        "bytes",
        float(growth),
        target=at_most("median", MAX_GROWTH_BYTES) if is_bound else None,
        note="" if is_bound else f"target from {NUM_TICKS} ticks up",
    )
