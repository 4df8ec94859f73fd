"""Policies made for benches: state of any size, goals of any size, the frames of two cameras."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from flashrt_ros.bench.checksums import SHIFTS
from flashrt_ros.models.base import CHUNK, Buffers, Program, Slots, slot_binding
from flashrt_ros.models.minimal import ACTION_DIM, MinimalPolicy
from flashrt_ros.runtime.spec import (
    BufferSpec,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
    ShapeKey,
)

NUM_BUFFERS = 50
"""Buffers that a policy's ballast is split into."""

IMAGE_SHAPE = (480, 640, 3)
"""Of a camera in :class:`CameraPolicy`: rows, columns, RGB."""

_WORK_DIM = 256


def ballast(num_bytes: int, num_buffers: int = NUM_BUFFERS) -> tuple[BufferSpec, ...]:
    """Declare STATE buffers that take ``num_bytes`` together, of ``uint8``."""
    size = num_bytes // num_buffers
    return tuple(
        BufferSpec(f"ballast_{index}", (size,), "uint8", Role.STATE) for index in range(num_buffers)
    )


class StatefulPolicy(MinimalPolicy):
    """The minimal policy with ballast in its STATE, and plan nodes of a chosen length.

    Args:
        num_bytes: Of ballast.
        work: Matrix products, 256 by 256, in each step of a plan.
    """

    name = "bench_stateful"

    def __init__(self, num_bytes: int, *, work: int = 0) -> None:
        self._num_bytes = num_bytes
        self._work = work
        self._matrix = torch.eye(_WORK_DIM) + 1e-3 * torch.ones(_WORK_DIM, _WORK_DIM)

    def to(self, device: torch.device) -> None:
        """Move the matrix to a device."""
        self._matrix = self._matrix.to(device)

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return those of the minimal policy, then the ballast."""
        work = BufferSpec("work", (_WORK_DIM, _WORK_DIM), "float32", Role.SCRATCH)
        return (*super().buffers(), *ballast(self._num_bytes), work)

    def programs(self) -> Mapping[ShapeKey, Program]:
        """Return those of the minimal policy; each step does its work first."""
        programs = dict(super().programs())
        if self._work:
            for key in self.plan().steps:
                programs[key] = self._worked(programs[key])
        return programs

    def weights_digest(self) -> str:
        """Return what the work is."""
        return f"bench-{self._work}"

    def _worked(self, step: Program) -> Program:
        matrix, count = self._matrix, self._work

        def program(buffers: Buffers, slots: Slots) -> None:
            product = matrix
            for _ in range(count):
                product = torch.matmul(product, matrix) * 0.5
            buffers["work"].copy_(product)
            step(buffers, slots)

        return program


class GoalPolicy(MinimalPolicy):
    """The minimal policy with a goal of any size, whose checksum is in every chunk.

    Args:
        num_bytes: Of the goal; a multiple of 8.
    """

    name = "bench_goal"

    def __init__(self, num_bytes: int) -> None:
        self._num_items = num_bytes // 8

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return those of the minimal policy, the goal's resized."""
        shape = (self._num_items,)
        return tuple(
            BufferSpec(spec.name, shape, "int64", spec.role)
            if spec.name in ("goal", "goal_latched")
            else spec
            for spec in super().buffers()
        )

    def channels(self) -> tuple[ChannelSpec, ...]:
        """Return the goal, ``int64[n]`` of anything, and the observation."""
        _, observation = super().channels()
        fields = (FieldSpec("values", (self._num_items,), "int64"),)
        return (ChannelSpec("goal", ChannelRole.GOAL, fields, num_rings=2), observation)

    def programs(self) -> Mapping[ShapeKey, Program]:
        """Return those of the minimal policy; steps ignore the goal, commit sums it up."""
        plan = self.plan()
        return {**super().programs(), **dict.fromkeys(plan.steps, _drift), plan.commit: self._sum}

    def _sum(self, buffers: Buffers, slots: Slots) -> None:
        super().programs()[self.plan().commit](buffers, slots)
        write_checksum(buffers, [buffers["goal_latched"]])


