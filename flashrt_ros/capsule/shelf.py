"""What the mover asks of a folder of capsule files, and the folder that gives it."""

from __future__ import annotations

import contextlib
from typing import Protocol

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.record import CapsuleRecord, layout_rows, split_payload
from flashrt_ros.errors import CapsuleNotFoundError
from flashrt_ros.runtime.spec import ArenaLayout

KEPT = "kept"
"""Files of persisted capsules; a restarted engine takes them in."""

SPILLED = "spilled"
"""Files of capsules that memory had no room for; they end with the engine."""

SAVED = "saved"
"""Files that callers asked for, by names of their own."""


class Shelf(Protocol):
    """Files by key, one capsule each. Every method blocks: call it on the archivist's thread."""

    def write(
        self, capsule: Capsule, key: str, payload: memoryview, *, replace: bool
    ) -> CapsuleRecord:
        """Write a capsule; whole or not at all.

        Args:
            capsule: Described in the file.
            key: Name of the file.
            payload: ``uint8[capsule.num_bytes]``; unchanged until this returns.
            replace: Take the name over from another capsule's file.

        Returns:
            What the file says, with its digest and size.

        Raises:
            FlashrtError: It could not be written; the file of before is whole.
        """

    def read(self, key: str, destination: memoryview) -> CapsuleRecord:
        """Read and verify a payload.

        Raises:
            FlashrtError: There is none, it is damaged, or it does not fit; what the
                destination holds is void then.
        """

    def remove(self, key: str) -> None:
        """Remove a file; nothing if there is none.

        Raises:
            FlashrtError: It could not be removed.
        """


class FolderShelf:
    """A folder of files that fit one engine.

    Args:
        folder: The caller closes it, once the archivist has ended.
        layout: Of the engine's lanes.
        fingerprint: The engine's.
    """

    def __init__(
        self, folder: CapsuleFolder, layout: ArenaLayout, fingerprint: Fingerprint
    ) -> None:
        self.folder = folder
        self._layout = layout
        self._fingerprint = fingerprint

    def write(
        self, capsule: Capsule, key: str, payload: memoryview, *, replace: bool
    ) -> CapsuleRecord:
        """Write a capsule; see :class:`Shelf`."""
        record = record_of(capsule, self._layout)
        sections = split_payload(record, payload)
        return self.folder.write(record, sections, file=key, replace=replace)

    def read(self, key: str, destination: memoryview) -> CapsuleRecord:
        """Read and verify a payload; see :class:`Shelf`."""
        rows = layout_rows(self._layout)
        return self.folder.read_into(key, rows, self._fingerprint, destination)

    def remove(self, key: str) -> None:
        """Remove a file; see :class:`Shelf`."""
        with contextlib.suppress(CapsuleNotFoundError):
            self.folder.remove(key)


def record_of(capsule: Capsule, layout: ArenaLayout) -> CapsuleRecord:
    """Describe a capsule for a file."""
    return CapsuleRecord(
        id=capsule.id,
        name=capsule.name,
        parent=capsule.parent,
        labels=capsule.labels,
        created_ns=capsule.created_ns,
        position=capsule.position,
        pinned=capsule.pinned,
        is_automatic=capsule.is_automatic,
        fingerprint=capsule.fingerprint,
        layout=layout_rows(layout, capsule.position.num_positions),
        num_bytes=capsule.num_bytes,
    )
