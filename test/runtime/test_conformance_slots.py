"""Slots on every backend: read in place, by a binding, and known to the engine."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.backend import Backend, Buffers, Slots
from flashrt_ros.runtime.spec import PAGE_BYTES, ChannelRole, ChannelSpec, FieldSpec


def reads_slots(buffers: Buffers, slots: Slots) -> None:
    goal = slots["goal.values"].index_select(0, buffers["goal_slot"])[0]
    mask = slots["goal.mask"].index_select(0, buffers["goal_slot"])[0]
    buffers["hidden"].copy_(torch.where(mask, goal, -goal).expand(4, 8))


def writes_state(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].zero_()


def test_graph_knows_which_slot_it_reads(world: Any) -> None:
    reads = world.capture(reads_slots).slot_reads()
    assert [(read.field, read.binding) for read in reads] == [
        ("goal.values", "goal_slot"),
        ("goal.mask", "goal_slot"),
    ]
    for read in reads:
        view = world.slots[read.field]
        assert read.num_rows == view.size(0)
        assert all(read.row_address(row) == view[row].data_ptr() for row in range(read.num_rows))
    assert world.capture(writes_state).slot_reads() == ()


def test_next_replay_sees_what_was_written_to_the_slot(world: Any) -> None:
    graph = world.capture(reads_slots)
    with world.backend.ordered():
        world.slots["goal.mask"].fill_(True)
    world.backend.synchronize()
    for slot in (0, 3, 1):
        world.set("goal_slot", slot)
        (read, _) = graph.slot_reads()
        payload = torch.full((8,), 7.0 + slot)
        ctypes.memmove(read.row_address(slot), payload.data_ptr(), 32)
        graph.replay()
        world.backend.synchronize()
        assert world.get("hidden")[2] == payload.tolist()


def test_slots_are_views_of_foreign_memory(world: Any) -> None:
    values, mask = world.slots["goal.values"], world.slots["goal.mask"]
    assert values.data_ptr() == world.slot_block.address
    assert mask.data_ptr() == world.slot_block.address + 256
    assert values.stride() == (512 // 4, 1)
    assert tuple(mask.shape) == (2 * PAGE_BYTES // 512, 8)
    assert mask.dtype == torch.bool


def test_slots_at_a_crooked_address_are_refused(backend: Backend, world: Any) -> None:
    channel = ChannelSpec("x", ChannelRole.GOAL, (FieldSpec("v", (1,), "float32"),))
    with pytest.raises(SpecError, match="multiple of 256"):
        backend.import_slots(world.slot_block.address + 8, 1, channel)
    with pytest.raises(SpecError, match="at least one slot"):
        backend.import_slots(world.slot_block.address, 0, channel)
