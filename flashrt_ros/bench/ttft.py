"""Time to first token after a long prefix: restored from a capsule, beside computing it."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from flashrt_ros.bench import ttft_ablation, ttft_decode, ttft_restore, ttft_set
from flashrt_ros.bench import ttft_transformers as reference
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.failures import WrongResultError
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

_THEIRS = (COPIED, WITH_FLA, WITHOUT_FLA)

_PEER_ERRORS = (WrongResultError, RuntimeError, TypeError, ValueError, ImportError)
"""What others' code may fail with, and their rows are absent for."""

_DECODE, _SET = "decode", "set"
_DECODE_SHARE, _SET_SHARE = 0.12, 0.28
"""Of the budget; the prefixes have the rest, the long ones more of it."""

_PREFIX_SEED, _SUFFIX_SEED = 3, 4

Call = Callable[[], object]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Peer:
    """What ``transformers`` gives: itself, and why rows of it are absent."""

    network: TransformersPeer | None
    why: dict[str, str]

    @property
    def has_fla(self) -> bool:
        """Whether it runs on flash-linear-attention."""
        return self.network is not None and WITH_FLA not in self.why


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
    grains: list[Row] = []
    shares = _Shares(context, scale.prefixes)
    for length in scale.prefixes:
        prefix = random_tokens(length, scale, _PREFIX_SEED)
        suffix = random_tokens(SUFFIX, scale, _SUFFIX_SEED)
        with closing(stand.capsule_of(prefix)) as capsule:
            context.say(f"{length} tokens: comparing tokens and logits")
            stand.check(prefix, suffix, capsule)
            grains.append(_grain(stand, prefix, suffix, capsule))
            notes = _check_peer(context, stand, peer, [*prefix, *suffix])
            cases = _cases(context, stand, peer, prefix, suffix, capsule)
            seconds = shares.take_s(f"{length}")
            samples, counts = _measure(context, cases, seconds, f"{length} tokens")
            found[length] = samples
            rows += _rows(context, peer, length, samples, counts, notes)
            restores += ttft_restore.rows(context, stand, capsule, length)
            if length == scale.decode_at:
                seconds = shares.take_s(_DECODE)
                decoded, decode_panel = ttft_decode.run(context, stand, capsule, seconds)
    compared = _compared(context, peer, found)
    with_set, set_panels = ttft_set.run(context, stand, shares.take_s(_SET))
    lines = [_panel(context, found), ttft_restore.panel(restores, scale.prefixes)]
    longest = found[scale.prefixes[-1]]
    capsule_ms, cold_ms = (_ms(longest[name]) for name in (CAPSULE, COLD))
    summary = (
        f"first token after {scale.prefixes[-1]} + {SUFFIX} tokens: {in_words(capsule_ms)} from a "
        f"capsule, {in_words(cold_ms)} computed"
    )
    rows = [*rows, *compared, *restores, *decoded, *with_set, *grains]
    return rows, [lines[0], *set_panels, decode_panel, lines[1]], summary


def _peer(context: Context, stand: TextStand) -> _Peer:
    why = reference.why_absent()
    if why:
        return _Peer(None, dict.fromkeys(_THEIRS, why))
    context.say("building the model of transformers")
    network = TransformersPeer(stand.scale, stand.tensors, context.device.torch_device)
    why_no_fla = reference.why_no_fla(context.device.name)
    return _Peer(network, {WITH_FLA: why_no_fla} if why_no_fla else {})


def _grain(
    stand: TextStand, prefix: Sequence[int], suffix: Sequence[int], capsule: SessionCapsule
) -> Row:
    count = stand.num_differing(prefix, suffix, capsule)
    name = f"logits that differ, the end of {len(prefix)} tokens taken in by 64s"
    return Row(name, "logits", count, target=at_most("median", 0))


def _check_peer(
    context: Context, stand: TextStand, peer: _Peer, tokens: Sequence[int]
) -> dict[str, str]:
    """Compare the peers' logits with ours; who has others, or fails, is absent from now on.

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
        if name in peer.why:
            continue
        context.say(f"{len(tokens) - SUFFIX} tokens: comparing with {name}")
        try:
            error = network.check(tokens, logits, uses_fla=uses_fla)
        except _PEER_ERRORS as failure:
            logger.warning("%s is left out: %s", name, failure)
            peer.why[name] = str(failure).partition("\n")[0][:120]
        else:
            launches = ", its launches fixed" if uses_fla else ""
            notes[name] = f"logits off by {error:.1g}{launches}"
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
        runs_on = WITH_FLA if peer.has_fla else WITHOUT_FLA
        if runs_on in peer.why:
            peer.why[COPIED] = peer.why[runs_on]
        else:
            calls[COPIED] = network.copied(prefix, suffix, uses_fla=peer.has_fla)
        for name, uses_fla in ((WITH_FLA, True), (WITHOUT_FLA, False)):
            if name not in peer.why:
                calls[name] = network.cold(whole, uses_fla=uses_fla)
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
    peer: _Peer,
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
            rows.append(absent(title, "ms", peer.why[name]))
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
    context: Context, peer: _Peer, found: Mapping[int, Mapping[str, Samples]]
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
            rows.append(absent(title, "times", peer.why[name]))
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
