"""Training data: chunks of the expert from states along, beside and between its paths.

States are drawn independently instead of being collected by a policy: the agent is
somewhere along an expert path, pushed off it by a little, with the history that it
would have there, and the chunk leads on from that very place. So the policy learns
to come back onto the path without ever having been run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashrt_ros.sim.episodes import sample_blocks, sample_pairs, sample_points
from flashrt_ros.sim.expert import (
    Array,
    Paths,
    block_corners,
    duration,
    follow,
    minimum_jerk,
    shortest_paths,
    targets,
)

FloatArray = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_TICK_S = 0.1
_LAST_TICK = 58  # the longest path takes 52 ticks
_DETOUR_SHARE = 0.6
_FRESH, _ALONG, _NEW_GOAL = 0, 1, 2
_KIND_SHARES = (0.2, 0.55, 0.25)


@dataclass(frozen=True, slots=True)
class ChunkFormat:
    """Sizes that data and network agree on.

    Attributes:
        horizon: Actions in a chunk.
        execute_horizon: Actions executed before the next chunk is made.
        num_latches: Past latches that the history holds.
    """

    horizon: int
    execute_horizon: int
    num_latches: int


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """``N`` independent situations and what the expert does in each; m, table frame.

    Attributes:
        block: True pose of the block, ``float64[N, 3]``.
        features: Corners of the block as an encoder would find them, ``[N, 16]``.
        agent_pos: ``[N, 2]``.
        goal: ``[N, 2]``.
        history: Features, agent position and 1 per past latch, ``[N, L, 19]``; zero if unused.
        tail: What the last chunk left, with 1 behind, ``[N, H - E, 3]``; zero if unused.
        chunk: Targets of the expert, ``[N, H, 2]``.
    """

    block: Array
    features: FloatArray
    agent_pos: FloatArray
    goal: FloatArray
    history: FloatArray
    tail: FloatArray
    chunk: FloatArray


@dataclass(frozen=True, slots=True)
class _Past:
    """How the agent came to where it is."""

    tick: Indices  # control ticks since the start
    latches: list[Indices]  # tick of each past latch, newest first
    is_used: list[Flags]
    tail: Array


def sample_demonstrations(
    generator: np.random.Generator, count: int, form: ChunkFormat
) -> Demonstrations:
    """Draw independent situations with the expert's chunks.

    A fifth starts from rest, with or without a history; half is along a path; the
    rest gets a new subgoal on the way.

    Args:
        generator: Source of chance; advanced.
        count: ``N``.
        form: Sizes of chunk and history.
    """
    rows = np.arange(count)
    kind = generator.choice(3, count, p=_KIND_SHARES)
    block = sample_blocks(generator, count)
    start, old_goal = sample_pairs(generator, block, _DETOUR_SHARE)
    old = shortest_paths(block, start, old_goal)
    ticks = np.arange(_LAST_TICK + form.horizon + 1) * _TICK_S
    commands = targets(old, np.broadcast_to(ticks, (count, len(ticks))))
    seen = follow(start, commands[:, 1 : _LAST_TICK + 1])

    past = _draw_past(generator, kind, duration(old.length), commands, form)
    tick = past.tick
    off = _draw_offsets(generator, count) * (tick > 0)[:, None]
    tail = past.tail + off[:, None] * generator.random((count, 1, 1)) + _draw_drift(generator, past)

    is_late = (generator.random(count) < 0.15) & (tick > 0)
    agent = seen[rows, np.where(is_late, tick - 1, tick)] + off
    here = commands[rows, tick] + off
    other = sample_points(generator, block)
    goal = np.where((kind == _NEW_GOAL)[:, None], other, old_goal)
    speed = (commands[rows, tick + 1] - commands[rows, np.maximum(tick - 1, 0)]) / (2 * _TICK_S)
    chunk = _continue(
        shortest_paths(block, here, goal),
        old.length,
        np.where(kind == _NEW_GOAL, np.inf, tick * _TICK_S),
        speed,
        form.horizon,
    )

    features = _draw_features(generator, block, 1 + form.num_latches)
    history = np.zeros((count, form.num_latches, features.shape[-1] + 3))
    for row, (latch, used) in enumerate(zip(past.latches, past.is_used, strict=True)):
        position = seen[rows, latch] + generator.normal(0.0, 0.003, (count, 2))
        full = np.concatenate([features[:, row + 1], position, np.ones((count, 1))], -1)
        history[:, row] = full * used[:, None]
    marked = np.concatenate([tail, np.ones((*tail.shape[:2], 1))], -1)
    return Demonstrations(
        block=block,
        features=features[:, 0].astype(np.float32),
        agent_pos=agent.astype(np.float32),
        goal=goal.astype(np.float32),
        history=history.astype(np.float32),
        tail=(marked * past.is_used[0][:, None, None]).astype(np.float32),
        chunk=chunk.astype(np.float32),
    )


def _draw_past(
    generator: np.random.Generator,
    kind: Indices,
    time_s: Array,
    commands: Array,
    form: ChunkFormat,
) -> _Past:
    """Draw where along its path each agent is, and what it latched before."""
    count = len(kind)
    stride = form.execute_horizon
    tick = (generator.random(count) * (np.ceil(time_s / _TICK_S) + 6)).astype(np.int64)
    tick = np.where(kind == _FRESH, 0, np.minimum(tick, _LAST_TICK - 1))
    # An interrupt cuts a chunk short, so that latches may lie closer than a chunk's end.
    short = [generator.integers(1, stride + 1, count) for _ in range(form.num_latches)]
    latches, is_used = [], []
    before = tick
    for position, steps in enumerate(short):
        is_regular = generator.random(count) < 0.7
        now = np.maximum(before - np.where(is_regular, stride, steps), 0)
        used = before > 0
        if position == 0:
            # At rest, some have a goal behind them and some have just been reset.
            rests = (tick == 0) & (generator.random(count) < 0.3)
            used = used | rests
        else:
            used = used | rests
        latches.append(now)
        is_used.append(used)
        before = now
    left = latches[0][:, None] + 1 + stride + np.arange(form.horizon - stride)
    tail = commands[np.arange(count)[:, None], left]
    tail = np.where(rests[:, None, None], commands[:, :1], tail)
    return _Past(tick, latches, is_used, tail)


def _draw_offsets(generator: np.random.Generator, count: int) -> Array:
    """Draw how far agents are off their paths, ``float64[N, 2]``, m; a quarter not at all."""
    size = np.where(generator.random(count) < 0.1, 0.015, 0.006)
    size = size * (generator.random(count) < 0.75)
    return np.asarray(generator.normal(0.0, 1.0, (count, 2)) * size[:, None])


def _draw_drift(generator: np.random.Generator, past: _Past) -> Array:
    """Draw what is wrong with remembered tails: an offset, and one that grows."""
    count, length, _ = past.tail.shape
    growth = np.linspace(0.0, 1.0, length)[:, None]
    offset = generator.normal(0.0, 0.003, (count, 1, 2))
    return np.asarray(offset + generator.normal(0.0, 0.004, (count, 1, 2)) * growth)


def _draw_features(generator: np.random.Generator, block: Array, num_views: int) -> Array:
    """Draw corners as an encoder sees them: ``float64[N, num_views, 16]``.

    One error of the pose is common to all views of a scene, for images that differ
    only in the agent are misread alike; the rest is each view's own.
    """
    count = len(block)
    common = generator.normal(0.0, 1.0, (count, 1, 3)) * (0.0025, 0.0025, 0.03)
    own = generator.normal(0.0, 1.0, (count, num_views, 3)) * (0.0015, 0.0015, 0.02)
    poses = (block[:, None] + common + own).reshape(-1, 3)
    corners = block_corners(poses).reshape(count, num_views, -1)
    return np.asarray(corners + generator.normal(0.0, 0.001, corners.shape))


def _continue(
    paths: Paths, old_length: Array, elapsed_s: Array, velocity: Array, horizon: int
) -> Array:
    """Lead agents that are under way along new paths.

    Where the new path is about what is left of the old one, the old time law is
    kept; elsewhere the phase of a new law is chosen so that its speed along the
    path continues the present one.

    Args:
        paths: From where each agent's target is now.
        old_length: Length of the path it is on, m.
        elapsed_s: Time since it started on it, s; infinite for a new subgoal.
        velocity: Of its target, ``[N, 2]``, m/s.
        horizon: Actions wanted.

    Returns:
        ``float64[N, horizon, 2]``, m.
    """
    old_time = duration(old_length)
    old_phase = np.minimum(elapsed_s / old_time, 1.0)
    left = old_length * (1.0 - minimum_jerk(old_phase))
    keeps = (old_phase < 0.97) & (paths.length < left * 1.6 + 0.004)

    ahead = paths.at(np.minimum(0.02, paths.length)[:, None])[:, 0] - paths.points[:, 0]
    size = np.maximum(np.hypot(ahead[:, 0], ahead[:, 1]), 1e-9)
    speed = np.maximum((velocity * ahead).sum(-1) / size, 0.0)
    grid = np.linspace(0.0, 0.5, 26)
    full = paths.length[:, None] / (1.0 - minimum_jerk(grid))
    slope = 30.0 * grid**2 * (1.0 - grid) ** 2
    new = np.abs(full * slope / duration(full) - speed[:, None]).argmin(-1)
    new_time = duration(full[np.arange(len(new)), new])

    phase = np.where(keeps, old_phase, grid[new])
    total = np.where(keeps, old_time, new_time)
    steps = np.arange(1, horizon + 1) * _TICK_S
    share = minimum_jerk(phase[:, None] + steps / total[:, None])
    begin = minimum_jerk(phase)[:, None]
    return paths.at(paths.length[:, None] * (share - begin) / (1.0 - begin))
