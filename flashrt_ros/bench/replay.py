"""Replay: a plan captured once, beside the same programs run by Python and compiled."""

from __future__ import annotations

from typing import Any

from flashrt_ros.bench.checks import require_different, require_equal
from flashrt_ros.bench.compiled import DEFAULT, Call, Compiled, compile_plan
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.replay_graphs import measure_apart
from flashrt_ros.bench.replay_plans import makers, open_plan
from flashrt_ros.bench.result import Bar, BarPanel, Result, Row, absent, at_least
from flashrt_ros.bench.sampling import Case, Samples, median, p99
from flashrt_ros.bench.stand import Stand
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.runtime.spec import Role

MIN_SPEED_UP = 3.5
"""Over eager, on a GPU, from :data:`BIG` parameters up."""

BIG = 135_000_000
"""Parameters; the largest policy on a GPU has a few more."""

_LEAST_S = 5.0
"""That a size takes without a compiler."""

_MIN_ROUNDS, _MAX_ROUNDS = 20, 500
"""Of replays: what is left of the budget is for compilers."""


def run(context: Context) -> Result:
    """Compare, size by size, the largest first: where time is short, that one is compiled.

    Args:
        context: Device, budget and chance.

    Returns:
        Rows for each size of policy, and bars.

    Raises:
        WrongResultError: A replay gives other bytes than the programs themselves.
    """
    parts: list[tuple[str, list[Row]]] = []
    policies = makers(context)
    for num_left, make in zip(range(len(policies), 0, -1), reversed(policies), strict=True):
        context.say("building the policy")
        model, size = make()
        parts.insert(0, (size, _measure(context, model, size, num_left)))
    if context.device.name == "cuda":
        # With what is left at the end, so that it takes no time of the others.
        for number, (size, part) in reversed(list(enumerate(parts))):
            part.append(measure_apart(context, number, size))
    rows = [row for _, part in parts for row in part]
    panels = [_panel(size, part) for size, part in parts]
    speed_ups = [f"{part[1].ratio or 0:.2f} at {size}" for size, part in parts]
    summary = "eager over a captured plan: " + ", ".join(speed_ups)
    return context.result("replay", rows, panels, summary)


def _measure(context: Context, model: PolicyModel, size: str, num_left: int) -> list[Row]:
    with open_plan(context, model, size) as plan:
        context.say(f"{size}: comparing bytes")
        _check(plan.stand, plan.eager, plan.captured)
        reserve_s = _LEAST_S * (num_left - 1)
        compiled = compile_plan(context, plan.stand, plan.eager, plan.in_order, reserve_s=reserve_s)
        calls: dict[str, Call] = {"eager": plan.eager, "captured": plan.captured}
        if compiled.call is not None:
            calls["compiled"] = compiled.call
        timer = context.device.time_wall
        cases = {name: Case(call, timer) for name, call in calls.items()}
        rounds = context.plan(num_left, min_rounds=_MIN_ROUNDS, max_rounds=_MAX_ROUNDS)
        samples = context.measure(cases, rounds, f"{size}: replays")
    return _rows(context, model, size, samples, compiled)


def _check(stand: Stand, eager: Call, captured: Call) -> None:
    """Run both from one state; they must leave the same bytes, and not those they found."""
    roles = (Role.STATE, Role.INPUT, Role.OUTPUT)
    before = stand.buffers(*roles)
    eager()
    expected = stand.buffers(*roles)
    require_different("a plan", expected, before)
    stand.put(before)
    captured()
    require_equal("a replay", stand.buffers(*roles), expected)


def _rows(
    context: Context,
    model: PolicyModel,
    size: str,
    samples: dict[str, Samples],
    compiled: Compiled,
) -> list[Row]:
    is_big = context.device.name == "cuda" and getattr(model, "num_parameters", 0) >= BIG
    eager_us = median(samples["eager"].host_us)

    def row(name: str, words: str, **more: Any) -> Row:
        us = samples[name].host_us
        ratio = eager_us / median(us)
        return Row(f"{words}, {size}", "us", median(us), p99(us), ratio, **more)

    rows = [
        row("eager", "eager plan"),
        row(
            "captured", "captured plan", target=at_least("ratio", MIN_SPEED_UP) if is_big else None
        ),
    ]
    words = f"torch.compile, mode {DEFAULT}"
    # One that failed while it was timed has a call no more, and says why.
    if compiled.call is None:
        rows.append(absent(f"{words}, {size}", "us", compiled.note))
    else:
        rows.append(row("compiled", words, note=compiled.note))
    return rows


def _panel(size: str, rows: list[Row]) -> BarPanel:
    bars = [
        Bar(
            row.name.removesuffix(f", {size}"),
            row.median / 1e3,
            (row.p99 or 0) / 1e3,
            is_ours=row.name.startswith("captured"),
        )
        for row in rows
        if row.median is not None
    ]
    return BarPanel(f"{size}: ms a plan", bars)
