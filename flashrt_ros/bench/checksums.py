"""The sum by which a payload is known again; imports without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

SHIFTS = (0, 16, 32, 48)
"""Of the numbers of 16 bits that a chunk carries a sum in, lowest first."""


def read_checksum(chunk: bytes) -> int:
    """Read what ``models.write_checksum`` wrote, from a chunk's bytes."""
    digits = np.frombuffer(chunk, np.float32)[: len(SHIFTS)]
    return sum(int(digit) << shift for digit, shift in zip(digits, SHIFTS, strict=True))


def checksum(*parts: npt.NDArray[Any]) -> int:
    """Compute on the host what ``models.write_checksum`` computes."""
    total = sum(int(part.astype(np.int64, copy=False).sum(dtype=np.int64)) for part in parts)
    return total % (1 << 64)
