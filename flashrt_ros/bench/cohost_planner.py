"""The language model of the bench ``cohost``, for ``--model-factory``: random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flashrt_ros.bench.ttft_models import BIG, TINY, build
from flashrt_ros.errors import ConfigError, PayloadRangeError, PayloadShapeError, PayloadTypeError
from flashrt_ros.planner.config import PlannerConfig

if TYPE_CHECKING:
    from flashrt_ros.models.hybrid_lm import HybridLm

SCALES = {"big": BIG, "tiny": TINY}
"""By what the parameter ``checkpoint`` names."""

_NUM_CHARACTERS = 128


class CharacterTokenizer:
    """A token for each ASCII character; the other rows of a vocabulary stand for nothing."""

    def encode(self, text: str | bytes, *, has_control_tokens: bool = False) -> list[int]:
        """Return the characters' numbers.

        Raises:
            PayloadTypeError: It is no Unicode.
            PayloadShapeError: It is empty.
            PayloadRangeError: A character is not ASCII.
        """
        try:
            text = text.decode() if isinstance(text, bytes) else text
        except UnicodeDecodeError as error:
            raise PayloadTypeError("a prompt is no text", found=error) from error
        if not text:
            raise PayloadShapeError("a prompt is empty")
        tokens = list(map(ord, text))
        if max(tokens) >= _NUM_CHARACTERS:
            raise PayloadRangeError("the tokenizer lacks a part of the prompt", expected="ASCII")
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the characters.

        Raises:
            PayloadRangeError: A token stands for none.
        """
        if any(not 0 <= token < _NUM_CHARACTERS for token in tokens):
            raise PayloadRangeError("the tokenizer lacks a token")
        return "".join(map(chr, tokens))


def make(checkpoint: Path | None, config: PlannerConfig) -> tuple[HybridLm, CharacterTokenizer]:
    """Build model and tokenizer.

    Args:
        checkpoint: Its last part is a name of :data:`SCALES`.
        config: Says how many positions, and where.

    Returns:
        Both, for an engine.

    Raises:
        ConfigError: There is no such scale.
    """
    name = checkpoint.name if checkpoint is not None else ""
    if name not in SCALES:
        raise ConfigError("no such scale", expected=", ".join(SCALES), found=name)
    model, _ = build(
        SCALES[name],
        torch.device(config.device),
        max_positions=config.max_positions,
        chunk_length=config.chunk_length,
    )
    return model, CharacterTokenizer()
