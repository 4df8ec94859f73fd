"""Of the runtime: declarations, capture, replays and devices. Codes from 100."""

from __future__ import annotations

from typing import Unpack

from flashrt_ros.errors.base import FlashrtError, Parts


class SpecError(FlashrtError):
    """A declaration, or a request's arguments, contradict each other."""

    code = 100
    name = "SPEC"


class SealedArenaError(FlashrtError):
    """The arena was changed after ``seal()``, or captured before it."""

    code = 101
    name = "SEALED_ARENA"


class CaptureError(FlashrtError):
    """A program can't be captured; names the op and the source line.

    Args:
        what: What was refused, the op and the line included.
        op: Name of the op, "" where no op is at fault.
        source: ``file:line`` in the program, "" where no line is at fault.
        **parts: As in the base class.
    """

    code = 102
    name = "CAPTURE"

    def __init__(
        self,
        what: str,
        *,
        op: str = "",
        source: str = "",
        **parts: Unpack[Parts],
    ) -> None:
        self.op = op
        self.source = source
        super().__init__(what, **parts)


class UnknownShapeKeyError(FlashrtError):
    """No graph was captured under the shape key that was asked for."""

    code = 103
    name = "UNKNOWN_SHAPE_KEY"


class LanePoisonedError(FlashrtError):
    """A plan failed after its first STATE write; restore a boundary first."""

    code = 104
    name = "LANE_POISONED"


class BackendError(FlashrtError):
    """The device or its driver refused an operation.

    Args:
        what: What failed.
        is_torn: Whether a replay may have written STATE or INPUT in part.
        **parts: As in the base class.
    """

    code = 105
    name = "BACKEND"

    def __init__(
        self,
        what: str,
        *,
        is_torn: bool = False,
        **parts: Unpack[Parts],
    ) -> None:
        self.is_torn = is_torn
        super().__init__(what, **parts)


class DeviceLostError(BackendError):
    """The device's context is gone: nothing in the process can use it any more.

    The engine's process ends with this; a supervisor starts a new one.
    """

    code = 106
    name = "DEVICE_LOST"


class DeviceMemoryError(BackendError):
    """The device has no memory left for what was asked; nothing of it stays allocated."""

    code = 107
    name = "DEVICE_MEMORY"
