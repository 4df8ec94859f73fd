"""Of the engine: protocol, slots, ticks, verbs. Codes from 300."""

from __future__ import annotations

from flashrt_ros.errors.base import FlashrtError


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
