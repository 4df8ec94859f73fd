"""Verbs that wait for bytes: tried, and tried again once the mover has moved some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashrt_ros.capsule.mover import Mover
from flashrt_ros.capsule.room import NotYet
from flashrt_ros.engine import protocol
from flashrt_ros.errors import AbandonedError, BusyError, DeviceLostError, FlashrtError

Answer = protocol.Reply | FlashrtError

Done = Callable[[Answer], None]
"""Takes the answer to a verb, once; it must not ask the engine for anything.

A verb may answer before its books are kept.
"""

CarryOut = Callable[[protocol.Request, Done], None]
"""Carries a verb out and answers it now or later; or raises, with nothing changed.

What it still does once it has answered can't be refused: no ``FlashrtError`` comes of it
but ``DeviceLostError``.
"""

_BOUND = (
    protocol.Snapshot,
    protocol.Restore,
    protocol.Fork,
    protocol.Rollback,
    protocol.Resume,
    protocol.Instruct,
    protocol.ResumeTurn,
)
"""Verbs that concern where an environment stands; files don't."""

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
    that waited acts on the boundary at which it is carried out. One that concerns where an
    environment stands ends when a verb asked after it has moved that environment: what was
    asked before a reset or an interrupt does not act after it.

    Args:
        carry_out: Does a verb, or raises ``NotYet``.
        mover: Moves what they wait for.
        generation: Of an environment, which grows whenever it moves; 0 for one that is not
            there.
    """

    def __init__(self, carry_out: CarryOut, mover: Mover, generation: Callable[[int], int]) -> None:
        self._carry_out = carry_out
        self._mover = mover
        self._generation = generation
        self._waits: list[Wait] = []

    def begin(self, request: protocol.Request, done: Done) -> Wait | None:
        """Carry a verb out; where it can't be yet, return what stands for it.

        Raises:
            FlashrtError: The verb was refused; nothing changed.
        """
        try:
            if not self._waits:  # nobody can be overtaken
                self._carry_out(request, done)
            else:
                self._try(request, done)
        except NotYet as not_yet:
            wait = Wait(request, done, not_yet.capsule_id)
            self._waits.append(wait)
            return wait
        return None

    def cancel(self, wait: Wait) -> None:
        """Forget a verb whose caller is gone; nothing if it was answered."""
        if wait in self._waits:
            self._waits.remove(wait)

    def overtake(self, env_index: int, by: Wait | None = None) -> None:
        """End what waits for an environment that has moved, if it was asked before ``by``.

        Args:
            env_index: The environment.
            by: What has moved it; None for a verb that was asked just now.
        """
        for wait in tuple(self._waits):
            if wait is by:
                return
            request = wait.request
            if isinstance(request, _BOUND) and request.env_index == env_index:
                self._waits.remove(wait)
                wait.done(
                    AbandonedError(
                        f"{type(request).__name__} waited, and a verb asked after it has moved "
                        f"environment {env_index}",
                        fix="ask again, if it is still wanted where the environment stands now",
                    )
                )

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

    def _try(self, request: protocol.Request, done: Done, wait: Wait | None = None) -> None:
        env_index: int = getattr(request, "env_index", -1)
        before = self._generation(env_index)
        self._carry_out(request, done)
        if self._generation(env_index) != before:
            self.overtake(env_index, wait)

    def _serve(self) -> None:
        failures = self._mover.take_failures()
        for wait in tuple(self._waits):
            if wait not in self._waits:
                continue  # forgotten by what an answer before it led to
            if wait.capsule_id in failures:
                self._waits.remove(wait)
                wait.done(failures[wait.capsule_id])
                continue
            try:
                self._try(wait.request, wait.done, wait)
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
