"""Which environments of a batch are meant, and a frozen one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashrt_ros.capsule.capsule import Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.errors import SpecError, UnknownEnvironmentError
from flashrt_ros.runtime.arena import Block

Rows = npt.NDArray[np.int64]
"""Indices of environments, each at most once."""

RowsLike = Sequence[int] | npt.NDArray[np.integer] | npt.NDArray[np.bool_] | None
"""Environments: indices, a mask ``bool[n]`` (as ``dones`` are), or None for all."""


@dataclass(frozen=True, slots=True)
class RowCapsule:
    """STATE and INPUT of one environment at a committed boundary, immutable.

    Whoever holds it owns ``block``; close it, or let it go.

    Attributes:
        block: ``uint8[capsule_bytes]``: the STATE section, then INPUT.
        position: Host counters at the boundary.
        fingerprint: What it was taken under; the number of environments is part of it.
    """

    block: Block
    position: Position
    fingerprint: Fingerprint


def row_indices(rows: RowsLike, count: int) -> Rows:
    """Resolve what a caller names.

    Args:
        rows: Environments.
        count: How many there are.

    Raises:
        UnknownEnvironmentError: One does not exist, or these are no environments.
        SpecError: One is named twice.
    """
    if rows is None:
        return np.arange(count, dtype=np.int64)
    given = np.asarray(rows) if len(rows) else np.zeros(0, np.int64)
    if given.dtype == np.bool_ and given.shape == (count,):
        return np.flatnonzero(given)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise UnknownEnvironmentError(
            "these are no environments",
            expected=f"indices, or bool[{count}]",
            found=f"{given.dtype}{list(given.shape)}",
        )
    if given.size and (given.min() < 0 or given.max() >= count):
        raise UnknownEnvironmentError(
            "there is no such environment",
            expected=f"0 to {count - 1}",
            found=f"{given.min()} to {given.max()}",
        )
    if len(np.unique(given)) < len(given):
        raise SpecError("an environment is named twice", found=given.tolist())
    return given.astype(np.int64)
