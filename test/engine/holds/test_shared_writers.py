"""What must hold of goals that two engines of a process read, whatever becomes of their writers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import NoWriterRingError

WAIT_S = 60.0
NUM_RINGS = 6
"""Four, and two more for the second engine."""


@pytest.fixture
def clients(start_echo: Callable[..., Any], tmp_path: Path) -> Iterator[list[EngineClient]]:
    """Two engines that read one goal channel, each with an observation, ticked by steps."""
    other = f"echo/{os.getpid()}/other"
    file = tmp_path / "second.json"
    shared: dict[str, Any] = {"shared_channels": ["goal"], "num_branch_lanes": 0}
    options = {"model": "minimal", "test_hooks": True, "name": other, "rollback_depth": 0}
    file.write_text(json.dumps({**options, **shared}))
    engine = start_echo(1 << 16, "--config", str(file), **shared)
    with engine.client() as one, EngineClient(other, timeout_s=WAIT_S) as two:
        for client in (one, two):
            client.activate(tick_source="step")
            client.open_writer("observation").write(stamp_ns=10**15, position=[0.1, 0.2])
        yield [one, two]


def latched(client: EngineClient) -> int:
    """Make a chunk from a scene that is one number throughout; returns its goal's sequence."""
    chunk = client.step(4).chunks[0]
    low, high = np.frombuffer(chunk.actions, np.float32)[:2]
    assert low == high, "torn"
    return chunk.provenance.goal_sequence


def wait_for_newer(client: EngineClient, sequence: int) -> int:
    deadline = time.monotonic() + WAIT_S
    while (found := latched(client)) <= sequence:
        assert time.monotonic() < deadline, f"no goal comes after {sequence}"
    return found


def test_writers_die_and_stop_and_engines_rest(
    clients: list[EngineClient], hire: Callable[[str], Any], pick: Callable[[int, int], int]
) -> None:
    crews = [hire(f"echo/{os.getpid()}/{1 << 16}"), hire(f"echo/{os.getpid()}/other")]
    stopped = crews[0].start("commit 0")  # stops for good, in mid-write or between two
    for crew in crews:
        crew.start("commit 0")
    newest = [wait_for_newer(client, 0) for client in clients]
    os.kill(stopped, signal.SIGSTOP)
    for turn in range(pick(12, 100)):
        crew = crews[turn % 2]
        victim = crew.start(("write", "commit 0")[turn // 2 % 2])
        resting = turn % 3
        if turn == 5:
            clients[1].reset(keep_goal=True)
            clients[1].open_writer("observation").write(stamp_ns=10**15, position=[0.1, 0.2])
        for index, client in enumerate(clients):
            if index != resting:
                newest[index] = wait_for_newer(client, newest[index])
        os.kill(victim, signal.SIGKILL)
    assert [client.inspect().torn_reads for client in clients] == [0, 0]
    for crew in crews:
        crew.end()
    for client in clients:
        client.reset()
    with ExitStack() as exits:
        writers: list[Any] = []
        deadline = time.monotonic() + WAIT_S
        while len(writers) < NUM_RINGS:
            try:
                writer = clients[len(writers) % 2].open_writer("goal")
                writers.append(exits.enter_context(writer))
            except NoWriterRingError:
                assert time.monotonic() < deadline, "a ring did not come back"
                clients[0].ping()
        for writer in writers:
            writer.write(stamp_ns=10**9, values=[0.5, 0.5], scene=np.ones(1 << 14, np.float32))
        with pytest.raises(NoWriterRingError):
            clients[0].open_writer("goal")
