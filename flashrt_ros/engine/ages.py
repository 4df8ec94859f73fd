"""How old what is latched may be: lifetimes that writers name, and limits of the engine's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashrt_ros.runtime.spec import ChannelRole

if TYPE_CHECKING:
    from flashrt_ros.engine.latches import Latches
    from flashrt_ros.engine.timeline import Environment, Timeline


@dataclass(frozen=True, slots=True)
class Stale:
    """An input that is too old to start a plan from.

    Attributes:
        role: Of its channel.
        channel: Its name.
        is_only: Whether the model has no other channel of the role.
        age_ns: Since it was committed, engine clock.
        limit_ns: What the configuration allows.
    """

    role: ChannelRole
    channel: str
    is_only: bool
    age_ns: int
    limit_ns: int

    @property
    def title(self) -> str:
        """Name it: by its role, and its channel where that does not say which."""
        return self.role.value if self.is_only else f"{self.role.value} '{self.channel}'"

    @property
    def lack(self) -> str:
        """What would end it, as ``Status.waiting_for`` says it."""
        return f"fresh {self.title}"


class Ages:
    """Judges, at the latch, what a plan would start from.

    An age counts from the commit, on the engine's clock; for a goal that a verb brought
    back, from then on. A lifetime that a writer named is another matter: it is on the
    writer's clock, rides along, and is judged by whoever acts.

    Args:
        latches: Know what is newest.
        clock_ns: The engine's.
        limits: Age in ns by role; 0, or no entry, for none.
    """

    def __init__(
        self, latches: Latches, clock_ns: Callable[[], int], limits: dict[ChannelRole, int]
    ) -> None:
        self._latches = latches
        self._clock_ns = clock_ns
        self._limits = {role: limit for role, limit in limits.items() if limit}

    def stale(self, timeline: Timeline, env: Environment) -> Stale | None:
        """Return the first input that is too old, None where there is none.

        Call it with nothing missing; see ``Latches.missing``.

        Args:
            timeline: The environment or one of its branches.
            env: The environment, whose observations a branch reads.
        """
        for role, limit_ns in self._limits.items():
            source = env if role is ChannelRole.OBSERVATION else timeline
            names = self._latches.named(role)
            for name in names:
                age_ns = self._clock_ns() - self._latches.newest(source, name).committed_ns
                if age_ns > limit_ns:
                    return Stale(role, name, len(names) == 1, age_ns, limit_ns)
        return None
