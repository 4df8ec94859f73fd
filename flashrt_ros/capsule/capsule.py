"""A frozen execution state."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.errors import CapsuleNameError

if TYPE_CHECKING:
    from flashrt_ros.runtime.arena import Block

if TYPE_CHECKING:
    # Memory needs torch; names and positions, which the capsule files need, don't.
    from flashrt_ros.capsule.tiers import Residence

HOME = "home"
"""The capsule that a reset restores unless told otherwise."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class GoalOrigin:
    """A goal, on another channel than the model's first goal channel.

    Stamps are on the writer's clock, sequences as in ``engine.protocol.Provenance``.
    """

    channel: str
    sequence: int
    source_sequence: int
    stamp_ns: int
    expires_ns: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """What the last committed chunk was made from; all zero before the first.

    Stamps are on the writers' clock, sequences as in ``engine.protocol.Provenance``. The
    fields named after the goal say that of the model's first goal channel; ``other_goals``
    are those of its further ones, in the model's order.
    """

    goal_sequence: int = 0
    goal_source_sequence: int = 0
    goal_stamp_ns: int = 0
    observation_sequence: int = 0
    observation_stamp_ns: int = 0
    latched_tick: int = 0
    goal_expires_ns: int = 0
    other_goals: tuple[GoalOrigin, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """The host's copy of the counters in STATE, so that nothing waits for the device.

    Attributes:
        tick: Control ticks committed.
        queue_head: Index of the next action in the last chunk.
        queue_length: Index past the last queued action; ``queue_head`` when empty.
        noise_seed: Seed of the noise generator.
        noise_counter: Draws made so far.
        origin: Of the chunk in the queue.
        num_positions: Positions used of the STATE buffer that grows.
    """

    tick: int = 0
    queue_head: int = 0
    queue_length: int = 0
    noise_seed: int = 0
    noise_counter: int = 0
    origin: Origin = Origin()
    num_positions: int = 0

    @property
    def queue_remaining(self) -> int:
        """Actions left to pop."""
        return self.queue_length - self.queue_head


@dataclass(frozen=True, slots=True)
class Capsule:
    """STATE and INPUT of a committed boundary, immutable; only where the bytes lie changes.

    The store owns the bytes; they are valid until the capsule is dropped.

    Attributes:
        id: Unique, given by the store.
        name: "" for a nameless one; otherwise unique in the store.
        parent: Id of the nearest kept capsule whose state this one came from, "" for
            none. When a parent is dropped, its own parent takes its place.
        labels: ``key=value`` strings.
        created_ns: Wall time, ns since the epoch.
        position: Host counters at the boundary.
        pinned: Never dropped, never moved to a lower tier.
        is_automatic: Taken by the engine (rollback ring, interrupt), not by a caller.
        persist: Kept in a file that a restarted engine finds.
        fingerprint: What it was taken under.
        residence: Where the bytes lie; shared by every copy of this record.
        num_bytes: Bytes of payload in use: ``uint8[num_bytes]``, laid out as the lane.
        digest: Of the payload, hexadecimal; "" until it was written to a file.
    """

    id: str
    name: str
    parent: str
    labels: tuple[str, ...]
    created_ns: int
    position: Position
    pinned: bool
    is_automatic: bool
    persist: bool
    fingerprint: Fingerprint
    residence: Residence
    num_bytes: int
    digest: str = ""

    @property
    def title(self) -> str:
        """Name it in a message: its name, or its id."""
        return self.name or self.id

    @property
    def block(self) -> Block:
        """Fastest memory that holds the payload from its first byte on.

        Valid where ``residence.is_in_memory``, which a verb makes sure of first
        (``CapsuleStore.require_memory``).
        """
        assert self.residence.blocks, f"capsule {self.id} is on disk only"
        return next(iter(self.residence.blocks.values()))

    @property
    def tier(self) -> str:
        """Fastest tier that holds the payload: "device", "host" or "disk"."""
        return self.residence.tier


def check_name(name: str) -> None:
    """Refuse names that could not be a file's.

    Raises:
        CapsuleNameError: The name does not match ``[A-Za-z0-9][A-Za-z0-9_.-]{0,127}``.
    """
    if not _NAME.fullmatch(name):
        raise CapsuleNameError(
            "a capsule can't have this name",
            expected="[A-Za-z0-9][A-Za-z0-9_.-]{0,127}",
            found=repr(name[:160]),
        )


def check_labels(labels: tuple[str, ...]) -> None:
    """Refuse labels that are not ``key=value``.

    Raises:
        CapsuleNameError: A label has no key, no "=", or is over 256 characters.
    """
    for label in labels:
        if label.find("=") < 1 or len(label) > 256:
            raise CapsuleNameError(
                "a capsule can't have this label",
                expected="key=value, 256 characters at most",
                found=repr(label[:300]),
            )
