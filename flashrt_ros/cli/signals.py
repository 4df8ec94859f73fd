"""The signals that ask a command to stop, and what is done with them meanwhile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a plain ``kill`` and a closed terminal: each asks for the same orderly stop."""


@contextmanager
def handled(act: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call ``act`` for each stop signal, and put back at the end what was there before.

    SIGHUP stays ignored where it was, for ``nohup``. Outside the main thread, where Python
    handles no signals, nothing changes.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        act(signal.Signals(number))

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [
        number
        for number in STOP_SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Keep the stop signals that come meanwhile, and deliver them at the end."""
    came: list[signal.Signals] = []
    try:
        with handled(came.append):
            yield
    finally:
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


@contextmanager
def ignored() -> Iterator[None]:
    """Let the stop signals that come meanwhile do nothing."""
    with handled(lambda number: None):
        yield
