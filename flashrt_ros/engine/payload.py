"""What may be written into a slot, and how it is laid out there; imports without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from flashrt_ros.engine.protocol import ChannelInfo, FieldInfo
from flashrt_ros.errors import (
    NonFiniteError,
    PayloadRangeError,
    PayloadShapeError,
    PayloadTypeError,
)

PAYLOAD_ERRORS = (PayloadShapeError, PayloadTypeError, NonFiniteError, PayloadRangeError)
"""What :func:`check_payload` raises."""

_FIRST_NS, _LAST_NS = -(2**63), 2**63 - 1


def field_views(memory: memoryview, channel: ChannelInfo) -> dict[str, npt.NDArray[np.generic]]:
    """View a slot's fields in place, by name.

    Args:
        memory: The slot's bytes; the views keep it alive and are writable if it is.
        channel: Layout of the slot.
    """
    return {
        part.name: np.frombuffer(
            memory, dtype=part.dtype, count=math.prod(part.shape), offset=part.offset
        ).reshape(part.shape)
        for part in channel.fields
    }


def check_payload(channel: ChannelInfo, values: Mapping[str, npt.ArrayLike]) -> None:
    """Refuse a payload that its channel does not declare; nothing is written.

    Args:
        channel: Declares fields, shapes, dtypes and ranges.
        values: Every field by name. Arrays must have the declared dtype; a list of
            Python numbers is taken where it converts to it.

    Raises:
        PayloadShapeError: A field is missing, unknown, or of another shape.
        PayloadTypeError: A field is of another dtype.
        NonFiniteError: A field holds NaN or Inf.
        PayloadRangeError: A field leaves its range.
    """
    declared = {part.name: part for part in channel.fields}
    if values.keys() != declared.keys():
        raise PayloadShapeError(
            f"the payload of channel '{channel.name}' has other fields than declared",
            expected=", ".join(sorted(declared)),
            found=", ".join(sorted(values)) or "none",
        )
    for name, value in values.items():
        _check_field(channel.name, declared[name], value)


def write_payload(
    views: Mapping[str, npt.NDArray[np.generic]], values: Mapping[str, npt.ArrayLike]
) -> None:
    """Write checked values into a slot's views, in place."""
    for name, value in values.items():
        views[name][...] = value


def _check_field(channel: str, part: FieldInfo, value: npt.ArrayLike) -> None:
    array = np.asarray(value)
    dtype = np.dtype(part.dtype)
    is_python = not isinstance(value, np.ndarray | np.generic)
    if array.dtype != dtype and not (is_python and np.can_cast(array.dtype, dtype, "same_kind")):
        raise PayloadTypeError(
            f"field '{part.name}' of channel '{channel}' has another dtype",
            expected=part.dtype,
            found=array.dtype,
        )
    if array.shape != tuple(part.shape):
        raise PayloadShapeError(
            f"field '{part.name}' of channel '{channel}' has another shape",
            expected=tuple(part.shape),
            found=array.shape,
        )
    with np.errstate(over="ignore"):
        array = array.astype(dtype, copy=False)  # what is finite as float64 need not stay so
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise NonFiniteError(
            f"field '{part.name}' of channel '{channel}' is not finite",
            expected="finite values",
            found=f"{int(np.count_nonzero(~np.isfinite(array)))} NaN or Inf",
        )
    low = -math.inf if part.low is None else part.low
    high = math.inf if part.high is None else part.high
    if (part.low is not None or part.high is not None) and not (
        (array >= low).all() and (array <= high).all()
    ):
        raise PayloadRangeError(
            f"field '{part.name}' of channel '{channel}' leaves its range",
            expected=f"{low:g} to {high:g} {part.units}".rstrip(),
            found=f"{array.min():g} to {array.max():g}",
        )


def end_of_life(stamp_ns: int, lifetime_ns: int) -> int:
    """Return when a payload must not be acted on any more, on its writer's clock.

    Args:
        stamp_ns: When it was true.
        lifetime_ns: From then on; 0 for ever.

    Returns:
        0 for never, otherwise 1 to 2**63 - 1.

    Raises:
        PayloadRangeError: The lifetime is negative, or the stamp no 64-bit number.
    """
    if not _FIRST_NS <= stamp_ns <= _LAST_NS:  # msgpack goes further, what keeps it does not
        raise PayloadRangeError(
            "a payload's stamp is out of range",
            expected=f"{_FIRST_NS} to {_LAST_NS} ns",
            found=stamp_ns,
        )
    if lifetime_ns < 0:
        raise PayloadRangeError(
            "a payload can't have a negative lifetime", expected="0 ns or more", found=lifetime_ns
        )
    return min(max(stamp_ns + lifetime_ns, 1), _LAST_NS) if lifetime_ns else 0
