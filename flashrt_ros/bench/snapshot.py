"""Snapshot: ticks at 100 Hz alone, and with a snapshot taken as each of them begins."""

from __future__ import annotations

import time

from flashrt_ros.bench.checks import require_different, require_equal
from flashrt_ros.bench.context import Context, megabytes
from flashrt_ros.bench.models import StatefulPolicy
from flashrt_ros.bench.result import Line, LinePanel, Result, Row, absent, at_most
from flashrt_ros.bench.sampling import Budget, Case, Plan, Samples, median, p99
from flashrt_ros.bench.stand import Stand
from flashrt_ros.bench.wide_flow import EXECUTE_HORIZON, WideFlowPolicy
from flashrt_ros.models import minimal
from flashrt_ros.models.base import PolicyModel

RATE_HZ = 100.0
"""Of ticks, each with a snapshot beside it or none."""

MAX_RATIO = 1.1
"""Of the ticks' p99 with snapshots to that without."""

RATIO_UP_TO = 256 << 20
"""Bytes of the largest snapshot that :data:`MAX_RATIO` binds."""

SIZES = {
    "cpu": tuple(size << 20 for size in (1, 4, 16, 64)),
    "cuda": tuple(size << 20 for size in (16, 64, 256, 1024, 4096)),
}
"""Bytes of state, by device; those that the memory has no room for are absent."""

_CPU_WORK = 4
_COPIES_HELD = 6
_NAME = "beside"


def run(context: Context) -> Result:
    """Sweep the bytes.

    A snapshot comes first and the tick after it, as in an engine whose deadline has just
    passed: what a tick waits for a snapshot is in its time.

    Args:
        context: Device, budget and chance.

    Returns:
        Rows for each size, and lines over the size.

    Raises:
        WrongResultError: A snapshot holds other bytes than the boundary it was taken at.
    """
    sizes = SIZES[context.device.name]
    if context.is_tiny:
        sizes = sizes[:1]
    rows: list[Row] = []
    alone: list[tuple[float, float, float]] = []
    beside: list[tuple[float, float, float]] = []
    knee = 0
    is_past = False
    for number, size in enumerate(sizes):
        if _COPIES_HELD * size > context.device.free_bytes:
            rows.append(absent(f"tick, {megabytes(size)}", "us", "not enough memory free"))
            continue
        samples = _measure(context, size, context.budget.share_s(len(sizes) - number))
        more = _rows(context, size, samples)
        rows += more
        is_past = is_past or (more[1].ratio or 0) > MAX_RATIO
        knee = knee if is_past else size
        for name, values in (("alone", alone), (_NAME, beside)):
            us = samples[name].host_us
            values.append((size / 2**20, median(us), p99(us)))
    name = f"largest snapshot up to which p99 keeps within {MAX_RATIO:g}"
    rows.append(
        Row(name, "MB", knee / 2**20) if knee else absent(name, "MB", "below the smallest size")
    )
    panels = [_panel(alone, beside)] if alone else []
    found = megabytes(knee) if knee else "none of these sizes"
    return context.result(
        "snapshot",
        rows,
        panels,
        f"snapshots at {RATE_HZ:g} Hz beside ticks: p99 keeps up to {found}",
    )


def _model(context: Context, size: int) -> tuple[PolicyModel, int]:
    device = context.device.name
    if device == "cuda":
        # In float32 a plan takes longer than a tick of this rate lasts.
        model = WideFlowPolicy(width=1024, layers=11, num_bytes=size, dtype="bfloat16")
        return model, EXECUTE_HORIZON
    return StatefulPolicy(size, work=_CPU_WORK), minimal.EXECUTE_HORIZON


def _measure(context: Context, size: int, seconds: float) -> dict[str, Samples]:
    label = megabytes(size)
    budget = Budget(seconds)
    context.say(f"snapshots of {label}: capturing")
    model, horizon = _model(context, size)
    with Stand(
        context.device,
        model,
        # Every tick makes a chunk, so that all of them are alike.
        replan_threshold=horizon - 1,
        capsule_quota_bytes=4 * size + (1 << 20),
    ) as stand:
        stand.scramble(1)
        stand.activate()
        stand.feed()
        stand.step()
        _check(stand)
        pacer = _Pacer(RATE_HZ)

        def beside() -> None:
            stand.snapshot(_NAME)
            stand.step()

        timer = context.device.time_wall
        cases = {
            "alone": Case(stand.step, timer, pacer.wait),
            _NAME: Case(beside, timer, pacer.wait),
        }
        plan = Plan(budget.left_s, min_rounds=10, max_rounds=5000)
        return context.measure(cases, plan, f"snapshots of {label}")


def _check(stand: Stand) -> None:
    """Snapshot, go on, come back: the boundary's bytes must be there, and were not before."""
    expected = stand.buffers()
    stand.snapshot(_NAME)
    stand.step()
    require_different("a tick", stand.buffers(), expected)
    stand.scramble(2)
    stand.restore(_NAME)
    require_equal("a snapshot", stand.buffers(), expected)
    stand.feed()


def _rows(context: Context, size: int, samples: dict[str, Samples]) -> list[Row]:
    label = megabytes(size)
    alone, beside = samples["alone"].host_us, samples[_NAME].host_us
    # A CPU has no second engine that copies meanwhile.
    is_bound = context.device.name != "cpu" and size <= RATIO_UP_TO
    return [
        Row(f"tick alone, {label} of state", "us", median(alone), p99(alone), 1.0),
        Row(
            f"tick with a snapshot of {label} beside it; ratio of p99",
            "us",
            median(beside),
            p99(beside),
            p99(beside) / p99(alone),
            at_most("ratio", MAX_RATIO) if is_bound else None,
        ),
    ]


def _panel(
    alone: list[tuple[float, float, float]], beside: list[tuple[float, float, float]]
) -> LinePanel:
    lines = []
    for label, values in (("ticks alone", alone), ("with snapshots", beside)):
        x, middle, high = zip(*values, strict=True)
        lines.append(Line(label, x, middle, high, is_ours=label != "ticks alone"))
    return LinePanel(f"a tick, µs, {RATE_HZ:g} a second", "snapshot, MB", lines)


class _Pacer:
    """Waits for the next beat of a rate; beats that were missed are left out."""

    def __init__(self, rate_hz: float) -> None:
        self._period_ns = int(1e9 / rate_hz)
        self._next_ns = time.monotonic_ns()

    def wait(self) -> None:
        """Return at the next beat."""
        now_ns = time.monotonic_ns()
        missed = max(0, now_ns - self._next_ns) // self._period_ns
        self._next_ns += (missed + 1) * self._period_ns
        time.sleep(max(0, self._next_ns - now_ns) / 1e9)
