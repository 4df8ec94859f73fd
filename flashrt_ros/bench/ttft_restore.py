"""A restore alone beside a raw copy of the bytes that a prefix uses, for the bench ``ttft``."""

from __future__ import annotations

from collections.abc import Sequence

from flashrt_ros.bench.context import Context, megabytes
from flashrt_ros.bench.result import Line, LinePanel, Row, at_most
from flashrt_ros.bench.sampling import Case, Plan, median, p99
from flashrt_ros.bench.ttft_stand import TextStand
from flashrt_ros.models.hybrid_borders import SessionCapsule

MAX_RATIO = 1.1
"""Of a restore's time to the raw copy's, on a GPU."""

_SECONDS = 0.5
_NAMES = ("raw copy", "restore alone")


def rows(context: Context, stand: TextStand, capsule: SessionCapsule, length: int) -> list[Row]:
    """Time both; device time on a GPU."""
    session, device = stand.captured, context.device
    address, backend = session.lane.address, session.backend

    def restore() -> None:
        session.restore(capsule)

    raw = device.raw_copy(address, capsule.block.address, capsule.num_bytes)
    cases = {
        "raw copy": Case(raw, device.torch_timer(backend)),
        "restore alone": Case(restore, device.timer(backend)),
    }
    plan = Plan(0.0 if context.is_tiny else _SECONDS, max_rounds=200)
    samples = context.measure(cases, plan, f"{length} tokens: restores")
    raw_us = median(samples["raw copy"].device_us)
    found = []
    for name in _NAMES:
        us = samples[name].device_us
        is_bound = name != "raw copy" and device.name == "cuda"
        target = at_most("ratio", MAX_RATIO) if is_bound else None
        note = megabytes(capsule.num_bytes >> 20 << 20) if capsule.num_bytes >> 20 else ""
        title = f"{name}, {length} tokens"
        found.append(Row(title, "us", median(us), p99(us), median(us) / raw_us, target, note))
    return found


def panel(found: Sequence[Row], lengths: Sequence[int]) -> LinePanel:
    """Draw both over the prefix length."""
    lines = []
    for name in _NAMES:
        own = [row for row in found if row.name.startswith(name)]
        medians = [row.median or 0 for row in own]
        lines.append(Line(name, lengths, medians, is_ours=name != "raw copy"))
    return LinePanel("restore alone, µs", "prefix, tokens", lines, log_x=True)
