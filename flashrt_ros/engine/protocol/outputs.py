"""Subscriptions, and what comes unasked: actions, chunks and events."""

from __future__ import annotations

import enum

import msgspec

from flashrt_ros.engine.protocol.records import Provenance


class Subscribe(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """Ask for actions, chunks and events of an environment → :class:`Subscribed`."""

    rid: int
    env_index: int
    actions: bool
    chunks: bool
    events: bool


class Release(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """Return the credit of one :class:`Output` kind; has no reply.

    ``slot`` is the output slot it came in, -1 when it came inline.
    """

    env_index: int
    kind: int
    slot: int


class Subscribed(msgspec.Struct, array_like=True, tag=70, frozen=True):
    """Outputs follow. With ``slot_bytes`` > 0 a descriptor of the output ring came along."""

    rid: int
    slot_bytes: int
    num_slots: int


class OutputKind(enum.IntEnum):
    """What an :class:`Output` carries."""

    ACTION = 0
    CHUNK = 1


class Output(msgspec.Struct, array_like=True, tag=79, frozen=True):
    """An action or chunk. The subscriber owes one :class:`Release` before the next.

    ``slot`` is -1 and ``payload`` holds the bytes when it came inline. ``index`` is an
    action's place in its chunk. ``missed`` counts those replaced by newer ones while the
    credit was out. ``produced_ns`` is CLOCK_MONOTONIC.
    """

    kind: int
    provenance: Provenance
    index: int
    slot: int
    payload: bytes
    missed: int
    produced_ns: int


class EventKind(enum.IntEnum):
    """Kinds of :class:`Event`; the numbers are those of ``ExecutionEvent.msg``."""

    SNAPSHOT = 1
    RESTORE = 2
    FORK = 3
    SELECT = 4
    ROLLBACK = 5
    RESET = 6
    INTERRUPT = 7
    RESUME = 8
    GOAL = 9
    STALE = 10
    SAFETY = 11
    FAULT = 12
    TURN = 13
    SUBGOAL = 14


class Event(msgspec.Struct, array_like=True, tag=80, frozen=True):
    """Something happened to an environment. Reliable up to 256 unsent ones per client."""

    kind: int
    engine_epoch: int
    env_index: int
    generation: int
    tick: int
    capsule_id: str
    duration_ns: int
    detail: str
