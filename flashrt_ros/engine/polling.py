"""What a loop waits for, and two ways to look at it."""

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
        self._entries = self._build()

    def register(self, fd: int, mask: int) -> None:
        """Watch a descriptor for the events of a mask, or for others than before."""
        self._set.register(fd, mask)
        self._masks[fd] = mask
        self._entries = self._build()

    def unregister(self, fd: int) -> None:
        """Watch a descriptor no more; it may be closed already.

        Raises:
            KeyError: It was not watched.
        """
        self._set.unregister(fd)
        del self._masks[fd]
        self._entries = self._build()

    def is_ready_held(self) -> bool:
        """Tell whether something is ready, at once, the interpreter's lock held all the while."""
        return bool(linux.poll_held(self._entries, len(self._masks), 0) > 0)

    def _build(self) -> ctypes.Array[ctypes.c_char]:
        packed = b"".join(_ENTRY.pack(fd, mask, 0) for fd, mask in self._masks.items())
        return ctypes.create_string_buffer(packed, len(packed))
