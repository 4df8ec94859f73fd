"""Replay: a plan captured once, beside the same programs run by Python and compiled."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from flashrt_ros.bench.checks import require_different, require_equal
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.result import Bar, BarPanel, Result, Row, absent, at_least
from flashrt_ros.bench.sampling import Case, Samples, median, p99
from flashrt_ros.bench.stand import Stand
from flashrt_ros.bench.wide_flow import WideFlowPolicy
from flashrt_ros.models.base import CHUNK, PolicyModel, Program
from flashrt_ros.models.registry import create
from flashrt_ros.runtime.spec import Role

MIN_SPEED_UP = 3.5
"""Over eager, on a GPU, from :data:`BIG` parameters up."""

BIG = 135_000_000
"""Parameters; the largest policy on a GPU has a few more."""

COMPILE_S = {"cpu": 60.0, "cuda": 20.0}
"""Where less is left, nothing is compiled: that alone takes about so long."""

_CLOSE = {"float32": 2e-2, "bfloat16": 0.2}
"""Largest difference of an action, 2 at most, that a compiled plan may show: it is another
program, which rounds elsewhere."""

_MAX_COMPILED = 256

_REFUSALS = (RuntimeError, OSError, ImportError, subprocess.SubprocessError)
"""Of a compiler, whether it is Python's, C++'s or the device's."""

_MAX_REASON = 120
"""Characters of what a compiler said that a note has."""

_LEAST_S = 5.0
"""That a size takes without a compiler."""

_MIN_ROUNDS, _MAX_ROUNDS = 20, 500
"""Of replays: what is left of the budget is for compilers."""

_WIDE = {"cpu": ((128, 4), (256, 8)), "cuda": ((512, 6), (1024, 11))}

_DTYPE = {"cpu": "float32", "cuda": "bfloat16"}
"""What policies of such a size run in there."""

Call = Callable[[], object]
"""A plan, run once in one of the ways."""


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
    makers = _makers(context)
    for num_left, make in zip(range(len(makers), 0, -1), reversed(makers), strict=True):
        context.say("building the policy")
        model, size = make()
        parts.insert(0, (size, _measure(context, model, size, num_left)))
    rows = [row for _, part in parts for row in part]
    panels = [_panel(size, part) for size, part in parts]
    speed_ups = [f"{part[1].ratio or 0:.2f} at {size}" for size, part in parts]
    summary = "a captured plan over eager: " + ", ".join(speed_ups)
    return context.result("replay", rows, panels, summary)


def _makers(context: Context) -> list[Callable[[], tuple[PolicyModel, str]]]:
    device = context.device.name

    def packaged() -> tuple[PolicyModel, str]:
        return create("flow_policy"), "flow_policy as packaged"

    def wide(width: int, layers: int) -> Callable[[], tuple[PolicyModel, str]]:
        def make() -> tuple[PolicyModel, str]:
            model = WideFlowPolicy(width=width, layers=layers, dtype=_DTYPE[device])
            return model, f"{model.num_parameters / 1e6:.0f} M parameters, {model.dtype}"

        return make

    if context.is_tiny:
        return [packaged]
    return [packaged, *(wide(*size) for size in _WIDE[device])]


def _measure(context: Context, model: PolicyModel, size: str, num_left: int) -> list[Row]:
    with Stand(context.device, model) as stand:
        stand.activate()
        stand.feed()
        context.say(f"{size}: first chunk")
        stand.step()
        programs, keys = model.programs(), model.plan().nodes
        views, slots, lane = stand.views, stand.slots, stand.environment.lane

        backend = stand.engine.core.backend

        def programs_in_order() -> None:
            for key in keys:
                programs[key](views, slots)

        def in_order(call: Call) -> Call:
            def ordered() -> None:
                with backend.ordered(), torch.no_grad():
                    call()

            return ordered

        eager = in_order(programs_in_order)

        def captured() -> None:
            for key in keys:
                lane.replay(key)

        context.say(f"{size}: comparing bytes")
        _check(stand, eager, captured)
        seconds = context.budget.left_s - _LEAST_S * (num_left - 1)
        compiled, why = _compiled(context, stand, eager, in_order, seconds)
        calls: dict[str, Call] = {"eager": eager, "captured": captured}
        if compiled is not None:
            calls["compiled"] = compiled
        timer = context.device.time_wall
        cases = {name: Case(call, timer) for name, call in calls.items()}
        plan = context.plan(num_left, min_rounds=_MIN_ROUNDS, max_rounds=_MAX_ROUNDS)
        samples = context.measure(cases, plan, f"{size}: replays")
        return _rows(context, model, size, samples, why)


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


