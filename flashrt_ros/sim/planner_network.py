"""The planner's language model in a form that learns: whole batches, and gradients.

The same formulas as :mod:`flashrt_ros.models.hybrid_lm`, of the family ``qwen3_5``, and its
published names: the state dict is a checkpoint. Every text begins with the same prefix, which
is run once for a batch, as one capsule serves every turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from flashrt_ros.models.hybrid_checkpoint import expected_tensors
from flashrt_ros.models.hybrid_config import BORDER_TOKENS, FULL, HybridConfig

_UNIT_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class LayerState:
    """What a layer keeps of the tokens before, for a batch of ``B``.

    Attributes:
        first: Recurrent state ``[B, VH, DK, DV]``, or keys ``[B, HK, P, D]``.
        second: Past of the convolution ``[B, conv_width - 1, conv_dim]``, or values.
    """

    first: Tensor
    second: Tensor

    def expand(self, count: int) -> LayerState:
        """Show a batch of one as a batch of ``count``."""
        return LayerState(
            self.first.expand(count, -1, -1, -1),
            self.second.expand(count, *([-1] * (self.second.ndim - 1))),
        )


class PlannerNetwork(nn.Module):
    """Weights of a dense hybrid model with tied embeddings, and their forward pass.

    Args:
        config: Of family ``qwen3_5``, without experts.
        generator: Draws the first weights.
    """

    def __init__(self, config: HybridConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self._names = {name: name.replace(".", "/") for name in expected_tensors(config)}
        for name, shape in expected_tensors(config).items():
            value = _first_value(name, shape, config, generator)
            self.register_parameter(self._names[name], nn.Parameter(value))

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights under their published names, without gradients."""
        return {name: self.weight(name).detach().contiguous() for name in self._names}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over weights of this shape, by their published names."""
        with torch.no_grad():
            for name in self._names:
                self.weight(name).copy_(tensors[name])

    def weight(self, name: str) -> Tensor:
        """Return a weight by its published name."""
        return self.get_parameter(self._names[name])

    def start(self) -> list[LayerState]:
        """Return the state of an empty text, a batch of one."""
        config = self.config
        states = []
        for kind in config.layer_types:
            if kind == FULL:
                empty = torch.zeros(1, config.num_kv_heads, 0, config.head_dim)
                states.append(LayerState(empty, empty))
            else:
                sizes = (config.num_value_heads, config.key_head_dim, config.value_head_dim)
                past = torch.zeros(1, config.conv_width - 1, config.conv_dim)
                states.append(LayerState(torch.zeros(1, *sizes), past))
        return states

    def forward(
        self, tokens: Tensor, states: list[LayerState], position: int
    ) -> tuple[Tensor, list[LayerState]]:
        """Run tokens after what the states hold.

        Args:
            tokens: ``int64[B, T]``.
            states: One a layer, of a batch of one or of ``B``.
            position: Of the first token.

        Returns:
            Rows before the output head, ``[B, T, E]``, and the states after the last token.
        """
        config, after = self.config, []
        states = [state.expand(tokens.shape[0]) for state in states]
        rows = F.embedding(tokens, self.weight("model.embed_tokens.weight"))
        for at, kind in enumerate(config.layer_types):
            prefix = f"model.layers.{at}."
            normal = self._norm(rows, prefix + "input_layernorm.weight")
            if kind == FULL:
                change, state = self._attend(normal, prefix + "self_attn.", states[at], position)
            else:
                change, state = self._recur(normal, prefix + "linear_attn.", states[at])
            after.append(state)
            rows = rows + change
            normal = self._norm(rows, prefix + "post_attention_layernorm.weight")
            gate = F.silu(self._project(normal, prefix + "mlp.gate_proj.weight"))
            value = self._project(normal, prefix + "mlp.up_proj.weight")
            rows = rows + self._project(gate * value, prefix + "mlp.down_proj.weight")
        return self._norm(rows, "model.norm.weight"), after

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits of rows before the output head, ``[..., V]``."""
        return self._project(rows, "model.embed_tokens.weight")

    def _project(self, rows: Tensor, name: str) -> Tensor:
        return F.linear(rows, self.weight(name))

    def _norm(self, rows: Tensor, name: str) -> Tensor:
        scale = 1.0 + self.weight(name)
        return F.rms_norm(rows, (rows.shape[-1],), scale, self.config.norm_eps)

    def _attend(
        self, rows: Tensor, prefix: str, state: LayerState, position: int
    ) -> tuple[Tensor, LayerState]:
        config, (batch, length, _) = self.config, rows.shape
        both = self._project(rows, prefix + "q_proj.weight")
        queries, gate = both.view(batch, length, config.num_heads, 2, -1).unbind(3)
        keys = self._project(rows, prefix + "k_proj.weight").view(
            batch, length, -1, config.head_dim
        )
        values = self._project(rows, prefix + "v_proj.weight").view_as(keys).transpose(1, 2)
        angles = self._angles(position, length)
        queries = _rotate(self._norm(queries, prefix + "q_norm.weight").transpose(1, 2), angles)
        keys = _rotate(self._norm(keys, prefix + "k_norm.weight").transpose(1, 2), angles)
        keys = torch.cat([state.first, keys], dim=2)
        values = torch.cat([state.second, values], dim=2)
        reach = torch.arange(length)[:, None] + position >= torch.arange(keys.shape[2])
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=reach, enable_gqa=True
        )
        gated = mixed.transpose(1, 2) * gate.sigmoid()
        change = self._project(gated.reshape(batch, length, -1), prefix + "o_proj.weight")
        return change, LayerState(keys, values)

    def _angles(self, position: int, length: int) -> Tensor:
        powers = torch.arange(0, self.config.rotary_dim, 2) / self.config.rotary_dim
        return (torch.arange(length) + position)[:, None] / self.config.rope_theta**powers

    def _recur(self, rows: Tensor, prefix: str, state: LayerState) -> tuple[Tensor, LayerState]:
        config, (batch, length, _) = self.config, rows.shape
        projected = self._project(rows, prefix + "in_proj_qkv.weight")
        seen = torch.cat([state.second, projected], dim=1)
        taps = self.weight(prefix + "conv1d.weight")[:, 0]
        convolved = sum(
            (seen[:, at : at + length] * taps[:, at] for at in range(config.conv_width)),
            torch.zeros(()),
        )
        sizes = (config.key_dim, config.key_dim, config.value_dim)
        queries, keys, values = torch.split_with_sizes(F.silu(convolved), sizes, dim=-1)
        repeat = config.num_value_heads // config.num_key_heads
        queries = _unit(queries.view(batch, length, config.num_key_heads, -1))
        keys = _unit(keys.view(batch, length, config.num_key_heads, -1))
        write = self._project(rows, prefix + "in_proj_b.weight").sigmoid()
        step = self._project(rows, prefix + "in_proj_a.weight") + self.weight(prefix + "dt_bias")
        decay = -self.weight(prefix + "A_log").exp() * F.softplus(step)
        output, recurrent = _delta_rule(
            queries.repeat_interleave(repeat, 2).transpose(1, 2) * config.key_head_dim**-0.5,
            keys.repeat_interleave(repeat, 2).transpose(1, 2),
            values.view(batch, length, config.num_value_heads, -1).transpose(1, 2),
            decay.transpose(1, 2),
            write.transpose(1, 2),
            state.first,
        )
        normal = F.rms_norm(
            output.transpose(1, 2),
            (config.value_head_dim,),
            self.weight(prefix + "norm.weight"),
            config.norm_eps,
        ).reshape(batch, length, -1)
        gated = normal * F.silu(self._project(rows, prefix + "in_proj_z.weight"))
        change = self._project(gated, prefix + "out_proj.weight")
        return change, LayerState(recurrent, seen[:, length:])


