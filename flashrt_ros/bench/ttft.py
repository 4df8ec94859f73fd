"""Time to first token after a long prefix: restored from a capsule, beside computing it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from flashrt_ros.bench import ttft_ablation, ttft_decode, ttft_set
from flashrt_ros.bench import ttft_transformers as reference
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.result import (
    BarPanel,
    Line,
    LinePanel,
    Result,
    Row,
    Target,
    absent,
    at_least,
    at_most,
)
from flashrt_ros.bench.sampling import Case, Plan, Samples, median, p99
from flashrt_ros.bench.ttft_clock import in_words, timer_for
from flashrt_ros.bench.ttft_models import SUFFIX, random_text, scale_for
from flashrt_ros.bench.ttft_peers import COPIED, WITH_FLA, WITHOUT_FLA, Peers
from flashrt_ros.bench.ttft_restore import Restores
from flashrt_ros.bench.ttft_rounds import FEW, share_out, spread
from flashrt_ros.bench.ttft_stand import TextStand
from flashrt_ros.models.hybrid_borders import SessionCapsule

MAX_CAPSULE_MS = 2.5
"""On a GPU, after the longest prefix."""

MAX_GROWTH = 1.25
"""Of a capsule's time after the longest prefix to that after the shortest."""

MAX_COLD_MS, MIN_COLD_RATIO = 110.0, 40.0
"""On a GPU, of our own computing at :data:`COMPARED_AT`, and over the capsule's there."""

MIN_FLA_RATIO, MIN_PLAIN_RATIO = 1.6, 4.0
"""On a GPU, of ``transformers`` with and without flash-linear-attention over our own computing."""

COMPARED_AT = 16_384
"""Tokens of the prefix that peers are compared at, where there is such a prefix."""

CAPSULE, COLD, EAGER = "capsule", "own cold, captured", "own cold, eager"
"""Our own ways to a first token."""

_DECODE, _SET = "decode", "set"
_DECODE_SHARE, _SET_SHARE = 0.12, 0.28
"""Of the budget; the prefixes have the rest, the long ones more of it."""


@dataclass(slots=True)
class _Found:
    """What was found so far, each kind of rows by itself.

    Attributes:
        samples: Of first tokens, by the length of the prefix and the name of the way.
        first_tokens: Their rows.
        restores: Of the prefixes.
        decoded: Rows of decoded tokens.
        decode_panels: Bars of them, once they are there.
        grains: Rows of the logits that differ where they must not.
    """

    samples: dict[int, dict[str, Samples]] = field(default_factory=dict)
    first_tokens: list[Row] = field(default_factory=list)
    restores: Restores = field(default_factory=Restores)
    decoded: list[Row] = field(default_factory=list)
    decode_panels: list[BarPanel] = field(default_factory=list)
    grains: list[Row] = field(default_factory=list)


class _Shares:
    """What is left of the budget, for the parts that are left.

    Args:
        context: Has the budget.
        prefixes: Lengths; each is a part by its name, beside decoding and the set.
    """

    def __init__(self, context: Context, prefixes: Sequence[int]) -> None:
        self._budget = context.budget
        rest = 1 - _DECODE_SHARE - _SET_SHARE
        weights = {f"{length}": length / sum(prefixes) + 1 for length in prefixes}
        total = sum(weights.values())
        self._weights = {name: rest * weight / total for name, weight in weights.items()}
        self._weights |= {_DECODE: _DECODE_SHARE, _SET: _SET_SHARE}

    def take_s(self, name: str) -> float:
        """Return the seconds of a part that begins now."""
        total = sum(self._weights.values())
        return self._budget.left_s * self._weights.pop(name) / total


