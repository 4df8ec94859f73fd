"""Tiers of a device with memory of its own: device, host, disk, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import ArenaLayout

pytestmark = pytest.mark.gpu

BLOCK_BYTES = ArenaLayout.of(MinimalPolicy().buffers()).capsule_bytes


@pytest.fixture
def device() -> str:
    return "cuda"


@pytest.fixture
def small(make_rig: Callable[..., Any], tmp_path: Path) -> Any:
    """Room for three capsules on the device and two on the host."""
    rig = make_rig(
        capsule_quota_bytes=3 * BLOCK_BYTES,
        capsule_host_quota_bytes=2 * BLOCK_BYTES,
        capsule_folder=str(tmp_path),
    )
    rig.ready()
    return rig


def test_the_least_used_spill_down_and_come_back_whole(small: Any) -> None:
    states = {}
    for index in range(8):
        small.step(1)
        small.observe(0.1 * index, 0.2)
        small.snapshot(f"c{index}")
        states[f"c{index}"] = small.state()
    store = small.engine.core.store
    tiers = {name: store.get(name).tier for name in states}
    assert store.get("home").tier == "device"
    assert set(tiers.values()) == {"device", "host", "disk"}
    assert tiers["c0"] == "disk"
    for name, state in states.items():
        small.step(2)  # one alone could lead to just the state that follows
        assert state != small.state()
        small.restore(name)
        assert small.state() == state
        small.observe(0.3, 0.3)


def test_a_pin_stays_on_the_device(small: Any) -> None:
    small.step(1)
    small.snapshot("pinned", pinned=True)
    for index in range(4):
        small.snapshot(f"c{index}")
        assert small.engine.core.store.get("pinned").tier == "device"
