"""A policy with two goal channels, for an engine process: a target, and a gripper's width."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flashrt_ros.models.action_queue import counter
from flashrt_ros.models.base import Buffers, Program, Slots, slot_binding
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import (
    BufferSpec,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
    ShapeKey,
)

WIDTH = FieldSpec("width", (1,), "float32", low=0.0, high=0.1, units="m")


class Grasping(MinimalPolicy):
    """The minimal policy; the width goes through it to its INPUT."""

    name = "grasping"

    def buffers(self) -> tuple[BufferSpec, ...]:
        return (
            *super().buffers(),
            BufferSpec("width", (1,), "float32", Role.INPUT),
            counter(slot_binding("gripper"), Role.BINDING),
            BufferSpec("width_latched", (1,), "float32", Role.SCRATCH),
        )

    def channels(self) -> tuple[ChannelSpec, ...]:
        return (*super().channels(), ChannelSpec("gripper", ChannelRole.GOAL, (WIDTH,)))

    def inputs(self) -> Mapping[str, str]:
        return {**super().inputs(), "gripper.width": "width"}

    def programs(self) -> Mapping[ShapeKey, Program]:
        programs, plan = super().programs(), self.plan()
        latch, commit = programs[plan.latch], programs[plan.commit]

        def latch_both(buffers: Buffers, slots: Slots) -> None:
            latch(buffers, slots)
            width = slots["gripper.width"].index_select(0, buffers[slot_binding("gripper")])
            buffers["width_latched"].copy_(width[0])

        def commit_both(buffers: Buffers, slots: Slots) -> None:
            commit(buffers, slots)
            buffers["width"].copy_(buffers["width_latched"])

        return {**programs, plan.latch: latch_both, plan.commit: commit_both}


def make(weights: Path | None) -> Grasping:
    """Build it, for ``--model-factory``."""
    return Grasping()
