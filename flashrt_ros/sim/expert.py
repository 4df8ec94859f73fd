"""The scripted expert: a minimum-jerk path to the subgoal that goes round the block.

Everything works on batches, in metres on the table's frame, and imports neither
the simulator nor torch.

The block is a T of two boxes that share an edge line, so in the block's own frame
the region an agent must keep out of is a union of two axis-aligned boxes. A
shortest path round it turns only at the six convex corners, and the distances
between corners are the same wherever the block lies: a query has to check only
which corners its two ends see.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

AGENT_RADIUS_M = 0.015
"""Of the pusher, a disc, m."""

MARGIN_M = 0.020
"""Gap the expert keeps between agent and block, m."""

BLOCK_CENTER_M = (0.0, 0.045)
"""Centre of gravity in the block's frame, whose origin is the middle of the bar's top edge."""

BLOCK_CORNERS_M: Array = np.array(
    [
        (-0.060, 0.000),
        (0.060, 0.000),
        (0.060, 0.030),
        (0.015, 0.030),
        (0.015, 0.120),
        (-0.015, 0.120),
        (-0.015, 0.030),
        (-0.060, 0.030),
    ]
)
"""Outline of the T in its own frame, m, ``float64[8, 2]``."""

_BOXES: Array = np.array([(-0.060, 0.000, 0.060, 0.030), (-0.015, 0.000, 0.015, 0.120)])
_SKIN_M = 0.0005  # corners lie this far outside the region that sight is tested against
_WINDOW_M = 0.025  # half width of the average that rounds a path's corners
_WEIGHTS: Array = np.array([1.0, 2.0, 1.0]) / 4.0
_BASE_TIME_S = 0.6
_MEAN_SPEED_M_S = 0.13


def to_block_frame(block: Array, points: Array) -> Array:
    """Express points in the block's frame.

    Args:
        block: ``float64[N, 3]``: x and y in m, angle in rad.
        points: ``float64[N, K, 2]``, m, table frame.

    Returns:
        ``float64[N, K, 2]``, m.
    """
    cos, sin = np.cos(block[:, 2, None]), np.sin(block[:, 2, None])
    moved = points - block[:, None, :2]
    return np.stack(
        [cos * moved[..., 0] + sin * moved[..., 1], cos * moved[..., 1] - sin * moved[..., 0]], -1
    )


def from_block_frame(block: Array, points: Array) -> Array:
    """Express points of the block's frame in the table's; inverse of :func:`to_block_frame`."""
    cos, sin = np.cos(block[:, 2, None]), np.sin(block[:, 2, None])
    turned = np.stack(
        [cos * points[..., 0] - sin * points[..., 1], sin * points[..., 0] + cos * points[..., 1]],
        -1,
    )
    return turned + block[:, None, :2]


def block_corners(block: Array) -> Array:
    """Return the T's outline on the table, ``float64[N, 8, 2]``, m, for poses ``float64[N, 3]``."""
    return from_block_frame(
        block, np.broadcast_to(BLOCK_CORNERS_M, (len(block), *BLOCK_CORNERS_M.shape))
    )


def clearance(block: Array, points: Array) -> Array:
    """Distance from points to the block's outline, negative inside.

    Args:
        block: ``float64[N, 3]``: x and y in m, angle in rad.
        points: ``float64[N, K, 2]``, m, table frame.

    Returns:
        ``float64[N, K]``, m.
    """
    local = to_block_frame(block, points)[..., None, :]
    outside = np.maximum(np.maximum(_BOXES[:, :2] - local, local - _BOXES[:, 2:]), 0.0)
    distance = np.hypot(outside[..., 0], outside[..., 1]).min(-1)
    inside = np.minimum(local - _BOXES[:, :2], _BOXES[:, 2:] - local).min(-1).max(-1)
    return np.asarray(np.where(distance > 0.0, distance, -np.maximum(inside, 0.0)))


def is_blocked(block: Array, start: Array, end: Array, inflation: float) -> npt.NDArray[np.bool_]:
    """Tell which straight lines enter the T grown by ``inflation`` (m) on every side.

    Args:
        block: ``float64[N, 3]``: x and y in m, angle in rad.
        start: ``float64[N, 2]``, m.
        end: ``float64[N, 2]``, m.
        inflation: m.

    Returns:
        ``bool[N]``.
    """
    ends = to_block_frame(block, np.stack([start, end], 1))
    return _crosses(ends[:, 0], ends[:, 1], inflation)


