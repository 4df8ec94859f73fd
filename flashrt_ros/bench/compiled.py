"""A plan's programs through ``torch.compile``: a peer of a captured plan."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from types import FunctionType

import torch

from flashrt_ros.bench.checks import copies
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.sampling import NO_SAMPLE
from flashrt_ros.bench.stand import Stand
from flashrt_ros.models.base import CHUNK, Program

logger = logging.getLogger(__name__)

GRAPHS = "reduce-overhead"
"""The mode in which torch captures CUDA graphs of what it compiled."""

DEFAULT = "default"
"""The mode of who gives none."""

COMPILE_S = {"cpu": 60.0, "cuda": 20.0}
"""Where less is left, nothing is compiled: that alone takes about so long."""

_CLOSE = {"float32": 2e-2, "bfloat16": 0.2}
"""Largest difference of an action, 2 at most, that a compiled plan may show: it is another
program, which rounds elsewhere."""

_MAX_COMPILED = 256

_NUM_RUNS = 3
"""Until what is timed runs: CUDA graphs are warmed up first, captured then, replayed at last."""

_REFUSALS = (RuntimeError, OSError, ImportError, subprocess.SubprocessError)
"""Of a compiler, whether it is Python's, C++'s or the device's."""

_MAX_REASON = 120
"""Characters of what a compiler said that a note has."""

Call = Callable[[], object]
"""A plan, run once in one of the ways."""


@dataclass(slots=True)
class Compiled:
    """A compiled plan, or why there is none.

    Attributes:
        call: Runs it; None where there is none, also once it has failed.
        note: Why there is none, or what is to be said of the one there is; "" for nothing.
    """

    call: Call | None
    note: str = ""


def compile_plan(
    context: Context,
    stand: Stand,
    eager: Call,
    in_order: Callable[[Call], Call],
    mode: str = DEFAULT,
    *,
    reserve_s: float = 0.0,
) -> Compiled:
    """Compile the plan's programs and look at its chunk; or say why that is not done.

    On tensors of its own: the compiler refuses to write views of one memory that differ in dtype,
    and who compiles has no arena. A program that can't be compiled runs as it is, and that is said.

    Args:
        context: Device, budget, and whom to tell.
        stand: Its policy's plan; its lane is left as it was found. With CUDA graphs nothing that
            was captured there may be replayed any more: torch frees memory that is used in it.
        eager: The plan by its Python, on the stand's lane.
        in_order: Runs a call in the backend's order, without gradients.
        mode: Of ``torch.compile``.
        reserve_s: Of the budget, what is not for compilers.

    Returns:
        The plan. A failure of whatever kind, now or while it is timed, costs its row only.
    """
    why = _why_no_compiler(context, context.budget.left_s - reserve_s)
    if why:
        return Compiled(None, why)
    context.say(f"torch.compile at work, mode {mode}")
    torch._dynamo.reset()
    try:
        return _compile(context, stand, eager, in_order, mode)
    except Exception as error:
        # A boundary: what a compiler and its graphs may raise has no common name.
        logger.warning("torch.compile, mode %s, failed", mode, exc_info=True)
        return Compiled(None, f"torch.compile failed with {_reason(error)}")


class _Plan:
    """The programs of a plan, compiled, and the tensors that they run on.

    Args:
        stand: Whose plan it is.
        mode: Of ``torch.compile``.

    Attributes:
        views: Buffers of its own.
        refusals: What the compiler said, for each program that runs as it is.
    """

    def __init__(self, stand: Stand, mode: str) -> None:
        self.views = copies(stand.views)
        self.refusals: list[str] = []
        self._start = copies(self.views)
        self._slots = stand.slots
        self._keys = stand.model.plan().nodes
        self._plain = stand.model.programs()
        if mode == GRAPHS:
            # Torch leaves a graph out that writes what may move, and copies what it reads.
            for view in (*self.views.values(), *self._slots.values()):
                torch._dynamo.mark_static_address(view)
        self._programs: dict[Hashable, Program] = {
            key: torch.compile(_with_own_code(self._plain[key]), dynamic=False, mode=mode)
            for key in self._keys
        }

    @property
    def num_programs(self) -> int:
        """Of the plan."""
        return len(self._keys)

    def rewind(self) -> None:
        """Put the tensors back to what they were at first."""
        for name, view in self.views.items():
            view.copy_(self._start[name])

    def compile(self) -> None:
        """Run it once, and have what is refused run as it is from now on."""
        for key in self._keys:
            try:
                self._programs[key](self.views, self._slots)
            except _REFUSALS as error:
                self.refusals.append(_reason(error))
                self._programs[key] = self._plain[key]
                self._plain[key](self.views, self._slots)

    def run(self) -> None:
        """Run it."""
        for key in self._keys:
            self._programs[key](self.views, self._slots)


def _compile(
    context: Context, stand: Stand, eager: Call, in_order: Callable[[Call], Call], mode: str
) -> Compiled:
    before = stand.buffers()
    eager()
    context.device.settle()
    expected = stand.views[CHUNK].clone()
    stand.put(before)
    plan = _Plan(stand, mode)
    context.device.settle()
    num_skips = _num_skips()
    with torch._dynamo.config.patch(recompile_limit=_MAX_COMPILED):
        in_order(plan.compile)()
        for _ in range(_NUM_RUNS - 1):
            in_order(plan.rewind)()
            in_order(plan.run)()
    if len(plan.refusals) == plan.num_programs:
        return Compiled(None, f"torch.compile failed with {plan.refusals[0]}")
    context.device.settle()
    distance = float((plan.views[CHUNK] - expected).abs().max())
    if not distance <= _CLOSE[getattr(stand.model, "dtype", "float32")]:
        return Compiled(None, f"torch.compile gave a chunk that is off by {distance:.2g}")
    notes = []
    if plan.refusals:
        notes.append(
            f"but {len(plan.refusals)} of {plan.num_programs} programs: {plan.refusals[0]}"
        )
    if mode == GRAPHS and _num_skips() > num_skips:
        notes.append("torch left CUDA graphs out of some programs")
    compiled = Compiled(None, "; ".join(notes))
    compiled.call = _guarded(compiled, in_order(plan.run))
    return compiled


def _guarded(compiled: Compiled, call: Call) -> Call:
    """Return the call; if it ever fails, the peer is there no more, and the others go on."""

    def run() -> object:
        if compiled.call is None:
            return NO_SAMPLE
        try:
            return call()
        except Exception as error:
            # A boundary, as when it was compiled.
            logger.warning("a compiled plan failed while it was timed", exc_info=True)
            compiled.call = None
            compiled.note = f"failed while it was timed, with {_reason(error)}"
            return NO_SAMPLE

    return run


def _num_skips() -> int:
    """Count how often torch left a CUDA graph out so far."""
    counters: Mapping[str, Mapping[str, int]] = torch._dynamo.utils.counters
    return counters["inductor"]["cudagraph_skips"]


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
