"""Capsule verbs: taking, restoring, branches, the library, its files."""

from __future__ import annotations

import msgspec


class CapsuleInfo(msgspec.Struct, array_like=True, frozen=True):
    """A capsule, without its bytes.

    ``created_ns`` is wall time. ``digest`` is computed when a capsule is written to a file,
    "" before. ``tier`` is the fastest one that holds it. A persisted capsule is found by a
    restarted engine. An automatic one is the engine's own and goes by itself.
    """

    id: str
    name: str
    parent: str
    labels: tuple[str, ...]
    created_ns: int
    tick: int
    position: int
    num_bytes: int
    tier: str
    pinned: bool
    fingerprint: str
    digest: str
    persist: bool = False
    is_automatic: bool = False


class TierInfo(msgspec.Struct, array_like=True, frozen=True):
    """What callers' capsules take in a tier."""

    name: str
    num_capsules: int
    used_bytes: int
    quota_bytes: int


class TimelineInfo(msgspec.Struct, array_like=True, frozen=True):
    """Where an environment (branch -1) or a branch stands.

    ``parent`` is the nearest kept capsule that its state came from, "" for none.
    """

    env_index: int
    branch: int
    lane: int
    parent: str
    tick: int
    generation: int


class Snapshot(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """Freeze the last boundary → :class:`CapsuleReply`. An empty name stays nameless.

    ``persist`` has it written to a file that a restarted engine finds; the answer does not
    wait for it. ``is_exact`` takes a planner's text as it stands, border or not, for its own
    line to go on from; a policy's boundary is always taken so.
    """

    rid: int
    env_index: int
    name: str
    labels: tuple[str, ...]
    pinned: bool
    replace: bool
    align_down: bool
    persist: bool = False
    is_exact: bool = False


class Restore(msgspec.Struct, array_like=True, tag=12, frozen=True):
    """Bring a capsule back into an environment → :class:`Moved`.

    ``reset`` makes it an episode reset: goals are dropped unless ``keep_goal``, and
    nothing committed with a stamp before ``stamp_ns`` acts any more (0: any stamp does).
    ``episode_id`` makes a repeated reset answer as the first did; "" never does.
    """

    rid: int
    env_index: int
    capsule: str
    keep_goal: bool
    seed: int | None
    reset: bool
    episode_id: str
    stamp_ns: int


class Fork(msgspec.Struct, array_like=True, tag=13, frozen=True):
    """Fill ``count`` lanes from a capsule ("" = the last boundary) → :class:`Forked`.

    ``seeds`` is empty (seeds derived from the capsule's) or has ``count`` entries.
    """

    rid: int
    env_index: int
    capsule: str
    count: int
    seeds: tuple[int, ...]


class Select(msgspec.Struct, array_like=True, tag=14, frozen=True):
    """Make a branch's state the environment's → :class:`Moved`.

    Branch -1 is the environment itself: nothing moves, the others may be released.
    """

    rid: int
    env_index: int
    branch: int
    release_others: bool


class Rollback(msgspec.Struct, array_like=True, tag=15, frozen=True):
    """Go back ``boundaries`` in the ring, or to an ancestor by id → :class:`Moved`."""

    rid: int
    env_index: int
    boundaries: int
    capsule: str


class ListCapsules(msgspec.Struct, array_like=True, tag=19, frozen=True):
    """→ :class:`CapsulePage`. Every filter but "" (0, -1) must match.

    ``label`` is one ``key=value``, ``name_prefix`` the start of a name. ``since_ns`` and
    ``until_ns`` bound the wall time of creation, both inclusive. ``pinned`` is 1 for pinned
    ones, 0 for the others. Capsules are of no environment: ``env_index`` only must be one.
    """

    rid: int
    offset: int
    limit: int
    label: str
    name_prefix: str = ""
    since_ns: int = 0
    until_ns: int = 0
    tier: str = ""
    pinned: int = -1
    env_index: int = 0


class Drop(msgspec.Struct, array_like=True, tag=20, frozen=True):
    """Forget a capsule; its children stay → :class:`Ack`.

    ``home`` means that of ``env_index``.
    """

    rid: int
    capsule: str
    env_index: int = 0


class Pin(msgspec.Struct, array_like=True, tag=21, frozen=True):
    """Pin or unpin a capsule → :class:`CapsuleReply`.

    ``home`` means that of ``env_index``.
    """

    rid: int
    capsule: str
    pinned: bool
    env_index: int = 0


class Save(msgspec.Struct, array_like=True, tag=26, frozen=True):
    """Write a capsule into the engine's capsule folder → :class:`Saved`, once it is on disk.

    ``file`` is a name in the folder, without the suffix; "" takes the capsule's name or id.
    """

    rid: int
    env_index: int
    capsule: str
    file: str
    replace: bool


class Load(msgspec.Struct, array_like=True, tag=27, frozen=True):
    """Read a file of the capsule folder, every byte checked → :class:`CapsuleReply`.

    ``name`` "" takes the name that it was saved under.
    """

    rid: int
    env_index: int
    file: str
    name: str
    pinned: bool
    replace: bool


class Collect(msgspec.Struct, array_like=True, tag=28, frozen=True):
    """Drop what every rule given admits → :class:`CapsulePage` of what went, or would go.

    Rules: created ``older_than_ns`` ago or earlier, one ``label``, a ``name_prefix``;
    ``unpinned`` admits all, so that at least one rule is given. The ``keep_last`` newest of
    those admitted stay. Pins, homes, and what the engine holds itself never go.

    With ``dry_run`` nothing goes, and ``offset`` pages. Without it one request drops a page
    of them; ``total`` counts those before it, so that the caller asks until none is left.
    ``env_index`` as in :class:`ListCapsules`.
    """

    rid: int
    older_than_ns: int
    label: str
    name_prefix: str
    unpinned: bool
    keep_last: int
    dry_run: bool
    offset: int = 0
    env_index: int = 0


class GetFingerprint(msgspec.Struct, array_like=True, tag=29, frozen=True):
    """Ask what a capsule was taken under, "" for the engine itself → :class:`FingerprintInfo`."""

    rid: int
    env_index: int
    capsule: str


class CapsuleReply(msgspec.Struct, array_like=True, tag=72, frozen=True):
    """A capsule made or changed. ``tail_length`` is what align_down left out."""

    rid: int
    capsule: CapsuleInfo
    tail_length: int


class Forked(msgspec.Struct, array_like=True, tag=73, frozen=True):
    """Branch indices, in the order of the seeds."""

    rid: int
    capsule_id: str
    branches: tuple[int, ...]
    seeds: tuple[int, ...]


class CapsulePage(msgspec.Struct, array_like=True, tag=76, frozen=True):
    """Capsules from ``offset``; ``total`` counts all that match.

    ``timelines`` says where every environment and branch stands.
    """

    rid: int
    capsules: tuple[CapsuleInfo, ...]
    total: int
    timelines: tuple[TimelineInfo, ...] = ()


class Saved(msgspec.Struct, array_like=True, tag=81, frozen=True):
    """A file that is on disk. ``num_bytes`` is its size, ``digest`` the payload's."""

    rid: int
    file: str
    num_bytes: int
    digest: str
    duration_ns: int


class FingerprintInfo(msgspec.Struct, array_like=True, tag=82, frozen=True):
    """Named facts, sorted by name, and their digest."""

    rid: int
    fields: tuple[tuple[str, str], ...]
    digest: str
