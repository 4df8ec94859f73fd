"""A restore alone beside a raw copy of the bytes that a prefix uses, for the bench ``ttft``."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashrt_ros.bench.context import Context, megabytes
from flashrt_ros.bench.result import Line, LinePanel, Row, at_most
from flashrt_ros.bench.sampling import Case, Plan, median, p99
from flashrt_ros.bench.ttft_stand import TextStand
from flashrt_ros.models.hybrid_borders import SessionCapsule

MAX_RATIO = 1.1
"""Of a restore's time to the raw copy's, on a GPU."""

_SECONDS = 0.5
_RAW, _OURS = "raw copy", "restore alone"


@dataclass(slots=True)
class Restores:
    """What was found, prefix by prefix.

    Attributes:
        rows: Of both, for each prefix.
        lengths: Prefixes so far, tokens.
        medians_us: Device time of each way, one figure a prefix.
    """

    rows: list[Row] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    medians_us: dict[str, list[float]] = field(default_factory=lambda: {_RAW: [], _OURS: []})

    def measure(
        self, context: Context, stand: TextStand, capsule: SessionCapsule, length: int
    ) -> None:
        """Time a restore and a raw copy, by the device's clock on a GPU; add what was found.

        Args:
            context: Device and chance.
            stand: Its captured session is used, and left on the prefix.
            capsule: Of the prefix; its bytes are what is copied.
            length: Of the prefix, tokens.
        """
        session, device = stand.captured, context.device
        address, backend = session.lane.address, session.backend

        def restore() -> None:
            session.restore(capsule)

        raw = device.raw_copy(address, capsule.block.address, capsule.num_bytes)
        cases = {
            _RAW: Case(raw, device.torch_timer(backend)),
            _OURS: Case(restore, device.timer(backend)),
        }
        plan = Plan(0.0 if context.is_tiny else _SECONDS, max_rounds=200)
        samples = context.measure(cases, plan, f"{length} tokens: restores")
        raw_us = median(samples[_RAW].device_us)
        note = _whole_megabytes(capsule.num_bytes)
        self.lengths.append(length)
        for name, found_us in self.medians_us.items():
            us = samples[name].device_us
            found_us.append(median(us))
            is_bound = name == _OURS and device.name == "cuda"
            target = at_most("ratio", MAX_RATIO) if is_bound else None
            title = f"{name}, {length} tokens"
            self.rows.append(
                Row(title, "us", median(us), p99(us), median(us) / raw_us, target, note)
            )

    def panel(self) -> LinePanel:
        """Draw both over the prefix length."""
        lines = [
            Line(name, self.lengths, medians, is_ours=name == _OURS)
            for name, medians in self.medians_us.items()
        ]
        return LinePanel("restore alone, µs", "prefix, tokens", lines, log_x=True)


def _whole_megabytes(num_bytes: int) -> str:
    """Name a size without what is no whole megabyte; "" below one."""
    whole = num_bytes >> 20 << 20
    return megabytes(whole) if whole else ""
