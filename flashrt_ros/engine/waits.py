"""Verbs that wait for bytes: tried, and tried again once the mover has moved some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashrt_ros.capsule.mover import Mover
from flashrt_ros.capsule.room import NotYet
from flashrt_ros.engine import protocol
from flashrt_ros.errors import BusyError, DeviceLostError, FlashrtError

Answer = protocol.Reply | FlashrtError

Done = Callable[[Answer], None]
"""Takes the answer to a verb, once."""

CarryOut = Callable[[protocol.Request, Done], None]
"""Carries a verb out and answers it now or later; or raises, with nothing changed."""

EMBEDDED_WAIT_S = 60.0
"""Longest that a verb of an embedded engine waits while nothing is moved."""


@dataclass(slots=True, eq=False)
class Wait:
    """A verb that waits.

    Attributes:
        request: Tried from its beginning each time, so that everything is validated at the
            moment it acts.
        done: Takes the answer.
        capsule_id: Whose bytes it waits for, "" for room.
    """

    request: protocol.Request
    done: Done
    capsule_id: str


class Waits:
    """Holds the verbs that found bytes on disk, or a tier full.

    They are served in the order they came. Ticks and other verbs go on meanwhile: a verb
    that waited acts on the boundary at which it is carried out.

    Args:
        carry_out: Does a verb, or raises ``NotYet``.
        mover: Moves what they wait for.
    """

    def __init__(self, carry_out: CarryOut, mover: Mover) -> None:
        self._carry_out = carry_out
        self._mover = mover
        self._waits: list[Wait] = []

    def begin(self, request: protocol.Request, done: Done) -> Wait | None:
        """Carry a verb out; where it can't be yet, return what stands for it.

        Raises:
            FlashrtError: The verb was refused; nothing changed.
        """
        try:
            self._carry_out(request, done)
        except NotYet as wait:
            self._waits.append(Wait(request, done, wait.capsule_id))
            return self._waits[-1]
        return None

    def cancel(self, wait: Wait) -> None:
        """Forget a verb whose caller is gone; nothing if it was answered."""
        if wait in self._waits:
            self._waits.remove(wait)

    def background(self, max_bytes: int) -> bool:
        """Move one slice; serve who can be served now. True while there is more to do.

        Raises:
            DeviceLostError: The device's context is gone.
        """
        if self._mover.advance(max_bytes):
            self._serve()
        return self._mover.next_ns() is not None

    def finish(self, request: protocol.Request) -> protocol.Reply:
        """Carry a verb out to its end; for embedded use.

        Raises:
            FlashrtError: The verb was refused; nothing changed.
            BusyError: What it waits for did not come.
        """
        answers: list[Answer] = []
        wait = self.begin(request, answers.append)
        while not answers:
            if not self._mover.wait(EMBEDDED_WAIT_S):
                if wait is not None:
                    self.cancel(wait)
                raise BusyError(
                    f"{type(request).__name__} waits for a capsule that does not come",
                    expected=f"something moved within {EMBEDDED_WAIT_S} s",
                )
            self._serve()
        if isinstance(answers[0], FlashrtError):
            raise answers[0]
        return answers[0]

    def _serve(self) -> None:
        failures = self._mover.take_failures()
        for wait in tuple(self._waits):
            if wait.capsule_id in failures:
                self._waits.remove(wait)
                wait.done(failures[wait.capsule_id])
                continue
            try:
                self._carry_out(wait.request, wait.done)
            except NotYet as again:
                wait.capsule_id = again.capsule_id
                continue
            except DeviceLostError:
                raise
            except FlashrtError as error:
                self._waits.remove(wait)
                wait.done(error)
                continue
            self._waits.remove(wait)
