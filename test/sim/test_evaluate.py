"""The shipped policy in closed loop; untrained weights and a black image must fail."""

from __future__ import annotations

import pytest

from flashrt_ros.models.flow_policy import FlowPolicy
from flashrt_ros.sim.episodes import HELD_OUT_SEEDS
from flashrt_ros.sim.evaluate import Outcome, evaluate, main, run_episode, summarise
from flashrt_ros.sim.table import Table

# Not the episodes of the demo, which takes the first held-out seeds.
SEEDS = HELD_OUT_SEEDS[5000:5020]


@pytest.fixture(scope="module")
def trained() -> FlowPolicy:
    return FlowPolicy.load()


def test_trained_weights_reach_and_controls_do_not(trained: FlowPolicy) -> None:
    seen = summarise(evaluate(trained, SEEDS))
    black = summarise(evaluate(trained, SEEDS, is_black=True))
    untrained = summarise(evaluate(FlowPolicy.untrained(0), SEEDS))
    assert seen.reach_rate >= 0.9
    assert black.reach_rate <= 0.6
    assert untrained.reach_rate <= 0.1


def test_episodes_repeat_exactly(trained: FlowPolicy) -> None:
    with Table() as table:
        first, second = (run_episode(trained, table, table.reset(SEEDS[0])) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("distance", "shift", "is_success"),
    [(0.0, 0.0, True), (0.015, 0.005, True), (0.0151, 0.0, False), (0.0, 0.0051, False)],
)
def test_success_needs_both(distance: float, shift: float, is_success: bool) -> None:
    outcome = Outcome(seed=1, is_detour=True, distance=distance, shift=shift, num_ticks=9)
    assert outcome.is_success is is_success


def test_command_line_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--episodes", "2", "--untrained", "0"]) == 0
    assert '"episodes": 2' in capsys.readouterr().out
