"""A copy between tiers is on the device one slice at a time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.copy_job import CopyJob
from flashrt_ros.runtime.backend import Fence
from test.capsule.conftest import SIZE, Yard

SLICE = SIZE // 4


@dataclass
class Mark(Fence):
    """A fence that is done when it is told so."""

    is_passed: bool = False

    @property
    def is_done(self) -> bool:
        return self.is_passed

    def wait(self) -> None:
        self.is_passed = True


class Queue:
    """A device that copies nothing until it is told to."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []

    def copy(self, target: int, source: int, num_bytes: int) -> Fence:
        self.marks.append(Mark())
        return self.marks[-1]

    @property
    def num_under_way(self) -> int:
        return sum(not mark.is_done for mark in self.marks)


@pytest.fixture
def capsule(yard: Yard) -> Capsule:
    return yard.take(3)


@pytest.fixture
def job(yard: Yard, capsule: Capsule) -> CopyJob:
    return CopyJob(capsule, capsule.block, yard.tiers[0].take(), yard.tiers[0])


def test_the_next_slice_waits_for_the_one_before(job: CopyJob) -> None:
    queue = Queue()
    for number in range(4):
        for _ in range(3):  # asked again and again, as the loop does
            assert not job.advance(SLICE, queue.copy)
            assert queue.num_under_way == 1
        assert job.num_copied == (number + 1) * SLICE
        queue.marks[-1].is_passed = True
    assert job.advance(SLICE, queue.copy)
    assert len(queue.marks) == 4


def test_a_dropped_capsule_s_copy_ends_with_the_slice_under_way(
    yard: Yard, capsule: Capsule, job: CopyJob
) -> None:
    queue = Queue()
    yard.store.room.hold(capsule)
    assert not job.advance(SLICE, queue.copy)
    yard.store.drop(capsule.id)
    assert not job.advance(SLICE, queue.copy)
    queue.marks[-1].is_passed = True
    assert job.advance(SLICE, queue.copy)
    assert len(queue.marks) == 1
    yard.store.room.unhold(capsule)
