"""What a bench is given: a device, a time budget, chance, and somebody to hire processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from flashrt_ros.bench.devices import Device
from flashrt_ros.bench.result import BarPanel, LinePanel, Result, Row
from flashrt_ros.bench.sampling import Budget, Case, Plan, Samples, measure
from flashrt_ros.nodes.parameters import Value

FOLDER_PREFIX = "flashrt_ros_bench_"
"""Of the names of a bench's folders of files."""

TINY_S = 10.0
"""A budget below this is for a look: the smallest sizes only, nothing compiled."""

_BEGIN_S = 0.25
"""Of what a command was given, what may be gone when its bench begins: 10 s given are 10 s."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Processes that belong together.

    Attributes:
        engine: Parameters of the engine, its unique name among them.
        factory: ``--model-factory`` of the engine, "" for the registry's model.
        command: Command line of the engine's process in place of its own; the file of the
            engine's parameters is put at its end.
        policy_node: Parameters of the policy node, or None for no node.
        in_one_process: Engine and node share a process, the engine in a thread of its own.
        switch_interval_us: Of that process's interpreter; 0 leaves the default.
        others: Name and command line of what else to start.
    """

    engine: Mapping[str, object]
    factory: str = ""
    command: tuple[str, ...] = ()
    policy_node: Mapping[str, Value] | None = None
    in_one_process: bool = False
    switch_interval_us: int = 0
    others: Sequence[tuple[str, tuple[str, ...]]] = ()


class Crew(Protocol):
    """Running processes."""

    @property
    def log(self) -> Sequence[str]:
        """Newest lines of their output."""

    def ended(self) -> object | None:
        """Return what ended unasked, in words, None for nothing."""

    def stop(self) -> tuple[str, ...]:
        """End all; returns the names of those that had to be killed."""


Hire = Callable[[Cast], Crew]
"""Starts processes, which take this process's environment."""


@dataclass(frozen=True, slots=True)
class Context:
    """What every bench's ``run`` takes.

    Attributes:
        device: What to measure.
        budget: Time to take; a part that can't be cut short may take more.
        hire: Starts processes.
        rng: Orders peers.
        tell: Told the share of the budget that is spent, and what is going on.
        is_ablation: Show what a restore without a part of the state is worth, and time nothing.
    """

    device: Device
    budget: Budget
    hire: Hire
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    tell: Callable[[float, str], None] = lambda share, text: None
    is_ablation: bool = False

    @property
    def is_tiny(self) -> bool:
        """Whether the budget is only enough for a look."""
        return self.budget.seconds < TINY_S - _BEGIN_S

    def say(self, text: str) -> None:
        """Tell what is going on."""
        self.tell(self.budget.spent, text)

    def measure(self, cases: Mapping[str, Case], plan: Plan, text: str) -> dict[str, Samples]:
        """Time peers; see :func:`~flashrt_ros.bench.sampling.measure`.

        Args:
            cases: By name.
            plan: How long.
            text: What is going on, for whom it is told.

        Returns:
            Samples by name, one a round.
        """
        return measure(cases, plan, self.rng, lambda share: self.say(text))

    def plan(self, num_left: int, **options: float) -> Plan:
        """Plan the next of ``num_left`` equal parts of what is left of the budget."""
        return replace(Plan(self.budget.share_s(num_left)), **options)  # type: ignore[arg-type]

    def result(
        self,
        bench: str,
        rows: Sequence[Row],
        panels: Sequence[LinePanel | BarPanel],
        summary: str,
        *,
        has_sizes: bool = True,
    ) -> Result:
        """Put a result together, with the device's title and versions.

        Args:
            bench: The bench's name.
            rows: As they are shown.
            panels: Of its picture.
            summary: What was measured, in a line; said to be a look, where it was one.
            has_sizes: Whether the bench takes a smaller size for a look.

        Returns:
            The result.
        """
        if self.is_tiny and has_sizes:
            summary = f"smallest size only: {summary}"
        return Result(
            bench, self.device.title, self.device.versions(), tuple(rows), tuple(panels), summary
        )


def megabytes(num_bytes: int) -> str:
    """Name a size: "16 MB", "4 GB", "64 KB"."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:g} {name}"
    return f"{num_bytes} B"
