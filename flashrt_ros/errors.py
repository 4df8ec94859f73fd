"""Every exception of the package and its stable code; imports nothing of the package.

A code is the number that services answer in ``error_code`` and that the wire
carries. Codes are never reused; a removed error leaves a gap. The ``.srv`` files
repeat this table as constants, and a test compares the two.
"""

from __future__ import annotations

from typing import ClassVar


class FlashrtError(Exception):
    """Base of every error the package raises on purpose.

    The message says what failed, what was expected, what was found and what to
    do; the parts stay readable as attributes.

    Args:
        what: What failed, naming the object it failed on.
        expected: What would have been accepted.
        found: What was there instead.
        fix: What the caller can do about it.
    """

    code: ClassVar[int] = 1
    name: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        what: str,
        *,
        expected: object = None,
        found: object = None,
        fix: str | None = None,
    ) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        self.fix = fix
        parts = [what]
        if expected is not None:
            parts.append(f"expected {expected}")
        if found is not None:
            parts.append(f"found {found}")
        message = ": ".join((parts[0], ", ".join(parts[1:]))) if parts[1:] else what
        super().__init__(f"{message}; {fix}" if fix else message)


# runtime -------------------------------------------------------------------------------------


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
        expected: As in the base class.
        found: As in the base class.
        fix: As in the base class.
    """

    code = 102
    name = "CAPTURE"

    def __init__(
        self,
        what: str,
        *,
        op: str = "",
        source: str = "",
        expected: object = None,
        found: object = None,
        fix: str | None = None,
    ) -> None:
        self.op = op
        self.source = source
        super().__init__(what, expected=expected, found=found, fix=fix)


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
        expected: As in the base class.
        found: As in the base class.
        fix: As in the base class.
    """

    code = 105
    name = "BACKEND"

    def __init__(
        self,
        what: str,
        *,
        is_torn: bool = False,
        expected: object = None,
        found: object = None,
        fix: str | None = None,
    ) -> None:
        self.is_torn = is_torn
        super().__init__(what, expected=expected, found=found, fix=fix)


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


# capsules ------------------------------------------------------------------------------------


class CapsuleNotFoundError(FlashrtError):
    """No capsule has this id or name."""

    code = 200
    name = "CAPSULE_NOT_FOUND"


class CapsuleNameTakenError(FlashrtError):
    """A capsule of this name exists and ``replace`` was not asked for."""

    code = 201
    name = "CAPSULE_NAME_TAKEN"


class CapsuleNameError(FlashrtError):
    """The name is not ``[A-Za-z0-9][A-Za-z0-9_.-]{0,127}``."""

    code = 202
    name = "CAPSULE_NAME"


class FingerprintMismatchError(FlashrtError):
    """The capsule was taken under another fingerprint; names the fields that differ."""

    code = 203
    name = "FINGERPRINT_MISMATCH"


class BoundaryError(FlashrtError):
    """The position is no legal border; says which are."""

    code = 204
    name = "BOUNDARY"


class NoFreeLaneError(FlashrtError):
    """Every lane is in use; release branches or configure more lanes."""

    code = 205
    name = "NO_FREE_LANE"


class CapsulePinnedError(FlashrtError):
    """The capsule is pinned, or in use as ``home``, and can't be dropped."""

    code = 206
    name = "CAPSULE_PINNED"


class NoBoundaryError(FlashrtError):
    """Rollback reaches further back than the ring holds, or to no ancestor."""

    code = 207
    name = "NO_BOUNDARY"


class BranchNotFoundError(FlashrtError):
    """No branch has this index, or it was released."""

    code = 208
    name = "BRANCH_NOT_FOUND"


class CapsuleQuotaError(FlashrtError):
    """The capsules' quota is used up by capsules that may not be evicted."""

    code = 209
    name = "CAPSULE_QUOTA"


class CapsuleArchiveError(FlashrtError):
    """A file is no capsule, or it is damaged; names what was checked and where.

    Args:
        what: What was refused, the file included.
        reason: One word for programs: "foreign", "truncated", "header" or "payload".
        expected: As in the base class.
        found: As in the base class.
        fix: As in the base class.
    """

    code = 210
    name = "CAPSULE_ARCHIVE"

    def __init__(
        self,
        what: str,
        *,
        reason: str = "",
        expected: object = None,
        found: object = None,
        fix: str | None = None,
    ) -> None:
        self.reason = reason
        super().__init__(what, expected=expected, found=found, fix=fix)


class CapsuleVersionError(FlashrtError):
    """A capsule file was written in a format newer than this package reads."""

    code = 211
    name = "CAPSULE_VERSION"


class CapsuleFolderError(FlashrtError):
    """The capsule folder can't be trusted, read, written or locked."""

    code = 212
    name = "CAPSULE_FOLDER"


class CapsuleDiskFullError(FlashrtError):
    """The disk has no room for a capsule; says how much it needs and how much is left."""

    code = 213
    name = "CAPSULE_DISK_FULL"


class EpisodeError(FlashrtError):
    """An episode verb failed at a participant, which the message names with its reason.

    Args:
        what: What failed, the participant and its error included.
        participant: Its name; "" where none is to blame.
        expected: As in the base class.
        found: As in the base class.
        fix: As in the base class.
    """

    code = 214
    name = "EPISODE"

    def __init__(
        self,
        what: str,
        *,
        participant: str = "",
        expected: object = None,
        found: object = None,
        fix: str | None = None,
    ) -> None:
        self.participant = participant
        super().__init__(what, expected=expected, found=found, fix=fix)


