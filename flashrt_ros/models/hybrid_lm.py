"""A hybrid language model as buffers and programs: Qwen3-Next and Qwen3.5.

Two programs advance a lane: ``prefill`` takes up to a chunk of tokens, always at the same
shapes, with the number of valid ones in a buffer, and where a chunk is long there is a second
one of 64 tokens, which gives the same bytes; ``decode`` takes the token that the last one
chose. ``choose`` chooses again, under another seed, temperature or bias. A layer updates
its state in place, so each replay is a plan of its own, and what lies between two is a
boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from flashrt_ros.errors import ConfigError
from flashrt_ros.models.base import NOISE_SEED, NOISE_SLOT, Buffers, Program, Slots
from flashrt_ros.models.hybrid_checkpoint import random_tensors, read_checkpoint
from flashrt_ros.models.hybrid_config import BORDER_TOKENS, HybridConfig
from flashrt_ros.models.hybrid_kernels import TORCH_KERNELS, HybridKernels, select_kernels
from flashrt_ros.models.hybrid_layers import (
    experts,
    full_attention,
    linear_attention,
    mlp,
)
from flashrt_ros.models.hybrid_weights import (
    ExpertWeights,
    FullWeights,
    HybridWeights,
    LayerWeights,
    pack,
)
from flashrt_ros.runtime.noise import NOISE_FIELD
from flashrt_ros.runtime.spec import BufferSpec, Role, ShapeKey

# STATE
POSITION = "position"  # int64[1]: tokens that the lane holds
NEXT_TOKEN = "next_token"  # int64[1]: chosen by the last replay, taken by the next decode
LOG_PROBABILITY = "log_probability"  # float32[1], of NEXT_TOKEN at temperature 1, with bias
LOGITS = "logits"  # float32[V], of the next token, without bias
CONVOLUTION = "convolution"  # [linear layers, conv_width - 1, conv_dim]
RECURRENT = "recurrent"  # float32[linear layers, VH, DK, DV]
KEYS_VALUES = "keys_values"  # [positions, full layers, 2, HK, D]; grows
# INPUT
TEMPERATURE = "temperature"  # float32[1]: 0 takes the likeliest token
# BINDING: the host writes them before a replay; nothing after it depends on them
TOKENS = "tokens"  # int64[chunk length]
NUM_VALID = "num_valid"  # int64[1]: how many of TOKENS count, at least one
BIAS = "bias"  # float32[V], added to the logits before a token is chosen; -inf forbids

PREFILL: ShapeKey = ("prefill",)
SHORT_PREFILL: ShapeKey = ("prefill", BORDER_TOKENS)  # where a chunk is longer than that
DECODE: ShapeKey = ("decode",)
CHOOSE: ShapeKey = ("choose",)

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class HybridLm:
    """A hybrid language model over lanes of a fixed number of positions.

    Ownership: the model owns its weights, read only and shared by every lane. All that
    changes lives in the declared buffers.

    Args:
        config: Sizes.
        weights: Of that config.
        max_positions: Most tokens a lane holds.
        chunk_length: Rows of a prefill replay; a multiple of 64.
        num_candidates: Likeliest tokens among which sampling chooses, at most ``V``.
        kernels: Implementations, of the weights' device.

    Raises:
        ConfigError: A length that is not positive, a chunk that is no multiple of 64, or
            weights of a dtype that a buffer can't have.
    """

    name = "hybrid_lm"

    def __init__(
        self,
        config: HybridConfig,
        weights: HybridWeights,
        *,
        max_positions: int,
        chunk_length: int = BORDER_TOKENS,
        num_candidates: int = 64,
        kernels: HybridKernels = TORCH_KERNELS,
    ) -> None:
        if chunk_length <= 0 or chunk_length % BORDER_TOKENS:
            raise ConfigError(
                "a prefill chunk can't have this length",
                expected=f"a positive multiple of {BORDER_TOKENS}",
                found=chunk_length,
            )
        for what, value in (("positions", max_positions), ("candidates", num_candidates)):
            if value <= 0:
                raise ConfigError(f"a lane can't have this many {what}", found=value)
        if weights.embedding.dtype not in _DTYPES:
            raise ConfigError(
                "a language model can't have this dtype",
                expected=", ".join(_DTYPES.values()),
                found=weights.embedding.dtype,
            )
        self._config = config
        self._weights = weights
        self._max_positions = max_positions
        self._chunk_length = chunk_length
        self._num_candidates = min(num_candidates, config.vocab_size)
        self._kernels = kernels
        self._digest = ""
        kernels.ops.prepare(weights.matrices(), chunk_length)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        max_positions: int,
        chunk_length: int = BORDER_TOKENS,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        kernels: HybridKernels | None = None,
    ) -> Self:
        """Read a checkpoint as its family publishes it; nothing in it is executed.

        Args:
            folder: Holds ``config.json`` and safetensors.
            max_positions: Most tokens a lane holds.
            chunk_length: Rows of a prefill replay; a multiple of 64.
            dtype: The matrices are converted to it.
            device: Where the weights go.
            kernels: Implementations, of that device; None for what is best there.

        Raises:
            ConfigError: See :meth:`HybridConfig.from_json`.
            WeightsError: A file is missing or damaged, or tensors are missing, unknown or
                misshapen: the message names them.
        """
        config = HybridConfig.from_file(folder / "config.json")
        weights = pack(read_checkpoint(folder), config, dtype=dtype, device=device)
        return cls(
            config,
            weights,
            max_positions=max_positions,
            chunk_length=chunk_length,
            kernels=kernels or select_kernels(device),
        )

    @classmethod
    def random(
        cls,
        config: HybridConfig,
        seed: int,
        *,
        max_positions: int,
        chunk_length: int = BORDER_TOKENS,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        kernels: HybridKernels | None = None,
    ) -> Self:
        """Build a model with random weights, for tests and benchmarks; see :meth:`load`."""
        tensors = random_tensors(config, seed, dtype=dtype, device=device)
        weights = pack(tensors, config, dtype=dtype, device=device)
        return cls(
            config,
            weights,
            max_positions=max_positions,
            chunk_length=chunk_length,
            kernels=kernels or select_kernels(device),
        )

    @property
    def config(self) -> HybridConfig:
        """Sizes."""
        return self._config

    @property
    def max_positions(self) -> int:
        """Most tokens a lane holds."""
        return self._max_positions

    @property
    def chunk_length(self) -> int:
        """Rows of a prefill replay."""
        return self._chunk_length

    @property
    def kernels(self) -> HybridKernels:
        """Implementations that the programs call."""
        return self._kernels

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the normal noise that choosing one token consumes, float32."""
        return (self._num_candidates,)

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return every buffer of a lane, small and often changed STATE first."""
        config, dtype = self._config, _DTYPES[self._weights.embedding.dtype]
        num_linear, num_full = len(config.linear_layers), len(config.full_layers)
        recurrent = (
            num_linear,
            config.num_value_heads,
            config.key_head_dim,
            config.value_head_dim,
        )
        # Padding of the last chunk is written too: one chunk more than is ever used.
        rows = self._max_positions + self._chunk_length
        cache = (rows, num_full, 2, config.num_kv_heads, config.head_dim)
        past = (num_linear, config.conv_width - 1, config.conv_dim)
        return (
            BufferSpec(POSITION, (1,), "int64", Role.STATE),
            BufferSpec(NEXT_TOKEN, (1,), "int64", Role.STATE),
            BufferSpec(LOG_PROBABILITY, (1,), "float32", Role.STATE),
            BufferSpec(NOISE_SEED, (1,), "int64", Role.STATE, feeds_noise=True),
            BufferSpec(LOGITS, (config.vocab_size,), "float32", Role.STATE),
            BufferSpec(CONVOLUTION, past, dtype, Role.STATE),
            BufferSpec(RECURRENT, recurrent, "float32", Role.STATE),
            BufferSpec(KEYS_VALUES, cache, dtype, Role.STATE, grows=True),
            BufferSpec(TEMPERATURE, (1,), "float32", Role.INPUT),
            BufferSpec(TOKENS, (self._chunk_length,), "int64", Role.BINDING),
            BufferSpec(NUM_VALID, (1,), "int64", Role.BINDING),
            BufferSpec(NOISE_SLOT, (1,), "int64", Role.BINDING),
            BufferSpec(BIAS, (config.vocab_size,), "float32", Role.BINDING),
        )

    def programs(self) -> Mapping[ShapeKey, Program]:
        """Return ``prefill``, the short one where a chunk is longer, ``decode`` and ``choose``."""
        others = {DECODE: self._decode, CHOOSE: self._choose}
        if self._chunk_length == BORDER_TOKENS:
            return {PREFILL: self._prefill, **others}
        return {PREFILL: self._prefill, SHORT_PREFILL: self._prefill_short, **others}

    def prefill_key(self, count: int) -> ShapeKey:
        """Return the key of the cheapest program that takes so many tokens, a chunk at most."""
        return SHORT_PREFILL if count <= BORDER_TOKENS < self._chunk_length else PREFILL

    def initial_state(self) -> Mapping[str, Tensor]:
        """Return nothing: an empty text is all zeros."""
        return {}

    def weights_digest(self) -> str:
        """Return a SHA-256 over every weight's place, dtype, shape and bytes, as hex.

        Computed at the first call, in seconds for a large model.
        """
        if not self._digest:
            self._digest = self._weights.digest()
        return self._digest

    def _prefill(self, buffers: Buffers, slots: Slots) -> None:
        self._take_in(buffers[TOKENS], buffers, slots)

    def _prefill_short(self, buffers: Buffers, slots: Slots) -> None:
        self._take_in(buffers[TOKENS][:BORDER_TOKENS], buffers, slots)

    def _take_in(self, tokens: Tensor, buffers: Buffers, slots: Slots) -> None:
        rows, change = self._run(tokens, buffers, buffers[NUM_VALID])
        # A capture runs over a lane of zeros, where no token is valid.
        last = (buffers[NUM_VALID] - 1).clamp(min=0)
        self._finish(rows.index_select(0, last), change.index_select(0, last), buffers, slots)
        buffers[POSITION].add_(buffers[NUM_VALID])

    def _decode(self, buffers: Buffers, slots: Slots) -> None:
        rows, change = self._run(buffers[NEXT_TOKEN], buffers, None)
        self._finish(rows, change, buffers, slots)
        buffers[POSITION].add_(1)

    def _run(
        self, tokens: Tensor, buffers: Buffers, num_valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run tokens through every layer, and their states.

        Args:
            tokens: ``int64[T]``.
            buffers: Of the lane.
            num_valid: ``int64[1]``, or None for one token.

        Returns:
            Input and change of the last layer, ``[T, E]`` both, not yet added.
        """
        config, kernels = self._config, self._kernels
        rows = self._weights.embedding.index_select(0, tokens)
        change: Tensor | None = None
        num_linear = num_full = 0
        for layer in self._weights.layers:
            rows, normal = kernels.ops.add_norm(rows, change, layer.input_norm, config.norm_eps)
            if isinstance(layer.mixer, FullWeights):
                change = full_attention(
                    normal,
                    layer.mixer,
                    config,
                    cache=buffers[KEYS_VALUES][:, num_full],
                    position=buffers[POSITION],
                    kernels=kernels,
                )
                num_full += 1
            else:
                change = linear_attention(
                    normal,
                    layer.mixer,
                    config,
                    recurrent=buffers[RECURRENT][num_linear],
                    past=buffers[CONVOLUTION][num_linear],
                    num_valid=num_valid,
                    kernels=kernels,
                )
                num_linear += 1
            rows, normal = kernels.ops.add_norm(rows, change, layer.post_norm, config.norm_eps)
            change = self._widen(normal, layer)
        assert change is not None
        return rows, change

    def _widen(self, rows: Tensor, layer: LayerWeights) -> Tensor:
        if isinstance(layer.mlp, ExpertWeights):
            assert self._config.experts is not None
            return experts(rows, layer.mlp, self._config.experts, self._kernels.ops)
        return mlp(rows, layer.mlp, self._kernels.ops)

    def _finish(self, row: Tensor, change: Tensor, buffers: Buffers, slots: Slots) -> None:
        ops, weights = self._kernels.ops, self._weights
        _, normal = ops.add_norm(row, change, weights.final_norm, self._config.norm_eps)
        buffers[LOGITS].copy_(ops.project(normal, weights.head)[0])
        self._choose(buffers, slots)

    def _choose(self, buffers: Buffers, slots: Slots) -> None:
        """Write the next token: the likeliest, or one drawn by the noise.

        Normal noise becomes uniform noise by its distribution, ``Phi(z)``.
        """
        noise = slots[NOISE_FIELD].index_select(0, buffers[NOISE_SLOT])[0]
        token, log_probability = self._kernels.ops.choose(
            buffers[LOGITS], buffers[BIAS], torch.special.log_ndtr(noise), buffers[TEMPERATURE]
        )
        buffers[LOG_PROBABILITY].copy_(log_probability)
        buffers[NEXT_TOKEN].copy_(token)
