"""The wire: one SEQPACKET datagram is one tagged msgpack array; imports without torch.

A client sends :data:`Request` messages, each with a ``rid`` of its own choice, and
gets exactly one reply with that ``rid``: the message named in the request's
docstring, or :class:`Failure`. :class:`Output` and :class:`Event` come unasked to
connections that subscribed. File descriptors ride only on :class:`WriterOpened`
and :class:`Subscribed`. Stamps named ``stamp_ns`` are on the clock of the node
that writes them; the engine compares them and never reads that clock.

The messages stand in modules by concept; they are imported from here.
"""

from __future__ import annotations

import msgspec

from flashrt_ros.engine.protocol.capsules import (
    CapsuleInfo,
    CapsulePage,
    CapsuleReply,
    Collect,
    Drop,
    FingerprintInfo,
    Fork,
    Forked,
    GetFingerprint,
    ListCapsules,
    Load,
    Pin,
    Restore,
    Rollback,
    Save,
    Saved,
    Select,
    Snapshot,
    TierInfo,
    TimelineInfo,
)
from flashrt_ros.engine.protocol.connections import (
    Ack,
    Failure,
    GetStatus,
    Hello,
    Inspect,
    Inspection,
    Ping,
    Status,
    Stop,
    Welcome,
)
from flashrt_ros.engine.protocol.details import Detail, format_detail, parse_detail
from flashrt_ros.engine.protocol.moves import (
    ActionRecord,
    Activate,
    ChunkRecord,
    Deactivate,
    Interrupt,
    Interrupted,
    Moved,
    Reseed,
    Resume,
    Rewind,
    Step,
    Stepped,
)
from flashrt_ros.engine.protocol.outputs import (
    Event,
    EventKind,
    Output,
    OutputKind,
    Release,
    Subscribe,
    Subscribed,
)
from flashrt_ros.engine.protocol.planners import (
    CancelTurn,
    CandidateInfo,
    Instruct,
    ResumeTurn,
    SetPrefix,
    TurnBegun,
    TurnDone,
)
from flashrt_ros.engine.protocol.records import (
    ChannelInfo,
    FieldInfo,
    GoalSource,
    ModelInfo,
    Provenance,
)
from flashrt_ros.engine.protocol.slots import (
    Commit,
    Committed,
    Loan,
    Loaned,
    OpenWriter,
    Return,
    WriterOpened,
)

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 65536
MAX_INLINE_BYTES = 4096
"""Outputs up to this size ride in their announcement; larger ones in output slots."""

Request = (
    Hello
    | Ping
    | OpenWriter
    | Loan
    | Commit
    | Return
    | Subscribe
    | Release
    | Activate
    | Deactivate
    | Snapshot
    | Restore
    | Fork
    | Select
    | Rollback
    | Step
    | Interrupt
    | Resume
    | ListCapsules
    | Drop
    | Pin
    | GetStatus
    | Reseed
    | Rewind
    | Inspect
    | Stop
    | Save
    | Load
    | Collect
    | GetFingerprint
    | Instruct
    | CancelTurn
    | ResumeTurn
    | SetPrefix
)

Reply = (
    Welcome
    | Ack
    | Failure
    | WriterOpened
    | Loaned
    | Committed
    | Subscribed
    | Moved
    | CapsuleReply
    | Forked
    | Stepped
    | Interrupted
    | CapsulePage
    | Status
    | Inspection
    | Saved
    | FingerprintInfo
    | TurnBegun
    | TurnDone
)

Message = Request | Reply | Output | Event

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_request = msgspec.msgpack.Decoder(Request).decode
"""Raises ``msgspec.ValidationError`` or ``msgspec.DecodeError`` on anything else."""
decode_from_engine = msgspec.msgpack.Decoder(Reply | Output | Event).decode

__all__ = [
    "MAX_INLINE_BYTES",
    "MAX_MESSAGE_BYTES",
    "PROTOCOL_VERSION",
    "Ack",
    "ActionRecord",
    "Activate",
    "CancelTurn",
    "CandidateInfo",
    "CapsuleInfo",
    "CapsulePage",
    "CapsuleReply",
    "ChannelInfo",
    "ChunkRecord",
    "Collect",
    "Commit",
    "Committed",
    "Deactivate",
    "Detail",
    "Drop",
    "Event",
    "EventKind",
    "Failure",
    "FieldInfo",
    "FingerprintInfo",
    "Fork",
    "Forked",
    "GetFingerprint",
    "GetStatus",
    "GoalSource",
    "Hello",
    "Inspect",
    "Inspection",
    "Instruct",
    "Interrupt",
    "Interrupted",
    "ListCapsules",
    "Load",
    "Loan",
    "Loaned",
    "Message",
    "ModelInfo",
    "Moved",
    "OpenWriter",
    "Output",
    "OutputKind",
    "Pin",
    "Ping",
    "Provenance",
    "Release",
    "Reply",
    "Request",
    "Reseed",
    "Restore",
    "Resume",
    "ResumeTurn",
    "Return",
    "Rewind",
    "Rollback",
    "Save",
    "Saved",
    "Select",
    "SetPrefix",
    "Snapshot",
    "Status",
    "Step",
    "Stepped",
    "Stop",
    "Subscribe",
    "Subscribed",
    "TierInfo",
    "TimelineInfo",
    "TurnBegun",
    "TurnDone",
    "Welcome",
    "WriterOpened",
    "decode_from_engine",
    "decode_request",
    "encode",
    "format_detail",
    "parse_detail",
]
