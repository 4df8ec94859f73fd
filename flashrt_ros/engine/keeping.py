"""What the verbs over stored capsules ask of an engine, whatever kind of model it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.store import CapsuleStore
from flashrt_ros.engine.storage import Storage
from flashrt_ros.engine.timeline import Branch, Environment


class Keeping(Protocol):
    """The parts of an engine that capsules are kept by."""

    @property
    def storage(self) -> Storage:
        """Tiers, folders, and what moves bytes."""

    @property
    def store(self) -> CapsuleStore:
        """The capsules."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What a capsule must have been taken under."""

    @property
    def environments(self) -> Sequence[Environment]:
        """By index."""

    @property
    def branches(self) -> Mapping[int, Branch]:
        """By index."""

    @property
    def clock_ns(self) -> Callable[[], int]:
        """Monotonic clock, ns."""


class Holding(Protocol):
    """How an engine finds capsules, and what of them it uses."""

    def find(self, env: Environment, key: str) -> Capsule:
        """Return a capsule that fits, by id or name; ``home`` is the environment's own.

        Raises:
            CapsuleNotFoundError: There is none.
            FingerprintMismatchError: It was taken under another fingerprint.
        """

    def is_held(self, capsule: Capsule) -> bool:
        """Tell whether the engine may bring a capsule back by itself."""

    def forget(self, gone: Capsule) -> None:
        """Let what descends from a capsule that is gone descend from its parent."""

    def note_home(self, capsule: Capsule) -> None:
        """Take note of a new capsule, which may be a home."""

    def begin_at(self, env: Environment, capsule: Capsule) -> None:
        """Put an environment that has not run yet at a capsule."""
