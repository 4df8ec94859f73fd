"""The table without ROS: gym-pusht in metres, with exact poses and a fast camera."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from flashrt_ros.sim.episodes import Episode, sample_episode
from flashrt_ros.sim.expert import BLOCK_CENTER_M, block_corners, from_block_frame

if TYPE_CHECKING:
    import pygame
    from gym_pusht.envs.pusht import PushTEnv

SIZE_PX = 512
"""Side of the table in the physics, px."""

IMAGE_PX = 96
"""Side of the camera's image, px."""

METRES_PER_PX = 0.001
"""Of the physics: the table is 0.512 m wide."""

Image = npt.NDArray[np.uint8]
"""``uint8[rows, columns, 3]``."""


@dataclass(frozen=True, slots=True)
class TableState:
    """Poses and speeds of all that moves; lengths in m, angles in rad.

    Attributes:
        agent: x, y.
        agent_velocity: m/s.
        block: x, y of the T's origin, angle.
    """

    agent: tuple[float, float]
    agent_velocity: tuple[float, float]
    block: tuple[float, float, float]


def _make_environment() -> PushTEnv:
    # pygame greets on stdout when imported, and pymunk's helpers import pkg_resources.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gym_pusht.envs.pusht import PushTEnv
    return PushTEnv(obs_type="state", observation_width=IMAGE_PX, observation_height=IMAGE_PX)


class Table:
    """A pusher, driven to target positions, and a T-shaped block.

    The agent is a circle of 15 mm radius that nothing pushes back; it follows its
    target with a critically damped controller. One tick is 0.1 s. Needs no display.
    """

    def __init__(self) -> None:
        self._environment = _make_environment()
        self._environment.reset(seed=0)

    def close(self) -> None:
        """Free the simulator; a second call does nothing."""
        self._environment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def reset(self, seed: int) -> Episode:
        """Set up the episode of a seed in a new physics space, everything at rest.

        Returns:
            The episode, subgoal included.
        """
        episode = sample_episode(seed)
        self.place(episode)
        return episode

    def place(self, episode: Episode) -> None:
        """Set up an episode in a new physics space, everything at rest."""
        self.set_state(TableState(episode.agent, (0.0, 0.0), episode.block))

    def set_state(self, state: TableState) -> None:
        """Put everything where ``state`` says, in a new physics space.

        A new space drops the solver's contact cache, so that equal states lead to
        equal futures whatever went before.
        """
        environment = self._environment
        environment._setup()
        # The angle turns the T about its centre of gravity and moves its origin, so it goes first.
        environment.block.angle = state.block[2]
        environment.block.position = _px(state.block[:2])
        environment.agent.position = _px(state.agent)
        environment.agent.velocity = _px(state.agent_velocity)
        environment.space.reindex_shapes_for_body(environment.block)
        environment.space.reindex_shapes_for_body(environment.agent)
        environment._last_action = None

    def state(self) -> TableState:
        """Return poses and speeds now."""
        agent = self._environment.agent
        return TableState(_metres(agent.position), _metres(agent.velocity), self.block())

    def agent(self) -> tuple[float, float]:
        """Return the agent's position, m."""
        return _metres(self._environment.agent.position)

    def block(self) -> tuple[float, float, float]:
        """Return the T's origin (m) and angle (rad)."""
        block = self._environment.block
        return (*_metres(block.position), float(block.angle))

    def block_center(self) -> tuple[float, float]:
        """Return the T's centre of gravity, m."""
        return block_center(self.block())

    def step(self, target: npt.ArrayLike) -> None:
        """Let one tick (0.1 s) pass while the agent goes for a target position.

        Args:
            target: ``[2]``, m; clipped to the table.
        """
        goal = np.clip(np.asarray(target, np.float64) / METRES_PER_PX, 0.0, SIZE_PX)
        self._environment.step(goal)

    def render(self) -> Image:
        """Return the camera image, ``uint8[96, 96, 3]`` RGB.

        Equal, pixel for pixel, to the environment's own observation.
        """
        return shrink(self.screen())

    def screen(self) -> pygame.Surface:
        """Draw the table at its full 512 by 512 px."""
        screen: pygame.Surface = self._environment._draw()
        return screen


def shrink(screen: pygame.Surface) -> Image:
    """Scale a drawn table down to what the camera sees, ``uint8[96, 96, 3]`` RGB.

    Scales the screen's own four channels and drops one after, as the environment's
    strided copy of the whole screen costs more than all the drawing.
    """
    import cv2

    pixels = np.frombuffer(screen.get_buffer().raw, np.uint8).reshape(SIZE_PX, SIZE_PX, 4)
    small = cv2.resize(pixels, (IMAGE_PX, IMAGE_PX))
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_BGRA2RGB), np.uint8)


def block_center(pose: tuple[float, float, float]) -> tuple[float, float]:
    """Return the centre of gravity (m) of a T whose origin and angle are ``pose``."""
    center = from_block_frame(np.array([pose]), np.array([[BLOCK_CENTER_M]]))[0, 0]
    return float(center[0]), float(center[1])


def block_shift(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    """Return how far the corner of the T that moved most has moved, m."""
    corners = block_corners(np.array([before, after]))
    return float(np.hypot(*(corners[1] - corners[0]).T).max())


def _px(metres: tuple[float, float]) -> tuple[float, float]:
    return metres[0] / METRES_PER_PX, metres[1] / METRES_PER_PX


def _metres(px: tuple[float, float]) -> tuple[float, float]:
    return px[0] * METRES_PER_PX, px[1] * METRES_PER_PX
