"""A policy that says what it read of a goal of any size, for ``--model-factory``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import torch

from flashrt_ros.models.base import CHUNK, Buffers, PolicyModel, Program, Slots, slot_binding
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import BufferSpec, ChannelSpec, FieldSpec, Role, ShapeKey

NUM_ITEMS_VARIABLE = "FLASHRT_ECHO_ITEMS"


class EchoPolicy(MinimalPolicy):
    """The minimal policy, with a field ``scene``, ``float32[n]``, in its goal.

    The first action of a chunk is the smallest and the largest number of the scene that the
    latch node read: they differ where a write came between.

    Args:
        num_items: Of the scene.
    """

    name = "echo"

    def __init__(self, num_items: int) -> None:
        self._shape = (num_items,)

    def buffers(self) -> tuple[BufferSpec, ...]:
        return (
            *super().buffers(),
            BufferSpec("scene", self._shape, "float32", Role.INPUT),
            BufferSpec("scene_latched", self._shape, "float32", Role.SCRATCH),
        )

    def channels(self) -> tuple[ChannelSpec, ...]:
        goal, observation = super().channels()
        scene = FieldSpec("scene", self._shape, "float32")
        return dataclasses.replace(goal, fields=(*goal.fields, scene)), observation

    def inputs(self) -> Mapping[str, str]:
        return {**super().inputs(), "goal.scene": "scene"}

    def programs(self) -> Mapping[ShapeKey, Program]:
        programs, plan = dict(super().programs()), self.plan()
        latch, commit = programs[plan.latch], programs[plan.commit]

        def latch_scene(buffers: Buffers, slots: Slots) -> None:
            latch(buffers, slots)
            index = buffers[slot_binding("goal")]
            buffers["scene_latched"].copy_(slots["goal.scene"].index_select(0, index)[0])

        def commit_scene(buffers: Buffers, slots: Slots) -> None:
            commit(buffers, slots)
            scene = buffers["scene_latched"]
            buffers["scene"].copy_(scene)
            buffers[CHUNK][0].copy_(torch.stack([scene.amin(), scene.amax()]))

        return {**programs, plan.latch: latch_scene, plan.commit: commit_scene}


def make(weights: str | None) -> PolicyModel:
    """Build it, as large as the environment says."""
    return EchoPolicy(int(os.environ[NUM_ITEMS_VARIABLE]))
