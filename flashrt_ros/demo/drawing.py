"""Palette and the drawing of one episode on its table, for the picture at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from flashrt_ros.demo.minimap import TABLE_M
from flashrt_ros.demo.trace import EpisodeTrace, Moment, MomentKind, Point, Pose
from flashrt_ros.sim.episodes import REACH_M
from flashrt_ros.sim.expert import AGENT_RADIUS_M, block_corners

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER = "#fbfaf7"
TABLE = "#ffffff"
INK = "#22303c"
FAINT = "#8a96a0"
LINE = "#dfe3e6"
BLOCK = "#c4ccd3"
BLOCK_EDGE = "#8b98a4"
GOAL = "#1f9d61"
MISSED = "#cf3f3f"
INTERRUPT = "#ef8a1d"
RESUME = "#7b4fc9"
BRANCH = "#d25f9b"
SAID = (RESUME, GOAL, MISSED)
"""Colours of what was said, one after the other."""

PATH_MAP = "flashrt_path"
"""Name of the colour map of paths."""

PATH_COLOURS = ("#a9c8ee", "#3f86d8", "#123a78")
"""From the beginning of a path to its end."""

COLOUR: dict[MomentKind, str] = {
    "reset": FAINT,
    "interrupt": INTERRUPT,
    "resume": RESUME,
    "fork": BRANCH,
    "select": BRANCH,
    "words": INK,
}
"""By what happened."""

Corner = Literal["upper left", "upper right", "lower left", "lower right"]
"""Corner of the picture that a legend or an inset may take."""

_SMALLEST_M = 0.006  # half the width of what is magnified
_INSET = 0.34  # of the table

MARKER: dict[MomentKind, str] = {
    "reset": "o",
    "interrupt": "X",
    "resume": "D",
    "fork": "s",
    "select": "s",
    "words": "P",
}
"""By what happened, as matplotlib names them."""


def episode(axes: Axes, trace: EpisodeTrace, *, is_small: bool) -> None:
    """Draw an episode; small without a legend and with a caption instead."""
    scale = 0.62 if is_small else 1.0
    _table(axes)
    _block(axes, trace.block, trace.block_end if trace.block_shift_m > 0.001 else None)
    _ring(axes, trace.subgoal, GOAL if trace.is_reached else MISSED, scale, is_filled=True)
    if trace.detour is not None:
        _ring(axes, trace.detour, INTERRUPT, scale, is_filled=False)
    _branches(axes, trace, scale)
    _path(axes, trace, scale)
    for moment in trace.moments:
        if moment.kind not in ("reset", "select"):
            _mark(axes, moment, scale)
    if is_small:
        _caption(axes, trace)
        return
    corners = _free_corners(trace)
    _legend(axes, trace, corners[0])
    if trace.branches:
        _magnified(axes, trace, corners[1])


def words(axes: Axes, trace: EpisodeTrace) -> None:
    """Draw an episode in words: the subgoals of each plan, numbered as they were said."""
    _table(axes)
    _block(axes, trace.block, None)
    _path(axes, trace, 1.0)
    for number, saying in enumerate(trace.sayings):
        colour = SAID[number % len(SAID)]
        for index, subgoal in enumerate(saying.subgoals):
            is_reached = index < saying.num_reached
            _ring(axes, subgoal, colour, 0.9, is_filled=is_reached)
            # above and below in turn: a plan may end where the one before went
            x, y = subgoal[0], subgoal[1] + (0.032 if number % 2 else -0.018)
            _name(axes, f"{number + 1}{'abcdefghi'[index]}", (x, y), colour)
    said = [moment for moment in trace.moments if moment.kind == "words"]
    for number, moment in enumerate(said):
        axes.plot(
            *moment.position,
            marker="o",
            ms=12,
            mfc=SAID[number % len(SAID)],
            mec=TABLE,
            mew=1.2,
            zorder=11,
        )
        axes.text(
            *moment.position,
            f"{number + 1}",
            color=TABLE,
            fontsize=7.5,
            weight="bold",
            ha="center",
            va="center_baseline",
            zorder=12,
        )


def _name(axes: Axes, name: str, at: Point, colour: str) -> None:
    is_left = at[0] > TABLE_M / 2
    axes.text(
        at[0] + (-0.02 if is_left else 0.02),
        at[1],
        name,
        color=colour,
        fontsize=8.5,
        weight="bold",
        ha="right" if is_left else "left",
        bbox={"facecolor": TABLE, "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
        zorder=10,
    )


def _branches(axes: Axes, trace: EpisodeTrace, scale: float) -> None:
    for number, branch in enumerate(trace.branches):
        is_chosen = number == trace.selected
        axes.plot(
            *np.asarray(branch).T,
            color=BRANCH,
            alpha=1.0 if is_chosen else 0.6,
            lw=(2.2 if is_chosen else 1.1) * scale,
            ls="-" if is_chosen else (0, (3, 1.5)),
            solid_capstyle="round",
            zorder=6 if is_chosen else 5,
        )


def _magnified(axes: Axes, trace: EpisodeTrace, corner: Corner) -> None:
    """Draw the branches large where they differ most."""
    branches = np.array(trace.branches)
    spread = np.hypot(*np.ptp(branches, axis=0).T)
    here = branches[:, int(spread.argmax())]
    middle = (here.min(0) + here.max(0)) / 2
    half = max(float(spread.max()) * 1.1, _SMALLEST_M)
    size, gap = _INSET, 0.03
    inset = axes.inset_axes(
        (
            gap if "left" in corner else 1 - size - gap,
            gap if "lower" in corner else 1 - size - gap,
            size,
            size,
        ),
        zorder=12,
    )
    inset.set(
        xlim=(middle[0] - half, middle[0] + half),
        ylim=(middle[1] + half, middle[1] - half),
        xticks=[],
        yticks=[],
        facecolor=PAPER,
    )
    for spine in inset.spines.values():
        spine.set_color(BRANCH)
    _block(inset, trace.block, None)
    _ring(inset, trace.subgoal, GOAL, 1.0, is_filled=True)
    _branches(inset, trace, 1.4)
    axes.indicate_inset_zoom(inset, edgecolor=BRANCH, alpha=0.6)
    text = f"{TABLE_M * size / (2 * half):.1f} times as large"
    inset.text(
        0.04,
        0.03,
        text,
        transform=inset.transAxes,
        fontsize=6.8,
        color=FAINT,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.5},
    )


def _table(axes: Axes) -> None:
    axes.set(xlim=(0, TABLE_M), ylim=(TABLE_M, 0), xticks=[], yticks=[], facecolor=TABLE)
    axes.set_aspect("equal")
    for spine in axes.spines.values():
        spine.set_color(LINE)
    for at in np.arange(0.1, TABLE_M, 0.1):
        axes.axhline(at, color=LINE, lw=0.4, zorder=0)
        axes.axvline(at, color=LINE, lw=0.4, zorder=0)


def _block(axes: Axes, pose: Pose, end: Pose | None) -> None:
    from matplotlib.patches import Polygon

    outline = block_corners(np.array([pose]))[0]
    axes.add_patch(Polygon(outline, fc=BLOCK, ec=BLOCK_EDGE, lw=1.0, joinstyle="round", zorder=2))
    if end is not None:
        outline = block_corners(np.array([end]))[0]
        axes.add_patch(Polygon(outline, fc="none", ec=BLOCK_EDGE, lw=0.8, ls=":", zorder=3))


def _ring(axes: Axes, center: Point, colour: str, scale: float, *, is_filled: bool) -> None:
    from matplotlib.patches import Circle

    if is_filled:
        axes.add_patch(Circle(center, REACH_M, fc=colour, ec="none", alpha=0.18, zorder=3))
    style = "-" if is_filled else (0, (3, 1.6))
    axes.add_patch(
        Circle(center, REACH_M, fc="none", ec=colour, lw=1.6 * scale, ls=style, zorder=4)
    )
    axes.plot(*center, marker="+", color=colour, ms=7 * scale, mew=1.3 * scale, zorder=4)


def _path(axes: Axes, trace: EpisodeTrace, scale: float) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Circle

    points = np.array(trace.path)
    if len(points) < 2:
        return
    colours = LinearSegmentedColormap.from_list(PATH_MAP, PATH_COLOURS)
    pieces = np.stack([points[:-1], points[1:]], 1)
    lines = LineCollection(
        list(pieces),
        cmap=colours,
        lw=(3.4 if scale == 1.0 else 1.9),
        capstyle="round",
        joinstyle="round",
        zorder=7,
    )
    lines.set_array(np.linspace(0.0, 1.0, len(pieces)))
    axes.add_collection(lines)
    if scale == 1.0:
        axes.scatter(
            points[:, 0], points[:, 1], s=4.5, c=TABLE, alpha=0.9, lw=0, zorder=8
        )  # one dot each tick
    start, end = tuple(points[0]), tuple(points[-1])
    axes.add_patch(Circle(start, AGENT_RADIUS_M * 0.55, fc=TABLE, ec=INK, lw=1.3 * scale, zorder=9))
    axes.add_patch(Circle(end, AGENT_RADIUS_M * 0.62, fc=PATH_COLOURS[-1], ec="none", zorder=9))


def _mark(axes: Axes, moment: Moment, scale: float) -> None:
    axes.plot(
        *moment.position,
        marker=MARKER[moment.kind],
        ms=(13.0 if moment.kind == "interrupt" else 10.0) * scale,
        mfc=COLOUR[moment.kind],
        mec=TABLE,
        mew=1.1 * scale,
        zorder=10,
    )


def _caption(axes: Axes, trace: EpisodeTrace) -> None:
    axes.text(0.014, 0.016, f"{trace.index + 1}", color=INK, va="top", fontsize=8, weight="bold")
    colour = FAINT if trace.is_reached else MISSED
    text = f"{trace.ticks / 10:.1f} s · {trace.distance_m * 1e3:.0f} mm"
    if trace.block_shift_m > 0.0005:
        text += f" · pushed {trace.block_shift_m * 1e3:.0f} mm"
    axes.text(
        TABLE_M - 0.014, 0.016, text, color=colour, ha="right", va="top", fontsize=7.2, zorder=11
    )


def _legend(axes: Axes, trace: EpisodeTrace, corner: Corner) -> None:
    from matplotlib.lines import Line2D

    def dot(colour: str, marker: str, edge: str = TABLE) -> Line2D:
        return Line2D([], [], ls="", marker=marker, ms=7, mfc=colour, mec=edge, mew=1.1)

    entries: list[tuple[Line2D, str]] = [
        (dot(TABLE, "o", INK), "start"),
        (Line2D([], [], color=PATH_COLOURS[1], lw=3), "path, a dot each tick"),
        (dot("none", "o", GOAL), "subgoal, 15 mm"),
    ]
    if trace.seen("interrupt"):
        entries.append((dot(COLOUR["interrupt"], MARKER["interrupt"]), "interrupt"))
        entries.append((dot("none", "o", INTERRUPT), "its goal"))
    if trace.seen("resume"):
        entries.append((dot(COLOUR["resume"], MARKER["resume"]), "resume"))
    if trace.branches:
        entries.append((dot(COLOUR["fork"], MARKER["fork"]), "fork"))
        entries.append((Line2D([], [], color=BRANCH, lw=1, ls=(0, (3, 1.5))), "branches"))
        entries.append((Line2D([], [], color=BRANCH, lw=2.2), "selected"))
    axes.legend(
        [handle for handle, _ in entries],
        [label for _, label in entries],
        loc=corner,
        fontsize=7.2,
        frameon=True,
        framealpha=0.85,
        edgecolor="none",
        handlelength=1.6,
        labelspacing=0.35,
    )


def _free_corners(trace: EpisodeTrace) -> list[Corner]:
    """Name the corners, the one first from which everything drawn is farthest."""
    drawn = np.concatenate(
        [np.array([*trace.path, trace.subgoal]), block_corners(np.array([trace.block]))[0]]
    )
    corners: dict[Corner, Point] = {
        "upper left": (0.07, 0.07),
        "upper right": (TABLE_M - 0.07, 0.07),
        "lower left": (0.07, TABLE_M - 0.07),
        "lower right": (TABLE_M - 0.07, TABLE_M - 0.07),
    }
    return sorted(corners, key=lambda name: -np.hypot(*(drawn - corners[name]).T).min())
