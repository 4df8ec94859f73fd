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
    with :meth:`write`. What it has written is a goal once the plan's last node is done, if it is
    finite and in range; of a plan that is abandoned nothing ever is.

    The rows are SCRATCH: they lie where the lane lies, in the device's memory, and in no
    capsule. The same graph tells the host the extremes of what it wrote, so that the host judges
    a row without reading it.

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
    def extremes(self) -> str:
        """Name of the OUTPUT buffer, ``float64[num_fields, 2]``: least and greatest value of each.

        Both are NaN where a value is. Zeros for a field that is not :func:`judged`.
        """
        return f"{self.name}_extremes"

    @property
    def row_bytes(self) -> int:
        """Pitch from one row to the next; fields lie as in a slot of the channel."""
        return self.channel.payload_bytes

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Declare its buffers, which the model has to list among its own."""
        num_fields = len(self.channel.fields)
        return (
            BufferSpec(self.rows, (self.num_rows, self.row_bytes), "uint8", Role.SCRATCH),
            BufferSpec(self.binding, (1,), "int64", Role.BINDING),
            BufferSpec(self.extremes, (num_fields, 2), "float64", Role.OUTPUT),
        )

    def write(self, buffers: Buffers, field: str, value: torch.Tensor) -> None:
        """Write a field of the plan's row, whole, in a program.

        Args:
            buffers: Of the lane.
            field: One of the channel's.
            value: In its shape and dtype.
        """
        start = self.channel.field_offset(field)  # refuses a name that there is not
        names = [part.name for part in self.channel.fields]
        index = names.index(field)
        part = self.channel.fields[index]
        rows = buffers[self.rows][:, start : start + part.num_bytes].view(DTYPES[part.dtype])
        rows.index_copy_(0, buffers[self.binding], value.reshape(1, -1))
        if judged(part):
            extremes = buffers[self.extremes][index]
            for place, extreme in zip(extremes, value.aminmax(), strict=True):
                place.copy_(extreme)


def judged(part: FieldSpec) -> bool:
    """Tell whether some values of a field's dtype are refused."""
    has_bounds = part.low is not None or part.high is not None
    return has_bounds or DTYPES[part.dtype].is_floating_point
