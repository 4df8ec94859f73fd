"""Verbs that move an environment: ticking, stepping, interrupt and resume."""

from __future__ import annotations

import msgspec

from flashrt_ros.engine.protocol.records import Provenance
from flashrt_ros.engine.protocol.slots import Commit


class ActionRecord(msgspec.Struct, array_like=True, frozen=True):
    """One popped action: ``values`` is ``float32[A]``; ``index`` is its place in the chunk."""

    provenance: Provenance
    index: int
    values: bytes


class ChunkRecord(msgspec.Struct, array_like=True, frozen=True):
    """A chunk in the reply to a step: ``actions`` is ``float32[H, A]``, row-major, as bytes.

    ``score`` is the model's own for a branch, NaN for the environment.
    """

    provenance: Provenance
    actions: bytes
    score: float


class Activate(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """Start ticking an environment; takes ``home`` when there is none → :class:`Moved`.

    ``rate_hz`` applies to source "timer".
    """

    rid: int
    env_index: int
    tick_source: str
    rate_hz: float


class Deactivate(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """Stop ticking at the last boundary and empty the queue → :class:`Moved`."""

    rid: int
    env_index: int


class Step(msgspec.Struct, array_like=True, tag=16, frozen=True):
    """Run ``count`` ticks of the environment (branch -1) or a branch → :class:`Stepped`.

    Waits until a required observation not older than ``min_observation_stamp_ns`` is
    committed, ``timeout_ns`` at most.
    """

    rid: int
    env_index: int
    count: int
    branch: int
    min_observation_stamp_ns: int
    timeout_ns: int


class Interrupt(msgspec.Struct, array_like=True, tag=17, frozen=True):
    """Abandon the plan in flight and stack its boundary → :class:`Interrupted`.

    ``commit`` hands a goal over in the same instant; until a resume, goals stamped
    before it are refused. ``hold`` stops ticking until a resume, or until a goal comes.
    """

    rid: int
    env_index: int
    reason: str
    hold: bool
    commit: Commit | None


class Resume(msgspec.Struct, array_like=True, tag=18, frozen=True):
    """Restore the boundary on top of the interrupt stack → :class:`Moved`."""

    rid: int
    env_index: int
    keep_goal: bool


class Reseed(msgspec.Struct, array_like=True, tag=23, frozen=True):
    """Set an environment's noise seed and counter, state kept (test hook) → :class:`Moved`."""

    rid: int
    env_index: int
    seed: int
    counter: int


class Rewind(msgspec.Struct, array_like=True, tag=34, frozen=True):
    """Forget bounds of stamps that lie ahead of the writers' clock, set back to ``now_ns``.

    → :class:`Ack`
    """

    rid: int
    env_index: int
    now_ns: int


class Moved(msgspec.Struct, array_like=True, tag=71, frozen=True):
    """Where the environment stands now.

    ``path`` is "flip", "copy" or "". ``barrier_ns`` is the stamp that observations must
    have reached to act, writers' clock; 0 where any does.
    """

    rid: int
    tick: int
    generation: int
    path: str
    duration_ns: int
    capsule_id: str
    depth: int
    barrier_ns: int = 0


class Stepped(msgspec.Struct, array_like=True, tag=74, frozen=True):
    """The ticks run, oldest first; ``chunks`` holds those made on the way."""

    rid: int
    tick: int
    generation: int
    chunks: tuple[ChunkRecord, ...]
    actions: tuple[ActionRecord, ...]


class Interrupted(msgspec.Struct, array_like=True, tag=75, frozen=True):
    """``boundary`` is the plan node before which it took effect, -1 between plans."""

    rid: int
    capsule_id: str
    depth: int
    boundary: int
    generation: int
    goal_sequence: int
    tick: int
