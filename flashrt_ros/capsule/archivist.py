"""One thread for what blocks (files and their digests), so that the engine's loop never does."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from flashrt_ros.errors import FlashrtError

logger = logging.getLogger(__name__)

_NICENESS = 10
"""Above the loop's, where both want a core."""

_REAL_TIME_PRIORITY = 1
"""Below the loop's, where that has one."""


@dataclass(slots=True, eq=False)
class Task:
    """A piece of work, and who is told of its end.

    Attributes:
        work: Runs on the archivist's thread.
        done: Gets the result or the error, on the thread that polls.
        outcome: Of ``work``, once it ran.
    """

    work: Callable[[], object]
    done: Callable[[object], None]
    outcome: object = None


class Archivist:
    """Runs tasks one after the other on a thread of its own; hands results over when polled.

    The thread starts with the first task and gives way to the loop. Where the process's main
    thread has a real-time priority, it takes the lowest one: a thread of no such priority
    may lose its core to any other process while it holds the interpreter's lock, and then
    the loop waits for that process too.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._num_pending = 0
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def num_pending(self) -> int:
        """Tasks submitted whose result was not handed over yet."""
        return self._num_pending

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Queue a task; ``done`` gets its result, or the exception it ended with."""
        assert not self._is_closed
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="archivist", daemon=True)
            self._thread.start()
        self._num_pending += 1
        self._tasks.put(Task(work, done))

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Hand over what has ended since; True if anything had.

        Args:
            timeout_s: How long to wait for the first, where tasks are under way.
        """
        has_ended = False
        while self._num_pending:
            try:
                task = self._ended.get(timeout=0.0 if has_ended else timeout_s)
            except queue.Empty:
                break
            has_ended = True
            self._num_pending -= 1
            task.done(task.outcome)
        return has_ended

    def close(self) -> None:
        """Run what is queued to its end and hand it over, then end the thread. Idempotent."""
        self._is_closed = True
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._tasks.put(None)
        thread.join()
        self.poll()

    def __enter__(self) -> Archivist:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        os.nice(_NICENESS)  # of this thread alone, as Linux has it
        while (task := self._tasks.get()) is not None:
            _give_way()
            try:
                task.outcome = task.work()
            except FlashrtError as error:
                task.outcome = error
            except Exception as error:  # the boundary of the thread: the loop must hear of it
                logger.exception("a task of the archivist failed")
                task.outcome = FlashrtError(f"work on a capsule file failed: {error!r}")
            self._ended.put(task)


def _give_way() -> None:
    """Take a priority below the main thread's, which may have another one since the last task."""
    # Refused, for want of rights or of such policies, it goes on with what it has.
    with contextlib.suppress(OSError):
        priority = os.sched_getparam(os.getpid()).sched_priority
        mine = _REAL_TIME_PRIORITY if priority > _REAL_TIME_PRIORITY else 0
        policy = os.SCHED_FIFO if mine else os.SCHED_OTHER
        if (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) != (policy, mine):
            os.sched_setscheduler(0, policy, os.sched_param(mine))
