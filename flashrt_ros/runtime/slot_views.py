"""Tensors over the slots of a channel, in place."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.arena import DTYPES
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
