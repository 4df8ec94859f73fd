"""Barge-in: from an instruction that comes while a turn runs to its first token and subgoal."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flashrt_ros.bench.barge_in_driver import Driver, Times, Way, Written
from flashrt_ros.bench.barge_in_stand import SCALES, BargeInStand
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.devices import time_reported
from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.bench.result import (
    Bar,
    BarPanel,
    Floats,
    LinePanel,
    Result,
    Row,
    Target,
    absent,
    at_most,
)
from flashrt_ros.bench.sampling import Case, Plan, median, p99
from flashrt_ros.bench.ttft_rounds import Sparse

MAX_MS = {"cuda": 10.0, "cpu": 150.0}
"""Of the first token, by device; on a GPU for the model of a billion parameters."""

BARGE = Way("barge-in")
WAIT = Way("the turn ends first", waits=True)
COLD = Way("barge-in, prefix computed", is_cold=True)

_PEER_EVERY = 3
"""Rounds in which each peer runs once; its samples take much longer than ours."""

_MIN_ROUNDS = {"cuda": 48, "cpu": 2 * _PEER_EVERY}
"""By device, however long it was in starting: on a GPU a round takes less than a second."""

_SHARES = (0.75, 0.25)
"""Of the budget, by chunk length."""

_PREFILL, _DECODE = "in prefill", "in decode"


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the times of an instruction.

    Attributes:
        name: For people.
        field: Of :class:`~flashrt_ros.bench.barge_in_driver.Times`.
    """

    name: str
    field: str

    def of(self, found: Sequence[Times]) -> Floats:
        """Return it, ms."""
        return np.array([getattr(one, self.field) for one in found], np.float64) / 1e6


FIRST = Figure("first token", "first_token")
OWN = Figure("first token, as the engine says", "own_first_token")
BY_WALL = Figure("first token, wall clock", "first_token_by_wall")
SUBGOAL = Figure("first subgoal", "first_subgoal")
WHOLE = Figure("whole plan", "whole")


@dataclass(frozen=True, slots=True)
class Found:
    """What one chunk length gave.

    Attributes:
        chunk: Tokens.
        nodes_ns: Longest of three nodes of each kind, alone.
        times: By the name of the way, and for ours of the phase.
    """

    chunk: int
    nodes_ns: Mapping[str, int]
    times: Mapping[str, Sequence[Times]]


def run(context: Context) -> Result:
    """Interrupt turns at random moments, with chunks of two lengths; compare what is written first.

    On a GPU the clock is the host's. On a CPU it is the processor time of the one thread that
    computes, and the first token by the wall clock stands beside it.

    Args:
        context: Device, budget and chance.

    Returns:
        Rows for each length of a chunk and way to a first token, and their bars.

    Raises:
        WrongResultError: A turn after a barge-in, or one that was resumed, wrote something else.
        BenchError: A turn did not come to an end.
    """
    scale = SCALES["tiny" if context.is_tiny else context.device.name]
    clock_ns = time.thread_time_ns if context.device.name == "cpu" else time.monotonic_ns
    context.say("drawing weights")
    stand = BargeInStand(context.device, scale)
    found = []
    for number, chunk in enumerate(scale.chunks):
        seconds = context.budget.left_s * _SHARES[number] / sum(_SHARES[number:])
        ways = [BARGE, WAIT, COLD] if not number else [BARGE]
        found.append(_measure(context, stand, chunk, ways, seconds, clock_ns))
    rows = [row for number, one in enumerate(found) for row in _rows(context, one, not number)]
    ours = [*found[0].times[_PREFILL], *found[0].times[_DECODE]]
    summary = (
        f"{scale.model.title}, prefix of {scale.prefix}: first token {p99(FIRST.of(ours)):.3g} ms "
        f"(p99) after an instruction, in chunks of {scale.chunks[0]}"
    )
    return context.result("barge_in", rows, _panels(context, found), summary)


def _measure(
    context: Context,
    stand: BargeInStand,
    chunk: int,
    ways: Sequence[Way],
    seconds: float,
    clock_ns: Callable[[], int],
) -> Found:
    """Compare what is written with what fresh engines write, then time the ways."""
    begun_s = time.monotonic()
    text = f"chunks of {chunk}"
    context.say(f"{text}: capturing graphs")
    model = stand.model(chunk)
    with stand.engine(model, clock_ns) as fresh:
        nodes_ns = fresh.rehearse()
        driver = Driver(fresh, stand.texts, clock_ns)
        short, seed = driver.short_alone(), driver.find_seed()
    with stand.engine(model, clock_ns) as engine:
        driver = Driver(engine, stand.texts, clock_ns, seed=seed)
        context.say(f"{text}: comparing what is written")
        long, _ = driver.long_alone()
        check(driver, short, long, stand.num_prefill_nodes(chunk))
        done = driver.long_alone()[1]
        ends_ns = done.first_token_ns, done.duration_ns
        times: dict[str, list[Times]] = {way.name: [] for way in ways}
        cases = {
            way.name: Case(
                _caller(context, driver, way, ends_ns, short, times[way.name]), time_reported
            )
            for way in ways
        }
        for name, case in cases.items():
            case.run()
            times[name].clear()
        if WAIT.name in cases:
            cases |= {
                name: Case(Sparse(case.run, 1, _PEER_EVERY), case.timer)
                for name, case in cases.items()
                if name != BARGE.name
            }
        left_s = max(0.0, seconds - (time.monotonic() - begun_s))
        device = "cpu" if context.is_tiny else context.device.name
        plan = Plan(left_s, min_rounds=_MIN_ROUNDS[device], warm_up=0)
        context.measure(cases, plan, f"{text}: instructions at random moments")
    ours = times.pop(BARGE.name)
    phases = {
        name: [one for one in ours if one.is_in_prefill == (name == _PREFILL)]
        for name in (_PREFILL, _DECODE)
    }
    return Found(chunk, nodes_ns, {**phases, **times})


