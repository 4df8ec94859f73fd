"""Shelves in memory, blocks that are counted, and a store with what moves its bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from flashrt_ros.capsule.archivist import Archivist, Task
from flashrt_ros.capsule.capsule import Capsule, Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.mover import Mover
from flashrt_ros.capsule.record import CapsuleRecord
from flashrt_ros.capsule.shelf import KEPT, SAVED, SPILLED
from flashrt_ros.capsule.store import CapsuleStore
from flashrt_ros.capsule.tiers import DEVICE, HOST, DiskTier, MemoryTier
from flashrt_ros.errors import CapsuleArchiveError, FlashrtError
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.backend import PASSED, Fence

SIZE = 4096
FINGERPRINT = Fingerprint.of({"model": "test"})
WAIT_S = 60.0


def record(key: str, payload: bytes | memoryview) -> CapsuleRecord:
    """Describe a file of the memory shelf: only what the mover looks at."""
    return CapsuleRecord(
        id="0",
        name="",
        parent="",
        labels=(),
        created_ns=0,
        position=Position(),
        pinned=False,
        is_automatic=False,
        fingerprint=FINGERPRINT,
        layout=(),
        num_bytes=len(payload),
        digest=f"{payload[0]:032x}",
        file=key,
    )


@dataclass
class MemoryShelf:
    """Files in a dictionary; refuses when told to."""

    files: dict[str, bytes] = field(default_factory=dict)
    refusal: FlashrtError | None = None

    def write(
        self, capsule: Capsule, key: str, payload: memoryview, *, replace: bool
    ) -> CapsuleRecord:
        if self.refusal is not None:
            raise self.refusal
        self.files[key] = bytes(payload)
        return record(key, payload)

    def read(self, key: str, destination: memoryview) -> CapsuleRecord:
        if key not in self.files:
            raise CapsuleArchiveError(f"no file '{key}'", reason="foreign")
        payload = self.files[key]
        destination[: len(payload)] = payload
        return record(key, payload)

    def remove(self, key: str) -> None:
        self.files.pop(key, None)


def copy(target: int, source: int, num_bytes: int) -> Fence:
    """Copy as the backend of the host does."""
    ctypes.memmove(target, source, num_bytes)
    return PASSED


class InlineArchivist(Archivist):
    """Does one task at a poll, on the thread that polls: histories can be repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[Task] = []

    @property
    def num_pending(self) -> int:
        return len(self.tasks)

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.tasks.append(Task(work, done))

    def poll(self, timeout_s: float = 0.0) -> bool:
        if not self.tasks:
            return False
        task = self.tasks.pop(0)
        try:
            outcome = task.work()
        except FlashrtError as error:
            outcome = error
        task.done(outcome)
        return True

    def close(self) -> None:
        while self.poll():
            pass


class Yard:
    """A store over memory tiers and a disk, with a mover that works when told."""

    def __init__(
        self,
        *,
        device: int = 0,
        host: int = 2,
        disk: int = 4,
        reserved: int = 1,
        archivist: Archivist | None = None,
    ) -> None:
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
        self.archivist = archivist or Archivist()
        self.now_ns = 0
        self.mover = Mover(
            self.store,
            self.archivist,
            {KEPT: self.kept, SPILLED: self.spilled, SAVED: self.saved},
            copy=copy,
            fence=lambda: PASSED,
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
            self.mover.persist(capsule, capsule.title)
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
