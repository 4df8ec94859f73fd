"""What must hold of goals whatever their writers do: no copy, no torn read, no slot lost.

``FLASHRT_TORTURE=1`` runs the full sizes: a million commits, a hundred writers killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine.protocol import Output, OutputKind
from flashrt_ros.errors import NoFreeSlotError, NoWriterRingError

WAIT_S = 60.0
MAX_RATE_HZ = 10_000.0

StartEcho = Callable[..., Any]
Hire = Callable[[str], Any]
Pick = Callable[[int, int], int]


def observe(client: Any, stamp_ns: int = 1) -> None:
    client.open_writer("observation").write(stamp_ns=stamp_ns, position=[0.1, 0.2])


def echo(payload: bytes) -> tuple[float, float]:
    """Return the smallest and the largest number that the latch node read."""
    low, high = np.frombuffer(payload, np.float32)[:2]
    return float(low), float(high)


def write_scene(writer: Any, number: float, **more: Any) -> int:
    """Commit a goal whose scene is one number throughout; wait for a slot if need be."""
    loan = writer.loan()
    loan.fields["values"][:] = 0.5
    loan.fields["scene"][:] = number
    sequence: int = writer.commit(loan, stamp_ns=10**9, **more).sequence
    return sequence


# no copy -------------------------------------------------------------------------------------

SIZES = [1 << 10, 1 << 16, 1 << 20, 1 << 24]


@pytest.mark.parametrize("num_bytes", SIZES)
def test_the_graph_reads_the_address_that_the_planner_wrote(
    start_echo: StartEcho, num_bytes: int
) -> None:
    with start_echo(num_bytes).client() as client:
        client.activate(tick_source="step")
        observe(client)
        writer = client.open_writer("goal")
        slots = set()
        for turn in range(5):
            loan = writer.loan()
            loan.fields["values"][:] = 0.5
            loan.fields["scene"][:] = turn
            writer.commit(loan, stamp_ns=1 + turn)
            made = client.step(4).chunks[0]
            assert echo(made.actions) == (turn, turn)
            seen = client.inspect()
            assert seen.goal_transport_copies == 0
            assert (seen.read_device, seen.read_inode) == writer.identity
            assert seen.read_offset == loan.slot * writer.channel.slot_bytes
            slots.add(loan.slot)
        assert len(slots) > 1
        assert seen.torn_reads == 0


def test_the_control_of_the_count_is_a_channel_that_is_staged(start_echo: StartEcho) -> None:
    with start_echo(1 << 16, staged_channels=["goal"]).client() as client:
        client.activate(tick_source="step")
        observe(client)
        write_scene(client.open_writer("goal"), 3.0)
        assert echo(client.step(1).chunks[0].actions) == (3.0, 3.0)
        seen = client.inspect()
        assert (seen.goal_transport_copies, seen.read_inode) == (1, 0)


# no torn read, the last arrives, no loan leaks -------------------------------------------------


def check_rings(client: Any) -> None:
    """Every ring admits a writer, and every slot of each can be had."""
    with contextlib.ExitStack() as stack:
        # the goal in force keeps its ring from the next writer, as it should
        writers: list[Any] = [stack.enter_context(client.open_writer("goal"))]
        write_scene(writers[0], 1.0)
        client.step(4)
        deadline = time.monotonic() + WAIT_S
        while len(writers) < 4:
            try:
                writers.append(stack.enter_context(client.open_writer("goal")))
            except NoWriterRingError:
                assert time.monotonic() < deadline, "a ring did not come back"
                client.ping()
        for writer in writers:
            seen = set()
            for turn in range(3 * writer.channel.num_ring_slots):
                loan = writer.loan()
                seen.add(loan.slot)
                if turn % 2:
                    writer.return_loan(loan)
                else:
                    loan.fields["values"][:] = 0.5
                    loan.fields["scene"][:] = turn
                    writer.commit(loan, stamp_ns=10**9)
                    client.step(0)
            assert seen == set(range(writer.channel.num_ring_slots))
        with pytest.raises(NoWriterRingError):
            client.open_writer("goal")


def chunks(client: Any) -> Iterator[tuple[int, tuple[float, float]]]:
    """Yield every chunk as it comes: the goal's sequence, and what was read of it."""
    deadline = time.monotonic() + 10 * WAIT_S
    while time.monotonic() < deadline:
        message = client.receive(WAIT_S)
        assert message is not None, "the engine makes no chunks"
        if isinstance(message, Output) and message.kind == OutputKind.CHUNK:
            found = message.provenance.goal_sequence, echo(message.payload)
            client.release(message)
            yield found
    raise AssertionError("what was waited for did not come")


