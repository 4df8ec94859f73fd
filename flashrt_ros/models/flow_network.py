"""The network of the flow policy: image encoder, condition trunk, action expert.

The encoder finds the corners of the block. They give a frame in which the
planning problem no longer depends on where the block lies, so trunk and expert
work in that frame and the chunk is turned back at the end. Errors of the frame
cancel for the subgoal, which is turned into it and back.

``B`` is the batch. Positions are in m on the table's frame unless a name says
``local``: those are in the block's frame, in units of 0.1 m.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

IMAGE_PX = 96
HORIZON = 16
ACTION_DIM = 2
EXECUTE_HORIZON = 8
NUM_STEPS = 10
NUM_LATCHES = 2
"""Past latches that the history holds."""

FEATURE_DIM = 16
"""Eight corners of the block, x and y, m."""

LATCH_DIM = FEATURE_DIM + ACTION_DIM + 1
"""A row of the history: features, agent position, 1 where the row is in use."""

TAIL_LENGTH = HORIZON - EXECUTE_HORIZON
TAIL_DIM = ACTION_DIM + 1
"""A row of the tail: an action that was not executed, 1 where the row is in use."""

FRAME_DIM = 4
CONDITION_DIM = 160
CHUNK_DIM = HORIZON * ACTION_DIM

_UNIT_M = 0.1
_CENTER_M = 0.256
_GRID = 24
_NUM_MAPS = 32
_TRUNK_DIM = 256
_TRUNK_BLOCKS = 3
_EXPERT_DIM = 160
_EXPERT_BLOCKS = 3
_FREQUENCIES = (1.0, 2.0, 4.0)
_TIME_DIM = 32
_INPUT_DIM = (
    9  # agent, subgoal, their difference twice, its length
    + 8 * len(_FREQUENCIES)
    + NUM_LATCHES * LATCH_DIM
    + TAIL_LENGTH * TAIL_DIM
)

# Corners of the T about their mean, in its own frame, m.
_TEMPLATE = (
    (-0.060, -0.045),
    (0.060, -0.045),
    (0.060, -0.015),
    (0.015, -0.015),
    (0.015, 0.075),
    (-0.015, 0.075),
    (-0.015, -0.015),
    (-0.060, -0.015),
)


class Encoder(nn.Module):
    """Convolutions and a soft argmax per map, read out as the block's corners."""

    grid: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 4, stride=4)
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(32, 32, 3, padding=1),
                nn.Conv2d(32, 64, 3, stride=2, padding=1),
                nn.Conv2d(64, 64, 3, padding=1),
            ]
        )
        self.maps = nn.Conv2d(64, _NUM_MAPS, 1)
        self.mix = nn.Linear(2 * _NUM_MAPS, 128)
        self.readout = nn.Linear(128, FEATURE_DIM)
        side = torch.linspace(-1.0, 1.0, _GRID // 2)
        y, x = torch.meshgrid(side, side, indexing="ij")
        self.register_buffer("grid", torch.stack([x.flatten(), y.flatten()], -1), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """Find the block.

        Args:
            image: ``uint8[B, 96, 96, 3]``, RGB.

        Returns:
            ``float32[B, 16]``, corners in m.
        """
        pixels = image.permute(0, 3, 1, 2).to(torch.float32) * (1.0 / 64.0) - 3.2
        x = F.silu(self.stem(pixels))
        for convolution in self.convolutions:
            x = F.silu(convolution(x))
        heat = torch.softmax(self.maps(x).flatten(2), -1)
        points = torch.matmul(heat, self.grid).flatten(1)
        corners: Tensor = self.readout(F.silu(self.mix(points)))
        return corners * _UNIT_M + _CENTER_M

    if TYPE_CHECKING:
        __call__ = forward


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        step: Tensor = self.down(F.silu(self.up(self.norm(x))))
        return x + step


class _Modulated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.film = nn.Linear(CONDITION_DIM, 2 * _EXPERT_DIM)
        self.up = nn.Linear(_EXPERT_DIM, _EXPERT_DIM)
        self.down = nn.Linear(_EXPERT_DIM, _EXPERT_DIM)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.film(condition).chunk(2, -1)
        step: Tensor = self.down(F.silu(self.up(x) * (1.0 + scale) + shift))
        return x + step


class FlowNetwork(nn.Module):
    """Encoder, condition trunk and flow-matching expert; holds weights only."""

    template: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.trunk_in = nn.Linear(_INPUT_DIM, _TRUNK_DIM)
        self.trunk = nn.ModuleList([_Residual(_TRUNK_DIM) for _ in range(_TRUNK_BLOCKS)])
        self.trunk_out = nn.Linear(_TRUNK_DIM, CONDITION_DIM)
        self.time = nn.Linear(_TIME_DIM, CONDITION_DIM)
        self.expert_in = nn.Linear(CHUNK_DIM, _EXPERT_DIM)
        self.expert = nn.ModuleList([_Modulated() for _ in range(_EXPERT_BLOCKS)])
        self.expert_out = nn.Linear(_EXPERT_DIM, CHUNK_DIM)
        template = torch.tensor(_TEMPLATE)
        self.register_buffer("template", template - template.mean(0), persistent=False)

    def frame(self, features: Tensor) -> Tensor:
        """Fit the block's frame to its corners (Procrustes in the plane).

        Args:
            features: ``float32[B, 16]``, corners in m.

        Returns:
            ``float32[B, 4]``: x and y of the corners' mean in m, cosine and sine.
        """
        corners = features.view(-1, FEATURE_DIM // 2, 2)
        mean = corners.mean(1)
        spread = corners - mean[:, None]
        cos = (spread * self.template).sum((1, 2))
        sin = (spread[..., 1] * self.template[:, 0] - spread[..., 0] * self.template[:, 1]).sum(1)
        scale = torch.rsqrt(cos * cos + sin * sin + 1e-12)
        return torch.cat([mean, (cos * scale)[:, None], (sin * scale)[:, None]], -1)

    def condition(
        self, frame: Tensor, agent_pos: Tensor, goal: Tensor, history: Tensor, tail: Tensor
    ) -> Tensor:
        """Condense all that a chunk depends on but the noise.

        Args:
            frame: ``float32[B, 4]``, of this latch.
            agent_pos: ``float32[B, 2]``, m.
            goal: ``float32[B, 2]``, m.
            history: ``float32[B, 2, 19]``, newest latch first; unused rows are zero.
            tail: ``float32[B, 8, 3]``, what the last chunk left; unused rows are zero.

        Returns:
            ``float32[B, 160]``.
        """
        agent = to_local(frame, agent_pos[:, None])
        subgoal = to_local(frame, goal[:, None])
        ends = torch.cat([agent, subgoal], -1)[:, 0]
        ahead = (subgoal - agent)[:, 0]
        length = (ahead * ahead).sum(-1, keepdim=True).sqrt()
        parts = [ends, ahead, torch.tanh(ahead * 4.0), length]
        for frequency in _FREQUENCIES:
            parts += [torch.sin(ends * frequency), torch.cos(ends * frequency)]

        in_use = history[..., -1:]
        points = history[..., :-1].reshape(-1, NUM_LATCHES * (FEATURE_DIM // 2 + 1), 2)
        points = to_local(frame, points).view(-1, NUM_LATCHES, FEATURE_DIM // 2 + 1, 2)
        corners = (points[:, :, :-1] - self.template / _UNIT_M) * 4.0
        latches = torch.cat([corners, points[:, :, -1:] - agent[:, None]], 2).flatten(2) * in_use
        parts += [torch.cat([latches, in_use], -1).flatten(1)]

        in_use = tail[..., -1:]
        rest = (to_local(frame, tail[..., :-1]) - agent) * in_use
        parts += [torch.cat([rest, in_use], -1).flatten(1)]

        x = self.trunk_in(torch.cat(parts, -1))
        for block in self.trunk:
            x = block(x)
        out: Tensor = self.trunk_out(F.silu(x))
        return out

    def embed_time(self, time: Tensor) -> Tensor:
        """Embed flow times in ``[0, 1]``: ``float32[B]`` to ``float32[B, 160]``."""
        scales = torch.exp(torch.linspace(0.0, math.log(100.0), _TIME_DIM // 2))
        angles = time[:, None] * scales
        out: Tensor = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        return out

    def velocity(self, condition: Tensor, time_embedding: Tensor, noisy: Tensor) -> Tensor:
        """Predict where a noisy chunk flows to.

        Args:
            condition: ``float32[B, 160]``.
            time_embedding: ``float32[B or 1, 160]``.
            noisy: ``float32[B, 32]``, local, relative to the agent.

        Returns:
            ``float32[B, 32]``, per unit of flow time.
        """
        gate = F.silu(condition + time_embedding)
        x = self.expert_in(noisy)
        for block in self.expert:
            x = block(x, gate)
        out: Tensor = self.expert_out(F.silu(x))
        return out


def to_local(frame: Tensor, points: Tensor) -> Tensor:
    """Express points (``[B, K, 2]``, m) in a frame (``[B, 4]``), in units of 0.1 m."""
    moved = points - frame[:, None, :2]
    cos, sin = frame[:, 2, None], frame[:, 3, None]
    x, y = moved[..., 0], moved[..., 1]
    return torch.stack([cos * x + sin * y, cos * y - sin * x], -1) * (1.0 / _UNIT_M)


def to_chunk(frame: Tensor, agent_pos: Tensor, flat: Tensor) -> Tensor:
    """Turn a denoised chunk into target positions.

    Args:
        frame: ``float32[B, 4]``.
        agent_pos: ``float32[B, 2]``, m.
        flat: ``float32[B, 32]``, local, relative to the agent.

    Returns:
        ``float32[B, 16, 2]``, m, table frame.
    """
    steps = flat.view(-1, HORIZON, ACTION_DIM) * _UNIT_M
    cos, sin = frame[:, 2, None], frame[:, 3, None]
    x, y = steps[..., 0], steps[..., 1]
    return agent_pos[:, None] + torch.stack([cos * x - sin * y, sin * x + cos * y], -1)


def to_flat(frame: Tensor, agent_pos: Tensor, chunk: Tensor) -> Tensor:
    """Inverse of :func:`to_chunk`."""
    return (to_local(frame, chunk) - to_local(frame, agent_pos[:, None])).flatten(1)


def next_history(history: Tensor, features: Tensor, agent_pos: Tensor) -> Tensor:
    """Put a latch in front of the history: ``float32[B, 2, 19]``; the oldest row drops out."""
    row = torch.cat([features, agent_pos, torch.ones_like(agent_pos[:, :1])], -1)
    return torch.cat([row[:, None], history[:, :-1]], 1)


def next_tail(chunk: Tensor) -> Tensor:
    """Keep what of a chunk (``[B, 16, 2]``) is not executed: ``float32[B, 8, 3]``."""
    rest = chunk[:, EXECUTE_HORIZON:]
    return torch.cat([rest, torch.ones_like(rest[..., :1])], -1)
