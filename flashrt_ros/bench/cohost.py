"""Cohost: a policy's ticks with a planner in their slack, beside a process of its own, alone."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from flashrt_ros.bench.context import Cast, Context, Crew
from flashrt_ros.bench.devices import MIN_CORES, num_cores
from flashrt_ros.bench.engines import START_S, connected, engine_parameters, hired, wait_for
from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.bench.result import Bar, BarPanel, Result, Row, at_most
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.stats import WINDOW
from flashrt_ros.errors import FlashrtError
from flashrt_ros.models.flow_network import IMAGE_PX
from flashrt_ros.nodes.commands import python_module
from flashrt_ros.nodes.folders import run_folder

RATE_HZ = 50.0
"""Of the policy's ticks."""

MAX_RISE = 1.10
"""Of p99, from ticks alone to ticks with the planner in their slack."""

_FACTORY = "flashrt_ros.bench.cohost_planner:make"
_PROMPT = "Go round the block on its far side, and stay there."
_REPLAN = 2
"""Actions left when the next chunk is begun, so that it is made between ticks."""

_MIN_S = 0.5
_WARM_UP_S = 0.3
_ALONE, _SLICED, _APART = "alone", "planner in the slack", "planner in a process of its own"


@dataclass(slots=True)
class Phases:
    """What was found in one way, a figure for each phase.

    Attributes:
        lateness_us: Median and p99 of the lateness of ticks.
        plan_us: Median and p99 of the time of a plan.
        num_missed: Ticks missed, in all.
        num_due: Ticks that were due, in all.
        tokens_per_s: Of the planner.
    """

    lateness_us: list[tuple[float, float]] = field(default_factory=list)
    plan_us: list[tuple[float, float]] = field(default_factory=list)
    num_missed: int = 0
    num_due: int = 0
    tokens_per_s: list[float] = field(default_factory=list)

    @property
    def missed_percent(self) -> float:
        """Ticks missed of those due: phases differ in number and length."""
        return 100.0 * self.num_missed / max(1, self.num_due)

    def both_us(self) -> tuple[float, float]:
        """Return the sums of lateness and plan, of medians and of p99s, in the middle phase.

        The sum of two p99s is not the p99 of the sum.
        """
        sums = np.array(self.lateness_us) + np.array(self.plan_us)
        middle = np.median(sums, axis=0)
        return float(middle[0]), float(middle[1])