def run(context: Context) -> Result:
    """Time first tokens, restores, decoded tokens and a set of prefixes; or the ablation alone.

    Args:
        context: Device, budget and chance; says whether it is the ablation.

    Returns:
        The rows and panels of all parts.

    Raises:
        WrongResultError: Tokens or logits differ where they must not.
        BenchError: Capsules are moved without an end.
    """
    scale = scale_for(context.device.name, is_tiny=context.is_tiny)
    context.say("drawing weights, capturing graphs")
    with TextStand(context.device, scale) as stand:
        if context.is_ablation:
            rows, panels, summary = ttft_ablation.run(context, stand)
        else:
            rows, panels, summary = _time(context, stand)
    result = context.result("ttft", rows, panels, f"{scale.title}: {summary}")
    kernels = {"kernels": stand.model.kernels.name}
    return dataclasses.replace(
        result, versions={**result.versions, **reference.versions(), **kernels}
    )


def _time(context: Context, stand: TextStand) -> tuple[list[Row], list[LinePanel | BarPanel], str]:
    peers = Peers.build(context, stand)
    prefixes = stand.scale.prefixes
    shares = _Shares(context, prefixes)
    found = _Found()
    for length in prefixes:
        _time_prefix(context, stand, peers, length, shares, found)
    compared = _compared(context, peers, found.samples)
    with_set, set_panels = ttft_set.run(context, stand, shares.take_s(_SET))
    longest = found.samples[prefixes[-1]]
    capsule_ms, cold_ms = (_ms(longest[name]) for name in (CAPSULE, COLD))
    summary = (
        f"first token after {prefixes[-1]} + {SUFFIX} tokens: {in_words(capsule_ms)} from a "
        f"capsule, {in_words(cold_ms)} computed"
    )
    rows = [
        *found.first_tokens,
        *compared,
        *found.restores.rows,
        *found.decoded,
        *with_set,
        *found.grains,
    ]
    panels: list[LinePanel | BarPanel] = [
        _panel(context, found.samples),
        *set_panels,
        *found.decode_panels,
        found.restores.panel(),
    ]
    return rows, panels, summary


def _time_prefix(
    context: Context, stand: TextStand, peers: Peers, length: int, shares: _Shares, found: _Found
) -> None:
    """Compare and time everything after one prefix, and add it to what was found."""
    prefix, suffix = random_text(length, stand.scale)
    with closing(stand.capsule_of(prefix)) as capsule:
        context.say(f"{length} tokens: comparing tokens and logits")
        stand.check(prefix, suffix, capsule)
        found.grains.append(_grain(stand, prefix, suffix, capsule))
        notes = peers.check(context, stand, [*prefix, *suffix])
        cases = _cases(context, stand, peers, prefix, suffix, capsule)
        seconds = shares.take_s(f"{length}")
        samples, counts = _measure(context, cases, seconds, f"{length} tokens")
        found.samples[length] = samples
        found.first_tokens += _rows(context, peers, length, samples, counts, notes)
        found.restores.measure(context, stand, capsule, length)
        if length == stand.scale.decode_at:
            rows, panel = ttft_decode.run(context, stand, capsule, shares.take_s(_DECODE))
            found.decoded += rows
            found.decode_panels.append(panel)


def _grain(
    stand: TextStand, prefix: Sequence[int], suffix: Sequence[int], capsule: SessionCapsule
) -> Row:
    count = stand.num_differing(prefix, suffix, capsule)
    name = f"logits that differ, the end of {len(prefix)} tokens taken in by 64s"
    return Row(name, "logits", count, target=at_most("median", 0))


def _cases(
    context: Context,
    stand: TextStand,
    peers: Peers,
    prefix: Sequence[int],
    suffix: Sequence[int],
    capsule: SessionCapsule,
) -> dict[str, Case]:
    whole = [*prefix, *suffix]

    def restored() -> int:
        stand.captured.restore(capsule)
        stand.captured.append(suffix)
        return stand.captured.next_token

    def cold() -> int:
        stand.captured.reset()
        stand.captured.append(whole)
        return stand.captured.next_token

    def eager() -> int:
        stand.eager.reset()
        stand.eager.append(whole)
        return stand.eager.next_token

    calls: dict[str, Callable[[], object]] = {CAPSULE: restored, COLD: cold, EAGER: eager}
    calls |= peers.calls(prefix, suffix)
    return {name: Case(call, timer_for(context.device)) for name, call in calls.items()}


