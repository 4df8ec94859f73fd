"""What an engine keeps capsules in: memory tiers, folders, and what moves bytes between them."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from flashrt_ros.capsule.archivist import Archivist
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.mover import Mover
from flashrt_ros.capsule.shelf import KEPT, SAVED, SPILLED, FolderShelf
from flashrt_ros.capsule.store import CapsuleStore
from flashrt_ros.capsule.tiers import DEVICE, HOST, DiskTier, MemoryTier
from flashrt_ros.engine.address import socket_file
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.errors import (
    CapsuleFolderError,
    ConfigError,
    FlashrtError,
    UnsupportedError,
)
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.spec import ArenaLayout

logger = logging.getLogger(__name__)

_LOCK = ".engine"
"""Locked in the folder of kept files for as long as its engine lives."""

_MAX_STEM = 100


class Storage:
    """Owner of an engine's capsules, their files and the thread that writes them.

    Args:
        config: Quotas, and the folder.
        layout: Of a lane.
        backend: Gives memory, and copies.
        fingerprint: Of the engine; files are read under it.
        clock_ns: Monotonic clock, ns.

    Attributes:
        store: The capsules.
        mover: Moves them.
        shelves: Folders of files by name; empty without ``capsule_folder``.
        foreign_keys: Names of persisted files that this engine can't use and leaves alone.

    Raises:
        BackendError: There is no such memory.
        CapsuleFolderError: The folder can't be used, or another engine of this name uses it.
        ConfigError: The ring is to lie in a tier that there isn't.
    """

    def __init__(
        self,
        config: EngineConfig,
        layout: ArenaLayout,
        backend: Backend,
        fingerprint: Fingerprint,
        *,
        clock_ns: Callable[[], int],
    ) -> None:
        self._undo = ExitStack()
        self.shelves: dict[str, FolderShelf] = {}
        self.foreign_keys: set[str] = set()
        with ExitStack() as undo:
            tiers = _memory_tiers(config, layout, backend)
            if config.capsule_folder:
                root = Path(config.capsule_folder).expanduser().absolute()
                self._open_folders(root, config, layout, fingerprint, undo)
            disk = DiskTier(config.capsule_disk_quota_bytes) if self.shelves else None
            self.store = CapsuleStore(tiers, disk=disk, now_ns=time.time_ns)
            undo.callback(self.store.close)
            archivist = Archivist()
            undo.callback(archivist.close)
            self.mover = Mover(
                self.store,
                archivist,
                self.shelves,
                copy=backend.copy_aside,
                fence=backend.fence_all,
                now_ns=clock_ns,
            )
            undo.callback(self.mover.close)
            self._undo = undo.pop_all()

    @property
    def has_files(self) -> bool:
        """Whether there is a folder to persist, save and load in."""
        return bool(self.shelves)

    @property
    def folder(self) -> str:
        """Absolute path of the folder for saved files, "" for none."""
        return str(self.shelves[SAVED].folder.path) if self.shelves else ""

    def require_folder(self, verb: str) -> None:
        """Refuse a verb that needs the folder where there is none.

        Raises:
            UnsupportedError: The engine has no ``capsule_folder``.
        """
        if not self.shelves:
            raise UnsupportedError(
                f"the engine can't {verb} a capsule",
                found="no folder for capsule files",
                fix="set the engine parameter 'capsule_folder'",
            )

    def persist(self, capsule: Capsule) -> None:
        """Have a capsule written under its name; an engine that is started again finds it.

        Where that name is a file that does not fit this engine, the name is followed by the
        fingerprint: going back to other weights finds their capsules too.
        """
        key = capsule.title
        if key in self.foreign_keys:
            key = spare_key(key, capsule.fingerprint)
        self.mover.persist(capsule, key)

    def close(self) -> None:
        """Write what is to be kept, remove what was spilled, free everything. Idempotent."""
        self._undo.close()

    def _open_folders(
        self,
        root: Path,
        config: EngineConfig,
        layout: ArenaLayout,
        fingerprint: Fingerprint,
        undo: ExitStack,
    ) -> None:
        own = root / f"engine-{socket_file(config.name).removesuffix('.sock')}"
        paths = {SAVED: root, KEPT: own / KEPT, SPILLED: own / SPILLED}
        for name, path in paths.items():
            if name != SAVED:
                # what is refused here, the folder in it says
                with contextlib.suppress(OSError):
                    own.mkdir(mode=0o700, exist_ok=True)
            folder = undo.enter_context(CapsuleFolder(path))
            if name == KEPT:
                undo.enter_context(_sole_owner(path, config.name))
            self.shelves[name] = FolderShelf(folder, layout, fingerprint)
        spilled = self.shelves[SPILLED]
        # what was spilled ends with its engine, however that ended
        _clear(spilled)
        undo.callback(_clear_at_end, spilled)


def spare_key(key: str, fingerprint: Fingerprint) -> str:
    """Name the file of a persisted capsule where the one of its name can't be used."""
    return f"{key[:_MAX_STEM]}.{fingerprint.digest[:16]}"


def _memory_tiers(config: EngineConfig, layout: ArenaLayout, backend: Backend) -> list[MemoryTier]:
    """Make the memory tiers, with blocks set aside for the engine's own capsules."""
    rings = config.num_environments * config.rollback_depth
    others = config.num_environments * config.interrupt_depth + config.num_branch_lanes + 1
    names = [DEVICE, HOST] if backend.has_own_memory else [HOST]
    ring_tier = config.rollback_tier or names[0]
    if ring_tier not in names:
        raise ConfigError(
            "engine parameter 'rollback_tier' names a tier that there isn't",
            expected=" or ".join(names),
            found=ring_tier,
        )
    is_first = {name: name == names[0] for name in names}
    return [
        MemoryTier(
            name,
            backend.allocate_block if is_first[name] else backend.allocate_host_block,
            block_bytes=layout.capsule_bytes,
            quota_bytes=(
                config.capsule_quota_bytes if is_first[name] else config.capsule_host_quota_bytes
            ),
            num_reserved=rings * (name == ring_tier) + others * is_first[name],
        )
        for name in names
    ]


@contextlib.contextmanager
def _sole_owner(path: Path, name: str) -> Iterator[None]:
    """Hold the folder of kept files against another engine of the same name."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path / _LOCK, flags, 0o600)
    except OSError as error:
        raise CapsuleFolderError(
            f"an engine can't keep its capsules in {path}", found=error.strerror
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CapsuleFolderError(
                f"another engine named '{name}' keeps its capsules in {path}",
                fix="give the engines other names, or other folders",
            ) from error
        yield
    finally:
        os.close(fd)


def _clear(shelf: FolderShelf) -> None:
    listing = shelf.folder.scan()
    for record in listing.records:
        shelf.remove(record.file)


def _clear_at_end(shelf: FolderShelf) -> None:
    try:
        _clear(shelf)
    except FlashrtError as error:
        # the next engine of this name tries again
        logger.warning("spilled capsules are left behind: %s", error)
