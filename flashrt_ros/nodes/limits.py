"""Limits of each joint on what is published: position, velocity and step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashrt_ros.errors import ConfigError
from flashrt_ros.nodes.entries import parse_entries

Values = npt.NDArray[np.float64]

_ROUNDING = 1e-6  # actions are float32


@dataclass(frozen=True, slots=True)
class JointLimit:
    """Limits of one joint, in the units of its commands; infinite where nothing is said.

    Attributes:
        joint: Its name, "*" for every joint that has no entry of its own.
        lower: Smallest value of a command.
        upper: Largest value of a command.
        velocity: Largest change, per second.
        step: Largest change from one command to the next.
    """

    joint: str
    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    step: float = math.inf


def parse_limits(texts: Sequence[str]) -> tuple[JointLimit, ...]:
    """Read the parameter ``joint_limits``.

    Args:
        texts: ``"joint lower=-1 upper=1 velocity=0.5 step=0.05"`` each, any keys left out.

    Raises:
        ConfigError: An entry can't be read, contradicts itself or comes twice.
    """
    limits: list[JointLimit] = []
    for entry in parse_entries("joint_limits", texts, ("lower", "upper", "velocity", "step")):
        limit = JointLimit(
            entry.name,
            entry.number("lower", -math.inf),
            entry.number("upper", math.inf),
            entry.number("velocity", math.inf, low=0.0),
            entry.number("step", math.inf, low=0.0),
        )
        if limit.lower > limit.upper:
            raise entry.refused("nothing lies within the limits", expected="lower <= upper")
        if limit.joint in {known.joint for known in limits}:
            raise entry.refused("a joint has two entries", expected="one")
        limits.append(limit)
    return tuple(limits)


class Limits:
    """Brings commands within the limits of their joints.

    Args:
        limits: As parsed.
        joint_names: Joints in the order of a command.

    Raises:
        ConfigError: A limit is for a joint that no command has.
    """

    def __init__(self, limits: Sequence[JointLimit], joint_names: Sequence[str]) -> None:
        known = {limit.joint: limit for limit in limits}
        unknown = known.keys() - {*joint_names, "*"}
        if unknown:
            raise ConfigError(
                f"parameter 'joint_limits' names a joint '{min(unknown)}' that commands lack",
                expected=", ".join(joint_names),
            )
        rest = known.get("*", JointLimit("*"))
        rows = [known.get(name, rest) for name in joint_names]
        self._names = tuple(joint_names)
        self._lower = np.array([row.lower for row in rows])
        self._upper = np.array([row.upper for row in rows])
        self._velocity = np.array([row.velocity for row in rows])
        self._step = np.array([row.step for row in rows])

    def apply(
        self, values: Values, *, previous: Values | None, period_s: float
    ) -> tuple[Values, str]:
        """Return a command within the limits, and what it violated.

        The range comes first and the step last: from outside the range a joint is
        led back by steps, never in a jump.

        Args:
            values: ``float64[A]``, finite.
            previous: The command before it, or what stands for one; None for no limit
                of velocity and step.
            period_s: Time from that command to this one, s.

        Returns:
            A new array, and "" or the first violation in words.
        """
        limited = np.clip(values, self._lower, self._upper)
        reach = np.minimum(self._step, self._velocity * period_s)
        if previous is not None:
            limited = np.clip(limited, previous - reach, previous + reach)
        wrong = np.flatnonzero(np.abs(limited - values) > _ROUNDING)
        return limited, self._words(int(wrong[0]), values, previous, reach) if wrong.size else ""

    def apply_rows(
        self, rows: Values, *, previous: Values | None, period_s: float
    ) -> tuple[Values, str]:
        """Return commands that follow each other, ``float64[H, A]``, as :meth:`apply` does."""
        limited, first = np.empty_like(rows), ""
        for index, row in enumerate(rows):
            limited[index], violation = self.apply(row, previous=previous, period_s=period_s)
            previous = limited[index]
            first = first or violation
        return limited, first

    def require_within(self, pose: Sequence[float], parameter: str) -> None:
        """Return unless a pose lies outside the range of a joint.

        Raises:
            ConfigError: It does; names the parameter and the joint.
        """
        values = np.array(pose)
        outside = np.flatnonzero((values < self._lower) | (values > self._upper))
        if outside.size:
            joint = int(outside[0])
            raise ConfigError(
                f"parameter '{parameter}' leaves the range of joint '{self._names[joint]}'",
                expected=f"{self._lower[joint]:g} to {self._upper[joint]:g}",
                found=pose[joint],
            )

    def _words(self, joint: int, values: Values, previous: Values | None, reach: Values) -> str:
        name, value = self._names[joint], values[joint]
        lower, upper = self._lower[joint], self._upper[joint]
        if not lower <= value <= upper:
            return f"joint={name} limit=range value={value:.6g} lower={lower:g} upper={upper:g}"
        assert previous is not None
        kind = "step" if reach[joint] == self._step[joint] else "velocity"
        change = value - previous[joint]
        return f"joint={name} limit={kind} change={change:.6g} largest={reach[joint]:.6g}"
