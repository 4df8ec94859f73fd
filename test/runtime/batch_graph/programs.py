"""Programs over a row and over a batch, with weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flashrt_ros.runtime.backend import Buffers, Slots
from flashrt_ros.runtime.batch_programs import over_rows

torch.manual_seed(0)
ENCODER = nn.Sequential(
    nn.Conv2d(3, 8, 3, 2, 1),
    nn.GroupNorm(2, 8),
    nn.SiLU(),
    nn.Conv2d(8, 4, 3, 2, 1),
    nn.GELU(),
    nn.Flatten(),
    nn.Linear(64, 32),
    nn.LayerNorm(32),
).eval()
MIXER = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8)).eval()


def encodes(buffers: Buffers, slots: Slots) -> None:
    buffers["out"].copy_(ENCODER(buffers["image"]).view(4, 8))


def mixes(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].mul_(0.5).add_(MIXER(buffers["memory"]))
    buffers["count"].add_(1)
    buffers["out"].copy_(buffers["memory"].softmax(-1))


def attends(buffers: Buffers, slots: Slots) -> None:
    q = buffers["memory"].view(1, 4, 2, 4).transpose(1, 2)
    out = nn.functional.scaled_dot_product_attention(q, q, q * 2.0, is_causal=True)
    buffers["out"].copy_(out.transpose(1, 2).reshape(4, 8))


def reads_slots(buffers: Buffers, slots: Slots) -> None:
    chosen = slots["goal.values"].index_select(0, buffers["goal_slot"])[0]
    buffers["goal"].copy_(chosen)
    buffers["hidden"].copy_((chosen * buffers["memory"]).flip(0))


def selects(buffers: Buffers, slots: Slots) -> None:
    values, order = buffers["memory"].topk(3, dim=-1)
    row = buffers["memory"].index_select(0, buffers["count"] % 4)
    buffers["out"].copy_(torch.where(buffers["memory"] > 0, values[:, :1] + order[:, 1:2], row))


def mixes_whole(buffers: Buffers, slots: Slots) -> None:
    """Written for a batch, with views that reach over its lanes in every way."""
    memory = buffers["memory"]
    memory.flatten(0, 1)[::2].add_(1.0) if memory.is_contiguous() else memory[:, ::2].add_(1.0)
    memory.transpose(0, 2)[1:3].mul_(2.0)
    memory.diagonal(dim1=0, dim2=1).sub_(1.0)
    buffers["out"][1:].copy_(MIXER(memory)[1:])
    buffers["count"][:, 0].add_(buffers["goal_slot"].squeeze(1))
    index = buffers["goal_slot"].view(-1)
    torch.index_select(slots["goal.values"], 0, index, out=buffers["goal"])


PROGRAMS = [
    *(
        pytest.param(over_rows(program), id=program.__name__)
        for program in (encodes, mixes, attends, reads_slots, selects)
    ),
    pytest.param(mixes_whole, id="mixes_whole"),
]
