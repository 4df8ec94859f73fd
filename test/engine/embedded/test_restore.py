"""Snapshot, restore, reset and rollback: exact, whole, and with a control each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.errors import (
    AbandonedError,
    CapsuleNameError,
    CapsuleNameTakenError,
    CapsuleNotFoundError,
    CapsulePinnedError,
    CapsuleQuotaError,
    NoBoundaryError,
    StaleGenerationError,
    StaleStampError,
    UnknownEnvironmentError,
)

MakeRig = Callable[..., Any]


def _chunks(rig: Any, positions: list[tuple[float, float]]) -> list[bytes]:
    actions = []
    for x, y in positions:
        rig.observe(x, y)
        actions += [record.values for record in rig.step(4).actions]
    return actions


PATH = [(0.1, 0.2), (0.15, 0.1), (0.3, -0.1)]


@pytest.mark.parametrize("standby", [0, 1])
def test_restore_brings_back_the_same_bytes_and_actions(make_rig: MakeRig, standby: int) -> None:
    rig = make_rig(num_standby_lanes=standby)
    rig.ready()
    rig.step(5)
    capsule = rig.snapshot("here")
    frozen = rig.state()
    first = _chunks(rig, PATH)
    assert rig.state() != frozen
    moved = rig.restore("here")
    assert (moved.capsule_id, moved.tick, moved.path) == (capsule.id, 5, "copy")
    assert rig.state() == frozen
    assert _chunks(rig, PATH) == first


def test_without_the_restore_the_same_inputs_and_noise_give_other_actions(rig: Any) -> None:
    rig.step(4)
    rig.snapshot("here")
    seed, counter = rig.inspect().noise_seed, rig.inspect().noise_counter
    first = _chunks(rig, PATH)
    rig.engine.core.reseed(rig.engine.environment(0), seed, counter)
    assert _chunks(rig, PATH) != first


def test_reset_by_flip_equals_reset_by_copy(rig: Any) -> None:
    rig.settle()
    rig.step(6)
    first = rig.reset()
    flipped = rig.state()
    rig.goal(0.5, -0.5)
    rig.observe(0.1, 0.2)
    rig.step(6)
    second = rig.reset()
    assert (first.path, second.path) == ("flip", "copy")
    assert rig.state() == flipped
    assert second.generation == first.generation + 1


def test_a_flipped_out_lane_is_refilled_after_the_delay(rig: Any) -> None:
    rig.settle()
    assert rig.reset().path == "flip"
    assert rig.engine.next_background_ns() == rig.now_ns + 3_000_000
    rig.settle()
    assert rig.reset().path == "flip"


def test_a_restored_capsule_brings_its_goal_back(rig: Any) -> None:
    rig.step(4)
    capsule = rig.snapshot()
    rig.goal(-0.9, 0.9)
    rig.observe(0.1, 0.2)
    rig.step(4)
    rig.restore(capsule.id)
    rig.observe(0.1, 0.2)
    restored = rig.step(4).chunks[0]
    rig.restore(capsule.id, keep_goal=True)
    assert restored.provenance.goal_sequence == 1


def test_keep_goal_leaves_the_live_goal_in_force(rig: Any) -> None:
    rig.step(4)
    capsule = rig.snapshot()
    live = rig.goal(-0.9, 0.9)
    rig.restore(capsule.id, keep_goal=True)
    rig.observe(0.1, 0.2)
    assert rig.step(4).chunks[0].provenance.goal_sequence == live


def test_reset_drops_goals_and_waits_for_new_ones(rig: Any) -> None:
    rig.step(4)
    rig.reset()
    with pytest.raises(AbandonedError, match="goal"):
        rig.step()
    rig.goal(0.0, 0.0)
    with pytest.raises(AbandonedError, match="observation"):
        rig.step()
    rig.observe(0.0, 0.0)
    assert rig.step().tick == 1


def test_nothing_from_before_a_reset_acts_after_it(rig: Any) -> None:
    slot, ticket, _ = rig.engine.loan(rig.goals._ring)
    rig.reset(stamp_ns=500)
    with pytest.raises(StaleGenerationError):
        rig.engine.commit(rig.goals._ring, slot, ticket, stamp_ns=900, source_sequence=0)
    with pytest.raises(StaleStampError):
        rig.goal(0.1, 0.1, stamp_ns=499)
    with pytest.raises(StaleStampError):
        rig.observe(0.1, 0.1, stamp_ns=499)
    rig.goal(0.1, 0.1, stamp_ns=500)
    rig.observe(0.1, 0.1, stamp_ns=500)
    assert rig.step().tick == 1
    assert (rig.status().dropped_goals, rig.status().dropped_observations) == (2, 1)


def test_reset_with_a_seed_draws_other_noise(rig: Any) -> None:
    chunks: dict[int, list[bytes]] = {}
    for seed in (7, 8, 7):
        rig.reset(seed=seed)
        rig.goal(0.5, 0.5)
        rig.observe(0.1, 0.1)
        chunks.setdefault(seed, []).append(rig.step(4).chunks[0].actions)
    assert chunks[7][0] == chunks[7][1] != chunks[8][0]


def test_a_repeated_episode_id_answers_as_the_first_did(rig: Any) -> None:
    first = rig.reset(episode_id="episode-1")
    rig.goal(0.5, 0.5)
    rig.observe(0.1, 0.1)
    rig.step(2)
    state = rig.state()
    assert rig.reset(episode_id="episode-1", stamp_ns=700) == first
    assert first.barrier_ns == 0
    assert rig.state() == state
    assert rig.reset(episode_id="episode-2").generation == first.generation + 1


def test_rollback_goes_back_along_the_ring(rig: Any) -> None:
    states = []
    for x, y in PATH:
        rig.observe(x, y)
        rig.step(1)
        states.append(rig.state())
        rig.step(3)
    rig.observe(0.0, 0.0)
    rig.step(2)
    moved = rig.engine.handle(protocol.Rollback(1, 0, 3, ""))
    assert moved.tick == 5
    assert rig.state() == states[1]
    moved = rig.engine.handle(protocol.Rollback(1, 0, 1, ""))
    assert moved.tick == 1
    assert rig.state() == states[0]
    with pytest.raises(NoBoundaryError):
        rig.engine.handle(protocol.Rollback(1, 0, 1, ""))
    assert rig.state() == states[0]


def test_rollback_reaches_a_named_ancestor_but_no_stranger(rig: Any) -> None:
    ancestor = rig.snapshot("ancestor")
    for _ in range(12):  # more chunks than the ring keeps
        rig.observe(0.1, 0.1)
        rig.step(4)
    stranger = rig.snapshot("stranger")
    rig.engine.handle(protocol.Rollback(1, 0, 0, "ancestor"))
    assert rig.engine.environment(0).parent == ancestor.id
    with pytest.raises(NoBoundaryError, match="stranger"):
        rig.engine.handle(protocol.Rollback(1, 0, 0, stranger.name))


def test_refused_verbs_change_nothing(make_rig: MakeRig) -> None:
    capsule_bytes = make_rig().engine.core.layout.capsule_bytes
    rig = make_rig(capsule_quota_bytes=2 * capsule_bytes, capsule_host_quota_bytes=0)
    rig.ready()
    rig.step(3)
    rig.snapshot("taken")
    before = rig.state(), rig.status().generation, rig.status().num_capsules
    refused: dict[type[Exception], Callable[[], object]] = {
        CapsuleNotFoundError: lambda: rig.restore("nowhere"),
        CapsuleNameTakenError: lambda: rig.snapshot("taken"),
        CapsuleNameError: lambda: rig.snapshot("../escape"),
        CapsuleQuotaError: lambda: rig.snapshot("one-too-many"),
        CapsulePinnedError: lambda: rig.engine.handle(protocol.Drop(1, "home")),
    }
    for error, call in refused.items():
        with pytest.raises(error):
            call()
        assert (rig.state(), rig.status().generation, rig.status().num_capsules) == before
    with pytest.raises(UnknownEnvironmentError):
        rig.engine.environment(1)


def test_a_replaced_home_is_what_resets_restore(rig: Any) -> None:
    rig.settle()
    rig.step(2)
    rig.snapshot("home", replace=True)
    state = rig.state()
    rig.step(1)
    rig.settle()
    assert rig.reset().path == "flip"
    assert rig.state() == state


def test_outputs_name_the_capsule_last_brought_back(rig: Any) -> None:
    assert rig.step(1).actions[0].provenance.capsule_id == ""
    capsule = rig.snapshot("here")
    assert rig.step(1).actions[0].provenance.capsule_id == ""
    rig.restore("here")
    rig.observe(0.1, 0.1)
    assert rig.step(6).actions[-1].provenance.capsule_id == capsule.id
    (branch,) = rig.fork("home", count=1).branches
    home = rig.engine.core.store.get("home").id
    assert rig.step(1, branch=branch).actions[0].provenance.capsule_id == home
