"""An engine in a process of its own, hired for a bench and spoken to by a client."""

from __future__ import annotations

import importlib.util
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from flashrt_ros.bench.context import Cast, Context, Crew
from flashrt_ros.bench.failures import BenchError
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.wire import BUSY_POLL_US
from flashrt_ros.errors import EngineGoneError

START_S = 120.0
"""Longest wait for an engine, or for what stands beside it."""

_LOOK_S = 0.05
_SHOWN_LINES = 5


def engine_parameters(context: Context, **parameters: Any) -> dict[str, Any]:
    """Return an engine's parameters, with a name that no other engine has."""
    return {
        "name": f"bench_{os.getpid()}_{secrets.token_hex(3)}",
        "device": context.device.name,
        "num_branch_lanes": 0,
        "rollback_depth": 0,
        "interrupt_depth": 1,
        "test_hooks": True,
        **parameters,
    }


@contextmanager
def hired(
    context: Context, cast: Cast, *, busy_poll_us: int = BUSY_POLL_US
) -> Iterator[tuple[EngineClient, Crew]]:
    """Start processes and connect to their engine; end them afterwards.

    Args:
        context: Starts the processes.
        cast: Which.
        busy_poll_us: As of the client.

    Yields:
        A client of the engine, and the processes; both are closed afterwards.

    Raises:
        BenchError: The engine does not come up, or a process ends.
    """
    with ExitStack() as exits:
        crew = context.hire(cast)
        exits.callback(crew.stop)
        name = str(cast.engine["name"])
        client = wait_for(crew, lambda: connected(name, busy_poll_us), "the engine")
        exits.enter_context(client)
        yield client, crew


def connected(name: str, busy_poll_us: int = BUSY_POLL_US) -> EngineClient | None:
    """Return a client of an engine, which the caller closes; None while there is no engine.

    Args:
        name: The engine's.
        busy_poll_us: As of the client.
    """
    try:
        return EngineClient(
            name,
            client="bench",
            timeout_s=START_S,
            wait_s=_LOOK_S,
            busy_poll_us=busy_poll_us,
        )
    except EngineGoneError:
        return None


def wait_for(crew: Crew, look: Callable[[], Any], what: str, seconds: float = START_S) -> Any:
    """Return the first result of ``look`` that is neither None nor False.

    Args:
        crew: Processes that must go on meanwhile.
        look: Called now and then, at once first.
        what: Is awaited, in words.
        seconds: Longest wait.

    Returns:
        What ``look`` found.

    Raises:
        BenchError: It does not come in time, or a process has ended.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        ended = crew.ended()
        if ended is not None:
            raise BenchError(f"{ended}, unasked; it said: {_last_words(crew)}")
        if time.monotonic() > deadline:
            raise BenchError(f"{what} did not come within {seconds:g} s: {_last_words(crew)}")
        time.sleep(_LOOK_S)


def why_no_ros() -> str:
    """Say why nothing of ROS can be measured, "" where it can."""
    if importlib.util.find_spec("rclpy") is None:
        return "no ROS"
    # Of a source tree that nothing was built in; the nodes need them.
    has_messages = importlib.util.find_spec("flashrt_ros.msg") is not None
    return "" if has_messages else "ROS without the messages of flashrt_ros"


def _last_words(crew: Crew) -> str:
    return " | ".join(list(crew.log)[-_SHOWN_LINES:]) or "nothing"
