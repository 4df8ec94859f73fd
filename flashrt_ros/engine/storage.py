"""The tiers an engine keeps capsules in, from its configuration and its backend."""

from __future__ import annotations

import time

from flashrt_ros.capsule.store import CapsuleStore
from flashrt_ros.capsule.tiers import HOST, MemoryTier
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.spec import ArenaLayout


def make_store(
    config: EngineConfig, layout: ArenaLayout, backend: Backend, *, num_automatic: int
) -> CapsuleStore:
    """Make the store, with blocks for automatic capsules set aside.

    Raises:
        BackendError: There is no such memory.
    """
    first = MemoryTier(
        HOST,
        backend.allocate_block,
        block_bytes=layout.capsule_bytes,
        quota_bytes=config.capsule_quota_bytes,
        num_reserved=num_automatic,
    )
    return CapsuleStore([first], now_ns=time.time_ns)
