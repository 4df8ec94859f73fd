"""Shelves in memory, blocks that are counted, and a store with what moves its bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from flashrt_ros.capsule.archivist import Archivist
from flashrt_ros.capsule.capsule import Capsule, Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.mover import Mover
from flashrt_ros.capsule.shelf import KEPT, SPILLED
from flashrt_ros.capsule.store import CapsuleStore
from flashrt_ros.capsule.tiers import DEVICE, HOST, DiskTier, MemoryTier
from flashrt_ros.errors import CapsuleArchiveError, FlashrtError
from flashrt_ros.runtime.arena import Block

SIZE = 4096
FINGERPRINT = Fingerprint.of({"model": "test"})
WAIT_S = 60.0


@dataclass
class MemoryShelf:
    """Files in a dictionary; refuses when told to."""

    files: dict[str, bytes] = field(default_factory=dict)
    refusal: FlashrtError | None = None

    def write(self, capsule: Capsule, key: str, payload: memoryview) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.files[key] = bytes(payload)
        return f"{hash(bytes(payload)) & 0xFFFF:x}"

    def read(self, key: str, destination: memoryview) -> str:
        if key not in self.files:
            raise CapsuleArchiveError(f"no file '{key}'", reason="foreign")
        payload = self.files[key]
        destination[: len(payload)] = payload
        return f"{hash(payload) & 0xFFFF:x}"

    def remove(self, key: str) -> None:
        self.files.pop(key, None)


class Yard:
    """A store over memory tiers and a disk, with a mover that works when told."""

    def __init__(self, *, device: int = 0, host: int = 2, disk: int = 4, reserved: int = 1) -> None:
        names = [(DEVICE, device)] if device else []
        self.tiers = [
            MemoryTier(
                name,
                Block,
                block_bytes=SIZE,
                quota_bytes=count * SIZE,
                num_reserved=reserved if index == 0 else 0,
            )
            for index, (name, count) in enumerate([*names, (HOST, host)])
        ]
        self.disk = DiskTier(disk * SIZE) if disk else None
        self.store = CapsuleStore(self.tiers, disk=self.disk, now_ns=lambda: 7)
        self.kept, self.spilled, self.saved = MemoryShelf(), MemoryShelf(), MemoryShelf()
        self.archivist = Archivist()
        self.now_ns = 0
        self.mover = Mover(
            self.store,
            self.archivist,
            {KEPT: self.kept, SPILLED: self.spilled, "saved": self.saved},
            copy=lambda target, source, count: ctypes.memmove(target, source, count) and None,
            now_ns=lambda: self.now_ns,
        )

    def take(self, value: int = 1, parent: str = "", **more: object) -> Capsule:
        """Make a capsule of one byte repeated."""

        def fill(block: Block) -> None:
            ctypes.memset(block.address, value, SIZE)

        capsule, _ = self.store.create(
            fill,
            position=Position(),
            fingerprint=FINGERPRINT,
            parent=parent,
            **more,  # type: ignore[arg-type]
        )
        if capsule.persist:
            self.mover.persist(capsule)
        return capsule

    def settle(self) -> None:
        """Let the mover do all that it would do by itself."""
        while self.mover.wait(WAIT_S):
            pass

    def value(self, key: str) -> int:
        """Return the byte that a capsule in memory is made of."""
        view = self.store.get(key).block.view()
        assert bytes(view) == bytes(view[:1]) * SIZE
        return view[0]

    def close(self) -> None:
        self.mover.close()
        self.store.close()


@pytest.fixture
def yard() -> Iterator[Yard]:
    """Memory for two capsules, disk for four."""
    made = Yard()
    yield made
    made.close()