def _measure(
    context: Context, cases: Mapping[str, Case], seconds: float, text: str
) -> tuple[dict[str, Samples], dict[str, int]]:
    """Run each once to warm up and once for an estimate; then as often as there is time for."""
    estimates_s = {}
    for name, case in cases.items():
        context.say(f"{text}: {name}, first run")
        for _ in range(2):
            begun_s = time.monotonic()
            case.timer(case.run)
            estimates_s[name] = time.monotonic() - begun_s
    counts = share_out(estimates_s, seconds)
    rounds = max(counts.values())
    plan = Plan(0.0, min_rounds=rounds, max_rounds=rounds, warm_up=0)
    return context.measure(spread(cases, counts), plan, f"{text}: first tokens"), counts


def _rows(
    context: Context,
    peers: Peers,
    length: int,
    samples: Mapping[str, Samples],
    counts: Mapping[str, int],
    notes: Mapping[str, str],
) -> list[Row]:
    capsule_ms = _ms(samples[CAPSULE])
    rows = []
    for name in (CAPSULE, COLD, EAGER, COPIED, WITH_FLA, WITHOUT_FLA):
        title = f"{name}, {length} tokens"
        if name not in samples:
            rows.append(absent(title, "ms", peers.why_absent(name)))
            continue
        ms = samples[name].host_us / 1e3
        few = "" if counts[name] > FEW else f"n = {counts[name]}"
        note = "; ".join(part for part in (notes.get(name, ""), few) if part)
        target = _target(context, name, length)
        rows.append(Row(title, "ms", median(ms), p99(ms), median(ms) / capsule_ms, target, note))
    return rows


def _target(context: Context, name: str, length: int) -> Target | None:
    if context.device.name != "cuda":
        return None
    if name == CAPSULE and length == 2 * COMPARED_AT:
        return at_most("median", MAX_CAPSULE_MS)
    if name == COLD and length == COMPARED_AT:
        return at_most("median", MAX_COLD_MS)
    return None


def _compared(
    context: Context, peers: Peers, found: Mapping[int, Mapping[str, Samples]]
) -> list[Row]:
    """Compare medians; what holds on a CPU too is bound there as well."""
    shortest, longest = min(found), max(found)
    at = COMPARED_AT if COMPARED_AT in found else longest
    is_cuda = context.device.name == "cuda"

    def row(name: str, ratio: float, target: Target | None) -> Row:
        return Row(name, "times", ratio, None, ratio, target)

    growth = _ms(found[longest][CAPSULE]) / _ms(found[shortest][CAPSULE])
    target = None if context.is_tiny else at_most("ratio", MAX_GROWTH)
    rows = [row(f"capsule, {longest} over {shortest} tokens", growth, target)]
    samples = found[at]
    for name, under, least in (
        (COLD, CAPSULE, MIN_COLD_RATIO),
        (WITH_FLA, COLD, MIN_FLA_RATIO),
        (WITHOUT_FLA, COLD, MIN_PLAIN_RATIO),
    ):
        title = f"{name} over {under}, {at} tokens"
        if name not in samples:
            rows.append(absent(title, "times", peers.why_absent(name)))
            continue
        ratio = _ms(samples[name]) / _ms(samples[under])
        rows.append(row(title, ratio, at_least("ratio", least) if is_cuda else None))
    return rows


def _panel(context: Context, found: Mapping[int, Mapping[str, Samples]]) -> LinePanel:
    lines = []
    for name in (CAPSULE, COLD, EAGER, COPIED, WITH_FLA, WITHOUT_FLA):
        lengths = [length for length, samples in found.items() if name in samples]
        if not lengths:
            continue
        ms = [found[length][name].host_us / 1e3 for length in lengths]
        medians, highs = [median(values) for values in ms], [p99(values) for values in ms]
        is_ours = name in (CAPSULE, COLD, EAGER)
        lines.append(Line(name, lengths, medians, highs, is_ours))
    limit = MAX_CAPSULE_MS if context.device.name == "cuda" else None
    title = "time to first token, ms"
    return LinePanel(title, "prefix, tokens", lines, limit, log_x=True)


def _ms(samples: Samples) -> float:
    return median(samples.host_us) / 1e3
