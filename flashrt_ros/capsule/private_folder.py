"""A folder that nobody else may reach into, and its lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from flashrt_ros.errors import CapsuleFolderError

LOCK_FILE = ".lock"
"""Locked while names in the folder change; it stays there, empty."""

_RETRY_S = 0.005


def open_folder(path: Path, *, create: bool) -> int:
    """Open a folder after checking whose it is; the caller closes the descriptor.

    Args:
        path: The folder. Its last part may not be a link.
        create: Make it, with mode 0700, and its parents, if it is not there.

    Raises:
        CapsuleFolderError: It is not there, is no folder, belongs to another user, or
            others may reach into it.
    """
    what = f"the capsule folder {path} can't be used"
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(mode=0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        is_other = error.errno in (errno.ELOOP, errno.ENOTDIR)
        raise CapsuleFolderError(
            what,
            expected="a folder, or that one can be made",
            found="a link or a file" if is_other else error.strerror,
            fix="name the folder itself" if is_other else "make it, or name another",
        ) from error
    status = os.fstat(fd)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid() or mode & 0o077:
        os.close(fd)
        raise CapsuleFolderError(
            what,
            expected=f"owner {os.geteuid()} and mode 0700",
            found=f"owner {status.st_uid} and mode {mode:04o}",
            fix=f"chmod 700 {path}, or name a folder of your own",
        )
    return fd


def names_in(folder_fd: int) -> tuple[str, ...]:
    """Return the names in a folder, sorted.

    Through a description of its own: threads that list the same one share its offset and
    would miss names.

    Raises:
        OSError: The kernel refuses.
    """
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        with os.scandir(fd) as entries:
            return tuple(sorted(entry.name for entry in entries))
    finally:
        os.close(fd)


def printable(name: str) -> str:
    """Return a name that messages may carry: bytes that are no UTF-8 are spelled out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def locked(folder_fd: int, path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold a folder's lock against other processes and other threads of this one.

    Args:
        folder_fd: From :func:`open_folder`.
        path: The folder, for messages.
        timeout_s: How long to wait for one who holds it.

    Raises:
        CapsuleFolderError: Somebody held it all the while.
        OSError: The lock's file can't be made.
    """
    # A description of its own for each holder, or threads would share the lock.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(LOCK_FILE, flags, 0o600, dir_fd=folder_fd)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise CapsuleFolderError(
                        f"the lock of the capsule folder {path} was not to be had",
                        found=f"another process held it for {timeout_s} s",
                        fix="see who has its file open: fuser .lock",
                    ) from error
                time.sleep(_RETRY_S)
            else:
                break
        yield
    finally:
        os.close(fd)
