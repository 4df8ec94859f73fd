"""Waiting for something to happen, with a limit and a reason in words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_T = TypeVar("_T")

_LOOK_S = 0.2


class ScenarioError(Exception):
    """A part of the demo could not go on; says what was waited for or refused."""


class News:
    """A lock around what threads record, and a wake-up for who waits for it.

    Args:
        check: Called now and then while somebody waits; raises when waiting has become
            pointless, because a process has died.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._changed = threading.Condition()
        self._check = check

    @contextmanager
    def change(self) -> Iterator[None]:
        """Hold the lock while something is recorded, then wake who waits."""
        with self._changed:
            yield
            self._changed.notify_all()

    def wait(self, look: Callable[[], _T | None], timeout_s: float, what: str) -> _T:
        """Return the first result of ``look`` that is neither None nor False.

        Args:
            look: Called under the lock after each change.
            timeout_s: How long to wait.
            what: What is waited for, for the error.

        Raises:
            ScenarioError: It did not come in time, or a process has died.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._changed:
                found = look()
                if found is not None and found is not False:
                    return found
                left = deadline - time.monotonic()
                if left > 0:
                    self._changed.wait(min(left, _LOOK_S))
            self._check()
            if left <= 0:
                raise ScenarioError(f"{what}: it did not come within {timeout_s:g} s")
