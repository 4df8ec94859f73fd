"""A model on the runtime alone, every byte of it in reach: what a proof runs on."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
import xxhash

from flashrt_ros.models.base import NOISE_SEED, PolicyModel
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane, LanePool
from flashrt_ros.runtime.noise import NOISE_FIELD
from flashrt_ros.runtime.plan import Plan
from flashrt_ros.runtime.spec import ITEM_BYTES, ArenaLayout, Role, ShapeKey

NUM_NOISE_SLOTS = 4
FIRST_SEED = 7
"""Noise seed of a fresh start."""

Frame = dict[str, bytes]
"""Digest of each buffer at a boundary, by name."""


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that a proof may overwrite, because no capsule carries it.

    Attributes:
        name: What a finding calls it: a buffer's name, or what the memory is.
        parts: ``uint8`` tensors over it.
    """

    name: str
    parts: tuple[torch.Tensor, ...]

    def fill(self, value: int) -> None:
        """Overwrite every byte."""
        for part in self.parts:
            part.fill_(value)

    def save(self) -> tuple[torch.Tensor, ...]:
        """Copy the bytes out."""
        return tuple(part.clone() for part in self.parts)

    def load(self, saved: tuple[torch.Tensor, ...]) -> None:
        """Put bytes back that :meth:`save` gave."""
        for part, old in zip(self.parts, saved, strict=True):
            part.copy_(old)


class Rig:
    """Arena, slots and captured graphs of one model; no engine.

    Slots lie in private blocks, at the pitch that rings have, so that graphs read them
    as they do in an engine.

    Args:
        model: Outlives the rig.
        num_lanes: Lanes to make; graphs are captured on the first and rebased.

    Raises:
        CaptureError: A program can't be captured.
        SpecError: The model's declarations are inconsistent.
    """

    def __init__(self, model: PolicyModel, *, num_lanes: int = 2) -> None:
        self.model = model
        self.layout = ArenaLayout.of(model.buffers())
        self.programs = dict(model.programs())
        self.backend = CpuBackend()
        self._blocks: dict[str, Block] = {}
        self.slots: dict[str, torch.Tensor] = {}
        for spec in model.channels():
            block = self._allocate(spec.name, spec.num_slots * spec.slot_bytes)
            self.slots.update(self.backend.import_slots(block.address, spec.num_slots, spec))
        if model.noise_shape is not None:
            shape = (NUM_NOISE_SLOTS, *model.noise_shape)
            block = self._allocate("noise", math.prod(shape) * ITEM_BYTES["float32"])
            self.slots[NOISE_FIELD] = block.tensor("float32", shape)
        self._arena = self.backend.create_arena(self.layout, num_lanes=num_lanes)
        self._arena.seal()
        self.graphs = GraphSet(self.backend, self.programs, self._arena, self.slots)
        self.plan = Plan(self.graphs, model.plan().nodes)
        pool = LanePool(self._arena, self.graphs)
        self.lanes: tuple[Lane, ...] = tuple(pool.acquire() for _ in range(num_lanes))
        self._bytes = [
            {name: _bytes_of(view) for name, view in lane.views.items()} for lane in self.lanes
        ]

    def _allocate(self, name: str, num_bytes: int) -> Block:
        self._blocks[name] = self.backend.allocate_block(num_bytes)
        return self._blocks[name]

    def close(self) -> None:
        """Let go of graphs and memory; idempotent."""
        self.graphs.close()
        self._arena.close()
        for block in self._blocks.values():
            block.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # state -------------------------------------------------------------------------------

    def initialise(self, lane: int) -> None:
        """Give a lane the state of a fresh environment; all else in it becomes zero."""
        ctypes.memset(self.lanes[lane].address, 0, self.layout.lane_bytes)
        self.lanes[lane].clear_poison()
        for name, value in self.model.initial_state().items():
            self.lanes[lane].views[name].copy_(value)
        self.lanes[lane].views[NOISE_SEED].fill_(FIRST_SEED)

    def capsule(self, lane: int) -> bytes:
        """Copy STATE and INPUT out of a lane."""
        return ctypes.string_at(self.lanes[lane].address, self.layout.capsule_bytes)

    def restore(self, lane: int, capsule: bytes) -> None:
        """Put STATE and INPUT back, as a restore does; no other byte of the lane changes."""
        ctypes.memmove(self.lanes[lane].address, capsule, self.layout.capsule_bytes)
        self.lanes[lane].clear_poison()

    def buffer_bytes(self, lane: int, name: str) -> torch.Tensor:
        """Return ``uint8[num_bytes]`` over a buffer, in place."""
        return self._bytes[lane][name]

    def frame(self, lane: int, roles: frozenset[Role], written: frozenset[str]) -> Frame:
        """Digest a lane's buffers of some roles; OUTPUT only where it is in ``written``.

        What nothing has written since a restore is no output yet.
        """
        views = self._bytes[lane]
        return {
            place.spec.name: xxhash.xxh3_128_digest(views[place.spec.name].numpy().data)
            for place in self.layout.placements
            if place.spec.role in roles
            and (place.spec.role is not Role.OUTPUT or place.spec.name in written)
        }

    # what is neither STATE nor INPUT -----------------------------------------------------

    def regions(self, lane: int) -> Iterator[Region]:
        """Walk all memory that a restore of ``lane`` does not bring back.

        BINDING, OUTPUT and SCRATCH of the lane, the graphs' own memory, the noise ring,
        every channel's slots, the other lanes.
        """
        for place in self.layout.placements:
            if place.spec.role not in (Role.STATE, Role.INPUT):
                name = place.spec.name
                yield Region(name, (self._bytes[lane][name],))
        for key in self.programs:
            # graphs rebased from one another share it
            yield Region(f"private memory of {key}", self.private_memory(key))
        for name, block in self._blocks.items():
            label = "noise ring" if name == "noise" else f"slots of channel '{name}'"
            yield Region(label, (block.tensor("uint8", (block.num_bytes,)),))
        for other, views in enumerate(self._bytes):
            if other != lane:
                yield Region(f"lane {other}", tuple(views.values()))

    def private_memory(self, key: ShapeKey) -> tuple[torch.Tensor, ...]:
        """Return the intermediates of a graph, ``uint8``."""
        return self.graphs.graph(0, key).private_tensors()

    def poison(self, lane: int, value: int) -> None:
        """Overwrite everything that a restore of ``lane`` does not bring back."""
        tail = self.layout.lane_bytes - self.layout.capsule_bytes
        ctypes.memset(self.lanes[lane].address + self.layout.capsule_bytes, value, tail)
        for region in self.regions(lane):
            region.fill(value)

    # programs ----------------------------------------------------------------------------

    def run_eagerly(self, lane: int, key: ShapeKey) -> None:
        """Run a program's Python over a lane, in place of its graph."""
        views: Mapping[str, torch.Tensor] = self.lanes[lane].views
        with torch.no_grad():
            self.programs[key](views, self.slots)

    def written_by(self, key: ShapeKey) -> frozenset[str]:
        """Return the names of the buffers that a graph writes."""
        return self.graphs.graph(0, key).written_buffers

    def copy_lane(self, target: int, source: int) -> None:
        """Make a lane equal to another, to the last byte."""
        ctypes.memmove(
            self.lanes[target].address, self.lanes[source].address, self.layout.lane_bytes
        )


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
