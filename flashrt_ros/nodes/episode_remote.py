"""A participant of another process, over its ``~/episode/part``."""

from __future__ import annotations

import array
import secrets
import threading
from collections.abc import Callable
from typing import Any

from rclpy.client import Client
from rclpy.node import Node

from flashrt_ros.episode.manifest import Part
from flashrt_ros.episode.participant import Taking
from flashrt_ros.errors import EpisodeError, from_wire
from flashrt_ros.nodes.conversions import ns_to_duration
from flashrt_ros.srv import EpisodePart

_LEASES = 10
"""How many answers a hold outlives."""


class RemotePart:
    """Asks a participant and waits for each answer; never from the node's own executor.

    Args:
        name: In the episode.
        client: Of the service, on a node that another thread spins.
        env_index: Environment.
        timeout_s: Longest wait for one answer.
        goal_sequence: Asked for the number of the goal acted on when the state is taken.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        *,
        env_index: int,
        timeout_s: float,
        goal_sequence: Callable[[], int],
    ) -> None:
        self._name = name
        self._client = client
        self._env_index = env_index
        self._timeout_s = timeout_s
        self._goal_sequence = goal_sequence
        self._token = ""

    @property
    def name(self) -> str:
        """Name in the episode."""
        return self._name

    def hold(self) -> None:
        """Have it stand still, for the length of a lease at most."""
        self._token = secrets.token_hex(8)
        lease_ns = round(_LEASES * self._timeout_s * 1e9)
        self._call(EpisodePart.Request.HOLD, lease=ns_to_duration(lease_ns))

    def take(self, taking: Taking) -> Part:
        """Return its state."""
        reply = self._call(
            EpisodePart.Request.TAKE,
            episode=taking.episode,
            persist=taking.persist,
            goal_sequence=self._goal_sequence(),
        )
        facts = dict(fact.partition("=")[::2] for fact in reply.facts)
        return Part(
            self._name,
            reply.kind,
            reply.capsule_id,
            reply.fingerprint,
            bytes(reply.state),
            facts,
        )

    def check(self, part: Part) -> None:
        """Have it refuse what it could not take over."""
        self._call(EpisodePart.Request.CHECK, part)

    def put(self, part: Part) -> None:
        """Have it take a state over."""
        self._call(EpisodePart.Request.PUT, part)

    def release(self) -> None:
        """Have it go on."""
        self._call(EpisodePart.Request.RELEASE)

    def settle(self) -> None:
        """Have it forget what was replaced."""
        self._call(EpisodePart.Request.SETTLE)

    def revert(self) -> None:
        """Have it bring back what was replaced, and go on."""
        self._call(EpisodePart.Request.REVERT)

    def drop(self, part: Part) -> None:
        """Have it forget what it kept for a state."""
        self._call(EpisodePart.Request.DROP, part)

    def _call(self, verb: int, part: Part | None = None, **fields: Any) -> EpisodePart.Response:
        """Ask and wait.

        Raises:
            EpisodeError: No answer came in time.
            FlashrtError: As its code says.
        """
        request = EpisodePart.Request(
            env_index=self._env_index, verb=verb, token=self._token, **fields
        )
        if part is not None:
            request.kind = part.kind
            request.capsule_id = part.capsule_id
            request.fingerprint = part.fingerprint
            request.state = array.array("B", part.state)
        answered = threading.Event()
        future = self._client.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(self._timeout_s):
            self._client.remove_pending_request(future)
            raise EpisodeError(
                f"'{self._client.srv_name}' does not answer",
                participant=self._name,
                expected=f"an answer within {self._timeout_s:g} s",
            )
        reply = future.result()
        assert isinstance(reply, EpisodePart.Response)
        if not reply.success:
            raise from_wire(int(reply.error_code), reply.error_msg)
        return reply


def create_part_client(node: Node, service: str) -> Client:
    """Return a client of a participant's service; the node destroys it with itself."""
    return node.create_client(EpisodePart, service)
