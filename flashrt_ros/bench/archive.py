"""Archive: files beside plain writes and reads of the same bytes, and ticks beside files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flashrt_ros.bench.archive_files import ArchiveFiles
from flashrt_ros.bench.context import FOLDER_PREFIX, Cast, Context, Crew, megabytes
from flashrt_ros.bench.devices import MIN_CORES, num_cores, time_host
from flashrt_ros.bench.engines import engine_parameters, hired, wait_for
from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.bench.models import stateful_factory
from flashrt_ros.bench.result import Bar, BarPanel, Result, Row, at_most
from flashrt_ros.bench.sampling import Case, Plan, Samples, median, p99
from flashrt_ros.bench.tick import RATE_HZ
from flashrt_ros.engine.client import EngineClient, Writer
from flashrt_ros.engine.protocol import Status
from flashrt_ros.engine.stats import WINDOW
from flashrt_ros.nodes.folders import run_folder

MAX_SAVE_RATIO = 1.3
"""Of a save's time to that of write, fsync and rename."""

MAX_LOAD_RATIO = 1.5
"""Of a load's time to that of a read."""

MAX_LATENESS_RATIO = 1.5
"""Of the ticks' p99 with files under way to that without, on a machine with enough cores."""

FILE_BYTES = 256 << 20
"""Of the capsule whose saves and loads are timed by themselves."""

CAPSULE_BYTES = 64 << 20
"""Saved and loaded beside ticks."""

_TINY_BYTES = 2 << 20
_FILES_SHARE = 0.6
"""Of the budget; ticks take the rest."""

_STRETCHES = 4
"""Of each kind, in turn: the machine does other things as well."""

_MIN_STRETCH_S = 0.5
_NAME = "saved"

_FILE_CASES = {
    "write": ("write, fsync and rename", "write", 0.0),
    "save": ("save", "write", MAX_SAVE_RATIO),
    "read": ("read from disk", "read", 0.0),
    "load": ("load from disk", "read", MAX_LOAD_RATIO),
    "read warm": ("read from memory", "read warm", 0.0),
    "load warm": ("load from memory", "read warm", MAX_LOAD_RATIO),
}
"""What a row is called, what it is compared with, and how many times as long it may take."""

_KINDS = {"alone": "alone", "save": "with saves beside", "load": "with loads beside"}


@dataclass(slots=True)
class Ticks:
    """What an engine says of its ticks; an item for each stretch.

    Attributes:
        medians_us: Of their lateness.
        p99s_us: Of their lateness.
        num_missed: Ticks skipped, or without an action.
        num_due: Ticks that were due.
        file_ns: Time that each save or load took meanwhile.
    """

    medians_us: list[float] = field(default_factory=list)
    p99s_us: list[float] = field(default_factory=list)
    num_missed: int = 0
    num_due: int = 0
    file_ns: list[int] = field(default_factory=list)

    @property
    def median_us(self) -> float:
        """The middle one of the stretches' medians."""
        return statistics.median(self.medians_us)

    @property
    def p99_us(self) -> float:
        """The middle one of the stretches' p99."""
        return statistics.median(self.p99s_us)


def run(context: Context) -> Result:
    """Time files, then ticks beside them.

    Args:
        context: Device, budget, chance, and who starts processes.

    Returns:
        Rows of files and of ticks, and bars of both.

    Raises:
        WrongResultError: Other bytes came back than were written.
        BenchError: The engine did not do its part.
    """
    with run_folder(FOLDER_PREFIX) as folder:
        samples = _time_files(context, folder / "files")
        ticks = _run_ticks(context, folder / "engine")
    size = megabytes(_TINY_BYTES if context.is_tiny else FILE_BYTES)
    is_bound = not context.is_tiny
    rows = [
        *_file_rows(samples, size, is_bound=is_bound),
        *_tick_rows(ticks, is_bound=is_bound),
    ]
    panels = [_file_panel(samples, size), _tick_panel(ticks)]
    ratio = median(samples["save"].host_us) / median(samples["write"].host_us)
    return context.result(
        "archive",
        rows,
        panels,
        f"a save takes {ratio:.2f} times as long as writing the same bytes to disk; "
        f"a tick starts {ticks['save'].median_us:.0f} us late beside one, "
        f"{ticks['alone'].median_us:.0f} alone",
    )


# files -----------------------------------------------------------------------------------------


def _time_files(context: Context, folder: Path) -> dict[str, Samples]:
    num_bytes = _TINY_BYTES if context.is_tiny else FILE_BYTES
    label = megabytes(num_bytes)
    context.say(f"files of {label}: comparing bytes")
    with ArchiveFiles(folder, num_bytes) as files:
        files.check()
        cases = {
            "write": Case(files.write, time_host),
            "save": Case(files.save, time_host),
            "read": Case(files.read, time_host, files.forget),
            "load": Case(files.load, time_host, files.forget),
            "read warm": Case(files.read, time_host, files.read),
            "load warm": Case(files.load, time_host, files.load),
        }
        seconds = _FILES_SHARE * context.budget.left_s
        plan = Plan(seconds, min_rounds=3, max_rounds=200, warm_up=1)
        return context.measure(cases, plan, f"files of {label}")