def _compiled(
    context: Context,
    stand: Stand,
    eager: Call,
    in_order: Callable[[Call], Call],
    seconds: float,
) -> tuple[Call | None, str]:
    """Compile the plan's programs and look at its chunk; or say why that is not done.

    On tensors of its own: the compiler refuses to write views of one memory that differ in dtype,
    and who compiles has no arena. A program that can't be compiled runs as it is, and that is said.
    """
    why = _why_no_compiler(context, seconds)
    if why:
        return None, why
    context.say("torch.compile at work")
    before = stand.buffers()
    eager()
    context.device.settle()
    expected = stand.views[CHUNK].clone()
    stand.put(before)
    views = {name: view.clone() for name, view in stand.views.items()}
    slots, keys = stand.slots, stand.model.plan().nodes
    torch._dynamo.reset()
    plain = stand.model.programs()
    programs = {key: torch.compile(_with_own_code(plain[key]), dynamic=False) for key in keys}
    refusals: list[str] = []

    def compile_all() -> None:
        for key in keys:
            try:
                programs[key](views, slots)
            except _REFUSALS as error:
                refusals.append(_reason(error))
                programs[key] = plain[key]
                plain[key](views, slots)

    def run_compiled() -> None:
        for key in keys:
            programs[key](views, slots)

    call = in_order(run_compiled)
    with torch._dynamo.config.patch(recompile_limit=_MAX_COMPILED):
        in_order(compile_all)()
    if len(refusals) == len(keys):
        return None, f"torch.compile failed with {refusals[0]}"
    context.device.settle()
    distance = float((views[CHUNK] - expected).abs().max())
    if not distance <= _CLOSE[getattr(stand.model, "dtype", "float32")]:
        return None, f"torch.compile gave a chunk that is off by {distance:.2g}"
    if refusals:
        return call, f"but {len(refusals)} of {len(keys)} programs: {refusals[0]}"
    return call, ""


def _reason(error: Exception) -> str:
    """Return what a compiler said: of a backend's failure, that which the backend raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if not line.endswith("raised:")), "")
    name = type(error).__name__
    return f"{name}: {said}"[:_MAX_REASON] if said else name


def _with_own_code(program: Program) -> Program:
    """Give a program code of its own.

    The steps are one function over other constants. What is compiled of one function is
    looked through one by one at each call, which no one who wants it fast would have.
    """
    if not isinstance(program, FunctionType):
        return program
    code = program.__code__.replace()
    return FunctionType(
        code, program.__globals__, program.__name__, program.__defaults__, program.__closure__
    )


def _why_no_compiler(context: Context, seconds: float) -> str:
    least_s = COMPILE_S[context.device.name]
    if seconds < least_s:
        return f"less than {least_s:g} s for it"
    if context.device.name == "cuda":
        return "" if importlib.util.find_spec("triton") else "no triton"
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    return "" if compiler else "no C++ compiler"


def _rows(
    context: Context, model: PolicyModel, size: str, samples: dict[str, Samples], why: str
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
    if "compiled" in samples:
        rows.append(row("compiled", "torch.compile", note=why))
    else:
        rows.append(absent(f"torch.compile, {size}", "us", why))
    return rows


def _panel(size: str, rows: list[Row]) -> BarPanel:
    labels = ("eager", "captured", "torch.compile")
    bars = [
        Bar(label, row.median / 1e3, (row.p99 or 0) / 1e3, is_ours=label == "captured")
        for label, row in zip(labels, rows, strict=True)
        if row.median is not None
    ]
    return BarPanel(f"{size}: ms a plan", bars)
