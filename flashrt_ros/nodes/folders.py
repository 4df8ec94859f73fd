"""Temporary folders; one whose owner was killed is cleared away later."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "flashrt_ros_run_"


@contextmanager
def run_folder(prefix: str = PREFIX) -> Iterator[Path]:
    """Make a folder for as long as the context lasts.

    Its owner holds a lock on it, which ends with the process, however that ends: folders
    of this user and prefix that nobody has locked are removed first.

    Args:
        prefix: Of its name; nobody else's, who would not hold a lock.
    """
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{prefix}*"):
        _remove_if_left(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        # Until it is locked, another start may take it for a left one and remove it.
        lock = _lock(folder)
        if lock is not None and folder.exists():
            break
        if lock is not None:
            os.close(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        if folder.lstat().st_uid != os.getuid():
            return
    lock = _lock(folder)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder; None if it is gone, is no folder, or somebody has it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
