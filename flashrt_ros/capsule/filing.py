"""Files read and written by the archivist, each after the copies that it depends on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from flashrt_ros.capsule.archivist import Archivist
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.record import CapsuleRecord
from flashrt_ros.capsule.shelf import Shelf
from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.runtime.backend import Fence

logger = logging.getLogger(__name__)

Done = Callable[[CapsuleRecord | FlashrtError], None]
"""Takes what the file says of its capsule, or why there is none."""


@dataclass(slots=True, eq=False)
class WriteRequest:
    """A file that somebody asked for.

    Attributes:
        capsule_id: What to write.
        shelf: Where.
        key: Name of the file.
        done: Told when it is there.
        replace: Take the name over from another capsule's file.
    """

    capsule_id: str
    shelf: str
    key: str
    done: Done
    replace: bool = True


class Filing:
    """Hands work on files to the archivist, in the order of the calls.

    Args:
        archivist: Runs it.
        shelves: Folders by name.
        fence: Marks all that was submitted; work on a block starts once it is done.
    """

    def __init__(
        self, archivist: Archivist, shelves: Mapping[str, Shelf], fence: Callable[[], Fence]
    ) -> None:
        self._archivist = archivist
        self._shelves = shelves
        self._fence = fence
        self._fenced: list[tuple[Fence, Callable[[], None]]] = []

    @property
    def num_pending(self) -> int:
        """Files under way."""
        return self._archivist.num_pending

    @property
    def waits_for_device(self) -> bool:
        """Whether work waits for a copy to end."""
        return bool(self._fenced)

    def wait_for_device(self) -> None:
        """Return when a copy that work waits for has ended."""
        self._fenced[0][0].wait()

    def read(self, shelf: str, key: str, destination: memoryview, done: Done) -> None:
        """Read and verify a file; ``done`` is told by a later :meth:`poll`."""
        self._after_copies(partial(self._shelves[shelf].read, key, destination), done)

    def write(
        self, capsule: Capsule, request: WriteRequest, payload: memoryview, done: Done
    ) -> None:
        """Write a file; ``done`` is told by a later :meth:`poll`."""
        write = self._shelves[request.shelf].write
        self._after_copies(
            partial(write, capsule, request.key, payload, replace=request.replace), done
        )

    def read_now(self, shelf: str, key: str, destination: memoryview) -> CapsuleRecord:
        """Read and verify a file on this thread.

        Raises:
            FlashrtError: There is none, it is damaged, or it does not fit.
        """
        return self._shelves[shelf].read(key, destination)

    def remove(self, shelf: str, key: str) -> None:
        """Remove a file; what goes wrong is logged."""
        self._archivist.submit(partial(self._shelves[shelf].remove, key), _log_error)

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Tell who waits for a file that is done; True if any was. Start what could not yet."""
        if self._archivist.poll(timeout_s):
            return True
        for entry in [entry for entry in self._fenced if entry[0].is_done]:
            self._fenced.remove(entry)
            entry[1]()
        return False

    def close(self) -> None:
        """Finish what was handed over. Idempotent."""
        for fence, begin in self._fenced:
            fence.wait()
            begin()
        self._fenced.clear()
        self._archivist.close()

    def _after_copies(self, work: Callable[[], object], done: Done) -> None:
        def told(outcome: object) -> None:
            assert isinstance(outcome, CapsuleRecord | FlashrtError)
            done(outcome)

        fence = self._fence()
        if fence.is_done:
            self._archivist.submit(work, told)
        else:
            self._fenced.append((fence, lambda: self._archivist.submit(work, told)))


def _log_error(outcome: object) -> None:
    if isinstance(outcome, FlashrtError):
        logger.error("a capsule file is left behind: %s", outcome)
