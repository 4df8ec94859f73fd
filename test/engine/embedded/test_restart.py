"""What an engine finds in its folder when it starts; every rig here is an engine's life."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.errors import (
    CapsuleArchiveError,
    CapsuleFolderError,
    FingerprintMismatchError,
)

MakeRig = Callable[..., Any]


@pytest.fixture
def device() -> str:
    """The host: its thread count is part of the fingerprint, and so an engine that differs."""
    return "cpu"


def names(rig: Any) -> set[str]:
    return {one.name for one in rig.engine.core.store if one.name}


def load(rig: Any, file: str, name: str = "") -> protocol.CapsuleInfo:
    reply = rig.engine.handle(protocol.Load(1, 0, file, name, False, False))
    assert isinstance(reply, protocol.CapsuleReply)
    return reply.capsule


def save(rig: Any, capsule: str, file: str) -> None:
    rig.engine.handle(protocol.Save(1, 0, capsule, file, False))


@pytest.fixture
def first(make_rig: MakeRig, tmp_path: Path) -> Any:
    """An engine that has run, persisted "mid" and saved it as "copy"."""
    rig = make_rig(capsule_folder=str(tmp_path))
    rig.ready()
    rig.step(3)
    rig.snapshot("mid", persist=True)
    save(rig, "mid", "copy")
    return rig


def test_what_does_not_fit_stays_on_disk_and_is_named(
    first: Any, make_rig: MakeRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = first.state()
    first.engine.close()
    caplog.set_level(logging.WARNING)
    second = make_rig(capsule_folder=str(tmp_path), num_threads=2)
    assert names(second) == set()
    assert "'mid' stays on disk" in caplog.text
    assert "threads: here 2, there 1" in caplog.text
    with pytest.raises(FingerprintMismatchError, match="threads"):
        load(second, "copy")
    second.ready()  # its home is written beside the other's
    second.engine.close()
    third = make_rig(capsule_folder=str(tmp_path), num_threads=1)
    assert names(third) == {"home", "mid"}
    third.ready()
    third.restore("mid")
    assert third.state() == state
    third.engine.close()
    fourth = make_rig(capsule_folder=str(tmp_path), num_threads=2)
    assert names(fourth) == {"home"}
    fourth.engine.close()
    make_rig(num_threads=1)  # the count is the process's


def test_a_damaged_persisted_capsule_is_left_alone(
    first: Any, make_rig: MakeRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first.engine.close()
    home = next(tmp_path.rglob("home.capsule"))
    damaged = bytearray(home.read_bytes())
    damaged[-1] ^= 1
    home.write_bytes(damaged)
    second = make_rig(capsule_folder=str(tmp_path))
    assert "'home' stays on disk" in caplog.text
    assert names(second) == {"mid"}
    second.ready()
    second.step(2)
    second.reset()
    second.engine.close()
    assert home.read_bytes() == damaged
    third = make_rig(capsule_folder=str(tmp_path))
    assert names(third) == {"home", "mid"}


def test_a_damaged_file_is_refused_and_nothing_changes(first: Any, tmp_path: Path) -> None:
    path = tmp_path / "copy.capsule"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    before = (first.state(), first.status().tiers, names(first))
    with pytest.raises(CapsuleArchiveError):
        load(first, "copy", "two")
    assert (first.state(), first.status().tiers, names(first)) == before


def test_a_second_engine_of_the_name_leaves_the_folder_alone(
    first: Any, make_rig: MakeRig, tmp_path: Path
) -> None:
    with pytest.raises(CapsuleFolderError, match="another engine named"):
        make_rig(capsule_folder=str(tmp_path))
    other = make_rig(name="other", capsule_folder=str(tmp_path))
    assert names(other) == set()
    assert load(other, "copy").name == "mid"  # saved files are there for all
    first.step(1)


def test_pins_and_replacements_survive_as_they_were_last(
    first: Any, make_rig: MakeRig, tmp_path: Path
) -> None:
    first.step(2)
    late = first.state()
    first.snapshot("home", replace=True)
    first.engine.handle(protocol.Pin(1, "mid", pinned=True))
    first.engine.close()
    second = make_rig(capsule_folder=str(tmp_path))
    assert second.state() == late  # it begins where home was taken
    assert second.engine.core.store.get("mid").pinned
    assert second.engine.core.store.get("mid").tier == "host"
    second.ready()
    second.step(3)
    second.reset()
    assert second.state() == late


def test_a_dropped_persisted_capsule_is_gone_after_a_restart(
    first: Any, make_rig: MakeRig, tmp_path: Path
) -> None:
    first.engine.handle(protocol.Drop(1, "mid"))
    first.engine.close()
    assert names(make_rig(capsule_folder=str(tmp_path))) == {"home"}


def test_a_clock_that_jumps_back_changes_no_order(
    make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((1000, 2000, 100, 200, 300, 400))
    clock = SimpleNamespace(time_ns=lambda: next(times))
    monkeypatch.setattr("flashrt_ros.engine.storage.time", clock)
    first = make_rig(capsule_folder=str(tmp_path), rollback_depth=0)
    first.ready()
    for name in ("one", "two", "three"):
        first.step(1)
        first.snapshot(name, persist=True)
    collected = first.engine.handle(protocol.Collect(1, 0, "", "", True, 1, True, 0))
    assert [one.name for one in collected.capsules] == ["one", "two"]
    assert first.engine.core.store.get("three").created_ns < 1000
    first.engine.close()
    second = make_rig(capsule_folder=str(tmp_path), rollback_depth=0)
    assert [one.name for one in second.engine.core.store] == ["home", "one", "two", "three"]
    collected = second.engine.handle(protocol.Collect(1, 0, "", "", True, 1, True, 0))
    assert [one.name for one in collected.capsules] == ["one", "two"]


def test_a_loaded_home_is_the_one_that_a_reset_restores(first: Any) -> None:
    save(first, "home", "start")
    first.step(2)
    first.snapshot("home", replace=True)
    first.engine.handle(protocol.Load(1, 0, "start", "home", False, True))
    first.reset()
    assert first.status().tick == 0
    first.settle()
    assert first.reset().path == "flip"
    assert first.status().tick == 0


def test_files_in_a_circle_are_taken_in(
    first: Any, make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mid = first.engine.core.store.get("mid")
    child = first.snapshot("child", persist=True)
    first.engine.core.store.change(mid, parent=child.id)
    monkeypatch.setattr(
        type(first.engine.core.store), "nearest_persisted", lambda store, one: one.parent
    )
    first.engine.core.storage.persist(first.engine.core.store.get("mid"))
    first.engine.core.storage.persist(first.engine.core.store.get("child"))
    first.engine.close()
    monkeypatch.undo()
    second = make_rig(capsule_folder=str(tmp_path))
    assert names(second) == {"home", "mid", "child"}
    for one in second.engine.core.store:
        assert len(list(second.engine.core.store.ancestors(one.id))) <= 3
