"""``flashrt-ros bench NAME``: what the package costs beside the limit and beside its peers."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.bench.registry import BENCHES
from flashrt_ros.cli import signals
from flashrt_ros.cli.consoles import make_console
from flashrt_ros.cli.files import check_picture, check_target
from flashrt_ros.errors import ConfigError, FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.bench.context import Context
    from flashrt_ros.bench.devices import Device
    from flashrt_ros.bench.result import Result, Row

ALL = "all"
_ABLATED = "ttft"

logger = logging.getLogger(__name__)

SECONDS = 30.0
"""Budget of one bench; of ``all``, as much for each."""

_LEAST_S = 1.0
"""For those that follow one that has used up everything."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``bench``."""
    summaries = "; ".join(f"{name}: {bench.summary}" for name, bench in BENCHES.items())
    summaries += f"; {ALL}: each of these"
    parser.add_argument("name", choices=(*BENCHES, ALL), metavar="NAME", help=summaries)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu if left out")
    parser.add_argument(
        "--budget",
        type=_seconds,
        metavar="SECONDS",
        help=f"time to take, repetitions follow from it; {SECONDS:g}, or as much for each of 'all'",
    )
    parser.add_argument(
        "--ablation",
        action="store_true",
        help="of ttft: where a text diverges that is restored without a part of its state",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the rows here; may be a folder"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the figures here; a folder for 'all'"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run one bench, or each in turn.

    Returns:
        0; 1 with ``--check`` if a target was missed, and whenever a bench failed: it found a
        wrong result, or could not go on. What the others found is shown and written even so.

    Raises:
        ConfigError: There is no such device, folder or matplotlib.
        Interrupted: A stop signal came, and everything that was open is closed. What the
            benches before it found is written.
    """
    with signals.interrupting() as check:
        return _run_checked(arguments, check)


def _run_checked(arguments: argparse.Namespace, check: Callable[[], None]) -> int:
    is_all = arguments.name == ALL
    if arguments.ablation and arguments.name != _ABLATED:
        raise ConfigError("--ablation belongs to a bench", expected=_ABLATED, found=arguments.name)
    _check_files(arguments, is_all=is_all)
    from flashrt_ros.bench.devices import DEVICES

    names = list(BENCHES) if is_all else [arguments.name]
    budget_s = SECONDS * len(names) if arguments.budget is None else arguments.budget
    device = DEVICES[arguments.device]()
    results: list[Result] = []

    def keep(result: Result) -> None:
        """Write what there is so far: a bench that never ends costs its own figures only."""
        results.append(result)
        if arguments.json is not None:
            _write(arguments.json, arguments.name, results)
        if arguments.plot is not None:
            _plot(arguments.plot, result)

    num_failed = _run(names, device, budget_s, keep, check, is_ablation=arguments.ablation)
    is_missed = arguments.check and any(result.missed for result in results)
    return 1 if num_failed or is_missed else 0


def shown(result: Result) -> RenderableType:
    """Show a result: a table of its rows, and what was missed."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "unit", "median", "p99", "ratio", "target", ""):
        table.add_column(heading, justify="left" if heading in ("", "unit", "target") else "right")
    for row in result.rows:
        table.add_row(
            row.title,
            row.unit,
            _number(row.median),
            _number(row.p99),
            _number(row.ratio),
            "" if row.target is None else str(row.target),
            _mark(row),
        )
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return Group(
        Text.assemble((result.bench, "bold"), f": {result.summary}"),
        Text(f"{result.device}; {versions}", style="dim"),
        Padding.indent(table, 2),
        Text(),
    )


def _run(
    names: Sequence[str],
    device: Device,
    budget_s: float,
    keep: Callable[[Result], None],
    check: Callable[[], None],
    *,
    is_ablation: bool = False,
) -> int:
    """Run benches in turn, show each result and have it kept; returns how many failed.

    ``check`` is called at whatever a bench tells, and where it ends.
    """
    from flashrt_ros.bench.sampling import Budget

    weights = {name: BENCHES[name].weight for name in names}
    budget = Budget(budget_s)
    num_failed = 0
    console = make_console()
    columns = (
        TextColumn("{task.fields[bench]:<9}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = {name: progress.add_task("", total=1.0, start=False, bench=name) for name in names}
        for number, name in enumerate(names):
            # What one leaves over goes to those that follow, what it took too much is theirs.
            left = sum(weights[other] for other in names[number:])
            seconds = max(_LEAST_S, budget.left_s) * weights[name] / left
            progress.start_task(tasks[name])
            context = replace(
                _context(device, seconds, progress, tasks[name], check), is_ablation=is_ablation
            )
            description = "done"
            try:
                result = BENCHES[name].run(context)
            except Exception as error:
                # What an interrupt's unwinding ran into is no failure of the bench.
                check()
                # One bench that fails must not cost what the others find.
                if not isinstance(error, WrongResultError | BenchError | FlashrtError):
                    logger.exception("bench '%s' failed", name)
                console.print(Text.assemble((f"{name}: ", "bold red"), str(error)))
                num_failed += 1
                description = "failed"
            else:
                check()
                console.print(shown(result))
                keep(result)
            progress.update(tasks[name], completed=1.0, description=description)
    return num_failed


def _context(
    device: Device, seconds: float, progress: Progress, task: TaskID, check: Callable[[], None]
) -> Context:
    from flashrt_ros.bench.context import Context
    from flashrt_ros.bench.sampling import Budget
    from flashrt_ros.cli.bench_crew import hire

    def tell(share: float, text: str) -> None:
        check()
        progress.update(task, completed=min(share, 0.99), description=text)

    return Context(device, Budget(seconds), hire, tell=tell)


def _check_files(arguments: argparse.Namespace, *, is_all: bool) -> None:
    if arguments.json is not None and not arguments.json.is_dir():
        check_target(arguments.json)
    if arguments.plot is None:
        return
    if is_all and not arguments.plot.is_dir():
        raise ConfigError(
            "'all' draws one picture for each bench",
            expected="--plot with a folder that is there",
            found=arguments.plot,
            fix="make it first",
        )
    # In a folder each bench gets a file of its own name.
    check_picture(arguments.plot / "x.png" if arguments.plot.is_dir() else arguments.plot)


def _write(path: Path, name: str, results: Sequence[Result]) -> None:
    plain = [result.plain() for result in results]
    file = path / f"{name}.json" if path.is_dir() else path
    value = plain if name == ALL else plain[0]
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _plot(path: Path, result: Result) -> None:
    from flashrt_ros.bench import plotting

    if result.panels:
        plotting.save(path / f"{result.bench}.png" if path.is_dir() else path, result)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _mark(row: Row) -> Text:
    if row.met is None:
        return Text("")
    return Text("met", style="green") if row.met else Text("MISSED", style="bold red")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 36_000:
        raise argparse.ArgumentTypeError("more than 0, at most 36000")
    return seconds
