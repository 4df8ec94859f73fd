"""A channel that another model's plans feed too; imports without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashrt_ros.engine.consumer import Consumer, Reader
from flashrt_ros.engine.ring import SlotMeta

if TYPE_CHECKING:
    from flashrt_ros.engine.outlet import Outlet
    from flashrt_ros.engine.shared import SharedChannel


class FedConsumer(Consumer):
    """An engine's end of a channel with two kinds of slots: of writers, and of an outlet.

    The newest of both wins. Rows of the outlet are slots behind those of the channel; a goal that
    is brought back lies in a slot of the engine's own, as ever.

    Args:
        channel: Shared, or the engine's own.
        reader: The engine's.
        num_environments: Of the engine.
        outlet: Of the model that feeds it.
    """

    def __init__(
        self, channel: SharedChannel, reader: Reader, num_environments: int, outlet: Outlet
    ) -> None:
        super().__init__(channel, reader, num_environments)
        self.outlet = outlet

    def is_fed(self, slot: int) -> bool:
        """Tell whether a slot is a row of the outlet."""
        return slot >= self.num_slots

    def slot_address(self, slot: int) -> int:
        """Return the address of a slot's first byte; of a row, on the device."""
        if self.is_fed(slot):
            return self.outlet.row_address(slot - self.num_slots)
        return super().slot_address(slot)

    def row_index(self, slot: int) -> int:
        """Return at which index of the outlet's views a fed slot is found."""
        return self.outlet.row_index(slot - self.num_slots)

    def offer_row(self, env_index: int, row: int, meta: SlotMeta) -> None:
        """Take a row, held once for this call, as the newest."""
        self.offer(env_index, self.num_slots + row, meta)

    def close(self) -> None:
        """Give back what it holds, and leave outlet and channel. Idempotent."""
        super().close()
        self.outlet.detach(self)

    def _hold(self, slot: int) -> None:
        if self.is_fed(slot):
            self.outlet.acquire(slot - self.num_slots)
        else:
            super()._hold(slot)

    def _let_go(self, slot: int) -> None:
        if self.is_fed(slot):
            self.outlet.release(slot - self.num_slots)
        else:
            super()._let_go(slot)
