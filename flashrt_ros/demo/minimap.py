"""The table as coloured half blocks, small enough for a terminal."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.style import Style
from rich.text import Text

from flashrt_ros.demo.trace import EpisodeTrace, Point, Pose
from flashrt_ros.sim.episodes import REACH_M
from flashrt_ros.sim.expert import AGENT_RADIUS_M, clearance
from flashrt_ros.sim.table import METRES_PER_PX, SIZE_PX

TABLE_M = SIZE_PX * METRES_PER_PX
"""Side of the table, m."""

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

Pixels = npt.NDArray[np.float64]
"""``float64[rows, columns, 3]``, 0 to 255."""

FELT: Colour = (24, 30, 38)
BLOCK: Colour = (142, 155, 171)
AGENT: Colour = (96, 176, 255)
TRAIL: Colour = (52, 96, 148)
SUBGOAL: Colour = (90, 214, 140)
DETOUR: Colour = (255, 176, 66)

_SAMPLES = 2  # per axis and pixel, so that edges are soft
_TRAIL_M = 0.002


def draw(trace: EpisodeTrace, block: Pose, columns: int) -> Text:
    """Draw an episode as it stands.

    Args:
        trace: Its path so far, subgoal and detour.
        block: Where the T is now.
        columns: Width; half as many lines.
    """
    return _text(raster(trace, block, columns))


def raster(trace: EpisodeTrace, block: Pose, size: int) -> npt.NDArray[np.uint8]:
    """Return the picture, ``uint8[size, size, 3]``; y grows downward, as in the camera's."""
    count = size * _SAMPLES
    axis = (np.arange(count) + 0.5) * (TABLE_M / count)
    x, y = np.meshgrid(axis, axis)
    pixels = np.empty((count, count, 3))
    pixels[:] = FELT
    inside = clearance(np.array([block]), np.stack([x, y], -1).reshape(1, -1, 2)) <= 0
    pixels[inside.reshape(x.shape)] = BLOCK
    trail = _trail(trace.path)
    if trail:
        columns, rows = np.clip(np.array(trail).T / TABLE_M * count, 0, count - 2).astype(int)
        for across, down in ((0, 0), (0, 1), (1, 0), (1, 1)):
            pixels[rows + down, columns + across] = TRAIL
    _ring(pixels, x, y, trace.subgoal, SUBGOAL)
    if trace.detour is not None:
        _ring(pixels, x, y, trace.detour, DETOUR)
    if trace.path:
        pixels[_disc(x, y, trace.path[-1], AGENT_RADIUS_M)] = AGENT
    soft = pixels.reshape(size, _SAMPLES, size, _SAMPLES, 3).mean((1, 3))
    return np.asarray(soft, np.uint8)


def _trail(path: list[Point]) -> list[Point]:
    dense: list[Point] = []
    for (x0, y0), (x1, y1) in itertools.pairwise(path):
        count = max(1, int(np.hypot(x1 - x0, y1 - y0) / _TRAIL_M))
        dense += [
            (x0 + (x1 - x0) * part / count, y0 + (y1 - y0) * part / count) for part in range(count)
        ]
    return dense


def _disc(x: Pixels, y: Pixels, center: Point, radius: float) -> npt.NDArray[np.bool_]:
    return np.asarray((x - center[0]) ** 2 + (y - center[1]) ** 2 <= radius**2)


def _ring(pixels: Pixels, x: Pixels, y: Pixels, center: Point, colour: Colour) -> None:
    ring = _disc(x, y, center, REACH_M) & ~_disc(x, y, center, REACH_M * 0.55)
    pixels[ring] = colour


def _text(image: npt.NDArray[np.uint8]) -> Text:
    text = Text(no_wrap=True, end="")
    pairs = np.concatenate([image[0::2], image[1::2]], -1)
    for number, row in enumerate(pairs):
        if number:
            text.append("\n")
        starts = np.flatnonzero(np.any(np.diff(row, axis=0), -1)) + 1
        for run in np.split(row, starts):  # neighbours of one colour are one span
            top, bottom = run[0, :3].tolist(), run[0, 3:].tolist()
            style = Style(color=Color.from_rgb(*top), bgcolor=Color.from_rgb(*bottom))
            text.append("▀" * len(run), style)
    return text
