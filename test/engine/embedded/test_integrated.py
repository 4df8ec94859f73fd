"""What an engine keeps capsules in, by whether the device has memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.engine import assembly
from flashrt_ros.errors import ConfigError
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.cuda import CudaBackend
from flashrt_ros.runtime.spec import ArenaLayout

MakeRig = Callable[..., Any]

BLOCK_BYTES = ArenaLayout.of(MinimalPolicy().buffers()).capsule_bytes


class OwnMemory(CpuBackend):
    """The host's backend, as a device with memory of its own would show itself.

    Attributes:
        blocks: Addresses given as the device's memory.
        host_blocks: Addresses given as the host's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks: set[int] = set()
        self.host_blocks: set[int] = set()

    @property
    def has_own_memory(self) -> bool:
        return True

    def allocate_block(self, num_bytes: int) -> Block:
        block = super().allocate_block(num_bytes)
        self.blocks.add(block.address)
        return block

    def allocate_host_block(self, num_bytes: int) -> Block:
        block = super().allocate_host_block(num_bytes)
        self.host_blocks.add(block.address)
        return block


class Integrated(OwnMemory):
    """The same device, integrated with its host."""

    @property
    def has_own_memory(self) -> bool:
        return False


INTEGRATED = [
    pytest.param(Integrated, id="double"),
    pytest.param(lambda: CudaBackend(is_integrated=True), id="cuda", marks=pytest.mark.gpu),
]
OWN = [
    pytest.param(OwnMemory, id="double"),
    pytest.param(lambda: CudaBackend(is_integrated=False), id="cuda", marks=pytest.mark.gpu),
]


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def make_small(
    make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Makes an engine on a given backend, with room for two capsules in each memory tier."""

    def make(create: Callable[[], Backend], **options: object) -> Any:
        monkeypatch.setattr(assembly, "make_backend", lambda device: create())
        rig = make_rig(
            capsule_quota_bytes=2 * BLOCK_BYTES,
            capsule_host_quota_bytes=2 * BLOCK_BYTES,
            capsule_folder=str(tmp_path),
            **options,
        )
        rig.ready()
        return rig

    return make


def tier_names(rig: Any) -> list[str]:
    return [tier.name for tier in rig.engine.core.store.room.tiers]


def spill(rig: Any) -> dict[str, bytes]:
    """Take more capsules than there is memory for; returns the state of each."""
    states = {}
    for index in range(6):
        rig.step(1)
        rig.observe(0.1 * index, 0.2)
        rig.snapshot(f"c{index}")
        states[f"c{index}"] = rig.state()
    return states


def assert_restored(rig: Any, states: dict[str, bytes]) -> None:
    """Restore each capsule; without the restore the state is another."""
    for name, state in states.items():
        rig.step(2)  # one would lead from each to the next
        assert rig.state() != state
        rig.restore(name)
        assert rig.state() == state
        rig.observe(0.1, 0.2)


@pytest.mark.parametrize("create", INTEGRATED)
def test_an_integrated_device_has_one_tier_of_memory(
    make_small: Callable[..., Any], create: Callable[[], Backend]
) -> None:
    rig = make_small(create)
    assert tier_names(rig) == ["host"]
    states = spill(rig)
    store = rig.engine.core.store
    assert store.get("home").tier == "host"
    assert {store.get(name).tier for name in states} == {"host", "disk"}
    assert {tier.name for tier in rig.status().tiers} == {"host", "disk"}
    assert_restored(rig, states)


@pytest.mark.parametrize("create", OWN)
def test_a_device_with_memory_of_its_own_has_two(
    make_small: Callable[..., Any], create: Callable[[], Backend]
) -> None:
    rig = make_small(create)
    assert tier_names(rig) == ["device", "host"]
    states = spill(rig)
    store = rig.engine.core.store
    assert store.get("home").tier == "device"
    assert {store.get(name).tier for name in states} == {"device", "host", "disk"}
    assert_restored(rig, states)


@pytest.mark.parametrize("create", INTEGRATED)
def test_a_flip_reaches_an_integrated_device(
    make_small: Callable[..., Any], create: Callable[[], Backend]
) -> None:
    rig = make_small(create)
    home = rig.state()
    for _ in range(2):
        rig.step(3)
        assert rig.state() != home
        rig.settle()
        assert rig.reset().path == "flip"
        assert rig.state() == home
        rig.goal(0.5, -0.5)
        rig.observe(0.1, 0.2)


@pytest.mark.parametrize(
    ("create", "own"), [(OwnMemory, True), (Integrated, False)], ids=["own", "integrated"]
)
def test_capsules_lie_in_the_memory_of_their_tier(
    make_small: Callable[..., Any], create: Callable[[], Backend], own: bool
) -> None:
    rig = make_small(create)
    spill(rig)
    core = rig.engine.core
    blocks = {
        name: {c.residence.blocks[name].address for c in core.store if name in c.residence.blocks}
        for name in tier_names(rig)
    }
    assert all(blocks.values())
    if own:
        assert blocks["device"] <= core.backend.blocks
        assert blocks["host"] <= core.backend.host_blocks
    else:
        # what graphs are near: there is no memory further away to keep it in
        assert blocks["host"] <= core.backend.blocks


@pytest.mark.parametrize(
    ("create", "tier"), [(OwnMemory, "host"), (OwnMemory, "device"), (Integrated, "host")]
)
def test_the_rollback_ring_lies_where_it_is_told_to(
    make_small: Callable[..., Any], create: Callable[[], Backend], tier: str
) -> None:
    rig = make_small(create, rollback_tier=tier, rollback_depth=2)
    rig.step(6)
    ring = [capsule for capsule in rig.engine.core.store if capsule.is_automatic]
    assert ring
    assert {capsule.tier for capsule in ring} == {tier}


def test_a_ring_in_memory_that_there_is_not_is_refused(make_small: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="rollback_tier"):
        make_small(Integrated, rollback_tier="device")
