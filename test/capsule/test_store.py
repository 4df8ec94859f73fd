"""Names, pins, lineage and the reuse of blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from flashrt_ros.capsule.capsule import Capsule, Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.store import CapsuleStore, home_name, is_home
from flashrt_ros.capsule.tiers import HOST, MemoryTier
from flashrt_ros.errors import (
    CapsuleNameError,
    CapsuleNameTakenError,
    CapsuleNotFoundError,
    CapsulePinnedError,
    CapsuleQuotaError,
)
from flashrt_ros.runtime.arena import Block

SIZE = 4096
FINGERPRINT = Fingerprint.of({"model": "test"})


class Counting:
    """Allocates blocks and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, num_bytes: int) -> Block:
        self.count += 1
        return Block(num_bytes)


@pytest.fixture
def allocate() -> Counting:
    return Counting()


@pytest.fixture
def store(allocate: Counting) -> Iterator[CapsuleStore]:
    memory = MemoryTier(HOST, allocate, block_bytes=SIZE, quota_bytes=3 * SIZE, num_reserved=2)
    with CapsuleStore([memory], now_ns=lambda: 7) as made:
        yield made


def take(store: CapsuleStore, value: int = 1, parent: str = "", **more: object) -> Capsule:
    def fill(block: Block) -> None:
        ctypes.memset(block.address, value, SIZE)

    capsule, _ = store.create(
        fill,
        position=Position(),
        fingerprint=FINGERPRINT,
        parent=parent,
        **more,  # type: ignore[arg-type]
    )
    return capsule


def test_a_capsule_is_found_by_name_and_id(store: CapsuleStore) -> None:
    capsule = take(store, name="start", labels=("task=reach",))
    assert store.get("start") is store.get(capsule.id) is capsule
    with pytest.raises(CapsuleNotFoundError, match="expected an id, or one of start"):
        store.get("stop")


def test_where_no_capsule_has_a_name_the_refusal_says_so(store: CapsuleStore) -> None:
    with pytest.raises(CapsuleNotFoundError, match="expected an id; none has a name yet"):
        store.get("stop")


def test_a_taken_name_is_refused_or_replaced(store: CapsuleStore) -> None:
    first = take(store, name="start")
    with pytest.raises(CapsuleNameTakenError):
        take(store, name="start")
    second = take(store, value=2, name="start", replace=True)
    assert store.get("start") is second
    with pytest.raises(CapsuleNotFoundError):
        store.get(first.id)


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "a" * 129, "ü", "a b", "a\n"])
def test_bad_names_are_refused(store: CapsuleStore, name: str) -> None:
    with pytest.raises(CapsuleNameError):
        take(store, name=name)
    assert len(store) == 0


@pytest.mark.parametrize("label", ["", "nothing", "=value", "k=" + "v" * 300])
def test_bad_labels_are_refused(store: CapsuleStore, label: str) -> None:
    with pytest.raises(CapsuleNameError):
        take(store, labels=(label,))


def test_the_quota_refuses_with_the_figures_and_frees_with_a_drop(store: CapsuleStore) -> None:
    capsules = [take(store) for _ in range(3)]
    with pytest.raises(CapsuleQuotaError, match=str(SIZE)):
        take(store)
    store.drop(capsules[0].id)
    take(store)


def test_blocks_are_reused(store: CapsuleStore, allocate: Counting) -> None:
    for value in range(20):
        store.drop(take(store, value=value).id)
    assert allocate.count == 2 + 1


def test_a_failed_fill_leaves_nothing(store: CapsuleStore) -> None:
    take(store, name="start", value=5)

    def fail(block: Block) -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        store.create(
            fill=fail,
            position=Position(),
            fingerprint=FINGERPRINT,
            parent="",
            name="start",
            replace=True,
        )
    assert bytes(store.get("start").block.view()[:1]) == b"\x05"
    assert store.used_bytes == SIZE


def test_pins_and_homes_are_not_dropped(store: CapsuleStore) -> None:
    take(store, name="home", pinned=True)
    pinned = store.pin(take(store, name="kept").id, pinned=True)
    for key in ("home", "kept"):
        with pytest.raises(CapsulePinnedError):
            store.drop(key)
    with pytest.raises(CapsulePinnedError):
        store.pin("home", pinned=False)
    store.pin(pinned.id, pinned=False)
    store.drop("kept")


def test_children_of_a_dropped_parent_become_its_parents(store: CapsuleStore) -> None:
    root = take(store)
    middle = take(store, parent=root.id)
    leaf = take(store, parent=middle.id)
    store.drop(middle.id)
    assert store.get(leaf.id).parent == root.id
    assert list(store.ancestors(leaf.id)) == [leaf.id, root.id]


def test_automatic_capsules_have_blocks_of_their_own(store: CapsuleStore) -> None:
    for _ in range(3):
        take(store)
    ring = [take(store, automatic=True) for _ in range(2)]
    with pytest.raises(CapsuleQuotaError):
        take(store, automatic=True)
    with pytest.raises(CapsulePinnedError, match="own"):
        store.drop(ring[0].id)
    store.recycle(ring[0])
    take(store, automatic=True)


def test_a_pinned_automatic_capsule_becomes_the_callers(store: CapsuleStore) -> None:
    ring = [take(store, automatic=True, value=value) for value in (1, 2)]
    store.pin(ring[0].id, pinned=True)
    store.recycle(ring[0])
    assert bytes(store.get(ring[0].id).block.view()[:1]) == b"\x01"
    assert store.used_bytes == SIZE
    take(store, automatic=True)


def test_a_pinned_capsule_is_not_replaced_but_a_home_is(store: CapsuleStore) -> None:
    take(store, name="kept", pinned=True)
    with pytest.raises(CapsulePinnedError):
        take(store, name="kept", replace=True)
    take(store, name="home", pinned=True)
    take(store, name="home", pinned=True, replace=True)


def test_a_name_may_not_be_another_capsules_id(store: CapsuleStore) -> None:
    capsule = take(store)
    with pytest.raises(CapsuleNameTakenError, match="id"):
        take(store, name=capsule.id, replace=True)
    assert store.get(capsule.id) is capsule


def test_homes_have_names() -> None:
    assert [home_name(i) for i in (0, 1, 12)] == ["home", "home.1", "home.12"]
    assert is_home("home.3")
    assert not is_home("home.x")
    assert not is_home("homely")
