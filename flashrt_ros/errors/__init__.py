"""Every exception of the package and its stable code; imports nothing of the package.

A code is the number that services answer in ``error_code`` and that the wire
carries. Codes are never reused; a removed error leaves a gap. The ``.srv`` files
repeat this table as constants, and a test compares the two.

The classes stand in modules by concept, a hundred codes each; they are imported from here.
A new one goes to the end of its module, with the next code.
"""

from __future__ import annotations

from flashrt_ros.errors.base import FlashrtError
from flashrt_ros.errors.capsules import (
    BoundaryError,
    BranchNotFoundError,
    CapsuleArchiveError,
    CapsuleDiskFullError,
    CapsuleFolderError,
    CapsuleNameError,
    CapsuleNameTakenError,
    CapsuleNotFoundError,
    CapsulePinnedError,
    CapsuleQuotaError,
    CapsuleVersionError,
    EpisodeError,
    FingerprintMismatchError,
    NoBoundaryError,
    NoFreeLaneError,
)
from flashrt_ros.errors.configuration import (
    ConfigError,
    ParameterRangeError,
    ParameterTypeError,
    ProofError,
    UnknownModelError,
    UnknownParameterError,
    WeightsError,
)
from flashrt_ros.errors.engine import (
    AbandonedError,
    BusyError,
    EngineGoneError,
    EngineRunningError,
    InterruptDepthError,
    LoanError,
    NoFreeSlotError,
    NotActiveError,
    NothingToResumeError,
    NoWriterRingError,
    PeerRefusedError,
    ProtocolError,
    ProtocolVersionError,
    SharedMemoryError,
    StaleGenerationError,
    StaleStampError,
    StepTimeoutError,
    TickSourceError,
    UnknownChannelError,
    UnknownEnvironmentError,
    UnsupportedError,
)
from flashrt_ros.errors.payloads import (
    FrameError,
    GoalExpiredError,
    JointStateError,
    NonFiniteError,
    PayloadRangeError,
    PayloadShapeError,
    PayloadTypeError,
)
from flashrt_ros.errors.runtime import (
    BackendError,
    CaptureError,
    DeviceLostError,
    DeviceMemoryError,
    LanePoisonedError,
    SealedArenaError,
    SpecError,
    UnknownShapeKeyError,
)


def _collect(base: type[FlashrtError]) -> dict[int, type[FlashrtError]]:
    table: dict[int, type[FlashrtError]] = {base.code: base}
    for sub in base.__subclasses__():
        table.update(_collect(sub))
    return table


ERRORS: dict[int, type[FlashrtError]] = _collect(FlashrtError)
"""Code → exception class; 0 means success and has none."""


def from_wire(code: int, message: str) -> FlashrtError:
    """Rebuild an exception that another process raised.

    Args:
        code: The code that came over the wire; an unknown one gives the base class.
        message: The finished message; the parts are not known any more.

    Returns:
        An instance of the class with that code, ready to be raised.
    """
    return ERRORS.get(code, FlashrtError)(message)


__all__ = [
    "ERRORS",
    "AbandonedError",
    "BackendError",
    "BoundaryError",
    "BranchNotFoundError",
    "BusyError",
    "CapsuleArchiveError",
    "CapsuleDiskFullError",
    "CapsuleFolderError",
    "CapsuleNameError",
    "CapsuleNameTakenError",
    "CapsuleNotFoundError",
    "CapsulePinnedError",
    "CapsuleQuotaError",
    "CapsuleVersionError",
    "CaptureError",
    "ConfigError",
    "DeviceLostError",
    "DeviceMemoryError",
    "EngineGoneError",
    "EngineRunningError",
    "EpisodeError",
    "FingerprintMismatchError",
    "FlashrtError",
    "FrameError",
    "GoalExpiredError",
    "InterruptDepthError",
    "JointStateError",
    "LanePoisonedError",
    "LoanError",
    "NoBoundaryError",
    "NoFreeLaneError",
    "NoFreeSlotError",
    "NoWriterRingError",
    "NonFiniteError",
    "NotActiveError",
    "NothingToResumeError",
    "ParameterRangeError",
    "ParameterTypeError",
    "PayloadRangeError",
    "PayloadShapeError",
    "PayloadTypeError",
    "PeerRefusedError",
    "ProofError",
    "ProtocolError",
    "ProtocolVersionError",
    "SealedArenaError",
    "SharedMemoryError",
    "SpecError",
    "StaleGenerationError",
    "StaleStampError",
    "StepTimeoutError",
    "TickSourceError",
    "UnknownChannelError",
    "UnknownEnvironmentError",
    "UnknownModelError",
    "UnknownParameterError",
    "UnknownShapeKeyError",
    "UnsupportedError",
    "WeightsError",
    "from_wire",
]
