"""Waiting for the end of a planner's turn: told by the engine, not asked for again and again."""

from __future__ import annotations

import time

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import BusyError

IDLE = "idle"
"""State of a planner's environment between two turns."""


def wait_for_turn_end(engine: str, env_index: int, *, timeout_s: float) -> protocol.Status:
    """Wait until no turn is under way, over a connection of its own.

    The events that another connection gets are its owner's, and whoever owns one can cancel the
    turn meanwhile.

    Args:
        engine: The planner engine's name.
        env_index: Environment.
        timeout_s: Longest wait.

    Returns:
        The environment's status between two turns.

    Raises:
        BusyError: A turn did not end in time, or the engine takes no more clients.
        FlashrtError: The engine is gone, or has no such environment.
    """
    deadline = time.monotonic() + timeout_s
    with EngineClient(engine, client="episode turn", wait_s=0.0) as client:
        client.subscribe(env_index=env_index, events=True)  # first, so that no end is missed
        while True:
            status = client.status(env_index=env_index)
            if status.state == IDLE:
                return status
            left_s = deadline - time.monotonic()
            if left_s <= 0.0:
                raise BusyError(
                    "a planner's turn is under way",
                    expected=f"its end within {timeout_s:g} s",
                    fix="wait for it, or cancel it",
                )
            client.receive(left_s)
