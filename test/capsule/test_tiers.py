"""When blocks are allocated, and what priority the thread for files has."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from flashrt_ros.capsule.archivist import Archivist
from flashrt_ros.capsule.tiers import AHEAD_BYTES, HOST, MemoryTier
from flashrt_ros.errors import BackendError
from flashrt_ros.runtime.arena import Block

WAIT_S = 30.0


class Counting:
    """Allocates blocks, up to a limit, and remembers them."""

    def __init__(self, most: int = 100) -> None:
        self.made: list[Block] = []
        self._most = most

    def __call__(self, num_bytes: int) -> Block:
        if len(self.made) == self._most:
            raise BackendError("there is no more memory")
        self.made.append(Block(num_bytes))
        return self.made[-1]


def tier(allocate: Counting, block_bytes: int) -> MemoryTier:
    return MemoryTier(
        HOST, allocate, block_bytes=block_bytes, quota_bytes=3 * block_bytes, num_reserved=2
    )


def test_large_blocks_are_all_there_from_the_start() -> None:
    allocate = Counting()
    memory = tier(allocate, AHEAD_BYTES)
    assert len(allocate.made) == 5
    taken = [memory.take() for _ in range(3)]
    assert not memory.has_room
    assert len(allocate.made) == 5
    for block in taken:
        memory.give(block)
    memory.close()
    assert all(block.is_closed for block in allocate.made)


def test_small_blocks_come_when_they_are_needed_first() -> None:
    allocate = Counting()
    memory = tier(allocate, AHEAD_BYTES - 4096)
    assert len(allocate.made) == 2
    memory.give(memory.take())
    memory.give(memory.take())
    assert len(allocate.made) == 3
    memory.close()


@pytest.mark.parametrize("most", [1, 2, 4])
def test_memory_that_is_not_there_leaves_nothing(most: int) -> None:
    allocate = Counting(most)
    with pytest.raises(BackendError):
        tier(allocate, AHEAD_BYTES)
    assert len(allocate.made) == most
    assert all(block.is_closed for block in allocate.made)


@pytest.fixture
def priority() -> Iterator[None]:
    """Give the main thread a real-time priority for a while."""
    try:
        os.sched_setscheduler(os.getpid(), os.SCHED_FIFO, os.sched_param(20))
    except OSError as error:
        pytest.skip(f"no real-time priority here: {error}")
    yield
    os.sched_setscheduler(os.getpid(), os.SCHED_OTHER, os.sched_param(0))


def seen(archivist: Archivist) -> tuple[int, int, int]:
    """Return policy, priority and niceness of the archivist's thread."""
    answers: list[object] = []

    def look() -> tuple[int, int, int]:
        niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, niceness

    archivist.submit(look, answers.append)
    assert archivist.poll(WAIT_S)
    found = answers[0]
    assert isinstance(found, tuple)
    return found


def test_an_archivist_is_nicer_than_the_loop() -> None:
    with Archivist() as archivist:
        policy, _, niceness = seen(archivist)
    assert policy == os.SCHED_OTHER
    assert niceness > os.getpriority(os.PRIO_PROCESS, 0)


def test_beside_a_loop_with_a_real_time_priority_it_has_the_lowest(priority: None) -> None:
    with Archivist() as archivist:
        assert seen(archivist)[:2] == (os.SCHED_FIFO, 1)
        os.sched_setscheduler(os.getpid(), os.SCHED_FIFO, os.sched_param(1))
        assert seen(archivist)[:2] == (os.SCHED_OTHER, 0)
        os.sched_setscheduler(os.getpid(), os.SCHED_FIFO, os.sched_param(9))
        assert seen(archivist)[:2] == (os.SCHED_FIFO, 1)
        os.sched_setscheduler(os.getpid(), os.SCHED_OTHER, os.sched_param(0))
        assert seen(archivist)[:2] == (os.SCHED_OTHER, 0)
