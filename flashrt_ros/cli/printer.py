"""Puts lines out from a thread of its own, so that who has a line never waits for a reader."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

CAPACITY = 10_000
"""Lines that wait for a reader who pauses; the oldest beyond them are dropped and counted."""


class Printer:
    """A bounded queue of lines and the one thread that puts them out.

    A reader that pauses costs lines, which are counted and told once it reads again. One
    that went away costs all that follows, quietly: no process stops because nobody looks.

    Args:
        emit: Puts out a line; may block for ever, and may raise OSError once its reader is
            gone.
        capacity: Lines that may wait.
    """

    def __init__(self, emit: Callable[[str], None], *, capacity: int = CAPACITY) -> None:
        self._emit = emit
        self._lines: deque[str] = deque()
        self._capacity = capacity
        self._num_dropped = 0
        self._is_closed = False
        self._is_deaf = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._print, name="printer", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Add a line, from any thread; never waits for a reader."""
        with self._condition:
            if self._is_deaf or self._is_closed:
                return
            if len(self._lines) >= self._capacity:
                self._lines.popleft()
                self._num_dropped += 1
            self._lines.append(line)
            self._condition.notify()

    def close(self, timeout_s: float) -> None:
        """Take no more lines, and wait a while until those that wait are out; idempotent.

        A thread that a paused reader holds is left to the end of the process.
        """
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        self._thread.join(max(0.0, timeout_s))

    def _print(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._lines or self._is_closed)
                if not self._lines:
                    return
                num_dropped, self._num_dropped = self._num_dropped, 0
                line = self._lines.popleft()
            try:
                if num_dropped:
                    self._emit(f"{num_dropped} lines were dropped, because nobody read them")
                self._emit(line)
            except (OSError, ValueError):  # the latter for a file closed on this side
                with self._condition:
                    self._is_deaf = True
                    self._lines.clear()
                return


def write_line(descriptor: int, line: str) -> None:
    """Write a line to a descriptor, past Python's buffers.

    A thread that blocks in ``print`` holds the lock of ``sys.stdout``, on which the
    interpreter dies at its end; one that blocks here holds nothing.

    Raises:
        OSError: The reader is gone.
    """
    data = (line + "\n").encode("utf-8", "replace")
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # somebody made the shared terminal non-blocking
            time.sleep(0.01)
