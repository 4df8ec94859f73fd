"""The signals that ask a command to stop, and what is done with them meanwhile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a plain ``kill`` and a closed terminal: each asks for the same orderly stop."""


class Interrupted(KeyboardInterrupt):
    """A stop signal came.

    A class of its own: once a plain ``KeyboardInterrupt`` has left a string that was run by
    ``exec``, as dataclasses do when they are made, CPython ends the process by SIGINT,
    whoever caught it.

    Args:
        number: The signal.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


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
def interrupting() -> Iterator[Callable[[], None]]:
    """Raise :class:`Interrupted` at the first stop signal; more do nothing.

    So one signal unwinds whatever is open, and a second one does not disturb that. What the
    unwinding itself runs into, such as a terminal that is gone, takes the signal's place nowhere.

    Yields:
        To be called now and then, and raises again: an exception that comes while foreign
        code calls back may be swallowed there.
    """
    came: list[signal.Signals] = []

    def interrupt(number: signal.Signals) -> None:
        came.append(number)
        if len(came) == 1:
            raise Interrupted(number)

    def check() -> None:
        if came:
            raise Interrupted(came[0])

    with handled(interrupt):
        try:
            yield check
        except Exception as error:
            if came:
                raise Interrupted(came[0]) from error
            raise
        check()


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