def _crosses(start: Array, end: Array, inflation: float) -> npt.NDArray[np.bool_]:
    """Tell which segments (block frame, ``[..., 2]``) enter the inflated T."""
    boxes = _BOXES + np.array([-1.0, -1.0, 1.0, 1.0]) * (inflation - _SKIN_M)
    a = start[..., None, :]
    step = (end - start)[..., None, :]
    step = np.where(np.abs(step) < 1e-12, 1e-12, step)
    first, second = (boxes[:, :2] - a) / step, (boxes[:, 2:] - a) / step
    enter = np.minimum(first, second).max(-1)
    leave = np.maximum(first, second).min(-1)
    return np.asarray((np.maximum(enter, 0.0) < np.minimum(leave, 1.0)).any(-1))


def _outline(inflation: float) -> Array:
    """Corners of the inflated T, reflex ones included, in order."""
    sign = np.array([(-1, -1), (1, -1), (1, 1), (1, 1), (1, 1), (-1, 1), (-1, 1), (-1, 1)])
    return BLOCK_CORNERS_M + inflation * sign


def _push_out(points: Array, inflation: float) -> Array:
    """Move points (block frame, ``[N, 2]``) inside the inflated T to its nearest edge."""
    corners = _outline(inflation)
    a, b = corners, np.roll(corners, -1, axis=0)
    along = b - a
    share = ((points[:, None] - a) * along).sum(-1) / (along * along).sum(-1)
    nearest = a + np.clip(share, 0.0, 1.0)[..., None] * along
    distance = np.hypot(*np.moveaxis(nearest - points[:, None], -1, 0))
    exits = nearest[np.arange(len(points)), distance.argmin(-1)]
    boxes = _BOXES + np.array([-1.0, -1.0, 1.0, 1.0]) * inflation
    local = points[:, None]
    inside = np.minimum(local - boxes[:, :2], boxes[:, 2:] - local).min(-1).max(-1) > 0.0
    return np.asarray(np.where(inside[:, None], exits, points))


@dataclass(frozen=True, slots=True)
class _Corners:
    """Convex corners of the inflated T and the shortest ways between them."""

    points: Array  # float64[6, 2]
    distance: Array  # float64[6, 6]
    chain: npt.NDArray[np.int64]  # int64[6, 6, 4], last corner repeated


def _corners(inflation: float) -> _Corners:
    points = _outline(inflation)[[0, 1, 2, 4, 5, 7]]
    count = len(points)
    direct = np.hypot(*np.moveaxis(points[:, None] - points[None], -1, 0))
    direct[_crosses(points[:, None], points[None], inflation)] = np.inf
    np.fill_diagonal(direct, 0.0)
    distance = direct.copy()
    following = np.broadcast_to(np.arange(count), (count, count)).copy()
    for middle in range(count):
        through = distance[:, middle, None] + distance[None, middle]
        better = through < distance - 1e-12
        following = np.where(better, following[:, middle, None], following)
        distance = np.where(better, through, distance)
    chain = np.empty((count, count, 4), np.int64)
    for start in range(count):
        for end in range(count):
            here = start
            for position in range(4):
                chain[start, end, position] = here
                here = int(following[here, end])
            assert here == end
    return _Corners(points, distance, chain)


@dataclass(frozen=True, slots=True)
class Paths:
    """Polylines round the block, one per row, of eight points each.

    Attributes:
        points: ``float64[N, 8, 2]``, m, table frame; points may repeat.
        length: ``float64[N]``, m.
    """

    points: Array
    length: Array

    def at(self, distance: Array) -> Array:
        """Return positions along the paths, with rounded corners.

        Args:
            distance: ``float64[N, K]`` from the start, m; held at both ends.

        Returns:
            ``float64[N, K, 2]``, m.
        """
        distance = np.clip(distance, 0.0, self.length[:, None])
        reach = np.minimum(_WINDOW_M, np.minimum(distance, self.length[:, None] - distance))
        rows, columns = distance.shape
        spread = distance[..., None] + reach[..., None] * np.linspace(-1.0, 1.0, len(_WEIGHTS))
        exact = self._exact(spread.reshape(rows, -1)).reshape(rows, columns, len(_WEIGHTS), 2)
        return np.asarray((exact * _WEIGHTS[:, None]).sum(2))

    def _exact(self, distance: Array) -> Array:
        step = np.diff(self.points, axis=1)
        size = np.hypot(step[..., 0], step[..., 1])
        begin = np.cumsum(size, -1) - size
        unit = step / np.maximum(size, 1e-12)[..., None]
        share = np.clip(distance[..., None] - begin[:, None], 0.0, size[:, None])
        return np.asarray(self.points[:, None, 0] + share @ unit)


