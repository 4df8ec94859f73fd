"""Restore by flip: what it adds to a replay, and what happens when resets come too fast."""

from __future__ import annotations

import time
from collections.abc import Callable

from flashrt_ros.bench.checks import require_different, require_equal
from flashrt_ros.bench.context import Context, megabytes
from flashrt_ros.bench.failures import BenchError
from flashrt_ros.bench.models import StatefulPolicy
from flashrt_ros.bench.result import Line, LinePanel, Row, absent, at_most
from flashrt_ros.bench.sampling import NO_SAMPLE, Budget, Case, Plan, Samples, median, p99
from flashrt_ros.bench.stand import Stand
from flashrt_ros.engine import protocol

MAX_ADDED_US = 10.0
"""What a flip may add to the replay after it."""

SIZES = {
    "cpu": tuple(size << 20 for size in (16, 256)),
    "cuda": tuple(size << 20 for size in (16, 256, 4096)),
}
"""Bytes of state, by device; those that the memory has no room for are absent."""

_TINY_SIZE = 1 << 20
_COPIES_HELD = 7
_INTERVALS_MS = (0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_MIN_RESETS, _MAX_RESETS = 5, 100
_INTERVAL_SHARE = 0.5

Rates = list[tuple[float, float]]
"""Interval in ms, share of resets that fell back to the copy."""


def run(context: Context) -> tuple[list[Row], list[LinePanel]]:
    """Measure at every size that fits, in what is left of the budget.

    Args:
        context: Device, budget and chance.

    Returns:
        Rows for each size, and lines over the interval of resets.

    Raises:
        WrongResultError: A flip brings back other bytes than were snapshot.
        BenchError: A reset with a standby lane filled did not flip, or the refill has no end.
    """
    sizes = (_TINY_SIZE,) if context.is_tiny else SIZES[context.device.name]
    rows: list[Row] = []
    lines: list[Line] = []
    for number, size in enumerate(sizes):
        if _COPIES_HELD * size > context.device.free_bytes:
            rows.append(absent(f"flip, {megabytes(size)}", "us", "not enough memory free"))
            continue
        more, rates = _measure(context, size, context.budget.share_s(len(sizes) - number))
        rows += more
        interval_ms, percent = zip(*rates, strict=True)
        lines.append(Line(megabytes(size), interval_ms, percent, (), is_ours=True))
    title = "resets that find no lane ready and copy, %"
    panel = LinePanel(title, "time between resets, ms", lines, log_y=False)
    return rows, [panel] if lines else []


def _measure(context: Context, size: int, seconds: float) -> tuple[list[Row], Rates]:
    label = megabytes(size)
    budget = Budget(seconds)
    context.say(f"flip, {label}: capturing")
    model = StatefulPolicy(size)
    quota = 2 * size + (1 << 20)
    with Stand(context.device, model, num_standby_lanes=1, capsule_quota_bytes=quota) as stand:
        stand.scramble(1)
        stand.activate()
        _check(stand)
        seconds = (1 - _INTERVAL_SHARE) * budget.left_s
        samples = _sample(context, stand, seconds, f"flip, {label}")
        rows = _rows(context, label, samples)
        rates = _sweep(context, stand, budget, label)
        rows += [
            Row(f"resets that copy, one every {interval_ms:g} ms, {label}", "%", percent)
            for interval_ms, percent in rates
        ]
        flipping = [interval_ms for interval_ms, percent in rates if not percent]
        name = f"shortest interval that always flips, {label}"
        rows.append(
            Row(name, "ms", min(flipping))
            if flipping
            else absent(name, "ms", f"above {rates[-1][0]:g} ms")
        )
        return rows, rates


def _check(stand: Stand) -> None:
    expected = stand.buffers()
    stand.scramble(2)
    require_different("scrambling", stand.buffers(), expected)
    stand.refill()
    if stand.restore().path != "flip":
        raise BenchError(
            "a reset with every standby lane filled went by copy and not by flip: look whether "
            "the lanes were filled from another capsule than home"
        )
    require_equal("a flip", stand.buffers(), expected)
    stand.scramble(3)
    require_different("scrambling", stand.buffers(), expected)
    stand.refill()
    if not _flipping(stand)():
        raise BenchError(
            "the pool had no lane to flip to right after the refill: look whether the lanes were "
            "filled from another capsule than home"
        )
    require_equal("a flip of the runtime", stand.buffers(), expected)


def _flipping(stand: Stand) -> Callable[[], bool]:
    """Return what takes the standby lane in place of the environment's; False if there is none."""
    pool, home, environment = stand.engine.core.pool, stand.home, stand.environment

    def flip() -> bool:
        lane = pool.take_standby(home.id)
        if lane is None:
            return False
        pool.retire(environment.lane, 0)
        environment.lane = lane
        return True

    return flip


def _sample(context: Context, stand: Stand, seconds: float, text: str) -> dict[str, Samples]:
    device = context.device
    key = stand.model.plan().steps[0]
    environment, flip = stand.environment, _flipping(stand)

    def replay() -> None:
        environment.lane.replay(key)

    def flip_and_replay() -> object:
        if not flip():
            return NO_SAMPLE
        environment.lane.replay(key)
        return None

    reset = stand.restoring()

    def reset_and_replay() -> object:
        reply = reset()
        environment.lane.replay(key)
        is_flip = isinstance(reply, protocol.Moved) and reply.path == "flip"
        return None if is_flip else NO_SAMPLE

    cases = {
        "replay": Case(replay, stand.timer, stand.refill),
        "flip": Case(flip_and_replay, stand.timer, stand.refill),
        "reset": Case(reset_and_replay, stand.timer, stand.refill),
        "refill": Case(stand.refill, device.time_wall, stand.restore),
    }
    return context.measure(cases, Plan(seconds, max_rounds=500), text)


def _rows(context: Context, label: str, samples: dict[str, Samples]) -> list[Row]:
    replay = samples["replay"]
    plain_us = median(replay.device_us)
    rows = [Row(f"replay, {label}", "us", plain_us, p99(replay.device_us), 1.0)]
    for name, words in (
        ("flip", "flip and replay, runtime"),
        ("reset", "reset and replay, engine"),
    ):
        us = samples[name].device_us
        rows.append(Row(f"{words}, {label}", "us", median(us), p99(us), median(us) / plain_us))
        added = us - replay.device_us
        # On the host's clock the verb's own Python stands in between.
        is_bound = not context.is_tiny and (name == "flip" or context.device.name != "cpu")
        rows.append(
            Row(
                f"{words}, added to a replay, {label}",
                "us",
                median(added),
                p99(added),
                target=at_most("median", MAX_ADDED_US) if is_bound else None,
            )
        )
    host = samples["reset"].host_us - replay.host_us
    rows.append(Row(f"reset, engine, host time added, {label}", "us", median(host), p99(host)))
    refill = samples["refill"].host_us / 1e3
    rows.append(Row(f"refill of the lane left, {label}", "ms", median(refill), p99(refill)))
    return rows


def _sweep(context: Context, stand: Stand, budget: Budget, label: str) -> Rates:
    """Reset at ever longer intervals, until every reset flips."""
    rates: Rates = []
    for number, interval_ms in enumerate(_INTERVALS_MS):
        context.say(f"flip, {label}: a reset every {interval_ms:g} ms")
        share_ms = 1e3 * budget.share_s(len(_INTERVALS_MS) - number)
        count = max(_MIN_RESETS, min(_MAX_RESETS, int(share_ms / interval_ms)))
        percent = 100.0 * _num_copied(stand, interval_ms, count) / count
        rates.append((float(interval_ms), percent))
        if not percent:
            break
    return rates


def _num_copied(stand: Stand, interval_ms: float, count: int) -> int:
    """Reset ``count`` times at an interval, with the engine's own refill between; count copies."""
    engine = stand.engine
    stand.refill()
    stand.restore()
    next_ns = time.monotonic_ns()
    copied = 0
    for _ in range(count):
        next_ns += int(interval_ms * 1e6)
        while (now_ns := time.monotonic_ns()) < next_ns:
            due_ns = engine.next_background_ns()
            if due_ns is not None and due_ns <= now_ns:
                engine.background(now_ns)
        copied += stand.restore().path == "copy"
    return copied
