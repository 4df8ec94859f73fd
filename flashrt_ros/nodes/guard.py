"""Whether the policy may act: judged for each action, and between actions."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass

from flashrt_ros.engine.protocol import Provenance
from flashrt_ros.nodes.lifetimes import GoalLifetimes


class Cause(enum.StrEnum):
    """Why the policy stopped acting; also the first word of the SAFETY event."""

    OBSERVATION = "stale_observation"
    GOAL = "stale_goal"
    SILENCE = "engine_silent"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """When the policy must stop.

    Attributes:
        observation_ns: Age of the newest observation; 0 for never.
        future_ns: How far ahead of the node's clock a stamp may be.
    """

    observation_ns: int = 0
    future_ns: int = 0


class Guard:
    """Decides, and remembers what was decided; has no clock, thread or lock of its own.

    The policy *acts* from its first action that passes until something stops it. What
    stopped it ends by itself:

    - a stale observation and a silent engine, with the first action made from an
      observation stamped after that moment;
    - a stale goal, with the first action made under another one;
    - a limit, with the environment's next move or the next activation.

    A stamp further ahead of the clock than tolerated is stale too: the clock was set
    back, and it belongs to another time.

    Args:
        settings: When to stop.
        lifetimes: Of goals.

    Attributes:
        num_refused: Actions and chunks that could not be published, by cause.
    """

    def __init__(self, settings: GuardSettings, lifetimes: GoalLifetimes) -> None:
        self._settings = settings
        self._lifetimes = lifetimes
        self._is_timed = False
        self._silence_ns = 0
        self._is_acting = False
        self._is_latched = False
        self._goal: Provenance | None = None
        self._observed_ns = 0
        self._floor_ns = 0
        self._heard_ns = 0
        self.num_refused: Counter[Cause] = Counter()

    @property
    def is_acting(self) -> bool:
        """Whether an action passed and nothing has stopped the policy since."""
        return self._is_acting

    def begin(self, *, is_timed: bool, silence_ns: int = 0) -> None:
        """Start anew, at an activation.

        Args:
            is_timed: Whether ticks come by themselves. Where a caller asks for each of
                them, time is the caller's, and only limits stop the policy.
            silence_ns: Time without any output of the engine's; 0 for never.
        """
        self._is_timed = is_timed
        self._silence_ns = silence_ns
        self._floor_ns = 0
        self.moved()

    def moved(self) -> None:
        """Take note that the environment moved, or that somebody else stopped the policy."""
        self._is_acting = False
        self._is_latched = False
        self._goal = None

    def observed(self, stamp_ns: int) -> None:
        """Take note of an observation that the engine has."""
        self._observed_ns = stamp_ns

    def heard(self, monotonic_ns: int) -> None:
        """Take note of any output of the engine's."""
        self._heard_ns = monotonic_ns

    def objection(self, made: Provenance, *, now_ns: int) -> Cause | None:
        """Return why what was made so may not be published, and count it; None where it may.

        Args:
            made: What an action or chunk was made from.
            now_ns: The node's clock.
        """
        cause = self._object(made, now_ns)
        if cause is not None:
            self.num_refused[cause] += 1
        return cause

    def passed(self, made: Provenance) -> None:
        """Take note that an action or chunk was published: the policy acts."""
        self._is_acting = True
        self._goal = made

    def look(self, *, now_ns: int, monotonic_ns: int) -> Cause | None:
        """Tell what stops the policy from acting now, if anything does; once for each time.

        Args:
            now_ns: The node's clock.
            monotonic_ns: CLOCK_MONOTONIC, which the engine's ticks follow.
        """
        if not self._is_acting or not self._is_timed:
            return None
        cause: Cause | None = None
        if self._is_blind(now_ns):
            cause = Cause.OBSERVATION
        elif self._silence_ns and monotonic_ns - self._heard_ns > self._silence_ns:
            cause = Cause.SILENCE
        elif self._goal is not None and self._is_goal_stale(self._goal, now_ns):
            cause = Cause.GOAL
        if cause is not None:
            self.stop(cause, now_ns=now_ns)
        return cause

    def stop(self, cause: Cause, *, now_ns: int) -> None:
        """Let nothing pass until what :class:`Guard` says of the cause."""
        self._is_acting = False
        if cause is Cause.LIMIT:
            self._is_latched = True
        elif cause is not Cause.GOAL:
            self._floor_ns = now_ns

    def _object(self, made: Provenance, now_ns: int) -> Cause | None:
        if self._is_latched:
            return Cause.LIMIT
        if not self._is_timed:
            return None
        if self._floor_ns > now_ns + self._settings.future_ns:
            self._floor_ns = now_ns  # the clock was set back meanwhile
        if made.observation_stamp_ns < self._floor_ns or self._is_blind(now_ns):
            return Cause.OBSERVATION
        is_judged = self._settings.observation_ns > 0
        if is_judged and made.observation_stamp_ns > now_ns + self._settings.future_ns:
            return Cause.OBSERVATION
        return Cause.GOAL if self._is_goal_stale(made, now_ns) else None

    def _is_blind(self, now_ns: int) -> bool:
        lifetime_ns = self._settings.observation_ns
        return lifetime_ns > 0 and self._is_old(self._observed_ns, lifetime_ns, now_ns)

    def _is_goal_stale(self, made: Provenance, now_ns: int) -> bool:
        """Tell whether any goal of a chunk has outlived its lifetime, of several channels too."""
        others = made.other_goals
        # What came with the action is the first end of all: whose it is shows among the others'.
        is_firsts = made.goal_expires_ns not in [goal.expires_ns for goal in others]
        first_ns = made.goal_expires_ns if is_firsts else 0
        return self._is_over(
            made.goal_stamp_ns, made.goal_source_sequence, first_ns, now_ns
        ) or any(
            self._is_over(goal.stamp_ns, goal.source_sequence, goal.expires_ns, now_ns)
            for goal in others
        )

    def _is_over(self, stamp_ns: int, sequence: int, expires_ns: int, now_ns: int) -> bool:
        end_ns = expires_ns or self._lifetimes.end_ns(stamp_ns=stamp_ns, sequence=sequence)
        return end_ns is not None and self._is_old(stamp_ns, end_ns - stamp_ns, now_ns)

    def _is_old(self, stamp_ns: int, lifetime_ns: int, now_ns: int) -> bool:
        return now_ns - stamp_ns > lifetime_ns or stamp_ns > now_ns + self._settings.future_ns
