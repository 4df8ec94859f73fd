"""Time to first token after a long prefix: restored from a capsule, beside computing it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from flashrt_ros.bench import ttft_ablation, ttft_decode, ttft_restore, ttft_set
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
from flashrt_ros.bench.ttft_models import SUFFIX, random_tokens, scale_for
from flashrt_ros.bench.ttft_rounds import FEW, share_out, spread
from flashrt_ros.bench.ttft_stand import TextStand
from flashrt_ros.bench.ttft_transformers import TransformersPeer
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

CAPSULE, COLD, EAGER = "capsule", "own cold, captured", "own cold, eager"
WITH_FLA = "transformers cold, with fla"
WITHOUT_FLA = "transformers cold, without fla"
COPIED = "transformers, copied cache"

_SHARES = {"ttft": 0.6, "decode": 0.12, "set": 0.28}
"""Of what is left of the budget once everything is captured."""

_PREFIX_SEED, _SUFFIX_SEED = 3, 4

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class _Peer:
    """What ``transformers`` gives: itself, and why a part of it is absent."""

    network: TransformersPeer | None
    why_absent: str
    why_no_fla: str


def run(context: Context) -> Result:
    """Time first tokens, restores, decoded tokens and a set of prefixes; or the ablation alone.

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
    peer = _peer(context, stand)
    scale = stand.scale
    found: dict[int, dict[str, Samples]] = {}
    rows: list[Row] = []
    restores: list[Row] = []
    left_s = context.budget.left_s
    parts = [length / sum(scale.prefixes) + 1 for length in scale.prefixes]
    for length, part in zip(scale.prefixes, parts, strict=True):
        prefix = random_tokens(length, scale, _PREFIX_SEED)
        suffix = random_tokens(SUFFIX, scale, _SUFFIX_SEED)
        with closing(stand.capsule_of(prefix)) as capsule:
            context.say(f"{length} tokens: comparing tokens and logits")
            stand.check(prefix, suffix, capsule)
            why = _check_peer(context, stand, peer, [*prefix, *suffix])
            seconds = left_s * _SHARES["ttft"] * part / sum(parts)
            cases = _cases(context, stand, peer, prefix, suffix, capsule)
            samples, counts = _measure(context, cases, seconds, f"{length} tokens")
            found[length] = samples
            rows += _rows(context, length, samples, counts, why)
            restores += ttft_restore.rows(context, stand, capsule, length)
            if length == scale.decode_at:
                seconds = left_s * _SHARES["decode"]
                decoded, decode_panel = ttft_decode.run(context, stand, capsule, seconds)
    compared = _compared(context, found)
    with_set, set_panels = ttft_set.run(context, stand, left_s * _SHARES["set"])
    lines = [_panel(context, found), ttft_restore.panel(restores, scale.prefixes)]
    longest = found[scale.prefixes[-1]]
    capsule_ms, cold_ms = (_ms(longest[name]) for name in (CAPSULE, COLD))
    summary = (
        f"first token after {scale.prefixes[-1]} + {SUFFIX} tokens: {capsule_ms:.3g} ms from a "
        f"capsule, {cold_ms:.3g} ms computed"
    )
    rows = [*rows, *compared, *restores, *decoded, *with_set]
    return rows, [*lines, decode_panel, *set_panels], summary


def _peer(context: Context, stand: TextStand) -> _Peer:
    why = reference.why_absent()
    if why:
        return _Peer(None, why, why)
    context.say("building the model of transformers")
    network = TransformersPeer(stand.scale, stand.tensors, context.device.torch_device)
    return _Peer(network, "", reference.why_no_fla(context.device.name))


def _check_peer(
    context: Context, stand: TextStand, peer: _Peer, tokens: Sequence[int]
) -> dict[str, str]:
    """Compare the peers' logits with ours, which the stand's check left computed.

    Returns:
        A note for each of their rows.
    """
    network = peer.network
    if network is None:
        return {}
    session = stand.captured
    session.reset()
    session.append(tokens)
    logits = torch.from_numpy(session.logits().copy())
    notes = {}
    for name, uses_fla in ((WITHOUT_FLA, False), (WITH_FLA, True)):
        if uses_fla and peer.why_no_fla:
            continue
        context.say(f"{len(tokens) - SUFFIX} tokens: comparing with {name}")
        error = network.check(tokens, logits, uses_fla=uses_fla)
        notes[name] = f"logits off by {error:.1g}"
    return notes


def _cases(
    context: Context,
    stand: TextStand,
    peer: _Peer,
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

    calls: dict[str, Call] = {CAPSULE: restored, COLD: cold, EAGER: eager}
    if (network := peer.network) is not None:
        has_fla = not peer.why_no_fla
        calls[COPIED] = network.copied(prefix, suffix, uses_fla=has_fla)
        if has_fla:
            calls[WITH_FLA] = network.cold(whole, uses_fla=True)
        calls[WITHOUT_FLA] = network.cold(whole, uses_fla=False)
    return {name: Case(call, context.device.time_wall) for name, call in calls.items()}


def _measure(
    context: Context, cases: Mapping[str, Case], seconds: float, text: str
) -> tuple[dict[str, Samples], dict[str, int]]:
    """Run each once to warm up and once for an estimate; then as often as there is time for."""
    estimates_s = {}
    for name, case in cases.items():
        context.say(f"{text}: {name}, first run")
        for _ in range(2):
            sample, _ = case.timer(case.run)
            estimates_s[name] = sample.host_ns / 1e9
    counts = share_out(estimates_s, seconds)
    rounds = max(counts.values())
    plan = Plan(0.0, min_rounds=rounds, max_rounds=rounds, warm_up=0)
    return context.measure(spread(cases, counts), plan, f"{text}: first tokens"), counts


def _rows(
    context: Context,
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
            rows.append(absent(title, "ms", _why(context, name)))
            continue
        ms = samples[name].host_us / 1e3
        few = "" if counts[name] > FEW else f"n = {counts[name]}"
        note = "; ".join(part for part in (notes.get(name, ""), few) if part)
        target = _target(context, name, length)
        rows.append(Row(title, "ms", median(ms), p99(ms), median(ms) / capsule_ms, target, note))
    return rows


def _why(context: Context, name: str) -> str:
    why = reference.why_absent()
    return why or reference.why_no_fla(context.device.name) if name == WITH_FLA else why


def _target(context: Context, name: str, length: int) -> Target | None:
    if context.device.name != "cuda":
        return None
    if name == CAPSULE and length == 2 * COMPARED_AT:
        return at_most("median", MAX_CAPSULE_MS)
    if name == COLD and length == COMPARED_AT:
        return at_most("median", MAX_COLD_MS)
    return None


def _compared(context: Context, found: Mapping[int, Mapping[str, Samples]]) -> list[Row]:
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
            rows.append(absent(title, "times", _why(context, name)))
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
