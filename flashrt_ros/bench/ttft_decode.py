"""Decoded tokens after a long prefix, captured beside eager, for the bench ``ttft``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flashrt_ros.bench.context import Context
from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.bench.result import Bar, BarPanel, Row, at_least, at_most
from flashrt_ros.bench.sampling import Case, Plan, median, p99
from flashrt_ros.bench.ttft_clock import timer_for
from flashrt_ros.bench.ttft_models import SUFFIX
from flashrt_ros.bench.ttft_stand import TextStand
from flashrt_ros.models.hybrid_borders import SessionCapsule
from flashrt_ros.models.hybrid_session import HybridSession

MAX_TOKEN_MS = 1.25
"""On a GPU, a token in a row of them."""

MIN_SPEED_UP = 3.0
"""Over eager, on a GPU."""

NUM_TOKENS = SUFFIX
"""Tokens of a sample."""

_ROW, _EACH, _EAGER = "captured", "captured, awaited", "eager"


def run(
    context: Context, stand: TextStand, capsule: SessionCapsule, seconds: float
) -> tuple[list[Row], BarPanel]:
    """Compare the tokens, and time them: 64 in a row, one by one, and by eager programs.

    Args:
        context: Device and chance.
        stand: Both of its sessions are used, and left on some text.
        capsule: Of the prefix.
        seconds: Of sampling.

    Returns:
        A row for each way and one of the speed-up; and bars of the ways.

    Raises:
        WrongResultError: The tokens differ.
    """
    length = capsule.position
    text = f"decode after {length} tokens"
    context.say(f"{text}: comparing tokens")
    calls: dict[str, Callable[[], list[int]]] = {
        _ROW: lambda: stand.captured.decode(NUM_TOKENS),
        _EACH: lambda: _one_by_one(stand.captured),
        _EAGER: lambda: stand.eager.decode(NUM_TOKENS),
    }
    sessions = {_ROW: stand.captured, _EACH: stand.captured, _EAGER: stand.eager}
    expected: list[int] | None = None
    for name, call in calls.items():
        sessions[name].restore(capsule)
        tokens = call()
        if expected not in (None, tokens):
            raise WrongResultError(f"decoding ({name}) gave other tokens than before")
        expected = tokens
    cases = {
        name: Case(call, timer_for(context.device), partial(sessions[name].restore, capsule))
        for name, call in calls.items()
    }
    is_tiny = context.is_tiny
    plan = Plan(seconds, min_rounds=1 if is_tiny else 3, max_rounds=30, warm_up=0 if is_tiny else 1)
    samples = context.measure(cases, plan, text)
    ms = {name: found.host_us / 1e3 / NUM_TOKENS for name, found in samples.items()}
    row_ms, is_cuda = median(ms[_ROW]), context.device.name == "cuda"
    rows = [
        Row(
            f"decode a token, {name}, at {length}",
            "ms",
            median(values),
            p99(values),
            median(values) / row_ms,
            at_most("median", MAX_TOKEN_MS) if name == _ROW and is_cuda else None,
        )
        for name, values in ms.items()
    ]
    speed_up = median(ms[_EAGER]) / row_ms
    target = at_least("ratio", MIN_SPEED_UP) if is_cuda else None
    title = f"decode, eager over captured, at {length}"
    rows.append(Row(title, "times", speed_up, None, speed_up, target))
    bars = [
        Bar(name, median(values), p99(values), is_ours=name != _EAGER)
        for name, values in ms.items()
    ]
    panel = BarPanel(f"a decoded token after {length}, ms", bars, MAX_TOKEN_MS if is_cuda else None)
    return rows, panel


def _one_by_one(session: HybridSession) -> list[int]:
    tokens: list[int] = []
    for _ in range(NUM_TOKENS):
        tokens += session.decode(1)
        _ = session.next_token
    return tokens