class CameraPolicy(MinimalPolicy):
    """The minimal policy with two cameras of 640 by 480 beside the joints.

    Every chunk has the checksum of both images.
    """

    name = "bench_cameras"
    cameras = ("image_left", "image_right")

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return those of the minimal policy, and the images."""
        images = [BufferSpec(name, IMAGE_SHAPE, "uint8", Role.INPUT) for name in self.cameras]
        latched = [
            BufferSpec(f"{name}_latched", IMAGE_SHAPE, "uint8", Role.SCRATCH)
            for name in self.cameras
        ]
        return (*super().buffers(), *images, *latched)

    def channels(self) -> tuple[ChannelSpec, ...]:
        """Return the goal, and the observation with its images."""
        goal, observation = super().channels()
        images = tuple(FieldSpec(name, IMAGE_SHAPE, "uint8") for name in self.cameras)
        fields = (*observation.fields, *images)
        whole = ChannelSpec(
            observation.name,
            ChannelRole.OBSERVATION,
            fields,
            frame=observation.frame,
            num_rings=2,
            num_ring_slots=6,
        )
        return (goal, whole)

    def inputs(self) -> Mapping[str, str]:
        """Return the INPUT buffer of each slot field."""
        return {**super().inputs(), **{f"observation.{name}": name for name in self.cameras}}

    def programs(self) -> Mapping[ShapeKey, Program]:
        """Return those of the minimal policy; latch and commit take the images along."""
        plan, programs = self.plan(), super().programs()
        latch, commit = programs[plan.latch], programs[plan.commit]

        def latch_images(buffers: Buffers, slots: Slots) -> None:
            latch(buffers, slots)
            index = buffers[slot_binding("observation")]
            for name in self.cameras:
                rows = slots[f"observation.{name}"].index_select(0, index)
                buffers[f"{name}_latched"].copy_(rows[0])

        def commit_images(buffers: Buffers, slots: Slots) -> None:
            commit(buffers, slots)
            for name in self.cameras:
                buffers[name].copy_(buffers[f"{name}_latched"])
            write_checksum(buffers, [buffers[f"{name}_latched"] for name in self.cameras])

        return {**programs, plan.latch: latch_images, plan.commit: commit_images}


def write_checksum(buffers: Buffers, parts: list[torch.Tensor]) -> None:
    """Write the sum of all elements, modulo 2**64, into the first two rows of the chunk.

    As numbers of 16 bits, which float32 holds exactly.
    """
    total = parts[0].sum(dtype=torch.int64)
    for part in parts[1:]:
        total = total + part.sum(dtype=torch.int64)
    for place, shift in enumerate(SHIFTS):
        digit = torch.bitwise_and(torch.bitwise_right_shift(total, shift), 0xFFFF)
        row, column = divmod(place, ACTION_DIM)
        buffers[CHUNK][row, column].copy_(digit.to(torch.float32))


def _drift(buffers: Buffers, slots: Slots) -> None:
    buffers["path"].mul_(0.9)


def goal_factory(num_bytes: int) -> str:
    """Name the factory of a :class:`GoalPolicy`, for ``--model-factory``."""
    return f"{__name__}:goal_{num_bytes}"


def stateful_factory(num_bytes: int, work: int) -> str:
    """Name the factory of a :class:`StatefulPolicy`, for ``--model-factory``."""
    return f"{__name__}:stateful_{num_bytes}_{work}"


def camera_policy(weights: Path | None) -> CameraPolicy:
    """Build the policy with two cameras; a factory for ``--model-factory``."""
    return CameraPolicy()


def _goal_policy(num_bytes: int, weights: Path | None) -> GoalPolicy:
    return GoalPolicy(num_bytes)


def _stateful_policy(num_bytes: int, work: int, weights: Path | None) -> StatefulPolicy:
    return StatefulPolicy(num_bytes, work=work)


def __getattr__(name: str) -> Callable[[Path | None], MinimalPolicy]:
    """Make the factories whose sizes stand in their names."""
    if match := re.fullmatch(r"goal_(\d+)", name):
        return partial(_goal_policy, int(match[1]))
    if match := re.fullmatch(r"stateful_(\d+)_(\d+)", name):
        return partial(_stateful_policy, int(match[1]), int(match[2]))
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
