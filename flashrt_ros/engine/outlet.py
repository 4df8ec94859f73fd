"""Rows that one model's graphs write and other models' graphs read, without a copy between."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import torch

from flashrt_ros.engine.ring import SlotMeta
from flashrt_ros.errors import (
    ConfigError,
    FlashrtError,
    LoanError,
    NoFreeSlotError,
    NonFiniteError,
    PayloadRangeError,
)
from flashrt_ros.models.outlet import OutletSpec, judged
from flashrt_ros.runtime.arena import DTYPES, Arena
from flashrt_ros.runtime.slot_views import UNIT_BYTES, view_rows
from flashrt_ros.runtime.spec import ChannelSpec, FieldSpec

if TYPE_CHECKING:
    from flashrt_ros.engine.fed import FedConsumer
    from flashrt_ros.engine.shared import SharedChannel


class Outlet:
    """Who may touch which row of a model's outlet: its plan, its readers, or nobody.

    The rules are those of a channel's slots. A row is loaned to a plan, which writes it; committed
    once the device is done with the plan, and offered to every engine that is fed from here; given
    back once the last of those has let go of it. A row is known by its place among the rows of
    all lanes. A plan that is abandoned returns its row, and nobody ever sees it.

    Everything here runs on one thread, that of the engines. The memory outlives :meth:`close` for
    as long as somebody may read it.

    Args:
        spec: The model's.
        arena: Sealed; of the lanes that write the rows.
    """

    def __init__(self, spec: OutletSpec, arena: Arena) -> None:
        self.spec = spec
        self._num_lanes = arena.num_lanes
        self._lane_bytes = arena.pitch_bytes(spec.rows)
        self._memory = arena.views(0)[spec.rows]  # keeps the whole arena's memory
        self._address = self._memory.data_ptr()
        self._references = [0] * (spec.num_rows * arena.num_lanes)
        self._bounds = [_bounds(part) for part in spec.channel.fields]
        self._loans: dict[int, dict[FedConsumer, int]] = {}
        self._consumers: list[FedConsumer] = []
        self._is_closed = False

    @property
    def device(self) -> torch.device:
        """Where the rows lie."""
        return self._memory.device

    @property
    def num_free(self) -> int:
        """Rows of all lanes that nobody writes or reads."""
        return self._references.count(0) - len(self._loans)

    # rows ------------------------------------------------------------------------------------

    def row_in_lane(self, row: int) -> int:
        """Return what the binding of the lane that writes a row holds."""
        return row % self.spec.num_rows

    def row_address(self, row: int) -> int:
        """Return the address of a row's first byte; constant."""
        return self._address + self._offset(row)

    def row_index(self, row: int) -> int:
        """Return at which index of :meth:`views` a row is found."""
        return self._offset(row) // UNIT_BYTES

    def views(self, name: str) -> dict[str, torch.Tensor]:
        """Return the rows as graphs of another model see them, ``"name.field"`` → tensor.

        The first extent counts places of 256 bytes from the first row of the first lane on, as
        rows of several lanes have no pitch in common.
        """
        num_bytes = (self._num_lanes - 1) * self._lane_bytes + self.spec.num_rows * self._pitch
        return view_rows(self._memory, self._address, num_bytes, self.spec.channel, name)

    # writing ---------------------------------------------------------------------------------

    def loan(self, lane: int, env_index: int) -> int:
        """Lend a row of a lane to a plan that is about to begin.

        Args:
            lane: That the plan runs over.
            env_index: Environment that the plan is of.

        Raises:
            NoFreeSlotError: Every row of the lane is loaned or read. An answer, never a wait.
            LoanError: The outlet is closed.
        """
        if self._is_closed:
            raise LoanError(f"outlet '{self.spec.name}' is closed")
        for consumer in self._consumers:
            consumer.reader.release_read()
        first = lane * self.spec.num_rows
        for row in range(first, first + self.spec.num_rows):
            if not self._references[row] and row not in self._loans:
                self._loans[row] = {
                    one: one.bound(env_index)
                    for one in self._consumers
                    if env_index < one.num_environments
                }
                return row
        raise NoFreeSlotError(
            f"outlet '{self.spec.name}' has no free row on lane {lane}",
            found=f"{self.spec.num_rows} written or read",
            fix="declare the outlet with more rows: three for each engine that reads it, and one",
        )

    def return_loan(self, row: int) -> None:
        """Take a row back unused.

        Raises:
            LoanError: It is not on loan.
        """
        self._end_loan(row)

    def check(self, extremes: bytes) -> None:
        """Refuse what a plan has written, as a writer's payload would be.

        Args:
            extremes: Copy of the OUTPUT buffer of that name, once the device has written it.

        Raises:
            NonFiniteError: A field holds NaN or Inf.
            PayloadRangeError: A field leaves its range.
        """
        seen = struct.iter_unpack("2d", extremes)
        parts = zip(self.spec.channel.fields, self._bounds, seen, strict=True)
        for part, (low, high), (least, greatest) in parts:
            if not judged(part):
                continue
            if not (math.isfinite(least) and math.isfinite(greatest)):
                raise NonFiniteError(
                    f"field '{part.name}' of outlet '{self.spec.name}' is not finite",
                    expected="finite values",
                    found=f"{least:g} to {greatest:g}",
                )
            if not low <= least <= greatest <= high:
                raise PayloadRangeError(
                    f"field '{part.name}' of outlet '{self.spec.name}' leaves its range",
                    expected=f"{low:g} to {high:g} {part.units}".rstrip(),
                    found=f"{least:g} to {greatest:g}",
                )

    def commit(
        self,
        row: int,
        env_index: int,
        *,
        stamp_ns: int,
        source_sequence: int,
        expires_ns: int = 0,
    ) -> int:
        """Offer a loaned row as the newest goal; call it once the device has written it.

        Those that raised a barrier since the loan, or refuse the stamp, count it as refused.

        Args:
            row: The loaned one.
            env_index: Environment it is for.
            stamp_ns: Of what it was made from, on the writers' clock.
            source_sequence: The producer's own number.
            expires_ns: When its lifetime ends, on the writers' clock; 0 for never.

        Returns:
            How many engines took it; with none the row is free again.

        Raises:
            LoanError: It is not on loan.
        """
        bounds = self._end_loan(row)
        takers: list[FedConsumer] = []
        for consumer in self._consumers:
            if env_index >= consumer.num_environments:
                continue
            try:
                consumer.admit(env_index, bounds.get(consumer, 0), stamp_ns)
            except FlashrtError:
                continue  # counted by whoever refused it
            takers.append(consumer)
        sequences: dict[SharedChannel, int] = {}
        for consumer in takers:
            channel = consumer.channel
            if channel not in sequences:  # one commit has one number for all that read the channel
                sequences[channel] = channel.next_sequence(env_index)
            self._references[row] += 1
            consumer.offer_row(
                env_index,
                row,
                SlotMeta(
                    sequence=sequences[channel],
                    source_sequence=source_sequence,
                    stamp_ns=stamp_ns,
                    expires_ns=expires_ns,
                ),
            )
        for consumer in takers:
            consumer.reader.wake()
        return len(takers)

    # reading ---------------------------------------------------------------------------------

    def attach(self, consumer: FedConsumer, spec: ChannelSpec, device: torch.device) -> None:
        """Feed an engine's channel from here, from the next commit on.

        Raises:
            ConfigError: The channel holds something else, or is read by another device.
        """
        mine = self.spec.channel
        if (spec.fields, spec.frame) != (mine.fields, mine.frame):
            raise ConfigError(
                f"outlet '{mine.name}' holds another thing than channel '{spec.name}'",
                expected=f"{spec.fields} in frame '{spec.frame}'",
                found=f"{mine.fields} in frame '{mine.frame}'",
            )
        if device != self.device:
            raise ConfigError(
                f"outlet '{mine.name}' can't be read from another device",
                expected=str(self.device),
                found=str(device),
                fix="run both models on one device",
            )
        self._consumers.append(consumer)

    def detach(self, consumer: FedConsumer) -> None:
        """Feed an engine no longer. Idempotent."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)

    def acquire(self, row: int) -> None:
        """Hold a row that is read once more."""
        self._references[row] += 1

    def release(self, row: int) -> None:
        """Give a hold back; with the last one the row is free again."""
        self._references[row] -= 1

    def close(self) -> None:
        """Lend no row any more; what is read stays where it is. Idempotent."""
        self._is_closed = True

    # inside ----------------------------------------------------------------------------------

    @property
    def _pitch(self) -> int:
        return self.spec.row_bytes

    def _offset(self, row: int) -> int:
        lane, in_lane = divmod(row, self.spec.num_rows)
        return lane * self._lane_bytes + in_lane * self._pitch

    def _end_loan(self, row: int) -> dict[FedConsumer, int]:
        try:
            return self._loans.pop(row)
        except KeyError:
            raise LoanError(f"row {row} of outlet '{self.spec.name}' is not on loan") from None


def _bounds(part: FieldSpec) -> tuple[float, float]:
    """Return what a field's values must lie between, as its dtype holds the bounds."""
    dtype = DTYPES[part.dtype]
    low, high = (
        torch.tensor(bound, dtype=dtype).item()
        if bound is not None and dtype.is_floating_point
        else bound
        for bound in (part.low, part.high)
    )
    return -math.inf if low is None else low, math.inf if high is None else high
