"""A policy whose goal is as large as a test wants it, for ``--model-factory``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from flashrt_ros.models.base import Buffers, PolicyModel, Program, Slots, slot_binding
from flashrt_ros.models.minimal import ACTION_DIM, HORIZON, MinimalPolicy
from flashrt_ros.runtime.spec import BufferSpec, ChannelSpec, FieldSpec, Role, ShapeKey


class WidePolicy(MinimalPolicy):
    """The minimal policy, with a field ``scene``, ``float32[n]`` of -1 to 1, in its goal.

    Args:
        num_items: Of the scene.
    """

    def __init__(self, num_items: int) -> None:
        self._shape = (num_items,)

    def buffers(self) -> tuple[BufferSpec, ...]:
        return (
            *super().buffers(),
            BufferSpec("scene", self._shape, "float32", Role.INPUT),
            BufferSpec("scene_latched", self._shape, "float32", Role.SCRATCH),
        )

    def channels(self) -> tuple[ChannelSpec, ...]:
        scene = FieldSpec("scene", self._shape, "float32", low=-1.0, high=1.0)
        goal, observation = super().channels()
        return dataclasses.replace(goal, fields=(*goal.fields, scene)), observation

    def inputs(self) -> Mapping[str, str]:
        return {**super().inputs(), "goal.scene": "scene"}

    def programs(self) -> Mapping[ShapeKey, Program]:
        programs = dict(super().programs())
        plan = self.plan()
        programs[plan.latch] = _before(programs[plan.latch], _latch_scene)
        programs[plan.commit] = _before(programs[plan.commit], _commit_scene)
        return programs


def _before(program: Program, first: Program) -> Program:
    def both(buffers: Buffers, slots: Slots) -> None:
        first(buffers, slots)
        program(buffers, slots)

    return both


def _latch_scene(buffers: Buffers, slots: Slots) -> None:
    index = buffers[slot_binding("goal")]
    buffers["scene_latched"].copy_(slots["goal.scene"].index_select(0, index)[0])


def _commit_scene(buffers: Buffers, slots: Slots) -> None:
    buffers["scene"].copy_(buffers["scene_latched"])


def _factory(num_bytes: int) -> Callable[[str | None], PolicyModel]:
    return lambda weights: WidePolicy(num_bytes // 4)


make_4kb = _factory(4096 - 512)
"""The whole slot is 4 KB: each field starts on a border of 256 bytes."""
make_1mb = _factory(1 << 20)


class LongChunks(MinimalPolicy):
    """The minimal policy, with chunks of 8 KB, which fit no message."""

    horizon = 1024
    noise_shape = (1024, ACTION_DIM)

    def buffers(self) -> tuple[BufferSpec, ...]:
        return tuple(
            dataclasses.replace(spec, shape=self.noise_shape)
            if spec.shape == (HORIZON, ACTION_DIM)
            else spec
            for spec in super().buffers()
        )


def make_long_chunks(weights: str | None) -> PolicyModel:
    return LongChunks()
