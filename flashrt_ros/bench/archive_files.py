"""Saving and loading a capsule file, beside writing and reading the same bytes."""

from __future__ import annotations

import mmap
import os
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.capsule.archive_format import SUFFIX
from flashrt_ros.capsule.capsule import Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.record import CapsuleRecord, layout_rows, split_payload
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role

_PIECE = 1 << 20
_NAME = "capsule"
_RAW = "raw"


class ArchiveFiles:
    """One payload in memory, and the two files it goes to and comes from.

    Args:
        path: Folder for the files; made, mode 0700.
        num_bytes: Of payload.
    """

    def __init__(self, path: Path, num_bytes: int) -> None:
        layout = ArenaLayout.of([BufferSpec("state", (num_bytes,), "uint8", Role.STATE)])
        self._record = CapsuleRecord(
            id="c0ffee",
            name=_NAME,
            parent="",
            labels=(),
            created_ns=time.time_ns(),
            position=Position(),
            pinned=False,
            is_automatic=False,
            fingerprint=Fingerprint.of({"device": "none"}),
            layout=layout_rows(layout),
            num_bytes=num_bytes,
        )
        self._path = path
        self._source, self._target = _memory(num_bytes), _memory(num_bytes)
        with ExitStack() as exits:
            self._folder = exits.enter_context(CapsuleFolder(path))
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            exits.callback(os.close, self._fd)
            self._exits = exits.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.close()

    def save(self) -> None:
        """Save the capsule: digests, fsync, its name, fsync of the folder."""
        self._folder.write(self._record, split_payload(self._record, self._source))

    def write(self) -> None:
        """Write the same bytes: fsync, rename, fsync of the folder."""
        new = self._path / "new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            done = 0
            while done < len(self._source):
                done += os.write(fd, self._source[done:])
            os.fsync(fd)
        finally:
            os.close(fd)
        new.rename(self._path / _RAW)
        os.fsync(self._fd)

    def load(self) -> None:
        """Read the capsule, every byte checked."""
        rows, fingerprint = self._record.layout, self._record.fingerprint
        self._folder.read_into(_NAME, rows, fingerprint, self._target)

    def read(self) -> None:
        """Read the same bytes."""
        fd = os.open(self._path / _RAW, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(self._target):
                done += os.preadv(fd, [self._target[done:]], done)
        finally:
            os.close(fd)

    def forget(self) -> None:
        """Have the kernel drop both files from memory, so that the next read asks the disk."""
        for name in (_RAW, _NAME + SUFFIX):
            fd = os.open(self._path / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def check(self) -> None:
        """Write both files, and compare what comes back with what was written.

        Raises:
            WrongResultError: It is something else, or nothing was read.
        """
        self.write()
        self.save()
        for what, read in (("a plain read", self.read), ("a load", self.load)):
            self._clear()
            if self._target == self._source:
                raise WrongResultError("the payload is zeros, so that comparing proves nothing")
            read()
            if self._target != self._source:
                raise WrongResultError(f"{what} brought other bytes back than were written")

    def _clear(self) -> None:
        """Zero all of the target, so that no part of it can stem from an earlier read."""
        zeros = bytes(_PIECE)
        for start in range(0, len(self._target), _PIECE):
            self._target[start : start + _PIECE] = zeros


def _memory(num_bytes: int) -> memoryview:
    """Return memory as a lane's: huge pages where the kernel grants them, all touched."""
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    for start in range(0, num_bytes, _PIECE):
        # Noise: a disk may fold or squeeze what is alike.
        pages[start : start + _PIECE] = os.urandom(_PIECE)
    return memoryview(pages)
