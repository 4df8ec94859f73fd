"""Waits until a node knows a client, so that the answer to its first call is not lost."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from rcl_interfaces.srv import GetParameters
from rclpy.client import Client
from rclpy.node import Node

_AGAIN_S = 1.0
"""After which time it is asked again: the answer was lost, or is late."""


class Meeting:
    """Asks the node behind a service until it answers; to be used from creation to close.

    That a service is ready says what is known on the client's side. DDS gives up an answer to
    a client that the other side has not matched within 100 ms, which a busy machine takes. A
    node learns of clients in their order, so that an answer to a later one, which asks for
    nothing, speaks for those made before.

    Args:
        node: Has the client; spun by whoever waits, or by another thread.
        client: Whose service is ready.
    """

    def __init__(self, node: Node, client: Client) -> None:
        self._node = node
        self._service = node.resolve_service_name(client.srv_name)
        self._probe: Client | None = None
        self._asked_s = 0.0
        self.answered = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def look(self) -> bool:
        """Ask if it is time to; returns at once whether an answer has come."""
        if self.answered.is_set():
            return True
        if self._probe is None:
            owner = self._owner()
            if owner is None:
                return False
            self._probe = self._node.create_client(GetParameters, f"{owner}/get_parameters")
        now_s = time.monotonic()
        if now_s - self._asked_s >= _AGAIN_S and self._probe.service_is_ready():
            self._asked_s = now_s
            future = self._probe.call_async(GetParameters.Request())
            future.add_done_callback(lambda _: self.answered.set())
        return False

    def close(self) -> None:
        """Give up what it asked with; idempotent."""
        if self._probe is not None:
            self._node.destroy_client(self._probe)
            self._probe = None

    def _owner(self) -> str | None:
        """Return the node that offers the service, None while the graph does not say."""
        known = {name for name, _ in self._node.get_service_names_and_types()}
        place = self._service
        while place := place.rpartition("/")[0]:
            if f"{place}/get_parameters" in known:
                return place
        return None
