"""System calls that CPython 3.11 does not offer, or not without letting go of its lock.

By way of ctypes; Linux only.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import weakref
from pathlib import Path
from typing import Protocol

from flashrt_ros.errors import SharedMemoryError

F_SEAL_FUTURE_WRITE = 0x10
"""Seal of a memfd after which only mappings made before may write (Linux 5.1)."""

SO_PEERGROUPS = 59
SO_PEERPIDFD = 77

_MAP_NORESERVE = 0x4000
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_CLOCK_MONOTONIC = 1
_NEVER_NS = 1 << 62
_IN_CREATE = 0x100
_IN_MOVED_TO = 0x80

_libc = ctypes.CDLL(None, use_errno=True)
_held = ctypes.PyDLL(None, use_errno=True)

_held.recv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_held.recv.restype = ctypes.c_ssize_t

_held.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_held.poll.argtypes = (ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int)
_held.poll.restype = ctypes.c_int

poll_held = _held.poll
"""``poll(entries, num_entries, timeout_ms)``, the interpreter's lock held: for no timeout but 0.

``entries`` is an array of ``struct pollfd``, whose ``revents`` are set; the caller keeps it alive.
Returns how many are ready, -1 for any error, which is not kept.
"""

receive_held = _held.recv
"""``recv(fd, address, num_bytes, flags)``, the interpreter's lock held: for what does not block.

Returns the message's length, 0 at the end of the connection, -1 for any error, which is not kept;
with ``MSG_TRUNC`` the length may be more than ``num_bytes``. The caller keeps the memory alive.
Python's own sockets let go of the lock for every call, and whoever waits for it then has it until
it blocks or the switch interval is over.
"""

_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


def _os_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _map(address: int | None, num_bytes: int, flags: int, fd: int) -> int:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    found = _libc.mmap(address, num_bytes, protection, flags, fd, 0)
    if found is None or found == _MAP_FAILED:
        raise SharedMemoryError(f"{num_bytes} bytes could not be mapped", found=_os_error())
    return int(found)


def map_private(num_bytes: int) -> int:
    """Map zeroed private pages, backed by memory only once touched.

    Returns:
        The address; the caller owns the range and unmaps it.

    Raises:
        SharedMemoryError: The kernel refuses.
    """
    return _map(None, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)


def remap_private(address: int, num_bytes: int) -> None:
    """Replace what is mapped at ``address`` by zeroed private pages, in one step."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
    _map(address, num_bytes, flags, -1)


def remap_shared(address: int, num_bytes: int, fd: int) -> None:
    """Replace what is mapped at ``address`` by the pages of ``fd``, populated, in one step."""
    _map(address, num_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE | _MAP_FIXED, fd)


def unmap(address: int, num_bytes: int) -> None:
    """Unmap a range that :func:`map_private` gave."""
    if _libc.munmap(address, num_bytes):
        raise SharedMemoryError(f"{num_bytes} bytes could not be unmapped", found=_os_error())


def locate(address: int) -> tuple[int, int, int]:
    """Say which memory an address of this process belongs to, asking the kernel.

    Reads ``/proc/self/maps``, so a mapping can't be mistaken about itself.

    Returns:
        ``(device, inode, offset)`` as ``os.fstat`` names them; inode 0 is private memory.

    Raises:
        SharedMemoryError: Nothing is mapped there.
    """
    with Path("/proc/self/maps").open(encoding="ascii", errors="replace") as maps:
        for line in maps:
            span, _, offset, device, inode = line.split(maxsplit=5)[:5]
            first, _, last = span.partition("-")
            if int(first, 16) <= address < int(last, 16):
                major, _, minor = device.partition(":")
                place = int(offset, 16) + address - int(first, 16) if inode != "0" else 0
                return os.makedev(int(major, 16), int(minor, 16)), int(inode), place
    raise SharedMemoryError(f"nothing is mapped at {address:#x}")


def num_fds() -> int:
    """Count the process's open descriptors."""
    # The listing itself holds one.
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1


def num_shared_mappings() -> int:
    """Count the process's mappings of memfds: slot rings and output rings."""
    return Path("/proc/self/maps").read_bytes().count(b"/memfd:")


def create_timer() -> int:
    """Return a disarmed non-blocking timerfd on CLOCK_MONOTONIC; the caller closes it."""
    fd = int(_libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS))
    if fd < 0:
        raise _os_error()
    return fd


def set_timer(fd: int, deadline_ns: int | None) -> None:
    """Arm a timerfd for a point of CLOCK_MONOTONIC, or disarm it with None.

    A point in the past fires at once; what had expired before is forgotten. The interpreter's
    lock is held: it does not block.
    """
    seconds, nanoseconds = 0, 0
    if deadline_ns is not None:
        # Zero would disarm, and beyond the kernel's range is as good as never.
        seconds, nanoseconds = divmod(min(max(1, deadline_ns), _NEVER_NS), 10**9)
    spec = struct.pack("qqqq", 0, 0, seconds, nanoseconds)
    if _held.timerfd_settime(fd, _TFD_TIMER_ABSTIME, spec, None):
        raise _os_error()


def watch_folder(path: str) -> int:
    """Return an inotify descriptor that turns readable when a name appears in a folder.

    Raises:
        OSError: The folder is not there, or no watch is left; poll instead.
    """
    fd = int(_libc.inotify_init1(_TFD_FLAGS))
    if fd < 0:
        raise _os_error()
    if _libc.inotify_add_watch(fd, os.fsencode(path), _IN_CREATE | _IN_MOVED_TO) < 0:
        error = _os_error()
        os.close(fd)
        raise error
    return fd


def seal(fd: int, *, readers_only: bool = False) -> None:
    """Fix a memfd's size for ever, and with ``readers_only`` allow no new writer.

    Mappings that exist stay as they are.
    """
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    if readers_only:
        seals |= F_SEAL_FUTURE_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


class ForkAware(Protocol):
    """Something that must not outlive a fork in the child."""

    def close_in_child(self) -> None:
        """Close descriptors without a word to the peer; the parent still uses them."""


_fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def close_after_fork(owner: ForkAware) -> None:
    """Have ``owner`` closed in every child this process forks.

    A child that kept a socket open would keep its parent's loans alive after the
    parent's death. Holds no reference.
    """
    _fork_aware.add(owner)


def _close_in_child() -> None:
    for owner in list(_fork_aware):
        owner.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
