"""Episodes for trainers in Python, over engine connections; imports without torch and ROS."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import TracebackType

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.episode.catalog import OnDamage, ignore_damage, open_catalog
from flashrt_ros.episode.coordinator import Episodes
from flashrt_ros.episode.engine_part import PLANNER, POLICY, EnginePart
from flashrt_ros.episode.manifest import Manifest, Part
from flashrt_ros.episode.participant import Participant


class EpisodeClient:
    """Takes and brings back a policy, a planner and a simulator under one name.

    What the policy engine's ``capsule_folder`` holds outlives this process; without one, an
    episode ends with the client. Not for use from several threads at once.

    ::

        sim = StatePart("sim", "my-sim/1", sim.get_state, sim.set_state)
        with EpisodeClient(policy, planner=planner, others=[sim]) as episodes:
            episodes.snapshot("before_the_push")
            ...
            episodes.restore("before_the_push")

    Args:
        policy: Connection to the policy's engine; stays the caller's.
        planner: Connection to a planner engine, or None.
        others: More participants, such as a ``StatePart``; held after the planner.
        env_index: Environment, of both engines.
        rate_hz: Control rate to go on at where a timer ticks the policy.

    Raises:
        CapsuleFolderError: The engine's folder is not to be used by this user.
    """

    def __init__(
        self,
        policy: EngineClient,
        *,
        planner: EngineClient | None = None,
        others: Sequence[Participant] = (),
        env_index: int = 0,
        rate_hz: float | None = None,
    ) -> None:
        folder = policy.status(env_index=env_index).capsule_folder
        self._catalog = open_catalog(folder, policy.name)
        planners = (
            [EnginePart(nullcontext(planner), name=PLANNER, env_index=env_index)]
            if planner is not None
            else []
        )
        self._episodes = Episodes(
            EnginePart(
                nullcontext(policy),
                name=POLICY,
                env_index=env_index,
                rate_hz=lambda: rate_hz,
            ),
            [*planners, *others],
            self._catalog,
            env_index=env_index,
            absent=() if planner is not None else (PLANNER,),
        )

    def snapshot(
        self,
        name: str,
        *,
        replace: bool = False,
        persist: bool = False,
        requires: Sequence[str] = (),
    ) -> Manifest:
        """Take every participant's state at one boundary; see ``Episodes.snapshot``."""
        return self._episodes.snapshot(name, replace=replace, persist=persist, requires=requires)

    def restore(self, name: str) -> Manifest:
        """Bring every participant back; see ``Episodes.restore``.

        As after every restore, the policy ticks once an observation was committed anew.
        """
        return self._episodes.restore(name)

    def drop(self, name: str) -> tuple[Part, ...]:
        """Forget an episode and its capsules; see ``Episodes.drop``."""
        return self._episodes.drop(name)

    def episodes(self, on_damage: OnDamage = ignore_damage) -> tuple[Manifest, ...]:
        """Return every episode that can be read, by name; see ``Catalog.manifests``."""
        return self._episodes.manifests(on_damage)

    def close(self) -> None:
        """Let go of the folder; connections and episodes stay. Idempotent."""
        self._catalog.close()

    def __enter__(self) -> EpisodeClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
