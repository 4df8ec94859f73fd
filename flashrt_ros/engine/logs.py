"""Logging that never holds the loop up, whoever reads it and however slowly."""

from __future__ import annotations

import contextlib
import logging
import os
import select

_CHUNK_BYTES = select.PIPE_BUF
"""What a pipe that polls as writable takes without blocking."""

_MAX_RECORD_BYTES = 64 * 1024


class LossyHandler(logging.Handler):
    """Writes records to a descriptor while it takes them, and counts those it does not.

    A pipe whose reader is stuck, or a stopped terminal, blocks whoever writes to it. The
    engine's loop can't wait for that: such records are lost, and the next one that gets
    through says how many.

    Args:
        fd: Written to, as it is: its flags may be shared with other processes.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.num_lost = 0
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it as lost."""
        with contextlib.suppress(OSError):  # a reader that is gone: nobody to tell
            lost = f"WARNING {self.num_lost} lines before this one were lost\n"
            text = (lost if self.num_lost else "") + self.format(record) + "\n"
            if self._write(text.encode("utf-8", "replace")[:_MAX_RECORD_BYTES]):
                self.num_lost = 0
                return
        self.num_lost += 1

    def _write(self, data: bytes) -> bool:
        while data:
            if not self._is_writable():
                return False
            data = data[os.write(self._fd, data[:_CHUNK_BYTES]) :]
        return True

    def _is_writable(self) -> bool:
        return any(mask & select.POLLOUT for _, mask in self._poll.poll(0))
