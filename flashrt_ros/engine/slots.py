"""Sealed shared memory, made by the engine and mapped by both sides; imports without torch."""

from __future__ import annotations

import fcntl
import mmap
import os
from types import TracebackType

from flashrt_ros.engine import linux
from flashrt_ros.errors import SharedMemoryError


class SlotMemory:
    """A memfd of fixed size, alone in naming its pages: nothing of it is in a file system.

    Sealed against shrinking, growing and further seals, close-on-exec. Lives until the
    last descriptor and mapping of any process is gone. Owns its descriptor; mappings
    made from it stay valid after :meth:`close`.

    Args:
        label: Shown by the kernel in ``/proc``; not a name to open it by.
        num_bytes: Size; a multiple of the page.

    Raises:
        SharedMemoryError: The kernel has no memory or descriptor left.
    """

    def __init__(self, label: str, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        try:
            self.fd = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise SharedMemoryError(
                f"slot memory '{label}' of {num_bytes} bytes could not be made",
                found=error,
                fix="raise the limit of open files (ulimit -n)",
            ) from error
        try:
            os.ftruncate(self.fd, num_bytes)
            status = os.fstat(self.fd)
        except OSError as error:
            os.close(self.fd)
            raise SharedMemoryError(
                f"slot memory '{label}' could not take {num_bytes} bytes", found=error
            ) from error
        self.device = status.st_dev
        self.inode = status.st_ino
        self._is_closed = False

    def seal(self, *, readers_only: bool = False) -> None:
        """Fix the size; with ``readers_only`` only mappings made before may write."""
        linux.seal(self.fd, readers_only=readers_only)

    def close(self) -> None:
        """Close the descriptor. Idempotent; mappings stay."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self.fd)

    def __enter__(self) -> SlotMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def map_received(fd: int, num_bytes: int, *, writable: bool) -> mmap.mmap:
    """Map slot memory that came over the socket; closes ``fd`` whatever happens.

    Refuses memory that its sender could still cut short, because touching a page that
    was cut off kills the process that touches it.

    Args:
        fd: Received descriptor; this call owns it.
        num_bytes: Size the engine announced.
        writable: Map for writing too.

    Returns:
        The mapping. It is unmapped when closed, or when the last view over it is gone.

    Raises:
        SharedMemoryError: Not sealed, too small, or the kernel refuses.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        size = os.fstat(fd).st_size
        if not seals & fcntl.F_SEAL_SHRINK or size < num_bytes:
            raise SharedMemoryError(
                "the engine's slot memory can't be trusted",
                expected=f"{num_bytes} bytes, sealed against shrinking",
                found=f"{size} bytes, seals {seals:#x}",
            )
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, protection)
    except OSError as error:
        raise SharedMemoryError("slot memory could not be mapped", found=error) from error
    finally:
        os.close(fd)
