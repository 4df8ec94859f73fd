"""A model on the runtime alone, every byte of it in reach: what a proof runs on."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
import xxhash

from flashrt_ros.models.base import NOISE_SEED, PolicyModel, slot_binding
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane, LanePool
from flashrt_ros.runtime.noise import NOISE_FIELD
from flashrt_ros.runtime.plan import Plan
from flashrt_ros.runtime.spec import (
    CAPSULE_ROLES,
    ArenaLayout,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
    ShapeKey,
)

NUM_NOISE_SLOTS = 4
"""Slots of the noise ring."""

FIRST_SEED = 7
"""Noise seed of a fresh start."""

Frame = dict[str, bytes]
"""Digest of each buffer at a boundary, by name."""

_COUNTER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that a proof may overwrite, because no capsule carries it.

    Attributes:
        name: What a finding calls it: a buffer's name, or what the memory is.
        parts: ``uint8`` tensors over it, of the device or of the host.
        backend: Orders what is done to it: after all replays so far, before those to come.
    """

    name: str
    parts: tuple[torch.Tensor, ...]
    backend: Backend

    def fill(self, value: int) -> None:
        """Overwrite every byte."""
        with self._at_rest():
            for part in self.parts:
                part.fill_(value)

    def save(self) -> tuple[torch.Tensor, ...]:
        """Copy the bytes out."""
        with self._at_rest():
            return tuple(part.clone() for part in self.parts)

    def load(self, saved: tuple[torch.Tensor, ...]) -> None:
        """Put bytes back that :meth:`save` gave."""
        with self._at_rest():
            for part, old in zip(self.parts, saved, strict=True):
                part.copy_(old)

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        # no order but this holds for parts that the host writes itself
        self.backend.synchronize()
        with self.backend.ordered():
            yield