def shortest_paths(block: Array, start: Array, goal: Array, *, margin: float = MARGIN_M) -> Paths:
    """Find the shortest path of each row that keeps its margin to the block.

    An end that lies nearer to the block than the margin is joined to the nearest
    point that does not.

    Args:
        block: ``float64[N, 3]``: x and y in m, angle in rad.
        start: ``float64[N, 2]``, m.
        goal: ``float64[N, 2]``, m.
        margin: Gap between agent and block, m.
    """
    inflation = AGENT_RADIUS_M + margin
    corners = _corners(inflation)
    ends = to_block_frame(block, np.stack([start, goal], 1))
    exits = [_push_out(ends[:, side], inflation) for side in (0, 1)]
    leg = []
    for point in exits:
        legs = np.hypot(*np.moveaxis(corners.points - point[:, None], -1, 0))
        hidden = _crosses(point[:, None], corners.points[None], inflation)
        leg.append(np.where(hidden, 1e3 + legs, legs))
    total = leg[0][:, :, None] + corners.distance + leg[1][:, None, :]
    count = len(corners.points)
    best = total.reshape(len(block), -1).argmin(-1)
    chain = corners.points[corners.chain[best // count, best % count]]
    free = ~_crosses(exits[0], exits[1], inflation)
    chain = np.where(free[:, None, None], exits[0][:, None], chain)
    local = np.concatenate(
        [ends[:, :1], exits[0][:, None], chain, exits[1][:, None], ends[:, 1:]], 1
    )
    points = from_block_frame(block, local)
    step = np.diff(points, axis=1)
    return Paths(points, np.hypot(step[..., 0], step[..., 1]).sum(-1))


def minimum_jerk(share: Array) -> Array:
    """Share of a path that lies behind after a share of its time: 10u^3 - 15u^4 + 6u^5.

    Flash and Hogan, "The coordination of arm movements", J. Neurosci. 5(7), 1985.
    """
    u = np.clip(share, 0.0, 1.0)
    return np.asarray(u * u * u * (10.0 - 15.0 * u + 6.0 * u * u))


def duration(length: Array) -> Array:
    """Time the expert takes for paths of these lengths (m), s."""
    return np.asarray(_BASE_TIME_S + length / _MEAN_SPEED_M_S)


def _tick_response() -> tuple[Array, Array]:
    """Effect of one tick (ten steps of 10 ms) of the table's controller, exactly.

    Returns:
        ``float64[2, 2]`` from (position, speed) to the same a tick later, and
        ``float64[2]`` that a target adds.
    """
    columns = []
    for position, speed, target in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)):
        for _ in range(10):
            speed += (100.0 * (target - position) - 20.0 * speed) * 0.01
            position += speed * 0.01
        columns.append((position, speed))
    table = np.array(columns).T
    return table[:, :2], table[:, 2]


def follow(start: Array, commands: Array) -> Array:
    """Return where an agent that starts at rest is before and after each target.

    Args:
        start: ``float64[N, 2]``, m.
        commands: ``float64[N, K, 2]``, m, one target a tick.

    Returns:
        ``float64[N, K + 1, 2]``, m; the first is the start.
    """
    carry, drive = _tick_response()
    position, speed = start, np.zeros_like(start)
    seen = [position]
    for target in np.moveaxis(commands, 1, 0):
        position, speed = (
            carry[0, 0] * position + carry[0, 1] * speed + drive[0] * target,
            carry[1, 0] * position + carry[1, 1] * speed + drive[1] * target,
        )
        seen.append(position)
    return np.stack(seen, 1)


def targets(paths: Paths, time: Array) -> Array:
    """Return target positions at times after a start from rest, holding at the end.

    Args:
        paths: ``N`` paths.
        time: ``float64[N, K]``, s.

    Returns:
        ``float64[N, K, 2]``, m.
    """
    share = minimum_jerk(time / duration(paths.length)[:, None])
    return paths.at(share * paths.length[:, None])
