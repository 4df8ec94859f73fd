from __future__ import annotations

import pytest

from flashrt_ros.demo.embedded import Outcome, drive, inspect_transport, reach_rate
from flashrt_ros.demo.hidden_state import HIDDEN, HiddenStatePolicy
from flashrt_ros.models.flow_policy import FlowPolicy
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.proof.prove import prove
from flashrt_ros.sim.episodes import HELD_OUT_SEEDS


def test_a_goal_is_read_in_place() -> None:
    seen = inspect_transport(MinimalPolicy(), staged=False)
    assert seen.goal_transport_copies == 0
    assert seen.read_inode != 0


def test_a_staged_goal_counts_as_a_copy() -> None:
    seen = inspect_transport(MinimalPolicy(), staged=True)
    assert seen.goal_transport_copies == 1
    assert seen.read_inode == 0


def test_hidden_state_is_caught_and_the_base_is_not() -> None:
    findings = prove(HiddenStatePolicy).findings
    assert HIDDEN in {finding.subject for finding in findings}
    assert prove(MinimalPolicy).is_proved


def test_an_episode_runs_to_its_end_and_again_the_same() -> None:
    pytest.importorskip("gym_pusht", reason="the extra 'demo' brings the table")
    model = FlowPolicy.untrained(0)
    told: list[Outcome] = []
    first = drive(model, HELD_OUT_SEEDS[:1], on_episode=told.append)
    assert first == told == drive(model, HELD_OUT_SEEDS[:1])
    assert first != drive(model, HELD_OUT_SEEDS[:1], is_blackened=True)
    assert first[0].seed == HELD_OUT_SEEDS[0]
    assert not first[0].is_reached


def test_the_reach_rate_is_a_share() -> None:
    reached = Outcome(1, True, 0.0, 0.0, 30)
    missed = Outcome(2, False, 0.2, 0.0, 80)
    assert reach_rate([reached, missed, reached, reached]) == 0.75
