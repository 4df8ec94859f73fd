"""A plan through ``torch.compile`` with CUDA graphs, in a process of its own.

python -m flashrt_ros.bench.replay_graphs DEVICE NUMBER SECONDS

When torch captures graphs it frees the workspaces of cuBLAS, which an engine's own graphs use as
well: they could not be replayed beside it, and a device that is lost ends the process.
"""

from __future__ import annotations

import math
import subprocess
import sys

import msgspec

from flashrt_ros.bench.compiled import COMPILE_S, GRAPHS, compile_plan
from flashrt_ros.bench.context import FOLDER_PREFIX, Cast, Context, Crew
from flashrt_ros.bench.devices import DEVICES
from flashrt_ros.bench.failures import BenchError
from flashrt_ros.bench.replay_plans import makers, open_plan
from flashrt_ros.bench.result import Row, absent
from flashrt_ros.bench.sampling import Budget, Case, Plan, median, p99
from flashrt_ros.nodes.commands import python_module
from flashrt_ros.nodes.folders import run_folder

_START_S = 20.0
"""About what a process takes until its policy has made a chunk."""

_SAMPLING = Plan(4.0, min_rounds=20, max_rounds=500)
_MAX_WORDS = 120


class Answer(msgspec.Struct, frozen=True):
    """What the process found.

    Attributes:
        note: Why there are no figures, or what is to be said of them.
        median_us: Of a plan, wall clock; None for no figures.
        p99_us: Of a plan.
        eager_us: Median of the plan by its Python, in the same rounds.
    """

    note: str
    median_us: float | None = None
    p99_us: float | None = None
    eager_us: float | None = None


def measure_apart(context: Context, number: int, size: str) -> Row:
    """Have a process time a policy's plan, beside eager runs of its own.

    Args:
        context: Device and budget; the process is ended when that is spent.
        number: Of the policy, as in :func:`~flashrt_ros.bench.replay_plans.makers`.
        size: In words.

    Returns:
        The row, absent where the process gave no figures, for whatever reason.
    """
    name = f"torch.compile, mode {GRAPHS}, {size}"
    seconds = context.budget.left_s
    least_s = _START_S + COMPILE_S[context.device.name]
    if seconds < least_s:
        return absent(name, "us", f"less than {least_s:g} s for it")
    context.say(f"{size}: torch.compile with CUDA graphs, in a process of its own")
    answer = _ask(context.device.name, number, seconds)
    if answer.median_us is None or answer.eager_us is None:
        return absent(name, "us", answer.note)
    note = "in a process of its own, beside eager runs there"
    note = f"{note}; {answer.note}" if answer.note else note
    ratio = answer.eager_us / answer.median_us
    return Row(name, "us", answer.median_us, answer.p99_us, ratio, note=note)


def _ask(device: str, number: int, seconds: float) -> Answer:
    command = python_module(__name__, device, str(number), f"{seconds:.1f}")
    with run_folder(FOLDER_PREFIX) as folder:
        # Files, for a compiler's own processes may hold a pipe open after their parent's end.
        out, err = folder / "out", folder / "err"
        try:
            with out.open("wb") as to_out, err.open("wb") as to_err:
                code = subprocess.run(
                    command, stdout=to_out, stderr=to_err, timeout=seconds, check=False
                ).returncode
        except subprocess.TimeoutExpired:
            return Answer(f"not done within {seconds:.0f} s")
        except OSError as error:
            return Answer(f"its process did not start: {error}")
        try:
            return msgspec.json.decode(out.read_bytes().splitlines()[-1], type=Answer)
        except (IndexError, msgspec.DecodeError):
            said = err.read_text(errors="replace").strip().splitlines()[-1:]
            words = f"its process ended with {code}: {''.join(said) or 'nothing said'}"
            return Answer(words[:_MAX_WORDS])


def _find(device: str, number: int, seconds: float) -> Answer:
    context = Context(DEVICES[device](), Budget(seconds), _hire)
    model, size = makers(context)[number]()
    with open_plan(context, model, size) as plan:
        compiled = compile_plan(context, plan.stand, plan.eager, plan.in_order, GRAPHS)
        if compiled.call is None:
            return Answer(compiled.note)
        timer = context.device.time_wall
        cases = {"eager": Case(plan.eager, timer), "compiled": Case(compiled.call, timer)}
        samples = context.measure(cases, _SAMPLING, size)
    us = samples["compiled"].host_us
    if compiled.call is None or math.isnan(median(us)):
        return Answer(compiled.note)
    return Answer(compiled.note, median(us), p99(us), median(samples["eager"].host_us))


def _hire(cast: Cast) -> Crew:
    raise BenchError(f"a compiled plan needs no processes, found {cast}")


def main(arguments: list[str]) -> int:
    """Time one plan and print the answer, as JSON, in the last line."""
    device, number, seconds = arguments
    answer = _find(device, int(number), float(seconds))
    sys.stdout.write("\n" + msgspec.json.encode(answer).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
