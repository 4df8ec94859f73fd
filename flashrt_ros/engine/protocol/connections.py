"""A connection: the handshake, the answers every request may get, status and inspection."""

from __future__ import annotations

import msgspec

from flashrt_ros.engine.protocol.capsules import TierInfo
from flashrt_ros.engine.protocol.records import ModelInfo


class Hello(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """First message of a connection → :class:`Welcome`."""

    rid: int
    version: int
    client: str
    pid: int


class Ping(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """→ :class:`Ack`."""

    rid: int


class GetStatus(msgspec.Struct, array_like=True, tag=22, frozen=True):
    """→ :class:`Status`."""

    rid: int
    env_index: int


class Inspect(msgspec.Struct, array_like=True, tag=24, frozen=True):
    """→ :class:`Inspection` (test hook)."""

    rid: int
    env_index: int


class Stop(msgspec.Struct, array_like=True, tag=25, frozen=True):
    """End the engine at the next boundary → :class:`Ack`."""

    rid: int


class Welcome(msgspec.Struct, array_like=True, tag=64, frozen=True):
    """The engine's side of the handshake. ``engine_epoch`` is new for every engine."""

    rid: int
    version: int
    engine: str
    engine_epoch: int
    model: ModelInfo


class Ack(msgspec.Struct, array_like=True, tag=65, frozen=True):
    """Done, with nothing to say."""

    rid: int


class Failure(msgspec.Struct, array_like=True, tag=66, frozen=True):
    """The request was refused; state is as before. ``code`` as in ``errors``."""

    rid: int
    code: int
    message: str


class Status(msgspec.Struct, array_like=True, tag=77, frozen=True):
    """Figures of the engine and one environment since activation.

    ``replay_*_us`` time one chunk plan. Ages are in ns since the last commit, on the
    engine's clock, -1 when there was none. ``capsule_folder`` is an absolute path, "" for none.
    """

    rid: int
    state: str
    waiting_for: str
    tick: int
    generation: int
    rate_hz: float
    tick_source: str
    replay_p50_us: float
    replay_p99_us: float
    replay_max_us: float
    lateness_p50_us: float
    lateness_p99_us: float
    deadline_misses: int
    goal_age_ns: int
    observation_age_ns: int
    dropped_goals: int
    dropped_observations: int
    missed_outputs: int
    lanes_used: int
    lanes_total: int
    num_capsules: int
    capsule_bytes: int
    interrupt_depth: int
    branches: tuple[int, ...]
    num_clients: int
    tiers: tuple[TierInfo, ...] = ()
    capsule_folder: str = ""


class Inspection(msgspec.Struct, array_like=True, tag=78, frozen=True):
    """What the engine can be asked for in a test.

    ``read_inode``, ``read_device`` and ``read_offset`` locate the memory from which the
    latch node read the last goal (found in the captured graph, not in bookkeeping);
    zero inode means private memory, that is a copy. ``torn_reads`` counts latched slots
    whose bytes changed before they were given back. ``num_fds`` and ``num_mappings`` are
    the process's own.
    """

    rid: int
    state_digest: str
    input_digest: str
    noise_seed: int
    noise_counter: int
    read_inode: int
    read_device: int
    read_offset: int
    goal_transport_copies: int
    torn_reads: int
    num_latches: int
    num_fds: int
    num_mappings: int
