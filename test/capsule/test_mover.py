"""What is used least goes down, what is used comes up, and pins stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flashrt_ros.capsule.record import CapsuleRecord
from flashrt_ros.capsule.room import NotYet
from flashrt_ros.errors import (
    CapsuleArchiveError,
    CapsuleDiskFullError,
    CapsuleNotFoundError,
    CapsuleQuotaError,
    FlashrtError,
)
from test.capsule.conftest import SIZE, WAIT_S, Yard

MakeYard = Callable[..., Yard]


@pytest.fixture
def make_yard() -> Iterator[MakeYard]:
    made: list[Yard] = []

    def make(**sizes: Any) -> Yard:
        made.append(Yard(**sizes))
        return made[-1]

    yield make
    for one in made:
        one.close()


def fetch(yard: Yard, key: str) -> None:
    """Use a capsule, as a verb does: again once its bytes are there."""
    while True:
        try:
            yard.store.require_memory(yard.store.get(key))
            return
        except NotYet:
            assert yard.mover.wait(WAIT_S)
            if key in (failures := yard.mover.take_failures()):
                raise failures[key] from None


def test_a_full_tier_makes_room_ahead_of_need(yard: Yard) -> None:
    first = yard.take(1)
    yard.take(2)
    yard.settle()
    assert list(yard.spilled.files) == [first.id]
    assert first.tier == "host"  # a copy below costs nothing
    yard.take(3)
    assert first.tier == "disk"


def test_what_was_used_stays(yard: Yard) -> None:
    first, second = yard.take(1), yard.take(2)
    yard.store.require_memory(first)
    yard.settle()
    yard.take(3)
    assert (first.tier, second.tier) == ("host", "disk")


def test_room_that_is_not_there_yet_is_waited_for(yard: Yard) -> None:
    yard.take(1)
    yard.take(2)
    with pytest.raises(NotYet):
        yard.take(3)
    assert len(yard.store) == 2
    assert yard.mover.wait(WAIT_S)
    yard.take(3)


def test_bytes_come_back_as_they_were(yard: Yard) -> None:
    capsules = [yard.take(value) for value in (1, 2)]
    for value in (3, 4):
        yard.settle()
        capsules.append(yard.take(value))
    for value, capsule in enumerate(capsules, start=1):
        fetch(yard, capsule.id)
        assert yard.value(capsule.id) == value


def test_a_pin_never_moves_down_and_says_what_it_takes(yard: Yard) -> None:
    pinned = [yard.take(value, name=f"pin{value}", pinned=True) for value in (1, 2)]
    yard.settle()
    with pytest.raises(CapsuleQuotaError, match=f"{2 * SIZE} of them pinned"):
        yard.take(3)
    assert [one.tier for one in pinned] == ["host", "host"]
    yard.store.pin("pin1", pinned=False)
    yard.settle()
    yard.take(3)
    assert [one.tier for one in pinned] == ["disk", "host"]


def test_pins_leave_no_room_to_fetch_into(yard: Yard) -> None:
    low = yard.take(1)
    yard.take(2, pinned=True)
    yard.settle()
    yard.take(3, pinned=True)
    assert low.tier == "disk"
    with pytest.raises(CapsuleQuotaError):
        yard.store.require_memory(low)
    assert low.tier == "disk"


def test_a_pin_brings_its_capsule_up(yard: Yard) -> None:
    low = yard.take(1)
    yard.take(2)
    yard.settle()
    yard.take(3)
    with pytest.raises(NotYet):
        yard.store.pin(low.id, pinned=True)
    assert not yard.store.get(low.id).pinned
    fetch(yard, low.id)
    assert yard.store.pin(low.id, pinned=True).tier == "host"


def test_a_full_disk_refuses_with_the_figures(make_yard: MakeYard) -> None:
    yard = make_yard(host=2, disk=1)
    for value in (1, 2, 3):
        yard.take(value)
        yard.settle()
    with pytest.raises(CapsuleQuotaError, match=f"disk {SIZE} of {SIZE}"):
        yard.take(4)


def test_a_disk_that_refuses_is_left_alone_for_a_while(yard: Yard) -> None:
    yard.spilled.refusal = CapsuleDiskFullError("no room")
    yard.take(1)
    yard.take(2)
    yard.settle()
    # the quota has room: what has none is the disk
    with pytest.raises(CapsuleQuotaError, match="no file is written: no room"):
        yard.take(3)
    yard.spilled.refusal = None
    yard.now_ns += 10**10
    yard.settle()
    yard.take(3)


def test_a_damaged_file_is_an_answer_and_loses_nothing_else(yard: Yard) -> None:
    low = yard.take(1)
    yard.take(2)
    yard.settle()
    yard.take(3)
    yard.spilled.files.clear()
    with pytest.raises(CapsuleArchiveError):
        fetch(yard, low.id)
    yard.settle()
    assert yard.store.get(low.id).tier == "disk"
    assert yard.tiers[0].used_bytes <= 2 * SIZE


def test_without_a_disk_nothing_is_lost(make_yard: MakeYard) -> None:
    yard = make_yard(disk=0)
    yard.take(1)
    yard.take(2)
    yard.settle()
    with pytest.raises(CapsuleQuotaError):
        yard.take(3)
    assert {yard.value(one.id) for one in yard.store} == {1, 2}


def test_a_dropped_capsule_leaves_no_file(yard: Yard) -> None:
    first = yard.take(1)
    yard.take(2)
    yard.settle()
    yard.store.drop(first.id)
    yard.settle()
    assert not yard.spilled.files
    assert yard.disk is not None
    assert yard.disk.used_bytes == 0


def test_a_capsule_dropped_while_it_is_written_gives_its_block_back(yard: Yard) -> None:
    first = yard.take(1)
    yard.take(2)
    yard.mover.advance(SIZE)  # the write is on its way
    yard.store.drop(first.id)
    yard.settle()
    assert not yard.spilled.files
    assert yard.tiers[0].used_bytes == SIZE


def test_three_tiers_pass_down_and_up(make_yard: MakeYard) -> None:
    yard = make_yard(device=1, host=2, disk=4)
    capsules = []
    for value in (1, 2, 3):
        capsules.append(yard.take(value))
        yard.settle()
    assert [one.tier for one in capsules] == ["disk", "host", "device"]
    fetch(yard, capsules[0].id)
    assert yard.value(capsules[0].id) == 1
    yard.settle()  # it is the last one used: it climbs
    assert capsules[0].tier == "device"
    assert capsules[2].tier != "device"
    for value, capsule in enumerate(capsules, start=1):
        fetch(yard, capsule.id)
        assert yard.value(capsule.id) == value


def test_a_copy_goes_in_slices(make_yard: MakeYard) -> None:
    yard = make_yard(device=1, host=1)
    yard.take(5)
    slices = 0
    while not yard.mover.advance(SIZE // 4):
        slices += 1
    assert slices >= 4
    assert yard.value(next(iter(yard.store)).id) == 5


# files that were asked for -------------------------------------------------------------------


def written(yard: Yard, capsule_id: str, shelf: str, key: str) -> CapsuleRecord:
    answers: list[CapsuleRecord | FlashrtError] = []
    yard.mover.write(yard.store.get(capsule_id), shelf, key, answers.append)
    while not answers:
        assert yard.mover.wait(WAIT_S)
    assert isinstance(answers[0], CapsuleRecord), answers
    return answers[0]


def test_a_capsule_is_written_from_every_tier(make_yard: MakeYard) -> None:
    yard = make_yard(device=1, host=2, disk=4)
    capsules = []
    for value in (1, 2, 3, 4):
        capsules.append(yard.take(value))
        yard.settle()
    assert {one.tier for one in capsules} == {"device", "host", "disk"}
    for value, capsule in enumerate(capsules, start=1):
        record = written(yard, capsule.id, "saved", f"file{value}")
        assert yard.saved.files[f"file{value}"] == bytes([value]) * SIZE
        assert yard.store.get(capsule.id).digest == record.digest


def test_a_capsule_dropped_before_its_turn_is_said_so(yard: Yard) -> None:
    capsule = yard.take(1)
    answers: list[object] = []
    yard.mover.write(capsule, "saved", "file", answers.append)
    yard.store.drop(capsule.id)
    yard.settle()
    assert isinstance(answers[0], CapsuleNotFoundError)


def test_persisted_ones_are_written_and_go_with_their_capsule(yard: Yard) -> None:
    capsule = yard.take(1, name="kept", persist=True)
    yard.settle()
    assert list(yard.kept.files) == ["kept"]
    yard.store.drop(capsule.id)
    yard.settle()
    assert not yard.kept.files


def test_a_replaced_persisted_capsule_is_never_without_a_file(yard: Yard) -> None:
    yard.take(1, name="home", persist=True)
    yard.settle()
    yard.take(2, name="home", persist=True, replace=True)
    assert yard.kept.files["home"] == bytes([1]) * SIZE
    yard.settle()
    assert yard.kept.files["home"] == bytes([2]) * SIZE
    yard.take(3, name="home", replace=True)
    yard.settle()
    assert not yard.kept.files


def test_a_persisted_file_serves_as_the_lower_copy(yard: Yard) -> None:
    kept = yard.take(1, name="kept", persist=True)
    yard.settle()
    yard.take(2)
    yard.settle()
    yard.take(3)
    assert kept.tier == "disk"
    assert not yard.spilled.files
    fetch(yard, "kept")
    assert yard.value("kept") == 1


def test_a_persisted_one_is_written_once_the_disk_has_room(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    yard.kept.refusal = CapsuleDiskFullError("no room")
    kept = yard.take(1, name="kept", persist=True)
    gone = yard.take(2, name="gone", persist=True)
    yard.settle()
    yard.store.drop(gone.id)
    for _ in range(3):
        yard.settle()
        assert not yard.kept.files
        due_ns = yard.mover.next_ns()
        assert due_ns is not None
        yard.now_ns = due_ns
    assert [record.message for record in caplog.records] == [
        f"capsule '{name}' is not persisted yet: no room" for name in ("kept", "gone")
    ]
    yard.kept.refusal = None
    yard.settle()
    assert list(yard.kept.files) == ["kept"]
    assert yard.store.get(kept.id).digest
    assert yard.mover.next_ns() is None


def test_the_end_finishes_what_was_to_be_kept() -> None:
    yard = Yard()
    yard.take(1, name="kept", persist=True)
    yard.close()
    assert yard.kept.files["kept"] == bytes([1]) * SIZE


def test_what_can_not_be_brought_to_memory_is_not_written(yard: Yard) -> None:
    low = yard.take(1)
    yard.take(2, pinned=True)
    yard.settle()
    yard.take(3, pinned=True)
    answers: list[object] = []
    yard.mover.write(yard.store.get(low.id), "saved", "file", answers.append)
    yard.settle()
    assert isinstance(answers[0], CapsuleQuotaError)