def test_two_writers_as_fast_as_they_can_and_a_reader_at_full_rate(
    start_echo: StartEcho, hire: Hire, pick: Pick
) -> None:
    count = pick(4_000, 500_000)
    engine = start_echo(4096, replan_threshold=4)
    with engine.client() as client, engine.client() as reader:
        crew = hire(engine.name)
        observe(client)
        reader.subscribe(actions=False, chunks=True, events=False)
        client.activate(tick_source="timer", rate_hz=MAX_RATE_HZ)
        for _ in range(2):
            crew.start(f"commit {count}")
        num_chunks = 0
        for sequence, (low, high) in chunks(reader):
            num_chunks += 1
            assert low == high
            if sequence == 2 * count:
                break
        assert low == (count - 1) % 97
        ends = sorted(int(crew.line().split()[1]) for _ in range(2))
        assert ends[1] == 2 * count
        status, seen = client.status(), client.inspect()
        assert seen.torn_reads == 0
        assert seen.goal_transport_copies == 0
        # the last commit is latched, and no other one is on its way
        assert num_chunks > 1
        assert status.goal_age_ns >= 0
        client.deactivate()
        client.activate(tick_source="step")
        check_rings(client)


# writers that die, and writers that stop --------------------------------------------------------


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.001)
    raise AssertionError(f"process {pid} is still there")


def test_writers_killed_in_mid_write_cost_no_slot(
    start_echo: StartEcho, hire: Hire, pick: Pick
) -> None:
    engine = start_echo(1 << 16)
    with engine.client() as client, engine.client() as other:
        crew = hire(engine.name)
        client.activate(tick_source="step")
        observe(client)
        beside = other.open_writer("goal")
        before = None
        for turn in range(pick(6, 200)):
            pid = crew.start("write" if turn % 2 else "commit 0")
            sequence = write_scene(beside, turn)
            os.kill(pid, signal.SIGKILL)
            wait_until_gone(pid)
            sequence = max(sequence, write_scene(beside, -turn))
            made = client.step(4).chunks[0]
            low, high = echo(made.actions)
            assert low == high
            assert made.provenance.goal_sequence >= sequence
            if turn == 1:
                before = client.inspect()
        other.close()
        check_rings(client)
        after = client.inspect()
        assert before is not None
        assert after.torn_reads == 0
        assert after.num_fds <= before.num_fds
        assert after.num_mappings <= before.num_mappings + 4


@pytest.mark.parametrize("what", ["write", "commit 0"])
def test_a_stopped_writer_stops_nobody_else(start_echo: StartEcho, hire: Hire, what: str) -> None:
    engine = start_echo(1 << 16, replan_threshold=4)
    with engine.client() as client, engine.client() as reader:
        crew = hire(engine.name)
        observe(client)
        reader.subscribe(actions=False, chunks=True, events=False)
        beside = client.open_writer("goal")
        write_scene(beside, 1.0)
        client.activate(tick_source="timer", rate_hz=200.0)
        pid = crew.start(what)
        os.kill(pid, signal.SIGSTOP)
        tick = client.status().tick
        sequence = 0
        for turn in range(200):  # many times what its ring holds
            with contextlib.suppress(NoFreeSlotError):
                sequence = write_scene(beside, turn)
        for made_under, (low, high) in chunks(reader):
            assert low == high
            if made_under >= sequence:
                break
        assert client.status().tick > tick
        os.kill(pid, signal.SIGCONT)
        if what != "write":
            for made_under, (low, high) in chunks(reader):  # it goes on where it was
                assert low == high
                if made_under > sequence:
                    break
        os.kill(pid, signal.SIGKILL)
        assert client.inspect().torn_reads == 0
