"""Restore by copy: the runtime's copy and the engine's verb beside one raw copy."""

from __future__ import annotations

import copy
from collections.abc import Callable

from flashrt_ros.bench.checks import require_different, require_equal
from flashrt_ros.bench.context import Context, megabytes
from flashrt_ros.bench.models import NUM_BUFFERS, StatefulPolicy
from flashrt_ros.bench.result import Line, LinePanel, Row, absent, at_most
from flashrt_ros.bench.sampling import NO_SAMPLE, Budget, Case, Plan, Samples, median, p99
from flashrt_ros.bench.stand import Stand
from flashrt_ros.engine import protocol

MAX_RATIO = 1.05
"""Of a restore's time to the raw copy's, from :data:`RATIO_FROM` bytes up."""

RATIO_FROM = 64 << 20
"""Bytes; below, what a call costs shows."""

MAX_ADDED_US = 30.0
"""Host time that a restore adds to the raw copy's, at any size."""

SIZES = {
    "cpu": tuple(size << 20 for size in (1, 4, 16, 64, 256)),
    "cuda": tuple(size << 20 for size in (1, 4, 16, 64, 256, 1024, 4096)),
}
"""Bytes of state, by device; those that the memory has no room for are absent."""

_COPIES_HELD = 9
"""Times its size that a measurement takes: lane, capsules, targets and peers' own copies."""

_NAMES = {
    "raw": "raw copy",
    "backend": "restore, runtime",
    "engine": "restore, engine",
    "loop": f"loop over {NUM_BUFFERS} buffers",
    "deepcopy": "copy.deepcopy",
}


def run(context: Context, seconds: float) -> tuple[list[Row], list[LinePanel]]:
    """Measure at every size that fits.

    Args:
        context: Device, budget and chance.
        seconds: Of sampling.

    Returns:
        Rows for each size, and lines over the size.

    Raises:
        WrongResultError: A restore brings back other bytes than were snapshot.
    """
    budget = Budget(seconds)
    sizes = SIZES[context.device.name]
    if context.is_tiny:
        sizes = sizes[:1]
    rows: list[Row] = []
    medians: dict[str, list[tuple[float, float, float]]] = {name: [] for name in _NAMES}
    for number, size in enumerate(sizes):
        if _COPIES_HELD * size > context.device.free_bytes:
            rows.append(absent(f"restore, {megabytes(size)}", "us", "not enough memory free"))
            continue
        samples = _measure(context, size, budget.share_s(len(sizes) - number))
        rows += _rows(size, samples)
        for name, values in medians.items():
            us = samples[name].device_us
            values.append((size / 2**20, median(us), p99(us)))
    return rows, [_panel(medians)]


def _measure(context: Context, size: int, seconds: float) -> dict[str, Samples]:
    device = context.device
    label = megabytes(size)
    context.say(f"restore by copy, {label}: capturing")
    budget = Budget(seconds)
    with Stand(
        device,
        StatefulPolicy(size),
        capsule_quota_bytes=2 * size + (1 << 20),
    ) as stand:
        stand.scramble(1)
        stand.activate()
        backend = stand.engine.core.backend
        lane, block = stand.environment.lane, stand.home.block
        num_bytes = stand.engine.core.layout.capsule_bytes
        saved = stand.buffers()

        def restore_by_backend() -> None:
            backend.copy(lane.address, block.address, num_bytes)

        restore = stand.restoring()

        def restore_by_engine() -> object:
            reply = restore()
            by_copy = isinstance(reply, protocol.Moved) and reply.path == "copy"
            return None if by_copy else NO_SAMPLE

        def loop() -> None:
            for name, value in saved.items():
                stand.views[name].copy_(value)

        raw = device.raw_copy(lane.address, block.address, num_bytes)
        context.say(f"restore by copy, {label}: comparing bytes")
        for what, call in (
            ("a restore of the runtime", restore_by_backend),
            ("a restore of the engine", restore_by_engine),
            ("a raw copy", raw),
            ("a loop over the buffers", loop),
        ):
            _check(stand, what, call)
        require_equal("copy.deepcopy", copy.deepcopy(saved), saved)
        calls: dict[str, Callable[[], object]] = {
            "raw": raw,
            "backend": restore_by_backend,
            "engine": restore_by_engine,
            "loop": loop,
            "deepcopy": lambda: bool(copy.deepcopy(saved)),
        }
        # Peers are torch's operators; the runtime has an order of its own.
        timers = {"backend": stand.timer, "engine": stand.timer}
        cases = {
            name: Case(call, timers.get(name, stand.torch_timer)) for name, call in calls.items()
        }
        plan = Plan(budget.left_s, max_rounds=1000)
        return context.measure(cases, plan, f"restore by copy, {label}")


def _check(stand: Stand, what: str, restore: Callable[[], object]) -> None:
    expected = stand.buffers()
    stand.scramble(2)
    require_different("scrambling", stand.buffers(), expected)
    restore()
    require_equal(what, stand.buffers(), expected)


def _rows(size: int, samples: dict[str, Samples]) -> list[Row]:
    label = megabytes(size)
    raw = samples["raw"]
    rows = []
    for name, words in _NAMES.items():
        us = samples[name].device_us
        is_bound = name in ("backend", "engine") and size >= RATIO_FROM
        rows.append(
            Row(
                f"{words}, {label}",
                "us",
                median(us),
                p99(us),
                median(us) / median(raw.device_us),
                at_most("ratio", MAX_RATIO) if is_bound else None,
            )
        )
        if name in ("backend", "engine"):
            added = samples[name].host_us - raw.host_us
            rows.append(
                Row(
                    f"{words}, host time added, {label}",
                    "us",
                    median(added),
                    p99(added),
                    None,
                    at_most("median", MAX_ADDED_US),
                )
            )
    return rows


def _panel(medians: dict[str, list[tuple[float, float, float]]]) -> LinePanel:
    lines = []
    for name, values in medians.items():
        if values:
            x, middle, high = zip(*values, strict=True)
            is_ours = name in ("backend", "engine")
            lines.append(Line(_NAMES[name], x, middle, high, is_ours))
    return LinePanel("restore by copy, µs", "state, MB", lines)