class Rig:
    """Arena, slots and captured graphs of one model; no engine.

    Slots lie in private blocks, at the pitch that rings have, so that graphs read them
    as they do in an engine. The model's weights are moved to the backend's device.

    Args:
        model: Outlives the rig.
        num_lanes: Lanes to make; graphs are captured on the first and rebased.
        backend: Outlives the rig; None makes one on the CPU, which the rig owns.

    Attributes:
        layout: Of a lane.
        slots: What programs read, by ``"channel.field"``.
        programs: The model's, by key.
        graphs: Captured from them.

    Raises:
        CaptureError: A program can't be captured; nothing of the rig is left.
        SpecError: The model's declarations are inconsistent.
        BackendError: There is no such memory.
    """

    def __init__(
        self, model: PolicyModel, *, num_lanes: int = 2, backend: Backend | None = None
    ) -> None:
        self.model = model
        self.layout = ArenaLayout.of(model.buffers())
        self._blocks: dict[str, Block] = {}
        self.slots: dict[str, torch.Tensor] = {}
        with ExitStack() as undo:
            self.backend = backend if backend is not None else undo.enter_context(CpuBackend())
            with self.backend.ordered():
                model.to(self.backend.device)
            self.programs = dict(model.programs())
            for spec in model.channels():
                self._import(spec.name, spec, spec.num_slots, undo)
            if model.noise_shape is not None:
                channel, _, field = NOISE_FIELD.partition(".")
                noise = FieldSpec(field, model.noise_shape, "float32")
                spec = ChannelSpec(channel, ChannelRole.OBSERVATION, (noise,))
                self._import("noise", spec, NUM_NOISE_SLOTS, undo)
            arena = undo.enter_context(self.backend.create_arena(self.layout, num_lanes=num_lanes))
            arena.seal()
            self.graphs = undo.enter_context(
                GraphSet(self.backend, self.programs, arena, self.slots)
            )
            self.plan = Plan(
                self.graphs,
                model.plan().nodes,
                slot_bindings=[slot_binding(channel.name) for channel in model.channels()],
            )
            pool = LanePool(arena, self.graphs)
            self.lanes: tuple[Lane, ...] = tuple(pool.acquire() for _ in range(num_lanes))
            self._undo = undo.pop_all()
        self._bytes = [
            {name: _bytes_of(view) for name, view in lane.views.items()} for lane in self.lanes
        ]

    def _import(self, name: str, spec: ChannelSpec, num_slots: int, undo: ExitStack) -> None:
        block = undo.enter_context(self.backend.allocate_host_block(num_slots * spec.slot_bytes))
        self._blocks[name] = block
        self.slots.update(self.backend.import_slots(block.address, num_slots, spec))

    def close(self) -> None:
        """Let go of graphs and memory; idempotent."""
        self._undo.close()

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
        self.backend.write(self.lanes[lane].address, bytes(self.layout.lane_bytes))
        self.lanes[lane].clear_poison()
        with self.backend.ordered():
            for place in self.layout.placements:
                if place.spec.role is Role.OUTPUT:  # a backend may keep it outside of the lane
                    self._bytes[lane][place.spec.name].zero_()
        for name, value in self.model.initial_state().items():
            self.put(lane, name, value)
        self.bind(lane, NOISE_SEED, FIRST_SEED)

    def capsule(self, lane: int) -> bytes:
        """Copy STATE and INPUT out of a lane, as of all that was replayed."""
        return self.backend.read(self.lanes[lane].address, self.layout.capsule_bytes)

    def restore(self, lane: int, capsule: bytes) -> None:
        """Put STATE and INPUT back, as a restore does; no other byte of the lane changes."""
        self.backend.write(self.lanes[lane].address, capsule)
        self.lanes[lane].clear_poison()

    def put(self, lane: int, name: str, value: torch.Tensor) -> None:
        """Give a buffer a value."""
        with self.backend.ordered():
            self.lanes[lane].views[name].copy_(value)

    def value(self, lane: int, name: str) -> torch.Tensor:
        """Return a buffer's value on the host, read only."""
        with self.backend.ordered():
            return self.lanes[lane].views[name].cpu()

    def bind(self, lane: int, name: str, value: int) -> None:
        """Give an ``int64[1]`` STATE or BINDING buffer a value."""
        data = value.to_bytes(_COUNTER_BYTES, sys.byteorder, signed=True)
        self.backend.write(self._address(lane, name), data)

    def counter(self, lane: int, name: str) -> int:
        """Return what an ``int64[1]`` STATE or BINDING buffer holds."""
        data = self.backend.read(self._address(lane, name), _COUNTER_BYTES)
        return int.from_bytes(data, sys.byteorder, signed=True)

    def feed(self, field: str, row: int, value: torch.Tensor) -> None:
        """Write a slot's field, once no graph reads it any more."""
        with self.backend.ordered():
            self.slots[field][row].copy_(value)

    def differing(self, left: int, right: int) -> list[str]:
        """Name the buffers that differ between two lanes, in layout order."""
        with self.backend.ordered():
            return [
                name
                for name, own in self._bytes[left].items()
                if not torch.equal(own, self._bytes[right][name])
            ]

    def frame(self, lane: int, written: frozenset[str]) -> Frame:
        """Digest a lane's STATE and INPUT, and its OUTPUT where it is in ``written``.

        What nothing has written since a restore is no output yet.
        """
        kept = memoryview(self.capsule(lane))
        found: Frame = {}
        for place in self.layout.placements:
            name, num_bytes = place.spec.name, place.spec.num_bytes
            if place.spec.role in CAPSULE_ROLES:
                found[name] = xxhash.xxh3_128_digest(kept[place.offset : place.offset + num_bytes])
            elif place.spec.role is Role.OUTPUT and name in written:
                data = ctypes.string_at(self.lanes[lane].host_address(name), num_bytes)
                found[name] = xxhash.xxh3_128_digest(data)
        return found

    # what is neither STATE nor INPUT -----------------------------------------------------

    def regions(self, lane: int) -> Iterator[Region]:
        """Walk all memory that a restore of ``lane`` does not bring back.

        BINDING, OUTPUT and SCRATCH of the lane, the graphs' own memory, the noise ring,
        every channel's slots, the other lanes.
        """
        for place in self.layout.placements:
            if place.spec.role not in CAPSULE_ROLES:
                name = place.spec.name
                yield Region(name, (self._bytes[lane][name],), self.backend)
        for keys, parts in self._private_memory():
            yield Region(f"private memory of {keys}", parts, self.backend)
        for name, block in self._blocks.items():
            label = "noise ring" if name == "noise" else f"slots of channel '{name}'"
            whole = block.tensor("uint8", (block.num_bytes,))
            yield Region(label, (whole,), self.backend)
        for other, views in enumerate(self._bytes):
            if other != lane:
                yield Region(f"lane {other}", tuple(views.values()), self.backend)

    def _private_memory(self) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
        """Walk the graphs' intermediates; graphs that share memory go together."""
        # graphs rebased from one another share it on every backend
        memory = {key: self.graphs.graph(0, key).private_tensors() for key in self.programs}
        sharing: dict[tuple[tuple[int, int], ...], list[ShapeKey]] = {}
        for key, parts in memory.items():
            where = tuple((part.data_ptr(), part.numel()) for part in parts)
            sharing.setdefault(where, []).append(key)
        for keys in sharing.values():
            yield ", ".join(map(str, keys)), memory[keys[0]]

    def poison(self, lane: int, value: int) -> None:
        """Overwrite everything that a restore of ``lane`` does not bring back."""
        tail = self.layout.lane_bytes - self.layout.capsule_bytes
        start = self.lanes[lane].address + self.layout.capsule_bytes
        self.backend.write(start, bytes([value]) * tail)
        for region in self.regions(lane):
            region.fill(value)

    # programs ----------------------------------------------------------------------------

    def run_eagerly(self, lane: int, key: ShapeKey) -> None:
        """Run a program's Python over a lane, in place of its graph."""
        views: Mapping[str, torch.Tensor] = self.lanes[lane].views
        with self.backend.ordered(), torch.no_grad():
            self.programs[key](views, self.slots)

    def written_by(self, key: ShapeKey) -> frozenset[str]:
        """Return the names of the buffers that a graph writes."""
        return self.graphs.graph(0, key).written_buffers

    def copy_lane(self, target: int, source: int) -> None:
        """Make a lane equal to another, to the last byte."""
        self.backend.copy(
            self.lanes[target].address, self.lanes[source].address, self.layout.lane_bytes
        )
        with self.backend.ordered():
            for place in self.layout.placements:
                if place.spec.role is Role.OUTPUT:  # a backend may keep it outside of the lane
                    name = place.spec.name
                    self._bytes[target][name].copy_(self._bytes[source][name])

    def _address(self, lane: int, name: str) -> int:
        return self.lanes[lane].address + self.layout.by_name[name].offset


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