def check(driver: Driver, short: Written, long: Written, num_prefill: int) -> None:
    """Compare what turns write with what they write on an engine that ran nothing before.

    Interrupted are nodes of both phases. Without its recurrent state each turn must write
    something else, or comparing proves nothing.

    Args:
        driver: Of another engine than the one that ``short`` is from.
        short: What the new turn writes there.
        long: What the turn that is interrupted writes alone.
        num_prefill: Nodes that take its instruction in.

    Raises:
        WrongResultError: They differ, or don't where they must.
    """
    in_decode = num_prefill + len(long[0]) // 2
    for num_nodes in sorted({1, num_prefill, in_decode}):
        for what, found, expected in zip(
            ("the turn after a barge-in", "the turn that was resumed"),
            driver.interrupted(num_nodes),
            (short, long),
            strict=True,
        ):
            if found != expected:
                raise WrongResultError(f"{what} wrote something else (after node {num_nodes})")
    if driver.cold_alone() != short:
        raise WrongResultError("the text computed at once gave another plan than the capsule")
    damaged = driver.interrupted(in_decode, is_damaged=True)
    if damaged[0] == short or damaged[1] == long:
        raise WrongResultError("a turn writes the same without its recurrent state")


def _caller(
    context: Context,
    driver: Driver,
    way: Way,
    ends_ns: tuple[int, int],
    expected: Written,
    found: list[Times],
) -> Callable[[], int | None]:
    """Return what samples a way: in prefill and in decode in turn, at a random moment of it.

    It returns the time of the first token, ns; None where the turn had ended before.
    """
    spans = itertools.cycle([(0, ends_ns[0]), ends_ns])

    def call() -> int | None:
        times = driver.sample(way, context.rng.uniform(*next(spans)), expected)
        if times is None:
            return None
        found.append(times)
        return times.first_token

    return call


def _rows(context: Context, found: Found, is_bound: bool) -> list[Row]:
    is_host = context.device.name == "cpu"
    figures = [FIRST, OWN, *([BY_WALL] if is_host else []), SUBGOAL, WHOLE]
    base = {
        figure: median(figure.of([*found.times[_PREFILL], *found.times[_DECODE]]))
        for figure in figures
    }
    rows = []
    for title, times, is_ours in _labelled(found):
        for figure in figures:
            row_name = f"{title}, {figure.name}, chunks of {found.chunk}"
            if not times:
                rows.append(absent(row_name, "ms", "no turn was there to be interrupted then"))
                continue
            ms = figure.of(times)
            target = _target(context) if is_bound and is_ours and figure is FIRST else None
            ratio = median(ms) / base[figure]
            clock = "" if not is_host or figure is BY_WALL else "processor time, "
            note = f"{clock}n = {len(times)}"
            rows.append(Row(row_name, "ms", median(ms), p99(ms), ratio, target, note))
    for kind, nanoseconds in found.nodes_ns.items():
        name = f"a node of {kind} alone, chunks of {found.chunk}"
        note = "processor time, longest of 3" if is_host else "longest of 3"
        rows.append(Row(name, "ms", nanoseconds / 1e6, note=note))
    return rows


def _target(context: Context) -> Target | None:
    if context.is_tiny:
        return None
    return at_most("p99", MAX_MS[context.device.name])


def _panels(context: Context, found: Sequence[Found]) -> list[LinePanel | BarPanel]:
    target = _target(context)
    panels: list[LinePanel | BarPanel] = []
    for figure in (FIRST, SUBGOAL, WHOLE):
        bars = [
            Bar(
                f"{title}, chunks of {one.chunk}",
                median(figure.of(times)),
                p99(figure.of(times)),
                is_ours,
            )
            for one in found
            for title, times, is_ours in _labelled(one)
            if times
        ]
        limit = target.bound if target is not None and figure is FIRST else None
        panels.append(BarPanel(f"from an instruction to its {figure.name}, ms", bars, limit))
    return panels


def _labelled(found: Found) -> Iterator[tuple[str, Sequence[Times], bool]]:
    """Yield each way's name, times, and whether it is ours."""
    for name, times in found.times.items():
        is_ours = name in (_PREFILL, _DECODE)
        yield f"{BARGE.name} {name}" if is_ours else name, times, is_ours
