"""What the mover asks of a folder of capsule files."""

from __future__ import annotations

from typing import Protocol

from flashrt_ros.capsule.capsule import Capsule

KEPT = "kept"
"""Files of persisted capsules; a restarted engine takes them in."""

SPILLED = "spilled"
"""Files of capsules that memory had no room for; they end with the engine."""


class Shelf(Protocol):
    """Files by key, one capsule each. Every method blocks: call it on the archivist's thread."""

    def write(self, capsule: Capsule, key: str, payload: memoryview) -> str:
        """Write a capsule, in place of the file of that key; whole or not at all.

        Args:
            capsule: Described in the file.
            key: Name of the file.
            payload: ``uint8[capsule.num_bytes]``; unchanged until this returns.

        Returns:
            The payload's digest.

        Raises:
            FlashrtError: It could not be written; the file of before is whole.
        """

    def read(self, key: str, destination: memoryview) -> str:
        """Read and verify a payload and return its digest.

        Raises:
            FlashrtError: There is none, it is damaged, or it does not fit; what the
                destination holds is void then.
        """

    def remove(self, key: str) -> None:
        """Remove a file; nothing if there is none.

        Raises:
            FlashrtError: It could not be removed.
        """
