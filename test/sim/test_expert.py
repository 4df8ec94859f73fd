"""The scripted expert keeps off the block, on paper and in the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.sim.episodes import sample_blocks, sample_pairs
from flashrt_ros.sim.expert import (
    AGENT_RADIUS_M,
    MARGIN_M,
    Array,
    block_corners,
    clearance,
    duration,
    follow,
    from_block_frame,
    is_blocked,
    minimum_jerk,
    shortest_paths,
    targets,
    to_block_frame,
)

COUNT = 500


@pytest.fixture(scope="module")
def scenes() -> tuple[Array, Array, Array]:
    generator = np.random.default_rng(11)
    block = sample_blocks(generator, COUNT)
    start, goal = sample_pairs(generator, block, 0.6)
    return block, start, goal


def test_block_frame_round_trip(scenes: tuple[Array, Array, Array]) -> None:
    block, start, goal = scenes
    points = np.stack([start, goal], 1)
    np.testing.assert_allclose(from_block_frame(block, to_block_frame(block, points)), points)


def test_clearance_of_known_points() -> None:
    block = np.array([[0.2, 0.2, np.pi / 2]])  # the bar's top edge then faces +x
    points = np.array([[(0.23, 0.2), (0.2, 0.28), (0.07, 0.2), (0.19, 0.2), (0.1, 0.2)]])
    np.testing.assert_allclose(
        clearance(block, points)[0], [0.03, 0.02, 0.01, -0.01, -0.015], atol=1e-9
    )


def test_paths_join_their_ends_and_keep_the_margin(scenes: tuple[Array, Array, Array]) -> None:
    block, start, goal = scenes
    paths = shortest_paths(block, start, goal)
    time = np.broadcast_to(np.linspace(0.0, 6.0, 241), (COUNT, 241))
    way = targets(paths, time)
    np.testing.assert_allclose(way[:, 0], start, atol=1e-9)
    np.testing.assert_allclose(way[:, -1], goal, atol=1e-9)
    assert clearance(block, way).min() > AGENT_RADIUS_M + MARGIN_M - 0.001
    assert (paths.length >= np.hypot(*(goal - start).T) - 1e-9).all()


def test_straight_paths_would_touch_the_block(scenes: tuple[Array, Array, Array]) -> None:
    block, start, goal = scenes
    share = np.linspace(0.0, 1.0, 101)[:, None]
    way = start[:, None] * (1.0 - share) + goal[:, None] * share
    assert (clearance(block, way).min(-1) < AGENT_RADIUS_M).mean() > 0.5


def test_free_paths_are_straight(scenes: tuple[Array, Array, Array]) -> None:
    block, start, goal = scenes
    free = ~is_blocked(block, start, goal, AGENT_RADIUS_M + MARGIN_M)
    assert free.any()
    length = shortest_paths(block, start, goal).length
    np.testing.assert_allclose(length[free], np.hypot(*(goal - start)[free].T))
    assert (length[~free] > np.hypot(*(goal - start)[~free].T)).all()


def test_an_agent_too_near_is_led_out_first() -> None:
    block = np.array([[0.256, 0.2, 0.0]])
    start = np.array([[0.256, 0.18]])  # 20 mm off the bar's top edge
    way = targets(shortest_paths(block, start, np.array([[0.1, 0.4]])), np.array([[0.5, 1.0, 9.0]]))
    gaps = clearance(block, way)[0]
    assert gaps[0] > 0.02
    assert (gaps[1:] > AGENT_RADIUS_M + MARGIN_M - 0.001).all()


def test_minimum_jerk_rests_at_both_ends() -> None:
    u = np.array([-1.0, 0.0, 1e-4, 0.5, 1.0 - 1e-4, 1.0, 2.0])
    np.testing.assert_allclose(minimum_jerk(u), [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0], atol=1e-10)


def test_typical_episodes_take_three_to_five_seconds(scenes: tuple[Array, Array, Array]) -> None:
    time = duration(shortest_paths(*scenes).length)
    assert 2.5 < float(np.median(time)) < 4.5
    assert time.max() < 6.0


def test_follow_settles_on_a_held_target() -> None:
    way = follow(np.zeros((1, 2)), np.full((1, 20, 2), 0.1))
    assert way.shape == (1, 21, 2)
    np.testing.assert_allclose(way[0, -1], 0.1, atol=1e-5)
    assert (np.diff(way[0, :, 0]) > 0).all()


def test_block_corners_of_a_turned_block() -> None:
    corners = block_corners(np.array([[0.2, 0.3, np.pi]]))[0]
    np.testing.assert_allclose(corners[1], [0.14, 0.3], atol=1e-12)
    np.testing.assert_allclose(corners[4], [0.185, 0.18], atol=1e-12)
