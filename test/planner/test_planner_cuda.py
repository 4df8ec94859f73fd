"""A planner engine on a device: the same tokens from a capsule, after an interruption, and cold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashrt_ros.engine import protocol
from test.planner.conftest import Rig
from test.planner.test_turns import cold, tokens_of

pytestmark = pytest.mark.gpu


def test_on_a_device_a_turn_is_the_whole_text_computed_cold(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(device="cuda")
    rig.instruct("Something else entirely, so that the lane is dirty.")
    done = rig.instruct("go round the block")
    tokens, _ = cold(rig, tokens_of("\ngo round the block\n"), len(done.tokens))
    assert tuple(tokens) == done.tokens


@pytest.mark.parametrize("num_nodes", [1, 3, 9])
def test_on_a_device_an_interrupted_turn_goes_on(
    make_rig: Callable[..., Rig], num_nodes: int
) -> None:
    rig = make_rig(device="cuda")
    long = "go round the block, " * 8
    alone = rig.instruct(long)
    rig.begin(long)
    rig.run(num_nodes)
    rig.instruct("stop there")
    assert rig.ask(protocol.ResumeTurn).tokens == alone.tokens


def test_on_a_device_candidates_are_what_each_seed_gives(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(device="cuda")
    alone = [rig.instruct("go left", temperature=2.0, seed=seed) for seed in (3, 1)]
    best = rig.instruct("go left", temperature=2.0, seeds=(3, 1))
    assert [one.text for one in best.candidates] == [done.text for done in alone]
