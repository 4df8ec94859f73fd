"""A node's connections to the engine: made with patience, used by one thread at a time."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.wire import BUSY_POLL_US
from flashrt_ros.errors import EngineGoneError, FlashrtError, NotActiveError

_TOLD_S = 3.0

_LOOK_S = 0.25
"""How long one attempt sleeps before the wait may be ended or talked about."""


class Link:
    """One connection, shared by callbacks and transitions: ``with link as client``.

    One at a time; a thread that has it must not ask for it again. Leaving with an EngineGoneError
    tells ``on_gone``, and lets the error pass.

    Args:
        on_gone: Called in the thread that found the engine gone, outside the lock.

    Raises:
        NotActiveError: On entering, where the node is not configured.
    """

    def __init__(self, on_gone: Callable[[FlashrtError], None]) -> None:
        self._on_gone = on_gone
        self._lock = threading.Lock()
        self._client: EngineClient | None = None

    def attach(self, client: EngineClient) -> None:
        """Take over a client; :meth:`close` closes it."""
        with self._lock:
            self._client = client

    def __enter__(self) -> EngineClient:
        self._lock.acquire()
        client = self._client
        if client is None:
            self._lock.release()
            raise NotActiveError(
                "the node has no session with an engine",
                expected="a configured node",
                fix="configure and activate it",
            )
        return client

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        if isinstance(error, EngineGoneError):
            self._on_gone(error)

    def cut(self) -> None:
        """End the connection under whoever waits on it, from any thread; idempotent.

        The call in progress, and every later one, raises EngineGoneError. Still to be closed.
        """
        client = self._client
        if client is not None:
            # Through a descriptor of its own: the client itself is the waiting thread's.
            with suppress(OSError), socket.socket(fileno=os.dup(client.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection after the call in progress; idempotent."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


def connect(
    name: str,
    client: str,
    *,
    wait_s: float,
    request_s: float,
    is_closing: threading.Event,
    progress: Callable[[str], None],
    start_with: str = "python -m flashrt_ros.engine",
    busy_poll_us: int = BUSY_POLL_US,
) -> EngineClient:
    """Connect, waiting for an engine that still loads and captures.

    Args:
        name: Resolved engine name.
        client: How the engine shall call this connection.
        wait_s: How long to wait for the engine.
        request_s: Longest wait for one answer later on.
        is_closing: Ends the wait.
        progress: Told at once, and every three seconds, what is waited for and how to start it.
        start_with: Command that runs such an engine, its name left out.
        busy_poll_us: As of the client.

    Raises:
        EngineGoneError: No engine answered in time, or the node closes.
        ProtocolVersionError: It speaks another version.
        PeerRefusedError: It does not admit this user.
    """
    start = time.monotonic()
    told = start - _TOLD_S
    while True:
        left = start + wait_s - time.monotonic()
        try:
            return EngineClient(
                name,
                client=client,
                timeout_s=request_s,
                wait_s=max(0.0, min(left, _LOOK_S)),
                busy_poll_us=busy_poll_us,
            )
        except EngineGoneError as error:
            now = time.monotonic()
            if now - start >= wait_s:
                raise EngineGoneError(
                    f"no engine '{name}' answered within {wait_s:g} s: {error}",
                    fix="start it, or set the parameter that names it ('engine' or 'model_engine')",
                ) from error
            if is_closing.is_set():
                raise
            if now - told >= _TOLD_S:
                told = now
                progress(
                    f"waiting for engine '{name}', {now - start:.0f} of {wait_s:g} s; if it is not "
                    f"on its way, start it: {start_with} --name {name}"
                )
