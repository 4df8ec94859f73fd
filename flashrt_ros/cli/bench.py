"""``flashrt-ros bench NAME``: what the package costs beside the limit and beside its peers."""

from __future__ import annotations

import argparse
import json
import logging
import math
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
from flashrt_ros.cli.files import check_picture, check_target, target, writing
from flashrt_ros.cli.refusals import tell
from flashrt_ros.errors import ConfigError, FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.bench.context import Context
    from flashrt_ros.bench.devices import Device
    from flashrt_ros.bench.result import Result, Row

ALL = "all"
_ABLATED = "ttft"

_HEADINGS = ("unit", "median", "p99", "ratio", "target", "")
_GAP = 2
_INDENT = 2
_LEAST_NAME = 20
"""Columns for names, below which they would wrap at every word."""

logger = logging.getLogger(__name__)

SECONDS = 30.0
"""Budget of one bench; of ``all``, as much for each."""

_MOST_S = 36_000

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
        type=_budget,
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
        "--json", type=target, metavar="FILE", help="write the rows here; may be a folder"
    )
    parser.add_argument(
        "--plot", type=target, metavar="FILE", help="draw the figures here; a folder for 'all'"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run one bench, or each in turn.

    Returns:
        0; 1 with ``--check`` if a target was missed, and whenever a bench failed: it found a
        wrong result, or could not go on. What the others found is shown and written even so.
        And 1 if a file could not be written after all.

    Raises:
        ConfigError: There is no such device, folder or matplotlib.
        Interrupted: A stop signal came, and everything that was open is closed. What the
            benches before it found is written.
    """
    with signals.interrupting() as check:
        return _run_checked(arguments, check)


def _run_checked(arguments: argparse.Namespace, check: Callable[[], None]) -> int:
    is_all = arguments.name == ALL
    names = list(BENCHES) if is_all else [arguments.name]
    if arguments.ablation and arguments.name != _ABLATED:
        raise ConfigError("--ablation belongs to a bench", expected=_ABLATED, found=arguments.name)
    _check_files(arguments, names)
    from flashrt_ros.bench.devices import DEVICES

    budget_s = SECONDS * len(names) if arguments.budget is None else arguments.budget
    device = DEVICES[arguments.device]()
    results: list[Result] = []
    refused: dict[Path, ConfigError] = {}

    def keep(result: Result) -> None:
        """Write what there is so far: a bench that never ends costs its own figures only.

        A file that can't be written is told at the end, since the benches to come have figures.
        """
        results.append(result)
        if arguments.json is not None:
            _attempt(_json_file(arguments), lambda path: _write(path, results, is_all), refused)
        if arguments.plot is not None and result.panels:
            _attempt(
                _picture(arguments.plot, result.bench), lambda path: _plot(path, result), refused
            )

    num_failed = _run(names, device, budget_s, keep, check, is_ablation=arguments.ablation)
    is_missed = arguments.check and any(result.missed for result in results)
    for error in refused.values():
        tell(error, as_json=False)
    return 1 if num_failed or is_missed or refused else 0


def shown(result: Result, width: int) -> RenderableType:
    """Show a result: its rows, and what was missed; names may wrap, figures are never cut.

    Args:
        result: What a bench found.
        width: Columns there are. Where a table leaves too few of them for names, the figures of
            each row stand below its name.

    Returns:
        What a console prints.
    """
    cells = [_cells(row) for row in result.rows]
    names = [len(row.title) for row in result.rows]
    others = [max(map(len, column)) for column in zip(_HEADINGS, *cells, strict=True)]
    left = width - _INDENT - sum(others) - _GAP * len(others)
    is_table = left >= min(_LEAST_NAME, max(names, default=0))
    rows = _table(result, cells) if is_table else _stack(result, cells)
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return Group(
        Text.assemble((result.bench, "bold"), f": {result.summary}"),
        Text(f"{result.device}; {versions}", style="dim"),
        Padding.indent(rows, _INDENT),
        Text(),
    )


def _table(result: Result, cells: Sequence[Sequence[Text]]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column()
    for heading in _HEADINGS:
        is_number = heading in ("median", "p99", "ratio", "")
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    for row, others in zip(result.rows, cells, strict=True):
        table.add_row(row.title, *others)
    return table


def _stack(result: Result, cells: Sequence[Sequence[Text]]) -> RenderableType:
    lines: list[RenderableType] = []
    for row, (unit, *figures, bound, mark) in zip(result.rows, cells, strict=True):
        lines.append(Text(row.title))
        named = [
            Text.assemble(f"{heading} ", figure, "" if heading == "ratio" else f" {unit}")
            for heading, figure in zip(("median", "p99", "ratio"), figures, strict=True)
            if figure
        ]
        if named:
            lines.append(Padding.indent(Text(", ").join(named), _INDENT))
        if bound:
            lines.append(Padding.indent(Text.assemble(bound, "  ", mark), _INDENT))
    return Group(*lines)


def _cells(row: Row) -> list[Text]:
    """Return what stands beside a row's name, under its headings."""
    return [
        Text(row.unit),
        *(Text(_number(value)) for value in (row.median, row.p99, row.ratio)),
        Text("" if row.target is None else str(row.target)),
        _mark(row),
    ]


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
                console.print(shown(result, console.width))
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


def _check_files(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    if arguments.json is not None:
        check_target(_json_file(arguments))
    if arguments.plot is None:
        return
    if arguments.name == ALL and not arguments.plot.is_dir():
        raise ConfigError(
            "'all' draws one picture for each bench",
            expected="--plot with a folder that is there",
            found=arguments.plot,
            fix="make it first",
        )
    for name in names:
        check_picture(_picture(arguments.plot, name))


def _json_file(arguments: argparse.Namespace) -> Path:
    path: Path = arguments.json
    return path / f"{arguments.name}.json" if path.is_dir() else path


def _picture(path: Path, name: str) -> Path:
    """Return a bench's file: in a folder each has one of its own name."""
    return path / f"{name}.png" if path.is_dir() else path


def _attempt(path: Path, write: Callable[[Path], None], refused: dict[Path, ConfigError]) -> None:
    """Write a file, and keep why it can't be written."""
    refused.pop(path, None)
    try:
        with writing(path):
            write(path)
    except ConfigError as error:
        refused[path] = error


def _write(path: Path, results: Sequence[Result], is_list: bool) -> None:
    plain = [result.plain() for result in results]
    value = plain if is_list else plain[0]
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _plot(path: Path, result: Result) -> None:
    from flashrt_ros.bench import plotting

    plotting.save(path, result)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _mark(row: Row) -> Text:
    if row.met is None:
        return Text("")
    return Text("met", style="green") if row.met else Text("MISSED", style="bold red")


def _budget(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MOST_S:
        raise argparse.ArgumentTypeError(
            f"expected seconds, more than 0 and at most {_MOST_S}, found {text!r}"
        )
    return seconds
