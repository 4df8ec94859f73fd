"""A flow policy of any size with random weights: what an action expert of that size costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from flashrt_ros.bench.models import ballast
from flashrt_ros.models.action_queue import (
    QUEUE,
    commit_queue,
    counter,
    flush,
    policy_counters,
    pop,
)
from flashrt_ros.models.base import (
    ACTION,
    CHUNK,
    Buffers,
    PolicyModel,
    PolicyPlan,
    Program,
    Slots,
    slot_binding,
)
from flashrt_ros.runtime.arena import DTYPES
from flashrt_ros.runtime.spec import (
    BufferSpec,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
    ShapeKey,
)

HORIZON = 16
"""Actions of a chunk."""

ACTION_DIM = 8
"""Numbers of an action."""

EXECUTE_HORIZON = 8
"""Actions of a chunk that are carried out."""

NUM_STEPS = 10
"""Of denoising, each a node of the plan."""

IMAGE_PX = 96
"""Height and width of the image, px."""

PATCH_PX = 16
"""Height and width of the part of it that becomes a token, px."""

HEAD_DIM = 64
"""Numbers of a key, of an attention head."""

_NUM_PATCHES = (IMAGE_PX // PATCH_PX) ** 2
_NUM_TOKENS = _NUM_PATCHES + 2
"""Patches, goal, joints."""

_FIELDS = {"goal.values": "goal", "observation.image": "image", "observation.joints": "joints"}
_LATCHED = {**_FIELDS, "noise.values": "noise"}


class _Layer(nn.Module):
    """Attention of the actions over themselves and the context, then a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD_DIM)
        self.norm_in = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.both = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        y = self.norm_in(x)
        key, value = self.both(torch.cat([context, y], 0)).chunk(2, -1)
        weights = torch.matmul(self._split(self.query(y)), self._split(key).transpose(1, 2))
        weights = torch.softmax(weights * (1.0 / math.sqrt(x.shape[-1] // self.heads)), -1)
        mixed = torch.matmul(weights, self._split(value)).transpose(0, 1).reshape(x.shape)
        x = x + self.out(mixed)
        step: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + step

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)

    if TYPE_CHECKING:
        __call__ = forward


class _Network(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH_PX, stride=PATCH_PX)
        self.goal = nn.Linear(ACTION_DIM, width)
        self.joints = nn.Linear(ACTION_DIM, width)
        self.time = nn.Parameter(torch.randn(NUM_STEPS, width))
        self.actions_in = nn.Linear(ACTION_DIM, width)
        self.layers = nn.ModuleList([_Layer(width) for _ in range(layers)])
        self.actions_out = nn.Linear(width, ACTION_DIM)


class WideFlowPolicy(PolicyModel):
    """Latch, encode, ten denoise steps through a transformer, commit; batch 1.

    Args:
        width: Of a token; a multiple of 64.
        layers: Of the transformer.
        num_bytes: Ballast in STATE.
        seed: Of the weights; the process's own random state stays.
        dtype: Of the weights and what flows through them; actions stay float32.
    """

    name = "bench_flow"
    horizon = HORIZON
    action_dim = ACTION_DIM
    execute_horizon = EXECUTE_HORIZON
    joint_names = tuple(f"joint_{index}" for index in range(ACTION_DIM))
    step_ns = 100_000_000
    noise_shape = (HORIZON, ACTION_DIM)

    def __init__(
        self,
        *,
        width: int,
        layers: int,
        num_bytes: int = 0,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = _Network(width, layers)
        self._dtype = DTYPES[dtype]
        self._network = network.to(self._dtype).requires_grad_(False).eval()
        self._width = width
        self._digest = f"bench-{width}-{layers}-{seed}-{dtype}"
        self.dtype = dtype
        self._ballast = ballast(num_bytes) if num_bytes else ()

    def to(self, device: torch.device) -> None:
        """Move the network to a device."""
        self._network.to(device)

    @property
    def num_parameters(self) -> int:
        """Weights."""
        return sum(parameter.numel() for parameter in self._network.parameters())

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return every buffer of a lane, ballast last of STATE."""
        chunk, row = (HORIZON, ACTION_DIM), (ACTION_DIM,)
        image = (IMAGE_PX, IMAGE_PX, 3)
        return (
            *policy_counters(),
            BufferSpec(QUEUE, chunk, "float32", Role.STATE),
            BufferSpec("tail", chunk, "float32", Role.STATE),
            *self._ballast,
            BufferSpec("goal", row, "float32", Role.INPUT),
            BufferSpec("joints", row, "float32", Role.INPUT),
            BufferSpec("noise", chunk, "float32", Role.INPUT),
            BufferSpec("image", image, "uint8", Role.INPUT),
            counter(slot_binding("goal"), Role.BINDING),
            counter(slot_binding("observation"), Role.BINDING),
            BufferSpec(ACTION, row, "float32", Role.OUTPUT),
            BufferSpec(CHUNK, chunk, "float32", Role.OUTPUT),
            BufferSpec("goal_latched", (1, *row), "float32", Role.SCRATCH),
            BufferSpec("joints_latched", (1, *row), "float32", Role.SCRATCH),
            BufferSpec("noise_latched", (1, *chunk), "float32", Role.SCRATCH),
            BufferSpec("image_latched", (1, *image), "uint8", Role.SCRATCH),
            BufferSpec("context", (_NUM_TOKENS, self._width), self.dtype, Role.SCRATCH),
            BufferSpec("denoised", chunk, "float32", Role.SCRATCH),
        )

    def channels(self) -> tuple[ChannelSpec, ...]:
        """Return the channels "goal" and "observation"."""
        row = (ACTION_DIM,)
        return (
            ChannelSpec("goal", ChannelRole.GOAL, (FieldSpec("values", row, "float32"),)),
            ChannelSpec(
                "observation",
                ChannelRole.OBSERVATION,
                (
                    FieldSpec("image", (IMAGE_PX, IMAGE_PX, 3), "uint8"),
                    FieldSpec("joints", row, "float32"),
                ),
            ),
        )

    def inputs(self) -> Mapping[str, str]:
        """Return the INPUT buffer of each slot field."""
        return dict(_FIELDS)

    def plan(self) -> PolicyPlan:
        """Return latch, encode, the denoise steps and commit."""
        steps: tuple[ShapeKey, ...] = tuple(("denoise", index) for index in range(NUM_STEPS))
        return PolicyPlan(
            latch=("latch",),
            steps=(("encode",), *steps),
            commit=("commit",),
            pop=("pop",),
            flush=("flush",),
        )

    def programs(self) -> Mapping[ShapeKey, Program]:
        """Return one program for each key."""
        return {
            ("latch",): _latch,
            ("encode",): self._encode,
            **{("denoise", index): self._denoise(index) for index in range(NUM_STEPS)},
            ("commit",): _commit,
            ("pop",): pop,
            ("flush",): flush,
        }

    def initial_state(self) -> Mapping[str, Tensor]:
        """Return nothing: every buffer starts at zero."""
        return {}

    def weights_digest(self) -> str:
        """Return what decides the weights."""
        return self._digest

    def score(self, chunk: Tensor, buffers: Buffers) -> float:
        """Rate every chunk alike: the weights are random."""
        return 0.0

    def _encode(self, buffers: Buffers, slots: Slots) -> None:
        network, dtype = self._network, self._dtype
        pixels = buffers["image_latched"].permute(0, 3, 1, 2).to(dtype) * (1.0 / 255.0)
        patches = network.patches(pixels).flatten(2)[0].transpose(0, 1)
        goal = network.goal(buffers["goal_latched"].to(dtype))
        joints = network.joints((buffers["joints_latched"] + buffers["tail"][:1]).to(dtype))
        buffers["context"].copy_(torch.cat([patches, goal, joints], 0))

    def _denoise(self, step: int) -> Program:
        network, time, dtype = self._network, self._network.time[step], self._dtype

        def program(buffers: Buffers, slots: Slots) -> None:
            x = network.actions_in(buffers["denoised"].to(dtype)) + time
            for layer in network.layers:
                x = layer(x, buffers["context"])
            flow = network.actions_out(x).to(torch.float32)
            buffers["denoised"].add_(flow, alpha=1.0 / NUM_STEPS)

        return program


def _latch(buffers: Buffers, slots: Slots) -> None:
    for field, kept in _LATCHED.items():
        index = buffers[slot_binding(field.partition(".")[0])]
        torch.index_select(slots[field], 0, index, out=buffers[f"{kept}_latched"])
    buffers["denoised"].copy_(buffers["noise_latched"][0])


def _commit(buffers: Buffers, slots: Slots) -> None:
    chunk = torch.tanh(buffers["denoised"])
    buffers["tail"].copy_(chunk)
    buffers[CHUNK].copy_(chunk)
    commit_queue(buffers, chunk, EXECUTE_HORIZON)
    for kept in _LATCHED.values():
        buffers[kept].copy_(buffers[f"{kept}_latched"][0])
