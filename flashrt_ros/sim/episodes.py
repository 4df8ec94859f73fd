"""Episodes of the demo: a block pose, a start and a subgoal, each drawn from a seed.

Seeds in :data:`HELD_OUT_SEEDS` are for evaluation; training draws from a generator
of its own and never calls :func:`sample_episode`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashrt_ros.sim.expert import (
    AGENT_RADIUS_M,
    BLOCK_CENTER_M,
    MARGIN_M,
    Array,
    clearance,
    is_blocked,
)

REACH_M = 0.015
"""A subgoal counts as reached within this distance, m."""

PUSH_M = 0.005
"""The block counts as pushed when a corner of it moved further than this, m."""

EPISODE_TICKS = 80
"""Control ticks (10 Hz) an episode lasts at most; the expert takes 20 to 45."""

HELD_OUT_SEEDS = range(1_000_000, 1_100_000)
"""Seeds of evaluation episodes."""

DETOUR_SHARE = 0.8
"""Share of episodes whose straight path would push the block."""

BLOCK_RANGE_M = (0.150, 0.362)
"""Where the block's centre of gravity lies, both axes, so that there is a way round each side."""

AGENT_RANGE_M = (0.035, 0.477)
"""Where starts and subgoals lie, both axes."""

CLEARANCE_M = AGENT_RADIUS_M + MARGIN_M + 0.002
"""Distance from the block that starts and subgoals keep, m."""

DETOUR_DEPTH_M = 0.008
"""How far the straight path of a detour episode sinks the agent into the block, m."""

_DETOUR_INFLATION_M = AGENT_RADIUS_M - DETOUR_DEPTH_M
_MIN_TRAVEL_M = 0.12


@dataclass(frozen=True, slots=True)
class Episode:
    """One task on the table; lengths in m, table frame (origin at a corner, y as in the image).

    Attributes:
        seed: What it was drawn from.
        block: x, y (origin of the T: middle of the bar's top edge) and angle, rad.
        agent: Start of the agent.
        subgoal: Where the agent shall go.
        is_detour: The straight path would push the block.
    """

    seed: int
    block: tuple[float, float, float]
    agent: tuple[float, float]
    subgoal: tuple[float, float]
    is_detour: bool


def sample_blocks(generator: np.random.Generator, count: int) -> Array:
    """Draw block poses, ``float64[count, 3]``: x and y of the T's origin in m, angle in rad."""
    center = generator.uniform(*BLOCK_RANGE_M, (count, 2))
    angle = generator.uniform(-np.pi, np.pi, count)
    x, y = BLOCK_CENTER_M
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack(
        [center[:, 0] - (cos * x - sin * y), center[:, 1] - (sin * x + cos * y), angle], -1
    )


def sample_points(generator: np.random.Generator, block: Array) -> Array:
    """Draw one free point per block, ``float64[N, 2]``, m, at least :data:`CLEARANCE_M` away."""
    points = generator.uniform(*AGENT_RANGE_M, (len(block), 2))
    while (taken := clearance(block, points[:, None])[:, 0] < CLEARANCE_M).any():
        points[taken] = generator.uniform(*AGENT_RANGE_M, (int(taken.sum()), 2))
    return points


def sample_pairs(
    generator: np.random.Generator, block: Array, detour_share: float
) -> tuple[Array, Array]:
    """Draw a start and a subgoal per block.

    Args:
        generator: Source of chance; advanced.
        block: ``float64[N, 3]``.
        detour_share: Share of rows whose straight path shall push the block.

    Returns:
        Starts and subgoals, each ``float64[N, 2]``, m.
    """
    wants_detour = generator.random(len(block)) < detour_share
    start, goal = np.empty((len(block), 2)), np.empty((len(block), 2))
    left = np.arange(len(block))
    while len(left):
        start[left] = sample_points(generator, block[left])
        goal[left] = sample_points(generator, block[left])
        is_detour = is_blocked(block[left], start[left], goal[left], _DETOUR_INFLATION_M)
        far = np.hypot(*(goal[left] - start[left]).T) >= _MIN_TRAVEL_M
        left = left[~(far & (is_detour | ~wants_detour[left]))]
    return start, goal


def sample_episode(seed: int) -> Episode:
    """Draw the episode of a seed; equal seeds give equal episodes.

    About four in five need a way round the block (:data:`DETOUR_SHARE`).

    Args:
        seed: Any non-negative number; take :data:`HELD_OUT_SEEDS` for evaluation.
    """
    generator = np.random.default_rng(seed)
    block = sample_blocks(generator, 1)
    start, goal = sample_pairs(generator, block, DETOUR_SHARE)
    x, y, angle = block[0].tolist()
    agent_x, agent_y = start[0].tolist()
    goal_x, goal_y = goal[0].tolist()
    return Episode(
        seed=seed,
        block=(x, y, angle),
        agent=(agent_x, agent_y),
        subgoal=(goal_x, goal_y),
        is_detour=bool(is_blocked(block, start, goal, _DETOUR_INFLATION_M)[0]),
    )
