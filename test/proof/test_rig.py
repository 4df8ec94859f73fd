"""The rig a proof runs on: it overwrites what it says, and puts back what was there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from flashrt_ros.models.base import CHUNK
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.proof.rig import Rig
from flashrt_ros.proof.walk import History, Walk
from flashrt_ros.runtime.devices import make_backend
from flashrt_ros.runtime.spec import Role
from test.proof.changed_policy import DEVICES


@pytest.fixture(params=DEVICES)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with make_backend(request.param) as backend, Rig(MinimalPolicy(), backend=backend) as rig:
        yield rig


def saved_regions(rig: Rig) -> list[tuple[torch.Tensor, ...]]:
    """Copy everything that is neither STATE nor INPUT of lane 0."""
    saved = [region.save() for region in rig.regions(0)]
    rig.backend.synchronize()
    return saved


def test_every_byte_outside_state_and_input_is_poisoned(rig: Rig) -> None:
    rig.initialise(0)
    Walk(rig, 0, History(rig.model, 0)).frames(6)
    before = rig.capsule(0)
    rig.poison(0, 0xFF)
    assert rig.capsule(0) == before
    for name, place in rig.layout.by_name.items():
        is_kept = place.spec.role in (Role.STATE, Role.INPUT)
        value = rig.value(0, name).reshape(-1).view(torch.uint8)
        assert is_kept or bool((value == 0xFF).all()), name
    assert all(bool((part == 0xFF).all()) for parts in saved_regions(rig) for part in parts)
    names = [region.name for region in rig.regions(0)]
    assert {"noise ring", "slots of channel 'goal'", "lane 1"} <= set(names)
    private = [name for name in names if name.startswith("private memory of ")]
    assert all(sum(str(key) in name for name in private) == 1 for key in rig.programs)
    assert len(names) == len(set(names))


def test_what_is_put_back_is_what_was_there(rig: Rig) -> None:
    rig.initialise(0)
    history = History(rig.model, 0)
    walk = Walk(rig, 0, history)
    walk.frames(6)
    walk.settle()
    capsule, saved = rig.capsule(0), saved_regions(rig)
    expected = Walk(rig, 0, history, ordinal=walk.ordinal).frames(8)
    rig.poison(0, 0x3F)
    for region, parts in zip(rig.regions(0), saved, strict=True):
        region.load(parts)
    for parts, before in zip(saved_regions(rig), saved, strict=True):
        assert all(map(torch.equal, parts, before))
    rig.restore(0, capsule)
    assert Walk(rig, 0, history, ordinal=walk.ordinal).frames(8) == expected


def test_a_walk_without_the_restore_differs(rig: Rig) -> None:
    # control: the comparison on which every check rests can fail
    history = History(rig.model, 0)
    rig.initialise(0)
    frames = Walk(rig, 0, history).frames(8)
    assert Walk(rig, 0, history).frames(8) != frames
    rig.initialise(0)
    assert Walk(rig, 0, history).frames(8) == frames


def test_a_lane_is_copied_to_the_last_byte(rig: Rig) -> None:
    rig.initialise(0)
    rig.initialise(1)
    assert rig.differing(0, 1) == []
    Walk(rig, 0, History(rig.model, 0)).frames(6)
    assert CHUNK in rig.differing(0, 1)
    rig.copy_lane(1, 0)
    assert rig.differing(0, 1) == []
    assert rig.differing(1, 0) == []
