"""Verbs over capsules that lie on disk, in an embedded engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.errors import (
    CapsuleArchiveError,
    CapsuleQuotaError,
    ConfigError,
    FlashrtError,
)
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import ArenaLayout

BLOCK_BYTES = ArenaLayout.of(MinimalPolicy().buffers()).capsule_bytes

MakeRig = Callable[..., Any]


@pytest.fixture
def device() -> str:
    """The host, which has one tier of memory; test_device_tiers.py has the one with two."""
    return "cpu"


@pytest.fixture
def small(make_rig: MakeRig, tmp_path: Path) -> Any:
    """An engine with room for home and one more capsule in memory."""
    rig = make_rig(capsule_quota_bytes=2 * BLOCK_BYTES, capsule_folder=str(tmp_path))
    rig.ready()
    return rig


def lower(rig: Any, name: str) -> None:
    """Make a capsule and push it to disk."""
    rig.snapshot(name)
    rig.snapshot(f"{name}.pusher")
    assert rig.engine.core.store.get(name).tier == "disk"


def begin(rig: Any, request: protocol.Request) -> list[Any]:
    """Begin a verb; the list gets its answer."""
    answers: list[Any] = []
    rig.engine.begin(request, answers.append)
    return answers


def restore(capsule: str) -> protocol.Restore:
    return protocol.Restore(1, 0, capsule, False, None, False, "", 0)


def test_ticks_go_on_while_a_restore_waits(small: Any) -> None:
    small.step(2)
    lower(small, "low")
    state = small.state()
    small.step(2)
    before = small.status()
    answers = begin(small, restore("low"))
    assert not answers
    assert small.status().generation == before.generation  # nothing has changed so far
    small.step(1)
    small.finish(answers)
    assert answers[0].tick == 2
    assert small.state() == state


def test_every_verb_fetches_what_it_needs(small: Any) -> None:
    small.step(2)
    lower(small, "low")
    state = small.state()
    assert small.fork("low", count=1).capsule_id
    small.step(1)
    lower(small, "lower")
    assert small.restore("low").tick == 2
    assert small.state() == state
    small.observe(0.1, 0.2)
    small.step(3)
    lower(small, "lowest")
    reply = small.engine.handle(protocol.Rollback(1, 0, 1, "low"))
    assert reply.tick == 2
    assert small.state() == state


def test_a_cancelled_wait_moves_nothing(small: Any) -> None:
    small.step(2)
    lower(small, "low")
    small.step(2)
    generation = small.status().generation
    answers: list[Any] = []
    wait = small.engine.begin(restore("low"), answers.append)
    small.engine.cancel(wait)
    while small.engine.core.storage.mover.wait(1.0):
        small.engine.background(small.now_ns)
    assert not answers
    assert small.status().generation == generation


def test_a_capsule_dropped_while_it_is_waited_for_is_not_found(small: Any) -> None:
    lower(small, "low")
    answers = begin(small, restore("low"))
    small.engine.handle(protocol.Drop(1, "low"))
    small.finish(answers)
    assert isinstance(answers[0], FlashrtError)
    assert answers[0].name == "CAPSULE_NOT_FOUND"


def test_a_damaged_spill_refuses_the_restore_and_changes_nothing(
    small: Any, tmp_path: Path
) -> None:
    lower(small, "low")
    file = next(path for path in tmp_path.rglob("*.capsule") if "spilled" in path.parts)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    small.step(1)
    state, generation = small.state(), small.status().generation
    with pytest.raises(CapsuleArchiveError):
        small.restore("low")
    assert (small.state(), small.status().generation) == (state, generation)


def test_pins_that_leave_no_room_refuse_with_the_figures(small: Any) -> None:
    small.snapshot("pin", pinned=True)
    state = small.state()
    with pytest.raises(CapsuleQuotaError, match=f"{2 * BLOCK_BYTES} of them pinned"):
        small.snapshot("more")
    assert small.state() == state
    assert not small.engine.core.store.has("more")
    small.engine.handle(protocol.Pin(1, "pin", pinned=False))
    small.snapshot("more")


def test_a_pinned_capsule_stays_while_the_set_grows(small: Any, make_rig: MakeRig) -> None:
    for index in range(20):
        small.step(1)
        small.snapshot(f"n{index}")
        assert small.engine.core.store.get("home").tier == "host"
    tiers = {one.name: one for one in small.status().tiers}
    assert tiers["host"].used_bytes <= 2 * BLOCK_BYTES
    assert tiers["disk"].num_capsules == 19


def test_spilled_files_end_with_their_engine(small: Any, tmp_path: Path) -> None:
    lower(small, "low")
    small.engine.close()
    assert [path.name for path in tmp_path.rglob("*.capsule")] == ["home.capsule"]


def test_ring_boundaries_every_so_many_ticks(make_rig: MakeRig) -> None:
    rig = make_rig(rollback_every_ticks=3, rollback_depth=4)
    rig.ready()
    rig.step(14)
    ticks = [one.position.tick for one in rig.engine.environment(0).boundaries]
    assert ticks == [3, 6, 9, 12]


def test_a_ring_in_a_tier_that_is_not_there_is_refused(make_rig: MakeRig) -> None:
    with pytest.raises(ConfigError, match="rollback_tier"):
        make_rig(rollback_tier="device")
    rig = make_rig(rollback_tier="host")
    rig.ready()
    rig.step(9)
    assert rig.engine.environment(0).boundaries[-1].tier == "host"
