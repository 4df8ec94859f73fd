"""Places values that live at different times in the same memory; imports without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashrt_ros.runtime.spec import BUFFER_ALIGNMENT_BYTES, round_up


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a value is alive, both ends included.

    Attributes:
        first: Step that writes it first.
        last: Step that uses it last; at least ``first``.
        num_bytes: Bytes it takes.
    """

    first: int
    last: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets of values in one run of memory.

    Attributes:
        offsets: Bytes from the start, one for each value, 256-byte aligned.
        num_bytes: Length of the run.
    """

    offsets: tuple[int, ...]
    num_bytes: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Give each value the lowest offset where nothing that lives with it lies.

    Values that share a step never overlap, so an operation never writes over what it
    reads. Larger values are placed first, ties in the order given: the plan is a
    function of its input alone.
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    total = 0
    order = sorted(range(len(lifetimes)), key=lambda index: (-lifetimes[index].num_bytes, index))
    for index in order:
        value = lifetimes[index]
        size = round_up(value.num_bytes, BUFFER_ALIGNMENT_BYTES)
        if size == 0:
            continue
        taken = sorted(
            (offsets[other], offsets[other] + lifetimes[other].num_bytes)
            for other in placed
            if lifetimes[other].first <= value.last and value.first <= lifetimes[other].last
        )
        offset = 0
        for start, end in taken:
            if offset + size <= start:
                break
            offset = max(offset, round_up(end, BUFFER_ALIGNMENT_BYTES))
        offsets[index] = offset
        total = max(total, offset + size)
        placed.append(index)
    return MemoryPlan(tuple(offsets), total)
