"""A host of one engine, for who has no more than that."""

from __future__ import annotations

import time
from collections.abc import Callable

from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.host import Host, Member
from flashrt_ros.engine.served import ServedEngine


class EngineServer(Host):
    """Serves one engine to the clients of one socket; see :class:`~.host.Host`.

    Args:
        engine: Served; its sink is set. Not owned: close it after the server.
        address: The claim on the name; starts to listen here, is closed with the server.
        poll_reserve_us: As of the host, us.
        busy_poll_us: As of the host, us.
        wake_early_us: As of the host, us.
        owns_process: As of the host.
        clock_ns: As of the host.
    """

    def __init__(
        self,
        engine: ServedEngine,
        address: EngineSocket,
        *,
        poll_reserve_us: int = 600,
        busy_poll_us: int = 0,
        wake_early_us: int = 0,
        owns_process: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(
            [Member(engine, address)],
            poll_reserve_us=poll_reserve_us,
            busy_poll_us=busy_poll_us,
            wake_early_us=wake_early_us,
            owns_process=owns_process,
            clock_ns=clock_ns,
        )
