"""What ``transformers`` does of the bench ``ttft``, and why it is absent where it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from flashrt_ros.bench import ttft_transformers as reference
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.bench.ttft_models import SUFFIX
from flashrt_ros.bench.ttft_stand import TextStand
from flashrt_ros.bench.ttft_transformers import TransformersPeer

WITH_FLA = "transformers cold, with fla"
"""Computes a text on flash-linear-attention."""

WITHOUT_FLA = "transformers cold, without fla"
"""Computes a text on its own linear attention."""

COPIED = "transformers, copied cache"
"""Copies the cache of a prefix, and computes the suffix on the fastest it has."""

_THEIRS = (COPIED, WITH_FLA, WITHOUT_FLA)

_ERRORS = (WrongResultError, RuntimeError, TypeError, ValueError, ImportError)
"""What others' code may fail with, and their rows are absent for."""

_LONGEST_REASON = 120

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Peers:
    """The ways of ``transformers`` to a first token; some are excluded, the more, the later.

    Attributes:
        network: The model, None where there is none.
        reasons: Why a way is excluded, by its name.
    """

    network: TransformersPeer | None
    reasons: dict[str, str]

    @classmethod
    def build(cls, context: Context, stand: TextStand) -> Self:
        """Build the model, if ``transformers`` is there.

        Args:
            context: Has the device.
            stand: Has the checkpoint, which is shared.

        Returns:
            The peers; what this machine lacks is excluded.
        """
        why = reference.why_absent()
        if why:
            return cls(None, dict.fromkeys(_THEIRS, why))
        context.say("building the model of transformers")
        network = TransformersPeer(stand.scale, stand.tensors, context.device.torch_device)
        why_no_fla = reference.why_no_fla(context.device.name)
        return cls(network, {WITH_FLA: why_no_fla} if why_no_fla else {})

    def why_absent(self, name: str) -> str:
        """Say why a way is excluded; "" where it is not."""
        return self.reasons.get(name, "")

    def check(self, context: Context, stand: TextStand, tokens: Sequence[int]) -> dict[str, str]:
        """Compare their logits with ours; exclude who has others, or fails.

        Args:
            context: Is told what is going on.
            stand: Its captured session is used, and left on the text.
            tokens: A prefix and its suffix.

        Returns:
            A note for the row of each that was compared.
        """
        if self.network is None:
            return {}
        session = stand.captured
        session.reset()
        session.append(tokens)
        logits = torch.from_numpy(session.logits().copy())
        notes = {}
        for name, uses_fla in ((WITHOUT_FLA, False), (WITH_FLA, True)):
            if self.why_absent(name):
                continue
            context.say(f"{len(tokens) - SUFFIX} tokens: comparing with {name}")
            try:
                error = self.network.check(tokens, logits, uses_fla=uses_fla)
            except _ERRORS as failure:
                logger.warning("%s is left out: %s", name, failure)
                self.reasons[name] = str(failure).partition("\n")[0][:_LONGEST_REASON]
            else:
                launches = ", its launches fixed" if uses_fla else ""
                notes[name] = f"logits off by {error:.1g}{launches}"
        return notes

    def calls(
        self, prefix: Sequence[int], suffix: Sequence[int]
    ) -> dict[str, Callable[[], object]]:
        """Fill a cache with a prefix, and return a call for each way that is not excluded.

        The way that copies the cache is excluded with the linear attention that fills it.

        Args:
            prefix: Tokens.
            suffix: Tokens that follow it.

        Returns:
            By name, calls that give the first token after both.
        """
        network = self.network
        if network is None:
            return {}
        calls: dict[str, Callable[[], object]] = {}
        has_fla = not self.why_absent(WITH_FLA)
        if why := self.why_absent(WITH_FLA if has_fla else WITHOUT_FLA):
            self.reasons[COPIED] = why
        else:
            calls[COPIED] = network.copied(prefix, suffix, uses_fla=has_fla)
        for name, uses_fla in ((WITH_FLA, True), (WITHOUT_FLA, False)):
            if not self.why_absent(name):
                calls[name] = network.cold([*prefix, *suffix], uses_fla=uses_fla)
        return calls
