"""Which capsules a search finds and which a collection lets go; imports without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from flashrt_ros.errors import SpecError


class Described(Protocol):
    """What is asked of a capsule here."""

    @property
    def name(self) -> str:
        """Unique; empty for a nameless one."""

    @property
    def labels(self) -> tuple[str, ...]:
        """``key=value`` strings."""

    @property
    def created_ns(self) -> int:
        """Wall time, ns."""

    @property
    def tier(self) -> str:
        """Fastest tier that holds it."""

    @property
    def pinned(self) -> bool:
        """Never dropped."""


_D = TypeVar("_D", bound=Described)


@dataclass(frozen=True, slots=True)
class Query:
    """What a search asks for; every field that is set must match.

    Attributes:
        label: One ``key=value``.
        name_prefix: Start of the name.
        since_ns: Created then or later, wall time.
        until_ns: Created then or earlier; 0 for any time.
        tier: Fastest tier that holds it.
        pinned: Whether it is pinned; None for either.
    """

    label: str = ""
    name_prefix: str = ""
    since_ns: int = 0
    until_ns: int = 0
    tier: str = ""
    pinned: bool | None = None

    def matches(self, one: Described) -> bool:
        """Tell whether a capsule is found."""
        return (
            (not self.label or self.label in one.labels)
            and one.name.startswith(self.name_prefix)
            and one.created_ns >= self.since_ns
            and (not self.until_ns or one.created_ns <= self.until_ns)
            and (not self.tier or one.tier == self.tier)
            and (self.pinned is None or one.pinned == self.pinned)
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """What a collection lets go: what every rule given admits, but for the newest.

    Attributes:
        older_than_ns: Age, ns; 0 for any.
        label: One ``key=value``; "" for any.
        name_prefix: Start of the name; "" for any.
        unpinned: Admit whatever is not pinned.
        keep_last: Newest of those admitted that stay; made or loaded last.
    """

    older_than_ns: int = 0
    label: str = ""
    name_prefix: str = ""
    unpinned: bool = False
    keep_last: int = 0

    def check(self) -> None:
        """Refuse a collection that names no rule: it would take all.

        Raises:
            SpecError: No rule, or a negative number.
        """
        if self.older_than_ns < 0 or self.keep_last < 0:
            raise SpecError(
                "a collection has a negative rule",
                expected="0 or more",
                found=f"older than {self.older_than_ns} ns, keep last {self.keep_last}",
            )
        if not (self.older_than_ns or self.label or self.name_prefix or self.unpinned):
            raise SpecError(
                "a collection names no rule",
                expected="an age, a label, a prefix, or 'unpinned' for all that is not pinned",
            )

    def choose(self, candidates: Iterable[_D], *, now_ns: int) -> list[_D]:
        """Return what goes, oldest first; pins never do.

        Args:
            candidates: What may go at all, in the order in which it was made or loaded. That
                order says what is newest: a clock may jump.
            now_ns: Wall time. A capsule from the future has no age.
        """
        query = Query(
            label=self.label,
            name_prefix=self.name_prefix,
            until_ns=max(1, now_ns - self.older_than_ns) if self.older_than_ns else 0,
            pinned=False,
        )
        admitted = list(filter(query.matches, candidates))
        return admitted[: max(0, len(admitted) - self.keep_last)]
