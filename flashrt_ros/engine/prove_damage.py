"""Damage to one STATE buffer: other values of it that are finite and legal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from flashrt_ros.runtime.arena import DTYPES
from flashrt_ros.runtime.spec import Placement

_MAX_OTHERS = 3


def read_buffer(capsule: bytes, place: Placement) -> torch.Tensor:
    """Copy a buffer's value out of a capsule's payload."""
    raw = bytearray(capsule[place.offset : place.offset + place.spec.num_bytes])
    return torch.frombuffer(raw, dtype=DTYPES[place.spec.dtype]).view(place.spec.shape)


def damages(
    place: Placement, capsule: bytes, others: Sequence[bytes]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Walk values of a buffer that differ from the one a capsule has.

    What an integer may be is not declared, so its range is what it was seen to be at
    other boundaries; an index damaged so stays an index.

    Args:
        place: The buffer.
        capsule: Payload to be damaged.
        others: Payloads of other boundaries.

    Yields:
        What was done, and the value.
    """
    now = read_buffer(capsule, place)
    seen = [read_buffer(other, place) for other in others]
    different = [value for value in seen if not _is_same(value, now)]
    for value in different[:_MAX_OTHERS]:
        yield "value of another boundary", value
    candidates = _perturbed_float(now) if now.is_floating_point() else _perturbed(now, seen)
    for label, value in candidates:
        if not _is_same(value, now):
            yield label, value


def _perturbed_float(now: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    limit = torch.finfo(now.dtype)
    signs = torch.ones(now.numel(), dtype=now.dtype)
    signs[1::2] = -1
    shift = (0.5 * (1 + now.abs()) * signs.view(now.shape)).to(now.dtype)
    yield "shifted", (now + shift).clamp(limit.min, limit.max)
    yield "negated", -now
    yield "zeroed", torch.zeros_like(now)


def _perturbed(
    now: torch.Tensor, seen: Sequence[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    if now.dtype is torch.bool:
        yield "inverted", ~now
        return
    every = torch.stack([now, *seen])
    low, high = every.min(), every.max()
    if low == high:
        # seen at one value only: the next one is as good a guess as any
        low, high = low - 1 if low > 0 else low, high + 1
    yield "one more", (now + 1).clamp(low, high)
    yield "one less", (now - 1).clamp(low, high)


def _is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    as_bytes = (left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
    return torch.equal(*as_bytes)
