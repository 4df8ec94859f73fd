"""``~/episode/*``: one id over policy, planner and simulator, for a node that runs the policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rclpy.client import Client
from rclpy.node import Node

from flashrt_ros.engine import protocol
from flashrt_ros.episode.catalog import Catalog, MemoryCatalog, open_catalog
from flashrt_ros.episode.coordinator import Episodes
from flashrt_ros.episode.engine_part import POLICY, EnginePart
from flashrt_ros.episode.manifest import Manifest
from flashrt_ros.errors import ConfigError, FlashrtError, NotActiveError
from flashrt_ros.msg import EpisodeInfo
from flashrt_ros.nodes.conversions import ns_to_stamp
from flashrt_ros.nodes.deferred import DeferredServices
from flashrt_ros.nodes.entries import parse_entries
from flashrt_ros.nodes.episode_remote import RemotePart, create_part_client
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.links import Link
from flashrt_ros.nodes.parameters import Settings
from flashrt_ros.srv import DropEpisode, ListEpisodes, RestoreEpisode, SnapshotEpisode

PARAMETER = "episode_parts"

_MAX_DIGITS = 19
"""Of a number that a uint64 holds, whatever a manifest says."""


class _Session(NamedTuple):
    """What a configured node knows: names and services of participants, and patience."""

    remotes: tuple[tuple[str, Client], ...]
    timeout_s: float


class EpisodeServices:
    """``~/episode/snapshot``, ``restore``, ``list`` and ``drop``.

    Participants are the node's engine and whoever of ``episode_parts`` is there. Every verb
    runs in a thread of its own; the clients live on another node, which another thread spins.

    Args:
        node: Gets the services.
        clients: Gets the clients; spun by another executor than the node's.
        link: Connection for the verbs.
        fence: Raised by a restore before it answers.
        rate_hz: Rate of the timer while it ticks the policy, None otherwise.
        goal_sequence: The engine's number of the goal that the policy acts on.
    """

    def __init__(
        self,
        node: Node,
        clients: Node,
        link: Link,
        fence: Fence,
        *,
        rate_hz: Callable[[], float | None],
        goal_sequence: Callable[[], int],
    ) -> None:
        self._node = node
        self._clients = clients
        self._link = link
        self._fence = fence
        self._rate_hz = rate_hz
        self._goal_sequence = goal_sequence
        self._known: dict[str, Client] = {}
        self._memory = MemoryCatalog()
        self._session: _Session | None = None
        self._services = DeferredServices(node, "episodes")
        self._services.serve(SnapshotEpisode, "~/episode/snapshot", self._snapshot)
        self._services.serve(RestoreEpisode, "~/episode/restore", self._restore)
        self._services.serve(ListEpisodes, "~/episode/list", self._list)
        self._services.serve(DropEpisode, "~/episode/drop", self._drop)

    def begin(self, settings: Settings) -> None:
        """Look for participants from here on.

        Raises:
            ConfigError: The parameter ``episode_parts`` can't be read.
        """
        remotes = []
        for name, service in parse_parts(settings.texts(PARAMETER)):
            if service not in self._known:
                self._known[service] = create_part_client(self._clients, service)
            remotes.append((name, self._known[service]))
        self._memory = MemoryCatalog()
        self._session = _Session(tuple(remotes), settings.number("episode_timeout_s"))

    def end(self) -> None:
        """Forget the session; a verb in progress fails with its connection. Idempotent."""
        self._session = None

    def close(self) -> None:
        """End the thread; idempotent."""
        self.end()
        self._services.close()

    # services --------------------------------------------------------------------------------

    def _snapshot(
        self, request: SnapshotEpisode.Request, response: SnapshotEpisode.Response
    ) -> None:
        started = time.monotonic_ns()
        with self._catalog() as catalog:
            manifest = self._episodes(catalog, request.env_index).snapshot(
                request.name,
                replace=request.replace,
                persist=request.persist,
                requires=tuple(request.requires),
            )
        response.episode = episode_info(manifest)
        response.duration_ns = time.monotonic_ns() - started

    def _restore(self, request: RestoreEpisode.Request, response: RestoreEpisode.Response) -> None:
        started = time.monotonic_ns()
        moves: list[protocol.Moved] = []
        with self._catalog() as catalog:
            episodes = self._episodes(catalog, request.env_index, moves.append)
            manifest = episodes.restore(request.name)
        response.episode = episode_info(manifest)
        response.engine_epoch = self._fence.epoch
        response.generation = moves[-1].generation
        response.tick = moves[-1].tick
        response.duration_ns = time.monotonic_ns() - started

    def _list(self, request: ListEpisodes.Request, response: ListEpisodes.Response) -> None:
        damaged: list[str] = []

        def note(name: str, error: FlashrtError) -> None:
            self._node.get_logger().warning(f"episode '{name}': {error.name}: {error}")
            damaged.append(name)

        with self._catalog() as catalog:
            manifests = catalog.manifests(note)
        response.episodes = [
            episode_info(one) for one in manifests if one.env_index == request.env_index
        ]
        response.damaged = damaged

    def _drop(self, request: DropEpisode.Request, response: DropEpisode.Response) -> None:
        with self._catalog() as catalog:
            left = self._episodes(catalog, request.env_index).drop(request.name)
        for part in left:
            self._node.get_logger().warning(
                f"participant '{part.name}' is not there: its capsule {part.capsule_id} of episode "
                f"'{request.name}' stays"
            )

    # inside ----------------------------------------------------------------------------------

    def _catalog(self) -> Catalog:
        with self._link as client:
            folder = client.status().capsule_folder
            name = client.name
        return open_catalog(folder, name) if folder else self._memory

    def _episodes(
        self,
        catalog: Catalog,
        env_index: int,
        on_moved: Callable[[protocol.Moved], None] = lambda moved: None,
    ) -> Episodes:
        session = self._session
        if session is None:
            raise NotActiveError(
                "the node has no session with an engine", fix="configure and activate it"
            )

        def note(moved: protocol.Moved) -> None:
            self._fence.raise_to(env_index, moved.generation)
            on_moved(moved)

        policy = EnginePart(
            self._link,
            name=POLICY,
            env_index=env_index,
            rate_hz=self._rate_hz,
            on_moved=note,
            facts=lambda: {"goal_sequence": str(self._goal_sequence())},
        )
        others = [
            RemotePart(
                name,
                client,
                env_index=env_index,
                timeout_s=session.timeout_s,
                goal_sequence=self._goal_sequence,
            )
            for name, client in session.remotes
            if client.service_is_ready()
        ]
        there = [one.name for one in others]
        absent = [name for name, _ in session.remotes if name not in there]
        return Episodes(policy, others, catalog, env_index=env_index, absent=absent)


def parse_parts(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Read the parameter ``episode_parts``.

    Returns:
        Name and service of each participant, in the order in which they are held.

    Raises:
        ConfigError: An entry can't be read, names no service, or a name comes twice.
    """
    found: dict[str, str] = {}
    for entry in parse_entries(PARAMETER, texts, ("service",)):
        if "service" not in entry.values:
            raise entry.refused("an entry names no service", expected="'name service=...'")
        if entry.name in found or entry.name == POLICY:
            raise ConfigError(
                f"parameter '{PARAMETER}' names a participant twice", found=repr(entry.name)
            )
        found[entry.name] = entry.values["service"]
    return tuple(found.items())


def episode_info(manifest: Manifest) -> EpisodeInfo:
    """Return an episode's description."""
    policy = manifest.policy
    facts = policy.facts
    return EpisodeInfo(
        name=manifest.name,
        created=ns_to_stamp(manifest.created_ns),
        env_index=manifest.env_index,
        participants=list(manifest.names),
        absent=list(manifest.absent),
        capsule_id=policy.capsule_id,
        tick=_number(facts, "tick"),
        position=_number(facts, "position"),
        goal_sequence=_number(facts, "goal_sequence"),
        num_bytes=manifest.num_bytes,
        facts=[
            f"{part.name}.{key}={value}"
            for part in manifest.parts
            for key, value in part.facts.items()
        ],
    )


def _number(facts: dict[str, str], key: str) -> int:
    text = facts.get(key, "")
    is_number = text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else 0
