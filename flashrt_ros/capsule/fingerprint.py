"""What must be equal for the bytes of a capsule to mean the same; imports without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from flashrt_ros.errors import FingerprintMismatchError


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Named facts that decide whether a capsule can be restored.

    Attributes:
        fields: ``(name, value)`` pairs, sorted by name.
        digest: SHA-256 of their canonical JSON, 32 hex digits.
    """

    fields: tuple[tuple[str, str], ...]
    digest: str

    @staticmethod
    def of(fields: Mapping[str, object]) -> Fingerprint:
        """Build a fingerprint; values are compared by their ``str``."""
        rows = tuple(sorted((name, str(value)) for name, value in fields.items()))
        canonical = json.dumps(rows, separators=(",", ":"), ensure_ascii=True)
        return Fingerprint(rows, hashlib.sha256(canonical.encode()).hexdigest()[:32])

    def differences(self, other: Fingerprint) -> tuple[tuple[str, str, str], ...]:
        """Return ``(name, own value, other value)`` for every field that differs; absent is ''."""
        own, theirs = dict(self.fields), dict(other.fields)
        names = sorted(own.keys() | theirs.keys())
        return tuple(
            (name, own.get(name, ""), theirs.get(name, ""))
            for name in names
            if own.get(name) != theirs.get(name)
        )

    def require(self, capsule: Fingerprint, capsule_id: str) -> None:
        """Refuse a capsule taken under another fingerprint.

        Args:
            capsule: The capsule's fingerprint; this one is the engine's.
            capsule_id: Named in the message.

        Raises:
            FingerprintMismatchError: Names every field that differs, with both values.
        """
        if self.digest == capsule.digest:
            return
        rows = self.differences(capsule)
        raise FingerprintMismatchError(
            f"capsule '{capsule_id}' does not fit this engine",
            expected="; ".join(f"{name}={own}" for name, own, _ in rows),
            found="; ".join(f"{name}={theirs}" for name, _, theirs in rows),
            fix="restore it where it was taken, or take a new one here",
        )