def _file_rows(samples: Mapping[str, Samples], size: str, *, is_bound: bool) -> list[Row]:
    rows = []
    for name, (words, beside, bound) in _FILE_CASES.items():
        ms = samples[name].host_us / 1e3
        rows.append(
            Row(
                f"{words}, {size}",
                "ms",
                median(ms),
                p99(ms),
                median(ms) / median(samples[beside].host_us / 1e3),
                at_most("ratio", bound) if bound and is_bound else None,
            )
        )
    return rows


def _file_panel(samples: Mapping[str, Samples], size: str) -> BarPanel:
    bars = []
    for name, (words, _, bound) in _FILE_CASES.items():
        ms = samples[name].host_us / 1e3
        bars.append(Bar(words, median(ms), p99(ms), is_ours=bool(bound)))
    return BarPanel(f"a file of {size}, ms", bars)


# ticks -----------------------------------------------------------------------------------------


def _run_ticks(context: Context, folder: Path) -> dict[str, Ticks]:
    num_bytes = _TINY_BYTES if context.is_tiny else CAPSULE_BYTES
    context.say("ticks: starting an engine")
    parameters = engine_parameters(
        context, capsule_folder=str(folder), capsule_quota_bytes=4 * (num_bytes + (1 << 20))
    )
    found = {name: Ticks() for name in _KINDS}
    with ExitStack() as exits:
        cast = Cast(parameters, stateful_factory(num_bytes, 0))
        client, crew = exits.enter_context(hired(context, cast))
        writers = [exits.enter_context(client.open_writer(n)) for n in ("goal", "observation")]
        work = _work(client)
        order = list(_KINDS) * (1 if context.is_tiny else _STRETCHES)
        context.rng.shuffle(order)
        # The first plans of a process find everything cold.
        _activate(client, *writers)
        _run_stretch(client, crew, work["alone"], _MIN_STRETCH_S, Ticks())
        for number, name in enumerate(order):
            seconds = max(_MIN_STRETCH_S, context.budget.share_s(len(order) - number))
            # The engine's figures are of the last WINDOW ticks: more would tell of the end only.
            seconds = min(seconds, WINDOW / RATE_HZ)
            context.say(f"ticks {_KINDS[name]}")
            _activate(client, *writers)
            _run_stretch(client, crew, work[name], seconds, found[name])
    return found


def _work(client: EngineClient) -> dict[str, Callable[[], int]]:
    """Return what is done beside ticks, by kind: each call says how long it took, ns.

    Raises:
        WrongResultError: What is loaded is not what was saved.
    """
    client.activate(tick_source="timer", rate_hz=RATE_HZ)
    client.snapshot(_NAME)
    saved = client.save(_NAME, replace=True)
    if client.load(_NAME, name="loaded").capsule.digest != saved.digest:
        raise WrongResultError("a load brought other bytes back than were saved")

    def rest() -> int:
        time.sleep(0.05)
        return 0

    def load() -> int:
        begun_ns = time.monotonic_ns()
        client.load(_NAME, name="loaded", replace=True)
        return time.monotonic_ns() - begun_ns

    return {
        "alone": rest,
        "save": lambda: client.save(_NAME, replace=True).duration_ns,
        "load": load,
    }


def _activate(client: EngineClient, goal: Writer, observation: Writer) -> None:
    """Begin to tick; figures begin anew with it."""
    client.activate(tick_source="timer", rate_hz=RATE_HZ)
    goal.write(stamp_ns=1, values=np.zeros(2, np.float32))
    observation.write(stamp_ns=1, position=np.zeros(2, np.float32))


def _run_stretch(
    client: EngineClient, crew: Crew, work: Callable[[], int], seconds: float, found: Ticks
) -> None:
    def ticking() -> Status | None:
        status = client.status()
        return status if status.lateness_p50_us else None

    first = wait_for(crew, ticking, "a tick")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found.file_ns.append(work())
    status = client.status()
    if status.tick == first.tick:
        raise BenchError("the engine did not tick")
    found.medians_us.append(status.lateness_p50_us)
    found.p99s_us.append(status.lateness_p99_us)
    found.num_missed += status.deadline_misses - first.deadline_misses
    found.num_due += status.tick - first.tick + status.deadline_misses - first.deadline_misses


def _tick_rows(ticks: Mapping[str, Ticks], *, is_bound: bool) -> list[Row]:
    rows = []
    has_cores = num_cores() >= MIN_CORES
    for name, words in _KINDS.items():
        found = ticks[name]
        has_target = is_bound and has_cores and name != "alone"
        rows.append(
            Row(
                f"lateness of ticks {words}" + ("" if name == "alone" else "; ratio of p99"),
                "us",
                found.median_us,
                found.p99_us,
                found.p99_us / ticks["alone"].p99_us,
                at_most("ratio", MAX_LATENESS_RATIO) if has_target else None,
                "" if has_cores or name == "alone" else f"target from {MIN_CORES} cores up",
            )
        )
        rows.append(Row(f"ticks missed {words}", "%", 100 * found.num_missed / found.num_due))
        if name != "alone":
            ms = np.array(found.file_ns) / 1e6
            rows.append(Row(f"{name} beside ticks", "ms", median(ms), p99(ms)))
    return rows


def _tick_panel(ticks: Mapping[str, Ticks]) -> BarPanel:
    bars = [
        Bar(words, ticks[name].median_us, ticks[name].p99_us, is_ours=name != "alone")
        for name, words in _KINDS.items()
    ]
    return BarPanel("lateness of a tick's start, µs", bars)
