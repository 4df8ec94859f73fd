"""Fork: 16 lanes filled from one capsule, beside raw copies of the same bytes."""

from __future__ import annotations

from collections.abc import Callable

from flashrt_ros.bench.checks import require_different, require_equal
from flashrt_ros.bench.context import Context, megabytes
from flashrt_ros.bench.models import StatefulPolicy
from flashrt_ros.bench.result import Bar, BarPanel, Result, Row, at_most
from flashrt_ros.bench.sampling import Case, Samples, median, p99
from flashrt_ros.bench.stand import Stand
from flashrt_ros.engine import protocol

NUM_BRANCHES = 16
"""Made at once."""

SIZE = 64 << 20
"""Bytes of state of each."""

MAX_RATIO = 1.2
"""Of a fork's time to that of as many raw copies, at :data:`SIZE`."""

_TINY_SIZE = 1 << 20
_COPIES_HELD = NUM_BRANCHES + 6


def run(context: Context) -> Result:
    """Fork lanes of an engine, and copy as many blocks by themselves.

    Args:
        context: Device, budget and chance.

    Returns:
        A row for each way of copying, their times in bars.

    Raises:
        WrongResultError: A branch holds other bytes than the capsule.
    """
    size = _TINY_SIZE if context.is_tiny else SIZE
    while _COPIES_HELD * size > context.device.free_bytes and size > _TINY_SIZE:
        size //= 2
    title = f"{NUM_BRANCHES} x {megabytes(size)}"
    context.say(f"fork, {title}: capturing")
    samples = _measure(context, size, title)
    rows = _rows(samples, title, is_bound=size == SIZE)
    bars = [
        Bar(
            row.name.partition(",")[0],
            (row.median or 0) / 1e3,
            (row.p99 or 0) / 1e3,
            is_ours=row.target is not None or "fork" in row.name,
        )
        for row in rows
    ]
    panel = BarPanel(f"{title}: ms", bars)
    return context.result("fork", rows, [panel], f"a fork is as many copies: {title}")


def _measure(context: Context, size: int, title: str) -> dict[str, Samples]:
    device = context.device
    with Stand(
        device,
        StatefulPolicy(size),
        num_branch_lanes=NUM_BRANCHES,
        # Room for a home and for nothing else: branches are lanes, no capsules.
        capsule_quota_bytes=2 * size + (1 << 20),
    ) as stand:
        stand.scramble(1)
        stand.activate()
        engine, home = stand.engine, stand.home
        num_bytes = engine.core.layout.capsule_bytes

        def fork() -> None:
            engine.handle(protocol.Fork(0, 0, "home", NUM_BRANCHES, ()))

        def release() -> None:
            engine.handle(protocol.Select(0, 0, -1, True))

        context.say(f"fork, {title}: comparing bytes")
        _check(stand, fork)
        lanes = [branch.lane for branch in engine.core.branches.values()]
        release()
        copies = [device.raw_copy(lane.address, home.block.address, num_bytes) for lane in lanes]

        def raw() -> None:
            for copy in copies:
                copy()

        def by_backend() -> None:
            for lane in lanes:
                engine.core.backend.copy(lane.address, home.block.address, num_bytes)

        cases = {
            "raw": Case(raw, stand.torch_timer),
            "backend": Case(by_backend, stand.timer),
            "fork": Case(fork, stand.timer, release),
        }
        return context.measure(cases, context.plan(1, max_rounds=500), f"fork, {title}")


def _check(stand: Stand, fork: Callable[[], None]) -> None:
    """Every branch must hold the capsule's bytes, in lanes that held others before."""
    names = [spec.name for spec in stand.model.buffers() if spec.name.startswith("ballast")]
    expected = {name: stand.views[name].clone() for name in names}
    pool = stand.engine.core.pool
    for lane in pool.lanes:
        if lane is not stand.environment.lane:
            require_different("an empty lane", {name: lane.views[name] for name in names}, expected)
    fork()
    stand.device.settle()
    for index, branch in stand.engine.core.branches.items():
        found = {name: branch.lane.views[name] for name in names}
        require_equal(f"branch {index}", found, expected)


def _rows(samples: dict[str, Samples], title: str, *, is_bound: bool) -> list[Row]:
    raw_us = median(samples["raw"].device_us)
    words = {"raw": "raw copies", "backend": "copies, runtime", "fork": "fork, engine"}
    rows = []
    for name, text in words.items():
        us = samples[name].device_us
        target = at_most("ratio", MAX_RATIO) if name == "fork" and is_bound else None
        rows.append(Row(f"{text}, {title}", "us", median(us), p99(us), median(us) / raw_us, target))
    host = samples["fork"].host_us
    rows.append(Row(f"fork, engine, host time, {title}", "us", median(host), p99(host)))
    return rows
