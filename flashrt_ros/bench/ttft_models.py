"""Language models of the bench ``ttft``: random weights in the architecture of Qwen3-Next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.models.hybrid_checkpoint import count_parameters, random_tensors
from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.hybrid_kernels import select_kernels
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_weights import pack

SUFFIX = 64
"""Tokens that follow a prefix, as an instruction does."""

_SEED = 0
_PREFIX_SEED, _SUFFIX_SEED = 3, 4

_BIG: dict[str, object] = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_SMALL: dict[str, object] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
_TINY: dict[str, object] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_COMMON: dict[str, object] = {
    "model_type": "qwen3_next",
    "linear_conv_kernel_dim": 4,
    "num_experts": 0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
    },
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class TextScale:
    """How large everything is.

    Attributes:
        sizes: The model's, as its ``config.json`` has them.
        dtype: Of weights and cache.
        prefixes: Tokens, ascending multiples of 64.
        chunk_length: Rows of a prefill replay.
        decode_at: Prefix that tokens are decoded after; one of ``prefixes``.
        set_prefix: Tokens of each prefix of the working set; a multiple of 64.
        set_size: Prefixes in it.
        set_quota: How many of them the first tier has room for.
        set_pinned: How many of them are pinned.

    Raises:
        SpecError: Tokens are to be decoded after a prefix that is none of them.
    """

    sizes: Mapping[str, object]
    dtype: torch.dtype
    prefixes: tuple[int, ...]
    chunk_length: int
    decode_at: int
    set_prefix: int
    set_size: int = 64
    set_quota: int = 8
    set_pinned: int = 4

    def __post_init__(self) -> None:
        """Check the prefix that tokens are decoded after."""
        if self.decode_at not in self.prefixes:
            raise SpecError(
                "no such prefix to decode after", expected=self.prefixes, found=self.decode_at
            )

    @property
    def config(self) -> HybridConfig:
        """Sizes, as the model takes them."""
        return HybridConfig.from_json(self.sizes)

    @property
    def title(self) -> str:
        """Parameters and dtype, for people."""
        millions = count_parameters(self.config) / 1e6
        number = f"{millions / 1000:.1f} B" if millions >= 1000 else f"{millions:.3g} M"
        return f"{number} parameters, {str(self.dtype).removeprefix('torch.')}"


BIG = TextScale(
    sizes={**_COMMON, **_BIG},
    dtype=torch.bfloat16,
    prefixes=(2048, 4096, 8192, 16_384, 32_768),
    chunk_length=2048,
    decode_at=16_384,
    set_prefix=2048,
)
"""About a billion parameters, for a GPU."""

SMALL = TextScale(
    sizes={**_COMMON, **_SMALL},
    dtype=torch.float32,
    prefixes=(256, 512, 1024, 2048),
    chunk_length=64,
    decode_at=1024,
    set_prefix=64,
)
"""For a CPU."""

TINY = TextScale(
    sizes={**_COMMON, **_TINY},
    dtype=torch.float32,
    prefixes=(128, 256),
    chunk_length=128,
    decode_at=128,
    set_prefix=64,
    set_size=6,
    set_quota=3,
    set_pinned=2,
)
"""For a look, and for tests: the same code on a device without time."""


def scale_for(device: str, *, is_tiny: bool) -> TextScale:
    """Return how large everything is on a device."""
    if is_tiny:
        return TINY
    return BIG if device == "cuda" else SMALL


def build(
    scale: TextScale,
    device: torch.device,
    *,
    max_positions: int | None = None,
    chunk_length: int | None = None,
) -> tuple[HybridLm, dict[str, torch.Tensor]]:
    """Draw a checkpoint and make a model of it; equal scales give equal weights.

    Args:
        scale: How large it is.
        device: Where it runs.
        max_positions: Tokens that a text may have; by default the longest prefix of the scale,
            its suffix and what is decoded.
        chunk_length: Rows of a prefill replay; by default the scale's.

    Returns:
        The model; and the checkpoint, for peers.
    """
    config = scale.config
    tensors = random_tensors(config, _SEED, dtype=scale.dtype, device=str(device))
    model = HybridLm(
        config,
        pack(tensors, config, dtype=scale.dtype, device=str(device)),
        max_positions=max_positions or scale.prefixes[-1] + 4 * SUFFIX,
        chunk_length=chunk_length or scale.chunk_length,
        kernels=select_kernels(str(device)),
    )
    return model, tensors


def random_text(length: int, scale: TextScale) -> tuple[list[int], list[int]]:
    """Draw a prefix and the suffix that follows it, the same ones each time.

    Args:
        length: Tokens of the prefix; a shorter one is the beginning of a longer one.
        scale: Has the vocabulary.

    Returns:
        The prefix, and the suffix of :data:`SUFFIX` tokens.
    """
    prefix = random_tokens(length, scale, _PREFIX_SEED)
    return prefix, random_tokens(SUFFIX, scale, _SUFFIX_SEED)


def random_tokens(count: int, scale: TextScale, seed: int) -> list[int]:
    """Draw a text; equal seeds give equal beginnings of any length.

    Args:
        count: Tokens.
        scale: Has the vocabulary.
        seed: Of the text.

    Returns:
        The tokens, each of the vocabulary.
    """
    generator = torch.Generator().manual_seed(seed)
    vocab_size = scale.config.vocab_size
    longest = max(count, scale.prefixes[-1])
    tokens: list[int] = torch.randint(0, vocab_size, (longest,), generator=generator).tolist()
    return tokens[:count]
