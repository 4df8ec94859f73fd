"""Benches by name; imports without torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashrt_ros.bench.context import Context
    from flashrt_ros.bench.result import Result


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench: a module with ``run(context) -> Result``.

    Attributes:
        module: Its name in this package; imported when it runs.
        summary: What it compares, for ``--help``.
        weight: Its share of the budget of ``all``.
    """

    module: str
    summary: str
    weight: float = 1.0

    def run(self, context: Context) -> Result:
        """Run it.

        Raises:
            WrongResultError: A result that was about to be timed is wrong.
            BenchError: A process did not do its part.
        """
        module: Any = importlib.import_module(f"flashrt_ros.bench.{self.module}")
        run: Callable[[Context], Result] = module.run
        return run(context)


BENCHES: dict[str, Bench] = {
    "replay": Bench("replay", "a captured plan beside eager and torch.compile", 2.5),
    "restore": Bench("restore", "restore by copy beside a raw copy, by flip beside a replay", 2.0),
    "snapshot": Bench("snapshot", "ticks with snapshots beside them, and without"),
    "pinned": Bench(
        "pinned", "pinned capsules in a set that outgrows its tier, beside an LRU cache", 1.5
    ),
    "archive": Bench(
        "archive", "files beside plain writes and reads, and ticks with files beside them", 1.5
    ),
    "fork": Bench("fork", "a fork into 16 lanes beside raw copies"),
    "tick": Bench("tick", "how late ticks start while cameras stream through the nodes", 1.5),
    "cohost": Bench(
        "cohost", "ticks with a planner in their slack, beside a process of its own", 2.0
    ),
    "goal": Bench("goal", "a goal through a slot beside one through a topic"),
    "interrupt": Bench(
        "interrupt", "an interrupt to its first action, beside finishing the chunk, and a topic"
    ),
    "service": Bench("service", "resets beside empty calls, as a service and from a client"),
    "steady": Bench("steady", "what 10000 ticks leave behind in memory"),
    "ttft": Bench(
        "ttft", "the first token after a long prefix, from a capsule beside computing it", 5.0
    ),
    "barge_in": Bench(
        "barge_in", "a new instruction to its first token, beside waiting and beside computing", 1.5
    ),
}
"""In the order of ``all``."""
