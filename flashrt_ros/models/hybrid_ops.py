"""The operations of a hybrid model's layers, in torch; a device may have kernels of its own."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flashrt_ros.models.hybrid_attention import torch_attention
from flashrt_ros.models.hybrid_config import BORDER_TOKENS, HybridConfig
from flashrt_ros.models.hybrid_weights import FullWeights, LinearWeights

SMALLEST_TEMPERATURE = 1e-6


class TorchOps:
    """Runs on every device; on a CPU the bytes of a row depend on no other row's place."""

    def prepare(self, matrices: Iterable[Tensor], length: int) -> None:
        """Look at the matrices that rows will be multiplied by, before any program runs.

        Args:
            matrices: Every one that :meth:`project` is given.
            length: Most rows.
        """

    def project(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Multiply rows by a matrix, ``[T, N]`` by ``[M, N]``.

        On a CPU 64 rows at a time: that the place of a row does not matter is more than
        the matrix product of a library promises.
        """
        if rows.device.type != "cpu" or rows.shape[0] <= BORDER_TOKENS:
            return F.linear(rows, weight)
        return torch.cat([F.linear(tile, weight) for tile in tiles(rows)])

    def add_norm(
        self, rows: Tensor, change: Tensor | None, scale: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Add a layer's change to its input, and divide rows by their root mean square.

        Args:
            rows: ``[T, E]``.
            change: ``[T, E]``, or None for nothing.
            scale: ``float32[E]``.
            eps: Added to the mean square.

        Returns:
            The sum and its norm, ``[T, E]`` both.
        """
        total = rows if change is None else rows + change
        return total, _rms_norm(total, scale, eps)

    def silu_product(self, projected: Tensor) -> Tensor:
        """Multiply one half of the columns by the SiLU of the other: ``[T, 2 I]`` → ``[T, I]``."""
        gate, value = projected.chunk(2, dim=-1)
        return F.silu(gate) * value

    def convolve(
        self,
        projected: Tensor,
        taps: Tensor,
        past: Tensor,
        num_valid: Tensor | None,
        sizes: tuple[int, ...],
    ) -> tuple[Tensor, ...]:
        """Convolve each column with its own taps, causally, and apply SiLU.

        Args:
            projected: ``[T, N or more]``, of which the first ``N`` columns count.
            taps: ``[width, N]``, oldest first.
            past: ``[width - 1, N]``: the inputs before these, replaced by the last of them.
            num_valid: ``int64[1]``: inputs that count; None for all.
            sizes: Columns of each part of the result, ``N`` together.

        Returns:
            The parts, ``[T, size]`` each.
        """
        length = projected.shape[0]
        seen = torch.cat([past, projected[:, : taps.shape[1]]])
        kept = torch.arange(past.shape[0], device=past.device)
        past.copy_(seen.index_select(0, kept + (length if num_valid is None else num_valid)))
        wide = seen.float()
        total = wide[:length] * taps[0]
        for at in range(1, taps.shape[0]):
            total = total + wide[at : at + length] * taps[at]
        return split(F.silu(total).to(seen.dtype), *sizes)

    def gates(
        self, strength: Tensor, step: Tensor, weights: LinearWeights, num_valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return decay and write strength of each token and head.

        Args:
            strength: ``[T, VH]``, before the sigmoid.
            step: ``[T, VH]``, before the softplus.
            weights: Rates of decay and bias of the steps.
            num_valid: ``int64[1]``: from this token on both are 0; None for nowhere.

        Returns:
            Two of ``float32[T, VH]``.
        """
        write = strength.float().sigmoid()
        decay = weights.decay * F.softplus(step.float() + weights.step_bias)
        if num_valid is None:
            return decay, write
        padding = (torch.arange(step.shape[0], device=step.device) >= num_valid)[:, None]
        return decay.masked_fill(padding, 0.0), write.masked_fill(padding, 0.0)

    def gated_norm(self, output: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
        """Divide each head by its root mean square, and multiply by the SiLU of its gate.

        Args:
            output: ``[T, VH, DV]``.
            gate: ``[T, VH * DV]``.
            scale: ``[DV]``.
            eps: Added to the mean square.

        Returns:
            ``[T, VH * DV]``.
        """
        wide = output.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        gated = scale * normal.to(output.dtype) * F.silu(gate.float()).view_as(output)
        return gated.to(output.dtype).reshape(gate.shape)

    def place_heads(
        self,
        projected: Tensor,
        weights: FullWeights,
        config: HybridConfig,
        cache: Tensor,
        position: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Norm and rotate queries and keys, and write keys and values into the cache.

        Args:
            projected: ``[T, 2 * HQ * D + 2 * HK * D]``: queries, gate, keys, values.
            weights: Norms and rotary frequencies.
            config: Sizes.
            cache: ``[P, 2, HK, D]``; rows ``position`` to ``position + T`` are written.
            position: ``int64[1]``.

        Returns:
            Queries and gate, ``[T, HQ, D]`` both.
        """
        length, size = projected.shape[0], config.head_dim
        queries_dim, keys_dim = config.num_heads * size, config.num_kv_heads * size
        parts = split(projected, queries_dim, queries_dim, keys_dim, keys_dim)
        queries, gate, keys, values = (part.reshape(length, -1, size) for part in parts)
        index = torch.arange(length, device=position.device) + position
        angles = (index.float()[:, None] * weights.frequencies)[:, None]
        cosine, sine = angles.cos(), angles.sin()
        queries = _rotate(_rms_norm(queries, weights.query_norm, config.norm_eps), cosine, sine)
        keys = _rotate(_rms_norm(keys, weights.key_norm, config.norm_eps), cosine, sine)
        cache.index_copy_(0, index, torch.stack([keys, values], dim=1))
        return queries, gate

    def attend(self, queries: Tensor, gate: Tensor, cache: Tensor, position: Tensor) -> Tensor:
        """Attend to all positions up to each token's own, and multiply by the gate.

        Args:
            queries: ``[T, HQ, D]``.
            gate: ``[T, HQ, D]``, before the sigmoid.
            cache: ``[P, 2, HK, D]``, with keys and values of these tokens.
            position: ``int64[1]``.

        Returns:
            ``[T, HQ * D]``.
        """
        mixed = torch_attention(queries, cache, position) * gate.sigmoid()
        return mixed.reshape(queries.shape[0], -1)

    def choose(
        self,
        logits: Tensor,
        bias: Tensor,
        log_noise: Tensor,
        temperature: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Choose a token: the likeliest, or one drawn by the noise.

        Adding Gumbel noise to scores and taking the largest draws from their softmax.

        Args:
            logits: ``float32[V]``.
            bias: ``float32[V]``, added to them.
            log_noise: ``float32[N]``: logarithms of uniform noise, for the ``N`` likeliest
                in their order; the Gumbel noise is ``-log(-log_noise)``.
            temperature: ``float32[1]``; 0 takes the likeliest.

        Returns:
            The token, ``int64[1]``, and the logarithm of its probability at temperature 1,
            ``float32[1]``.
        """
        scores = logits + bias
        gumbel = -(-log_noise).log()
        best, candidates = scores.topk(log_noise.shape[0])
        noisy = best / temperature.clamp(min=SMALLEST_TEMPERATURE) + gumbel
        drawn = candidates.index_select(0, noisy.argmax(keepdim=True))
        token = torch.where(temperature > 0, drawn, scores.argmax(keepdim=True))
        return token, scores.log_softmax(-1).index_select(0, token)


def tiles(rows: Tensor) -> tuple[Tensor, ...]:
    """Cut a multiple of 64 rows into tiles of 64."""
    return rows.reshape(-1, BORDER_TOKENS, rows.shape[-1]).unbind()


def split(rows: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """Cut rows into views of these many columns."""
    return torch.split_with_sizes(rows, sizes, dim=-1)


def _rms_norm(rows: Tensor, scale: Tensor, eps: float) -> Tensor:
    wide = rows.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normal * scale).to(rows.dtype)


def _rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the first elements of each head; halves are pairs, as in the checkpoints."""
    half = cosine.shape[-1]
    first, second, rest = split(heads, half, half, heads.shape[-1] - 2 * half)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat([*(part.to(heads.dtype) for part in turned), rest], dim=-1)
