"""Tensors over the slots of a channel, in place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.arena import DTYPES
from flashrt_ros.runtime.cuda_memory import view_bytes as view_device_bytes
from flashrt_ros.runtime.spec import BUFFER_ALIGNMENT_BYTES, ITEM_BYTES, ChannelSpec


def view_slots(
    address: int,
    num_slots: int,
    channel: ChannelSpec,
    view_bytes: Callable[[int, int], torch.Tensor],
) -> dict[str, torch.Tensor]:
    """View every field of a channel's slots.

    Args:
        address: Address of slot 0, 256-byte aligned.
        num_slots: Slots at a pitch of ``channel.slot_bytes``.
        channel: What a slot holds.
        view_bytes: Makes a ``uint8`` tensor over an address and a number of bytes.

    Returns:
        ``"channel.field"`` → ``[num_slots, *shape]``, a strided view.

    Raises:
        SpecError: The address is not aligned or there are no slots.
    """
    if num_slots <= 0 or address % BUFFER_ALIGNMENT_BYTES:
        raise SpecError(
            f"the slots of channel '{channel.name}' can't be viewed",
            expected=f"at least one slot, at a multiple of {BUFFER_ALIGNMENT_BYTES}",
            found=f"{num_slots} at {address:#x}",
        )
    views: dict[str, torch.Tensor] = {}
    for part in channel.fields:
        offset = channel.field_offset(part.name)
        num_bytes = (num_slots - 1) * channel.slot_bytes + part.num_bytes
        flat = view_bytes(address + offset, num_bytes).view(DTYPES[part.dtype])
        row = torch.empty(part.shape, device="meta").stride()
        views[f"{channel.name}.{part.name}"] = flat.as_strided(
            (num_slots, *part.shape), (channel.slot_bytes // ITEM_BYTES[part.dtype], *row)
        )
    return views


UNIT_BYTES = BUFFER_ALIGNMENT_BYTES
"""Pitch of :func:`view_rows`; every row begins at a multiple of it."""


def view_rows(
    memory: torch.Tensor, address: int, num_bytes: int, channel: ChannelSpec, name: str
) -> dict[str, torch.Tensor]:
    """View rows of an arena that lie at no pitch, to be read by where they begin.

    Args:
        memory: Lies in the arena; its memory is kept for as long as a view of a device's is
            there. On the host the caller keeps it.
        address: Of the first row.
        num_bytes: From there to the end of the last row.
        channel: What a row holds; fields lie as in a slot.
        name: Takes the place of the channel's.

    Returns:
        ``"name.field"`` → ``[num_units, *shape]``: the row that begins ``i * UNIT_BYTES``
        from the address is at ``i``, so that rows overlap. Read only.
    """
    num_units = (num_bytes - channel.payload_bytes) // UNIT_BYTES + 1
    views: dict[str, torch.Tensor] = {}
    for part in channel.fields:
        start = address + channel.field_offset(part.name)
        size = (num_units - 1) * UNIT_BYTES + part.num_bytes
        if memory.is_cuda:
            flat = view_device_bytes(start, size, memory.device, keep=memory)
        else:
            flat = torch.frombuffer((ctypes.c_char * size).from_address(start), dtype=torch.uint8)
        row = torch.empty(part.shape, device="meta").stride()
        views[f"{name}.{part.name}"] = flat.view(DTYPES[part.dtype]).as_strided(
            (num_units, *part.shape), (UNIT_BYTES // ITEM_BYTES[part.dtype], *row)
        )
    return views
