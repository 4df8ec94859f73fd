"""Files as the kernel offers them beyond CPython, and its refusals as errors of ours."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator

from flashrt_ros.errors import CapsuleDiskFullError, CapsuleFolderError, FlashrtError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.fallocate.restype = ctypes.c_int


def reserve(fd: int, num_bytes: int) -> None:
    """Give a new file its size, of zeros, and where the file system can, its room on disk.

    Not ``os.posix_fallocate``: where a file system can't, that writes every block.

    Raises:
        OSError: There is no such room.
    """
    os.ftruncate(fd, num_bytes)
    while num_bytes and _libc.fallocate(fd, 0, 0, num_bytes):
        number = ctypes.get_errno()
        if number in _NO_FALLOCATE:
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def start_writing_back(fd: int, offset: int, num_bytes: int) -> None:
    """Have the kernel begin to write a range to disk, so that less is left for the fsync.

    The pages are dropped once written: a file just saved is not read soon.
    """
    os.posix_fadvise(fd, offset, num_bytes, os.POSIX_FADV_DONTNEED)


def free_bytes(fd: int) -> int:
    """Bytes that this user may still write where ``fd`` lies."""
    status = os.fstatvfs(fd)
    return status.f_bavail * status.f_frsize


@contextlib.contextmanager
def refusals(
    what: str, *, folder_fd: int, needed_bytes: int = 0, held_fd: int = -1
) -> Iterator[None]:
    """Turn an OSError of the block into the error that says what to do about it.

    Args:
        what: What failed.
        folder_fd: Lies on the disk in question.
        needed_bytes: What the block was to write.
        held_fd: The file that it writes to; what that took already counts as free.

    Raises:
        CapsuleDiskFullError: The disk, a quota or a limit left no room.
        CapsuleFolderError: Anything else that the kernel refused.
    """
    try:
        yield
    except OSError as error:
        held_bytes = 512 * os.fstat(held_fd).st_blocks if held_fd >= 0 else 0
        free = free_bytes(folder_fd) + held_bytes
        raise _refusal(what, error, needed_bytes, free) from error


def _refusal(what: str, error: OSError, needed_bytes: int, free: int) -> FlashrtError:
    if error.errno in _FULL:
        left = f"{free} bytes free"
        return CapsuleDiskFullError(
            what,
            expected=f"room for {needed_bytes} bytes",
            found=f"{left} but a limit on files" if error.errno == errno.EFBIG else left,
            fix="remove capsules, or keep them on a larger disk",
        )
    is_read_only = error.errno in _READ_ONLY
    return CapsuleFolderError(
        what,
        found=error.strerror,
        fix="make the folder and its disk writable" if is_read_only else None,
    )