# engine --------------------------------------------------------------------------------------


class ProtocolVersionError(FlashrtError):
    """Client and engine speak different versions of the protocol."""

    code = 300
    name = "PROTOCOL_VERSION"


class ProtocolError(FlashrtError):
    """A message could not be decoded, was too long, or came out of order."""

    code = 301
    name = "PROTOCOL"


class EngineGoneError(FlashrtError):
    """The engine is not there, or its connection ended."""

    code = 302
    name = "ENGINE_GONE"


class EngineRunningError(FlashrtError):
    """An engine of this name runs already."""

    code = 303
    name = "ENGINE_RUNNING"


class PeerRefusedError(FlashrtError):
    """The peer's user or group may not connect."""

    code = 304
    name = "PEER_REFUSED"


class NoFreeSlotError(FlashrtError):
    """Every slot of the writer's ring is loaned, committed or latched."""

    code = 305
    name = "NO_FREE_SLOT"


class LoanError(FlashrtError):
    """The slot is not on loan to this writer under this ticket."""

    code = 306
    name = "LOAN"


class StaleGenerationError(FlashrtError):
    """The loan was made before the last reset, restore or interrupt."""

    code = 307
    name = "STALE_GENERATION"


class StaleStampError(FlashrtError):
    """The payload's stamp is older than the reset barrier."""

    code = 308
    name = "STALE_STAMP"


class UnknownChannelError(FlashrtError):
    """The model has no channel of this name, or not of this role."""

    code = 309
    name = "UNKNOWN_CHANNEL"


class NoWriterRingError(FlashrtError):
    """Every writer ring of the channel is taken."""

    code = 310
    name = "NO_WRITER_RING"


class NotActiveError(FlashrtError):
    """The environment is not active, or a session is missing."""

    code = 311
    name = "NOT_ACTIVE"


class TickSourceError(FlashrtError):
    """The verb needs another tick source than the one in force."""

    code = 312
    name = "TICK_SOURCE"


class StepTimeoutError(FlashrtError):
    """A step's observation or goal did not come in time."""

    code = 313
    name = "STEP_TIMEOUT"


class InterruptDepthError(FlashrtError):
    """The interrupt stack is full."""

    code = 314
    name = "INTERRUPT_DEPTH"


class NothingToResumeError(FlashrtError):
    """The interrupt stack is empty."""

    code = 315
    name = "NOTHING_TO_RESUME"


class UnknownEnvironmentError(FlashrtError):
    """No environment has this index."""

    code = 316
    name = "UNKNOWN_ENVIRONMENT"


class UnsupportedError(FlashrtError):
    """The model or backend does not offer this operation."""

    code = 317
    name = "UNSUPPORTED"


class BusyError(FlashrtError):
    """Another request of the same kind is in progress."""

    code = 318
    name = "BUSY"


class AbandonedError(FlashrtError):
    """A reset, restore or interrupt ended the request before it completed."""

    code = 319
    name = "ABANDONED"


class SharedMemoryError(FlashrtError):
    """A slot ring could not be made, sealed or mapped."""

    code = 320
    name = "SHARED_MEMORY"


# goals and observations ----------------------------------------------------------------------


class PayloadShapeError(FlashrtError):
    """A goal or observation has another shape than its channel declares."""

    code = 400
    name = "PAYLOAD_SHAPE"


class PayloadTypeError(FlashrtError):
    """A goal or observation has another dtype or encoding than its channel declares."""

    code = 401
    name = "PAYLOAD_TYPE"


class NonFiniteError(FlashrtError):
    """A goal or observation holds NaN or Inf."""

    code = 402
    name = "NON_FINITE"


class FrameError(FlashrtError):
    """A goal stands in a frame with no known transform."""

    code = 403
    name = "FRAME"


class GoalExpiredError(FlashrtError):
    """A goal is older than its lifetime, or not newer than its planner's last."""

    code = 404
    name = "GOAL_EXPIRED"


class JointStateError(FlashrtError):
    """A joint state lacks a joint that the policy needs."""

    code = 405
    name = "JOINT_STATE"


class PayloadRangeError(FlashrtError):
    """A goal or observation lies outside its channel's range."""

    code = 406
    name = "PAYLOAD_RANGE"


# configuration -------------------------------------------------------------------------------


class ConfigError(FlashrtError):
    """A configuration can't be used as it stands."""

    code = 500
    name = "CONFIG"


class UnknownParameterError(FlashrtError):
    """A parameter that nothing declares; names close matches."""

    code = 501
    name = "UNKNOWN_PARAMETER"


class ParameterTypeError(FlashrtError):
    """A parameter has another type than declared."""

    code = 502
    name = "PARAMETER_TYPE"


class ParameterRangeError(FlashrtError):
    """A parameter lies outside its range."""

    code = 503
    name = "PARAMETER_RANGE"


class WeightsError(FlashrtError):
    """A weights file is missing, damaged or of another architecture."""

    code = 504
    name = "WEIGHTS"


class UnknownModelError(FlashrtError):
    """The registry has no model of this name."""

    code = 505
    name = "UNKNOWN_MODEL"


class ProofError(FlashrtError):
    """``prove`` found state outside the declared state, or declared state that is none."""

    code = 506
    name = "PROOF"


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
