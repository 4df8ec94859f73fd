"""Episodes are functions of their seed, fair, and mostly need a way round the block."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.sim.episodes import (
    CLEARANCE_M,
    HELD_OUT_SEEDS,
    PUSH_M,
    REACH_M,
    Episode,
    sample_episode,
)
from flashrt_ros.sim.expert import (
    AGENT_RADIUS_M,
    block_corners,
    clearance,
    shortest_paths,
    targets,
)
from flashrt_ros.sim.table import Table, block_shift

SEEDS = HELD_OUT_SEEDS[:200]


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    return [sample_episode(seed) for seed in SEEDS]


def test_equal_seeds_give_equal_episodes(episodes: list[Episode]) -> None:
    assert [sample_episode(seed) for seed in SEEDS[:10]] == episodes[:10]
    assert len({episode.subgoal for episode in episodes}) == len(episodes)


def test_most_episodes_need_a_detour(episodes: list[Episode]) -> None:
    assert 0.7 < np.mean([episode.is_detour for episode in episodes]) < 0.95


def test_ends_are_free_and_everything_lies_on_the_table(episodes: list[Episode]) -> None:
    block = np.array([episode.block for episode in episodes])
    ends = np.array([(episode.agent, episode.subgoal) for episode in episodes])
    assert clearance(block, ends).min() >= CLEARANCE_M
    for points in (ends, block_corners(block)):
        assert points.min() > 0.02
        assert points.max() < 0.492


def _drive(table: Table, episode: Episode, way: np.ndarray) -> tuple[float, float, float]:
    """Return the distance left, the block's shift and the smallest gap on the way, m."""
    table.place(episode)
    block, gap = np.array([episode.block]), np.inf
    for target in way:
        table.step(target)
        gap = min(gap, float(clearance(block, np.array([[table.agent()]]))[0, 0]))
    left = float(np.hypot(*np.subtract(table.agent(), episode.subgoal)))
    return left, block_shift(episode.block, table.block()), gap - AGENT_RADIUS_M


def test_the_expert_reaches_the_subgoal_and_never_touches_the_block() -> None:
    time = np.arange(1, 66)[None] / 10.0  # a tick is 0.1 s
    with Table() as table:
        for seed in SEEDS[:40]:
            episode = sample_episode(seed)
            paths = shortest_paths(
                np.array([episode.block]), np.array([episode.agent]), np.array([episode.subgoal])
            )
            left, shift, gap = _drive(table, episode, targets(paths, time)[0])
            assert left < REACH_M / 3
            assert shift < 1e-9
            assert gap > 0.01


def test_the_straight_path_of_a_detour_pushes_the_block(episodes: list[Episode]) -> None:
    detours = [episode for episode in episodes if episode.is_detour][:20]
    share = np.minimum(np.linspace(0.0, 1.5, 61), 1.0)[:, None]
    with Table() as table:
        shifts = []
        for episode in detours:
            way = np.array(episode.agent) * (1.0 - share) + np.array(episode.subgoal) * share
            shifts.append(_drive(table, episode, way)[1])
    assert np.mean(np.array(shifts) > PUSH_M) > 0.9
