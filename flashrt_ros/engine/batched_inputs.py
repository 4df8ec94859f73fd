"""Goals and observations of environments stepped together: one slot for each row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.engine.batched_rows import Rows
from flashrt_ros.engine.describe import channel_info
from flashrt_ros.engine.payload import check_payload
from flashrt_ros.errors import UnknownChannelError
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.spec import ITEM_BYTES, ArenaLayout, ChannelRole, ChannelSpec


class BatchedInputs:
    """The channels of a model, with slot ``i`` of each for row ``i``.

    A payload acts once it is committed, until it is dropped. Nothing is read between two
    steps, so that a trainer may write in place at any time then.

    Args:
        model: Declares the channels.
        layout: Of a row, to find a goal in a capsule.
        backend: Reads the slots in place.
        num_rows: Slots of each channel.

    Raises:
        BackendError: There is no such memory.
    """

    def __init__(
        self, model: PolicyModel, layout: ArenaLayout, backend: Backend, num_rows: int
    ) -> None:
        self._specs = {spec.name: spec for spec in model.channels()}
        self._inputs = model.inputs()
        self._layout = layout
        self._backend = backend
        self._num_rows = num_rows
        self._blocks: dict[str, Block] = {}
        self._views: dict[str, dict[str, npt.NDArray[np.generic]]] = {}
        self._is_committed = {name: np.zeros(num_rows, np.bool_) for name in self._specs}
        self._num_commits = 0
        self.slots: dict[str, torch.Tensor] = {}
        self.sequences = {role: np.zeros(num_rows, np.int64) for role in ChannelRole}
        for spec in self._specs.values():
            block = backend.allocate_host_block(num_rows * spec.slot_bytes)
            self._blocks[spec.name] = block
            self.slots.update(backend.import_slots(block.address, num_rows, spec))
            self._views[spec.name] = _views(spec, block, num_rows)

    def views(self, channel: str) -> dict[str, npt.NDArray[np.generic]]:
        """Return a channel's fields, ``[num_rows, *shape]``, writable, in place.

        Raises:
            UnknownChannelError: The model has no such channel.
        """
        return dict(self._views[self._spec(channel).name])

    def write(self, channel: str, rows: Rows, values: Mapping[str, npt.ArrayLike]) -> None:
        """Check payloads, copy them into the rows' slots, commit them.

        Args:
            channel: Which.
            rows: Rows written.
            values: Every field, ``[len(rows), *shape]``.

        Raises:
            UnknownChannelError: The model has no such channel.
            FlashrtError: A payload was refused; nothing is written.
        """
        spec = self._spec(channel)
        self._check(spec, len(rows), values)
        for name, value in values.items():
            self._views[channel][name][rows] = np.asarray(value)
        self._commit(spec, rows)

    def commit(self, channel: str, rows: Rows) -> None:
        """Check what was written in place, and let it act.

        Raises:
            UnknownChannelError: The model has no such channel.
            FlashrtError: A payload was refused; what these rows had before is dropped.
        """
        spec = self._spec(channel)
        self._is_committed[channel][rows] = False
        written = {name: view[rows] for name, view in self._views[channel].items()}
        self._check(spec, len(rows), written)
        self._commit(spec, rows)

    def drop(self, row: int, role: ChannelRole) -> None:
        """Let a row's payloads of a role act no longer."""
        for spec in self._specs.values():
            if spec.role is role:
                self._is_committed[spec.name][row] = False
        self.sequences[role][row] = 0

    def restore_goals(self, row: int, capsule_address: int, sequence: int) -> None:
        """Bring a row's goals back from a capsule.

        Args:
            row: Whose.
            capsule_address: Of the capsule's bytes, laid out as the row.
            sequence: Number that the goal had; 0 drops it.
        """
        self.drop(row, ChannelRole.GOAL)
        if not sequence:
            return
        for spec in self._specs.values():
            if spec.role is ChannelRole.GOAL:
                slot = self._blocks[spec.name].address + row * spec.slot_bytes
                for part in spec.fields:
                    placement = self._layout.by_name[self._inputs[f"{spec.name}.{part.name}"]]
                    source = capsule_address + placement.offset
                    target = slot + spec.field_offset(part.name)
                    self._backend.copy(target, source, part.num_bytes)
                self._is_committed[spec.name][row] = True
        self.sequences[ChannelRole.GOAL][row] = sequence

    def missing(self, rows: Sequence[int]) -> str:
        """Name the channels and rows that have no payload, "" for none."""
        found = (
            (name, [row for row in rows if not is_committed[row]])
            for name, is_committed in self._is_committed.items()
        )
        return "; ".join(f"{name} of {lacking}" for name, lacking in found if lacking)

    def close(self) -> None:
        """Let go of the slots; idempotent. Views handed out stay valid."""
        for block in self._blocks.values():
            block.close()

    def _spec(self, channel: str) -> ChannelSpec:
        try:
            return self._specs[channel]
        except KeyError:
            raise UnknownChannelError(
                f"the model has no channel '{channel}'",
                expected=f"one of {', '.join(sorted(self._specs))}",
            ) from None

    def _check(self, spec: ChannelSpec, count: int, values: Mapping[str, npt.ArrayLike]) -> None:
        info = channel_info(spec)
        fields = tuple(
            msgspec.structs.replace(part, shape=(count, *part.shape)) for part in info.fields
        )
        if count:
            check_payload(msgspec.structs.replace(info, fields=fields), values)

    def _commit(self, spec: ChannelSpec, rows: Rows) -> None:
        self._num_commits += 1
        self._is_committed[spec.name][rows] = True
        self.sequences[spec.role][rows] = self._num_commits


def _views(spec: ChannelSpec, block: Block, num_rows: int) -> dict[str, npt.NDArray[np.generic]]:
    views: dict[str, npt.NDArray[np.generic]] = {}
    for part in spec.fields:
        item = ITEM_BYTES[part.dtype]
        strides = [math.prod(part.shape[axis + 1 :]) * item for axis in range(len(part.shape))]
        views[part.name] = np.ndarray(
            (num_rows, *part.shape),
            part.dtype,
            block.view(),
            spec.field_offset(part.name),
            (spec.slot_bytes, *strides),
        )
    return views
