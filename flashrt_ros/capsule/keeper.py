"""Sees to the files of persisted capsules, and asks again where a disk refuses one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.filing import Done
from flashrt_ros.capsule.shelf import KEPT
from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.capsule.record import CapsuleRecord
    from flashrt_ros.capsule.store import CapsuleStore

logger = logging.getLogger(__name__)

RETRY_NS = 5_000_000_000
"""How long the disk is left alone after it refused a file."""


class Keeper:
    """Has persisted capsules written until each has its file, is dropped, or the engine ends.

    Args:
        store: Whose capsules they are.
        write: Has one written to a shelf under a key; the last argument is told later.
        now_ns: Monotonic clock, ns.
    """

    def __init__(
        self,
        store: CapsuleStore,
        write: Callable[[Capsule, str, str, Done], None],
        now_ns: Callable[[], int],
    ) -> None:
        self._store = store
        self._write = write
        self._now_ns = now_ns
        self._refused: dict[str, str] = {}
        self._retry_ns = 0

    @property
    def next_ns(self) -> int:
        """When :meth:`advance` asks again, 0 for never."""
        return self._retry_ns

    def persist(self, capsule: Capsule, key: str) -> None:
        """Have a capsule written in place of the file of that key."""

        def done(answer: CapsuleRecord | FlashrtError) -> None:
            was_refused = self._refused.pop(capsule.id, None) is not None
            if not isinstance(answer, FlashrtError):
                if was_refused:
                    logger.info("capsule '%s' is persisted now", capsule.title)
                return
            if not self._store.has(capsule.id):
                return
            if not was_refused:
                logger.error("capsule '%s' is not persisted yet: %s", capsule.title, answer)
            self._refused[capsule.id] = key
            self._retry_ns = self._retry_ns or self._now_ns() + RETRY_NS

        self._write(capsule, KEPT, key, done)

    def advance(self) -> None:
        """Ask again for what was refused, once its time has come."""
        if not self._retry_ns or self._now_ns() < self._retry_ns:
            return
        self._retry_ns = 0
        for capsule_id, key in tuple(self._refused.items()):
            capsule = self._store.find(capsule_id)
            if capsule is None:
                del self._refused[capsule_id]
            else:
                self.persist(capsule, key)