class Load:
    """Has a planner write plans, one after the other, on a thread.

    Args:
        client: Of the planner engine; used by nobody else meanwhile.
        last_plan_s: Longest wait, at the end, for the plan under way.
    """

    def __init__(self, client: EngineClient, *, last_plan_s: float = START_S) -> None:
        self._client = client
        self._last_plan_s = last_plan_s
        self._is_stopping = False
        self._num_tokens = 0
        self._seeds = itertools.count()
        self._error: FlashrtError | None = None
        # a bench that failed ends without it
        self._thread = threading.Thread(target=self._run, name="planner load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_stopping = True
        self._thread.join(self._last_plan_s)
        if self._thread.is_alive() and error is None:
            # it has the client, which the next phase wants
            raise BenchError(f"the planner's last plan took longer than {self._last_plan_s:g} s")

    @property
    def num_tokens(self) -> int:
        """Tokens of the plans that are done.

        Raises:
            BenchError: The planner engine refused, or no more plans are asked for.
        """
        if self._error is not None:
            raise BenchError(f"the planner did not do its part: {self._error!r}") from self._error
        if not self._thread.is_alive():
            raise BenchError("nobody asks the planner for plans any more")
        return self._num_tokens

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                done = self._client.instruct(_PROMPT, temperature=1.0, seed=next(self._seeds))
                self._num_tokens += len(done.tokens)
        except FlashrtError as error:
            self._error = error


def run(context: Context) -> Result:
    """Tick alone and with the planner, turn by turn, in either way of running it.

    On a CPU all processes share one core, as they would share a GPU, and the planner's model is
    a tiny one, whose nodes are as long there as those of a billion parameters on a GPU.

    Args:
        context: Device, budget, and who starts processes.

    Returns:
        A row for each figure of each way, and bars of lateness and of tokens.

    Raises:
        WrongResultError: The planner's tokens depend on where it runs.
        BenchError: A process did not do its part.
    """
    found = {name: Phases() for name in (_ALONE, _SLICED, _APART)}
    texts: dict[str, tuple[int, ...]] = {}
    ways = [_SLICED, _APART]
    context.rng.shuffle(ways)
    free_tokens = 0.0
    for number, way in enumerate(ways):
        context.say(f"{way}: starting")
        begun = time.monotonic()
        with _processes(context, way) as (policy, planner, crew):
            num_left = len(ways) - number
            # those that follow will be about as long in starting
            to_come_s = (num_left - 1) * (time.monotonic() - begun)
            seconds = (context.budget.left_s - to_come_s) / num_left
            driver = _Driver(context, policy, planner, crew)
            texts[way] = driver.plan_once()
            if way == _SLICED:
                free_tokens = driver.free_tokens_per_s(_phase_s(context, seconds))
            rounds = 1 if context.is_tiny else max(1, round(seconds / 8.0))
            phase_s = _phase_s(context, seconds / (2 * rounds))
            for _ in range(rounds):
                # the engine of the policy is alone in its process where the planner has its own
                driver.phase(found[_ALONE] if way == _APART else None, phase_s, is_loaded=False)
                driver.phase(found[way], phase_s, is_loaded=True)
    if texts[_SLICED] != texts[_APART]:
        raise WrongResultError("the planner's tokens depend on the process that it runs in")
    return _result(context, found, free_tokens)


def _phase_s(context: Context, seconds: float) -> float:
    # the engine's figures are of the last WINDOW ticks: a longer phase would tell of its end only
    return min(max(_MIN_S if context.is_tiny else 2 * _MIN_S, seconds), WINDOW / RATE_HZ)


class _Driver:
    """Drives both engines of one way."""

    def __init__(
        self, context: Context, policy: EngineClient, planner: EngineClient, crew: Crew
    ) -> None:
        self._context = context
        self._policy = policy
        self._planner = planner
        self._crew = crew
        goal, observation = policy.open_writer("goal"), policy.open_writer("observation")
        goal.write(stamp_ns=1, values=np.full(2, 0.25, np.float32))
        image = np.zeros((IMAGE_PX, IMAGE_PX, 3), np.uint8)
        observation.write(stamp_ns=1, image=image, agent_pos=np.full(2, 0.25, np.float32))

    def plan_once(self) -> tuple[int, ...]:
        """Have one plan made; returns its tokens."""
        return self._planner.instruct(_PROMPT, temperature=1.0, seed=1).tokens

    def free_tokens_per_s(self, seconds: float) -> float:
        """Return what the planner writes while no tick is due."""
        with Load(self._planner) as load:
            return self._rate(load, seconds, "planner without ticks")

    def phase(self, phases: Phases | None, seconds: float, *, is_loaded: bool) -> None:
        """Tick for a while, with plans being written or without."""
        text = "ticks with the planner" if is_loaded else "ticks alone"
        with ExitStack() as exits:
            load = exits.enter_context(Load(self._planner)) if is_loaded else None
            self._policy.activate(tick_source="timer", rate_hz=RATE_HZ)
            time.sleep(_WARM_UP_S)
            # Figures begin anew with an activation.
            self._policy.activate(tick_source="timer", rate_hz=RATE_HZ)
            first = self._policy.status().tick
            rate = self._rate(load, seconds, text)
            status = self._policy.status()
            # the plan under way ends without ticks, so that its end is not waited for long
            self._policy.deactivate()
        if phases is None:
            return
        phases.lateness_us.append((status.lateness_p50_us, status.lateness_p99_us))
        phases.plan_us.append((status.replay_p50_us, status.replay_p99_us))
        phases.num_missed += status.deadline_misses
        phases.num_due += status.tick - first + status.deadline_misses
        if is_loaded:
            phases.tokens_per_s.append(rate)

    def _rate(self, load: Load | None, seconds: float, text: str) -> float:
        """Wait, and return the tokens a second that came meanwhile."""
        before = load.num_tokens if load is not None else 0
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            self._context.say(text)
            time.sleep(0.05)
            ended = self._crew.ended()
            if ended is not None:
                raise BenchError(f"{ended}, unasked")
        after = load.num_tokens if load is not None else 0
        return (after - before) / (time.monotonic() - begun)


@contextmanager
def _processes(context: Context, way: str) -> Iterator[tuple[EngineClient, EngineClient, Crew]]:
    """Start the engines in one process or in two, and connect to both."""
    engine = engine_parameters(
        context, model="flow_policy", weights="", replan_threshold=_REPLAN, num_standby_lanes=0
    )
    name = f"{engine['name']}_planner"
    with ExitStack() as exits:
        folder = exits.enter_context(run_folder())
        file = folder / "planner.json"
        file.write_bytes(msgspec.json.encode(_planner_parameters(context, name)))
        words = ("--config", str(file), "--model-factory", _FACTORY)
        planner = python_module("flashrt_ros.planner", *words)
        if way == _SLICED:
            cast = Cast(engine, command=(*planner, "--engine-config"))
        else:
            cast = Cast(engine, others=[("planner", planner)])
        with _one_core(context):
            policy, crew = exits.enter_context(hired(context, cast))
        client = wait_for(crew, lambda: connected(name), "the planner engine")
        yield policy, exits.enter_context(client), crew


def _planner_parameters(context: Context, name: str) -> Mapping[str, Any]:
    is_big = context.device.name == "cuda" and not context.is_tiny
    return {
        "name": name,
        "model": "random",
        "checkpoint": "/big" if is_big else "/tiny",
        "device": context.device.name,
        "max_positions": 2048 if is_big else 768,
        "chunk_length": 256 if is_big else 64,
        "prefixes": ["persona = You move a pusher on a table. " * 8],
        "max_tokens": 32,
        "capsule_host_quota_bytes": 0,
    }


@contextmanager
def _one_core(context: Context) -> Iterator[None]:
    """On a host's device, let the processes that are started here share a core.

    They take it from this process, which gets its cores back.
    """
    if context.device.name != "cpu":
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _result(context: Context, found: Mapping[str, Phases], free_tokens: float) -> Result:
    alone = found[_ALONE]
    has_cores = context.device.name != "cpu" or num_cores() >= MIN_CORES
    is_bound = has_cores and not context.is_tiny
    rows: list[Row] = []
    for name, phases in found.items():
        note = "" if has_cores or name != _SLICED else f"target from {MIN_CORES} cores up"
        rows += _rows(name, phases, alone, note, is_ours=is_bound and name == _SLICED)
    rows.append(Row("planner without ticks", "tokens/s", free_tokens))
    bars = [Bar(name, *phases.both_us(), name == _SLICED) for name, phases in found.items()]
    limit = alone.both_us()[1] * MAX_RISE if is_bound else None
    panels = [
        BarPanel("sum of a tick's lateness and a plan, µs", bars, limit),
        BarPanel("planner, tokens/s", _token_bars(found, free_tokens)),
    ]
    summary = f"ticks at {RATE_HZ:g} Hz, while plans are written one after the other"
    return context.result("cohost", rows, panels, summary)


def _rows(name: str, phases: Phases, alone: Phases, note: str, *, is_ours: bool) -> list[Row]:
    rows = []
    for what, figures, reference in (
        ("tick lateness", phases.lateness_us, alone.lateness_us),
        ("plan", phases.plan_us, alone.plan_us),
    ):
        middle_us, high_us = map(float, np.median(np.array(figures), axis=0))
        base_us = float(np.median(np.array(reference), axis=0)[1])
        ratio = high_us / base_us if base_us else None
        rows.append(Row(f"{what}, {name}", "us", middle_us, high_us, ratio))
    middle_us, high_us = phases.both_us()
    base_us = alone.both_us()[1]
    ratio = high_us / base_us if base_us else None
    target = at_most("ratio", MAX_RISE) if is_ours else None
    words = f"sum of lateness and plan, {name}"
    rows.append(Row(words, "us", middle_us, high_us, ratio, target, note))
    target = at_most("median", alone.missed_percent) if is_ours else None
    missed = phases.missed_percent
    rows.append(Row(f"ticks missed, {name}", "%", missed, target=target, note=note))
    if phases.tokens_per_s:
        rows.append(Row(f"tokens, {name}", "tokens/s", float(np.median(phases.tokens_per_s))))
    return rows


def _token_bars(found: Mapping[str, Phases], free_tokens: float) -> Sequence[Bar]:
    return [
        Bar("without ticks", free_tokens),
        *(
            Bar(name, float(np.median(phases.tokens_per_s)), None, name == _SLICED)
            for name, phases in found.items()
            if phases.tokens_per_s
        ),
    ]