def _delta_rule(
    queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, write: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the gated delta rule, see :mod:`flashrt_ros.models.hybrid_linear`.

    Args:
        queries: ``[B, VH, T, DK]``, scaled.
        keys: ``[B, VH, T, DK]``.
        values: ``[B, VH, T, DV]``.
        decay: ``[B, VH, T]``.
        write: ``[B, VH, T]``.
        state: ``[B, VH, DK, DV]``.

    Returns:
        ``[B, VH, T, DV]`` and the state after.
    """
    outputs = []
    for start in range(0, queries.shape[2], BORDER_TOKENS):
        rows = slice(start, start + BORDER_TOKENS)
        q, k, v = queries[:, :, rows], keys[:, :, rows], values[:, :, rows]
        total = decay[:, :, rows].cumsum(2)
        ahead = torch.ones(total.shape[2], total.shape[2], dtype=torch.bool).triu(1)
        between = total[..., :, None] - total[..., None, :]
        between = between.masked_fill(ahead, float("-inf")).exp()
        weight, since = write[:, :, rows, None], total.exp()[..., None]
        system = weight * between * (k @ k.transpose(2, 3))
        wanted = weight * (v - since * (k @ state))
        update = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        outputs.append(since * (q @ state) + (between * (q @ k.transpose(2, 3))) @ update)
        to_end = (total[..., -1:] - total).exp()[..., None]
        state = since[:, :, -1:] * state + k.transpose(2, 3) @ (to_end * update)
    return torch.cat(outputs, dim=2), state


def _unit(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + _UNIT_EPS)


def _rotate(heads: Tensor, angles: Tensor) -> Tensor:
    half = angles.shape[-1]
    first, second, rest = torch.split_with_sizes(
        heads, (half, half, heads.shape[-1] - 2 * half), dim=-1
    )
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], dim=-1)


def _first_value(
    name: str, shape: tuple[int, ...], config: HybridConfig, generator: torch.Generator
) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):  # rates of decay from 1 to 16, as the family begins
        return torch.empty(shape).uniform_(1.0, 16.0, generator=generator).log()
    if name.endswith("dt_bias"):  # steps from 0.001 to 0.1, evenly in their logarithm
        low, high = math.log(0.001), math.log(0.1)
        step = torch.empty(shape).uniform_(low, high, generator=generator).exp()
        return step + torch.log(-torch.expm1(-step))
    if name.endswith("linear_attn.norm.weight"):
        return torch.ones(shape)
    if name.endswith("norm.weight"):
        return torch.zeros(shape)
    if name.endswith("embed_tokens.weight"):
        return noise / math.sqrt(config.hidden_size)
    if name.endswith("conv1d.weight"):
        return noise / math.sqrt(config.conv_width)
    if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
        noise = noise / math.sqrt(2 * config.num_layers)
    return noise / math.sqrt(shape[-1])
