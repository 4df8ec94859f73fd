"""A file that appears under its name whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from flashrt_ros.capsule.disk import refusals, reserve
from flashrt_ros.capsule.private_folder import names_in

TEMPORARY_PREFIX = ".tmp-"
"""Starts the names of files that were not published; no capsule's name starts so."""

_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_SELF_FDS = Path("/proc/self/fd")


class PendingFile:
    """A new file in a folder, without a name where the file system can have such.

    A nameless file is gone with the process that writes it. Elsewhere it has a temporary
    name and a lock for as long as its writer lives, so that :func:`sweep` knows a file
    that was left from one that is being written.

    Args:
        folder_fd: Of the folder; kept open by the caller.
        num_bytes: Size of the file; its room on disk is taken here where that is possible.
        lock: Holds the folder's lock while names change.
        what: What is being done, for messages.

    Raises:
        CapsuleDiskFullError: There is no room; nothing is left behind.
        CapsuleFolderError: The kernel refuses.
    """

    def __init__(
        self,
        folder_fd: int,
        num_bytes: int,
        *,
        lock: Callable[[], AbstractContextManager[None]],
        what: str,
    ) -> None:
        self.num_bytes = num_bytes
        self._folder_fd = folder_fd
        self._lock = lock
        self._what = what
        self._name = ""
        self.fd = -1
        try:
            with self.refusals():
                self._open()
            with self.refusals():
                reserve(self.fd, num_bytes)
        except BaseException:
            self.close()
            raise

    def refusals(self) -> AbstractContextManager[None]:
        """Turn an OSError while the file is written into one of our errors."""
        return refusals(
            self._what,
            folder_fd=self._folder_fd,
            needed_bytes=self.num_bytes,
            held_fd=self.fd,
        )

    def publish(self, name: str, *, check: Callable[[], None]) -> None:
        """Give the finished file its name, in place of a file that has it.

        The bytes are on disk before the name is, and the name before this returns: what
        a crash leaves is the old file or the new one.

        Args:
            name: In the folder.
            check: Raises where the name must not be taken; called under the lock.

        Raises:
            CapsuleDiskFullError: There was no room; the old file is whole.
            CapsuleFolderError: The kernel refuses; the old file is whole.
        """
        with self.refusals():
            os.fsync(self.fd)
            with self._lock():
                check()
                self._take_name(name)
            os.fsync(self._folder_fd)
        self.close()

    def close(self) -> None:
        """Discard the file unless it was published. Idempotent."""
        if self._name:
            # What can't be removed now is removed at the next start.
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder_fd)
            self._name = ""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC
        if _SELF_FDS.exists():  # what a nameless file is given its name through
            try:
                self.fd = os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=self._folder_fd)
            except OSError as error:
                if error.errno not in _NO_TMPFILE:
                    raise
            else:
                return
        name = _temporary_name()
        # Between its creation and its lock the file would look like a left one.
        with self._lock():
            create = flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self.fd = os.open(name, create, 0o600, dir_fd=self._folder_fd)
            self._name = name
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _take_name(self, name: str) -> None:
        folder = self._folder_fd
        if not self._name:
            source = str(_SELF_FDS / str(self.fd))
            try:
                os.link(source, name, dst_dir_fd=folder)
            except FileExistsError:
                # A link can't replace, a rename can.
                temporary = _temporary_name()
                os.link(source, temporary, dst_dir_fd=folder)
                self._name = temporary
            else:
                return
        os.rename(self._name, name, src_dir_fd=folder, dst_dir_fd=folder)
        self._name = ""


def sweep(folder_fd: int) -> tuple[str, ...]:
    """Remove the temporary files whose writers are gone; the caller holds the folder's lock.

    Returns:
        Names of those removed.

    Raises:
        OSError: The kernel refuses.
    """
    names = [name for name in names_in(folder_fd) if name.startswith(TEMPORARY_PREFIX)]
    return tuple(name for name in names if _remove_if_left(folder_fd, name))


def _temporary_name() -> str:
    return TEMPORARY_PREFIX + secrets.token_hex(8)


def _remove_if_left(folder_fd: int, name: str) -> bool:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(name, flags, dir_fd=folder_fd)
    except OSError as error:
        # Discarded by its writer a moment ago, or a link: nothing that we made.
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return False
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder_fd)
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(fd)
    return True
