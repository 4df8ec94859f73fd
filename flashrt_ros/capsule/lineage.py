"""Which capsule came from which: always a forest, whatever is dropped; imports without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar


class Descendant(Protocol):
    """What has an id and descends from something."""

    @property
    def id(self) -> str:
        """Unique among its like."""

    @property
    def parent(self) -> str:
        """Id of what it descends from, "" for a root."""


_D = TypeVar("_D", bound=Descendant)


def ancestors(capsule_id: str, known: Mapping[str, Descendant]) -> Iterator[str]:
    """Yield the ids on the way up from a capsule, itself first, while they are known."""
    seen: set[str] = set()
    while capsule_id and capsule_id not in seen:
        seen.add(capsule_id)
        yield capsule_id
        found = known.get(capsule_id)
        capsule_id = found.parent if found else ""


def nearest(capsule_id: str, known: Mapping[str, Descendant], among: Iterable[str]) -> str:
    """Return the first proper ancestor of a capsule that is among some; "" for none."""
    wanted = set(among)
    line = ancestors(capsule_id, known)
    next(line, None)
    return next((above for above in line if above in wanted), "")


def walk(rows: Iterable[_D]) -> Iterator[tuple[int, _D]]:
    """Yield ``(depth, row)`` from the roots down, children after their parent, in the order given.

    A row whose parent is not among them is a root. By hand rather than by recursion: a
    long episode is a deep line.
    """
    ordered = list(rows)
    known = {row.id for row in ordered}
    children: dict[str, list[_D]] = {}
    for row in ordered:
        children.setdefault(row.parent if row.parent in known else "", []).append(row)
    waiting = [(0, row) for row in reversed(children.get("", []))]
    while waiting:
        depth, row = waiting.pop()
        yield depth, row
        waiting.extend((depth + 1, child) for child in reversed(children.get(row.id, [])))
