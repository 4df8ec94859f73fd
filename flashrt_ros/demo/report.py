"""What the demo found: figures, the checks on them, and the controls that can fail them."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros import __version__

REQUIRED = (
    "episodes",
    "reach_rate",
    "replay_byte_exact",
    "state_controls",
    "goal_transport_copies",
    "torn_goals",
    "interrupt_latency_ticks",
    "interrupt_latency_ms",
    "resume_byte_exact",
    "stale_after_reset",
    "branches",
    "branches_differ",
    "selected_has_best_score",
    "unnamed_chunks",
    "words_understood",
    "words_reached",
    "words_left_behind",
    "words_refused",
    "leaked_fds",
    "leaked_mappings",
    "leaked_processes",
)
"""Figures with a check; a run that lacks one of them has failed."""

TIMED = ("reset_service_us", "trigger_us", "client_reset_us", "ping_us")
"""Figures that are shown with p50 and p99; no limit is set on them."""


@dataclass(frozen=True, slots=True)
class Check:
    """A figure judged.

    Attributes:
        name: Of the figure.
        found: Its value.
        expected: In words.
        is_held: Whether it is as expected.
    """

    name: str
    found: Any
    expected: str
    is_held: bool


@dataclass(frozen=True, slots=True)
class Control:
    """A run in which the promise is broken on purpose, so that its check has to notice.

    Attributes:
        name: Unique.
        figure: Figure whose check it tests.
        what: What was broken, in words.
        found: The figure's value under it.
        expected: In words.
        is_held: Whether the break showed.
    """

    name: str
    figure: str
    what: str
    found: Any
    expected: str
    is_held: bool


@dataclass(slots=True)
class Report:
    """Collects while the demo runs; :meth:`document` is what ``--json`` writes.

    Args:
        on_change: Called with each check or control as it comes in.
    """

    on_change: Callable[[Check | Control], None] = lambda entry: None
    figures: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    controls: dict[str, Control] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    def check(self, name: str, found: Any, *, expected: str, is_held: bool) -> None:
        """Record a figure with its judgement.

        Args:
            name: Of the figure, unique.
            found: Its value, as JSON may have it.
            expected: In words.
            is_held: Whether it is what was promised.
        """
        entry = Check(name, found, expected, bool(is_held))
        self.figures[name] = found
        self.checks[name] = entry
        self.on_change(entry)

    def control(
        self, name: str, figure: str, what: str, found: Any, *, expected: str, is_held: bool
    ) -> None:
        """Record a control of a figure.

        Args:
            name: Unique among the controls.
            figure: Figure whose check it tests.
            what: What was broken, in words.
            found: The figure's value under it.
            expected: In words.
            is_held: Whether the break showed.
        """
        entry = Control(name, figure, what, found, expected, bool(is_held))
        self.controls[name] = entry
        self.on_change(entry)

    def note(self, name: str, found: Any) -> None:
        """Record a figure that is shown and not judged."""
        self.figures[name] = found

    def fail(self, what: str) -> None:
        """Record that a part of the demo could not be run to its end."""
        self.failures.append(what)

    @property
    def missing(self) -> list[str]:
        """Figures that no scenario came to measure, and judged ones without a control."""
        lacking = [name for name in REQUIRED if name not in self.checks]
        lacking += [name for name in TIMED if name not in self.figures]
        controlled = {control.figure for control in self.controls.values()}
        return lacking + [f"control of {name}" for name in REQUIRED if name not in controlled]

    @property
    def is_passed(self) -> bool:
        """Whether every check and control held and none is missing."""
        entries: list[Check | Control] = [*self.checks.values(), *self.controls.values()]
        return all(entry.is_held for entry in entries) and not self.missing and not self.failures

    def document(self, **facts: Any) -> dict[str, Any]:
        """Return everything as plain values.

        Args:
            facts: More entries, such as the options of the run.
        """
        return {
            "passed": self.is_passed,
            **self.figures,
            "controls": {
                control.name: {
                    "figure": control.figure,
                    "what": control.what,
                    "found": control.found,
                    "expected": control.expected,
                    "held": control.is_held,
                }
                for control in self.controls.values()
            },
            "checks": {
                check.name: {
                    "found": check.found,
                    "expected": check.expected,
                    "held": check.is_held,
                }
                for check in self.checks.values()
            },
            "missing": self.missing,
            "failures": self.failures,
            "duration_s": round(time.time() - self.started, 1),
            "host": host(),
            **facts,
        }

    def write(self, path: Path, **facts: Any) -> None:
        """Write :meth:`document` as JSON, whole or not at all."""
        text = json.dumps(self.document(**facts), indent=2, default=_plain)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(text + "\n", encoding="utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def host() -> dict[str, Any]:
    """Describe the machine, without which no time means anything."""
    model = platform.processor() or platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as info:
            names = [line for line in info if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    except OSError:
        pass
    return {
        "cpu": model,
        "num_cpus": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "flashrt_ros": __version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def quantiles(samples_ns: Sequence[int]) -> dict[str, float | int]:
    """Return p50 and p99 in µs, and how many samples they are of.

    Args:
        samples_ns: Durations, ns; one or more.
    """
    p50, p99 = np.percentile(np.asarray(samples_ns, np.float64) / 1e3, (50, 99))
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1), "count": len(samples_ns)}


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")
