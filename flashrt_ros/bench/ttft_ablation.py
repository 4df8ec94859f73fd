"""Where a text diverges that is restored without a part of its state, for the bench ``ttft``."""

from __future__ import annotations

from flashrt_ros.bench.context import Context
from flashrt_ros.bench.result import Bar, BarPanel, LinePanel, Row, at_least, at_most
from flashrt_ros.bench.ttft_models import random_text
from flashrt_ros.bench.ttft_stand import TextStand
from flashrt_ros.models.hybrid_ablation import Ablation, Divergence, run_ablations

PREFIX = 256
"""Tokens before the restore."""

NUM_TOKENS = 64
"""Tokens that are decoded and compared."""


def run(context: Context, stand: TextStand) -> tuple[list[Row], list[LinePanel | BarPanel], str]:
    """Restore a prefix, take a part of its state away, append a suffix, decode; for each part.

    A row's figure is how many tokens are those of the text computed at once.

    Args:
        context: Is told what is going on.
        stand: Its captured session is used, and left on some text.

    Returns:
        A row for each part, the control first; their bars; and what was done, in words.
    """
    context.say("ablation: decoding")
    prefix, suffix = random_text(PREFIX, stand.scale)
    found = run_ablations(stand.captured, prefix, suffix, num_tokens=NUM_TOKENS)
    rows, bars = [], []
    for ablation, divergence in found.items():
        same = _num_same(divergence)
        is_control = ablation is Ablation.NOTHING
        target = at_least("median", NUM_TOKENS) if is_control else at_most("median", NUM_TOKENS - 1)
        name = f"tokens in common, {ablation.value}" + (" taken" if is_control else "")
        rows.append(Row(name, "tokens", same, target=target, note=_words(divergence)))
        bars.append(Bar(ablation.value, same, None, is_control, _words(divergence)))
    title = f"tokens in common with the text computed at once, of {NUM_TOKENS}"
    return rows, [BarPanel(title, bars)], "what a restore without a part of the state is worth"


def _num_same(divergence: Divergence) -> int:
    return NUM_TOKENS if divergence.token is None else divergence.token


def _words(divergence: Divergence) -> str:
    if divergence.token is None and divergence.logits is None:
        return "none diverges"
    token = "no token" if divergence.token is None else f"token {divergence.token}"
    logits = "no logits" if divergence.logits is None else f"logits of token {divergence.logits}"
    return f"{token} diverges, {logits}, the first ones by {divergence.largest_error:.2g}"
