"""Where graphs find a slot: where it lies, or in a copy of it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import ExitStack

import torch

from flashrt_ros.engine.fed import FedConsumer
from flashrt_ros.engine.feeding import fed_name
from flashrt_ros.engine.readable import Readable
from flashrt_ros.runtime.backend import Backend


class Staging:
    """Copies slots of some channels to private memory, for a device that can't map a ring.

    Slots of the other channels are read in place, and rows of outlets always. One copy of a
    channel is kept, so that one plan at a time may read it.

    Args:
        channels: Every channel, by name.
        names: Those that are copied.
        backend: Copies, and gives graphs a view of the slots.

    Raises:
        BackendError: There is no such memory.
    """

    def __init__(
        self, channels: Mapping[str, Readable], names: tuple[str, ...], backend: Backend
    ) -> None:
        self._channels = channels
        self._backend = backend
        with ExitStack() as undo:
            self._blocks = {
                name: undo.enter_context(backend.allocate_block(channels[name].slot_bytes))
                for name in names
            }
            self._fed = {c: one for c, one in channels.items() if isinstance(one, FedConsumer)}
            self._copies = {
                name: undo.enter_context(backend.allocate_host_block(channel.payload_bytes))
                for name, channel in self._fed.items()
            }
            self._undo = undo.pop_all()

    def views(self) -> dict[str, torch.Tensor]:
        """Return the tensors that graphs read, ``"channel.field"`` → ``[num_slots, *shape]``."""
        views: dict[str, torch.Tensor] = {}
        for name, channel in self._channels.items():
            block = self._blocks.get(name)
            if block is None:
                address, num_slots = channel.address, channel.num_slots
            else:
                address, num_slots = block.address, 1
            views.update(self._backend.import_slots(address, num_slots, channel.spec))
        for name, fed in self._fed.items():
            views.update(fed.outlet.views(fed_name(name)))
        return views

    def row(self, name: str, slot: int) -> int:
        """Return the row at which graphs find a slot, after the submission of its copy if any."""
        if self._fed and (fed := self._fed.get(name)) is not None and fed.is_fed(slot):
            return fed.row_index(slot)
        block = self._blocks.get(name)
        if block is None:
            return slot
        channel = self._channels[name]
        self._backend.copy(block.address, channel.slot_address(slot), channel.slot_bytes)
        return 0

    def read(self, name: str, slot: int) -> bytes:
        """Copy a slot's payload out; of a row of an outlet, once the device has come so far."""
        channel, fed = self._channels[name], self._fed.get(name)
        address, num_bytes = channel.slot_address(slot), channel.payload_bytes
        if fed is not None and fed.is_fed(slot):
            copy = self._copies[name]
            self._backend.copy_aside(copy.address, address, num_bytes).wait()
            address = copy.address
        return ctypes.string_at(address, num_bytes)

    def close(self) -> None:
        """Free the copies; idempotent. No graph may read them any more."""
        self._undo.close()
