"""What a plan leaves for other models: rows in the lane's memory, read there as goals."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashrt_ros.runtime.arena import DTYPES
from flashrt_ros.runtime.backend import Buffers
from flashrt_ros.runtime.spec import BufferSpec, ChannelSpec, FieldSpec, Role


@dataclass(frozen=True, slots=True)
class OutletSpec:
    """A buffer of rows that a plan writes for the graphs of other models to read in place.

    A plan is given one row, which nobody reads, and a program of it writes every field there
    with :meth:`write`. What it has written is a goal once the plan's last node is done; of a plan
    that is abandoned nothing ever is.

    The rows are SCRATCH: they lie where the lane lies, in the device's memory, and in no
    capsule.

    Attributes:
        channel: What a row holds; ``name`` is the outlet's. The goal channel that it feeds must
            have the same fields in the same frame.
        num_rows: Rows of each lane: one to write, and three for each engine that reads them.
    """

    channel: ChannelSpec
    num_rows: int = 4

    @property
    def name(self) -> str:
        """The outlet's name, unique among the model's buffers."""
        return self.channel.name

    @property
    def rows(self) -> str:
        """Name of the SCRATCH buffer, ``uint8[num_rows, row_bytes]``."""
        return f"{self.name}_rows"

    @property
    def binding(self) -> str:
        """Name of the BINDING buffer (``int64[1]``) that says which row to write."""
        return f"{self.name}_row"

    @property
    def row_bytes(self) -> int:
        """Pitch from one row to the next; fields lie as in a slot of the channel."""
        return self.channel.payload_bytes

    def buffers(self) -> tuple[BufferSpec, BufferSpec]:
        """Declare its buffers, which the model has to list among its own."""
        return (
            BufferSpec(self.rows, (self.num_rows, self.row_bytes), "uint8", Role.SCRATCH),
            BufferSpec(self.binding, (1,), "int64", Role.BINDING),
        )

    def write(self, buffers: Buffers, field: str, value: torch.Tensor) -> None:
        """Write a field of the plan's row, in a program.

        Args:
            buffers: Of the lane.
            field: One of the channel's.
            value: In its shape and dtype.
        """
        part = self._field(field)
        start = self.channel.field_offset(field)
        rows = buffers[self.rows][:, start : start + part.num_bytes].view(DTYPES[part.dtype])
        rows.index_copy_(0, buffers[self.binding], value.reshape(1, -1))

    def _field(self, name: str) -> FieldSpec:
        self.channel.field_offset(name)  # refuses a name that there is not
        return next(part for part in self.channel.fields if part.name == name)
