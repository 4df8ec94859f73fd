"""What a loop waits for, with a look that keeps the interpreter's lock."""

from __future__ import annotations

import ctypes
import select
import struct

from flashrt_ros.engine import linux

_ENTRY = struct.Struct("ihh")  # struct pollfd


class Poll:
    """Descriptors that are polled, like ``select.poll``, with a look that keeps the lock.

    For one thread.

    Attributes:
        poll: ``select.poll``'s: sleeps for some ms, None for ever, and lets go of the
            interpreter's lock in any case.
    """

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._set = select.poll()
        self.poll = self._set.poll
        self._entries: ctypes.Array[ctypes.c_char] | None = None

    def register(self, fd: int, mask: int) -> None:
        """Watch a descriptor for the events of a mask, or for others than before."""
        self._set.register(fd, mask)
        self._masks[fd] = mask
        self._entries = None

    def unregister(self, fd: int) -> None:
        """Watch a descriptor no more; it may be closed already.

        Raises:
            KeyError: It was not watched.
        """
        self._set.unregister(fd)
        del self._masks[fd]
        self._entries = None

    def look_held(self) -> list[tuple[int, int]]:
        """Return what is ready, at once, the interpreter's lock held all the while.

        Raises:
            OSError: As of ``poll``.
        """
        entries = self._entries
        if entries is None:
            # here, once, and not for each of many clients that leave together
            packed = b"".join(_ENTRY.pack(fd, mask, 0) for fd, mask in self._masks.items())
            entries = self._entries = ctypes.create_string_buffer(packed, len(packed))
        found = linux.poll_held(entries, len(entries) // _ENTRY.size, 0)
        if found < 0:
            return self.poll(0)  # which says why
        if not found:
            return []
        return [(fd, ready) for fd, _, ready in _ENTRY.iter_unpack(entries) if ready]
