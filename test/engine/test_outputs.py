"""Outputs with credit, events that are never lost, and the ring for large outputs."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine import linux, protocol
from flashrt_ros.engine.connection import MAX_UNSENT_EVENTS
from flashrt_ros.engine.outputs import MAX_HELD_NS, MAX_RING_SUBSCRIBERS, Outputs
from flashrt_ros.engine.protocol import Event, EventKind, Output, OutputKind
from flashrt_ros.errors import BusyError, EngineGoneError, ProtocolError, UnknownEnvironmentError

Serve = Callable[..., Any]

LARGE = 2048
"""Numbers in a chunk that does not fit a message inline (8 KiB)."""


def made(sequence: int, *, env_index: int = 0, generation: int = 1) -> protocol.Provenance:
    return protocol.Provenance(7, env_index, -1, generation, sequence, 0, 0, 0, 0, 0, 0, 0)


def event(tick: int, *, env_index: int = 0, generation: int = 1, detail: str = "") -> Event:
    return Event(int(EventKind.GOAL), 7, env_index, generation, tick, "", 0, detail)


def publish(served: Any, *sequences: int, kind: OutputKind = OutputKind.ACTION) -> None:
    def run() -> None:
        for sequence in sequences:
            payload = np.array([sequence, -sequence], np.float32).tobytes()
            served.engine.sink.output(kind, made(sequence), 0, payload)

    served.on_loop(run)


def take(client: Any, *, is_released: bool = True) -> Output:
    output = client.receive(60.0)
    assert isinstance(output, Output)
    if is_released:
        client.release(output)
        client.ping()  # so that the release has been served
    return output


def test_a_reader_gets_every_output(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.subscribe(actions=True)
        for sequence in range(1, 6):
            publish(served, sequence)
            output = take(client)
            assert (output.provenance.sequence, output.missed) == (sequence, 0)
            assert client.values(output).tolist() == [sequence, -sequence]


def test_a_slow_reader_gets_the_newest_and_a_count(serve: Serve) -> None:
    served = serve()
    with served.client() as client, served.client() as fast:
        client.subscribe(actions=True)
        fast.subscribe(actions=True)
        publish(served, 1, 2, 3, 4)
        assert take(client).provenance.sequence == 1
        newest = take(client)
        assert (newest.provenance.sequence, newest.missed) == (4, 2)
        assert client.receive(0) is None
        # What another subscriber does changes nothing for this one.
        assert take(fast, is_released=False).provenance.sequence == 1


def test_without_a_release_nothing_more_comes(serve: Serve) -> None:
    """The control: it is the release that lets the next one through."""
    served = serve()
    with served.client() as client:
        client.subscribe(actions=True)
        publish(served, 1, 2)
        take(client, is_released=False)
        client.ping()
        assert client.receive(0) is None


def test_kinds_have_credit_of_their_own(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.subscribe(actions=True, chunks=True)
        publish(served, 1)
        publish(served, 2, kind=OutputKind.CHUNK)
        kinds = [take(client, is_released=False).kind for _ in range(2)]
        assert kinds == [OutputKind.ACTION, OutputKind.CHUNK]


def test_only_what_was_asked_for_comes(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.subscribe(chunks=True, env_index=1)
        client.subscribe(actions=True)
        publish(served, 1, kind=OutputKind.CHUNK)
        served.on_loop(lambda: served.engine.sink.event(event(1)))
        client.ping()
        assert client.receive(0) is None
        publish(served, 2)
        assert take(client).provenance.sequence == 2
        client.subscribe(events=True)  # changes what comes
        publish(served, 3)
        served.on_loop(lambda: served.engine.sink.event(event(2)))
        assert client.receive(60.0) == event(2)


def test_a_reset_takes_back_what_still_waits(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.subscribe(actions=True)
        publish(served, 1, 2)
        served.on_loop(lambda: served.engine.sink.event(event(0, generation=2)))
        assert take(client).provenance.sequence == 1
        client.ping()
        assert client.receive(0) is None
        publish(served, 3)
        after = take(client)
        assert (after.provenance.sequence, after.missed) == (3, 1)


def test_an_output_that_waited_too_long_is_missed(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.subscribe(actions=True)
        publish(served, 1, 2)
        outputs: Outputs = served.engine.sink
        clock = outputs._clock_ns
        served.on_loop(lambda: setattr(outputs, "_clock_ns", lambda: clock() + MAX_HELD_NS + 1))
        take(client)
        client.ping()
        assert client.receive(0) is None
        served.on_loop(lambda: setattr(outputs, "_clock_ns", clock))
        publish(served, 3)
        assert take(client).missed == 1


@pytest.mark.parametrize(("kind", "slot"), [(0, -1), (1, -1), (0, 3), (2, -1), (-1, -1)])
def test_a_release_without_an_output_costs_the_connection(
    serve: Serve, kind: int, slot: int
) -> None:
    served = serve()
    with served.client() as client:
        client.subscribe(actions=True, chunks=True)
        client._transport.send(protocol.encode(protocol.Release(0, kind, slot)))
        with pytest.raises(ProtocolError, match="release"):
            client.receive(60.0)
        with pytest.raises(EngineGoneError):
            client.ping()


def test_an_environment_that_is_not_there(serve: Serve) -> None:
    with serve().client() as client:
        for env_index in (2, -1, 10**12):
            with pytest.raises(UnknownEnvironmentError):
                client.subscribe(env_index=env_index, actions=True)
        client.ping()


def test_events_are_reliable_up_to_their_number(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """All come, in order, however late they are read; one too many ends the connection."""
    served = serve()
    detail = "x" * 2000
    with served.socket() as sock, served.client() as reader:
        sock.send(protocol.encode(protocol.Subscribe(1, 0, False, False, True)))
        sock.recv(65536)
        reader.subscribe(events=True)

        def fill(first: int, count: int) -> None:
            for tick in range(first, first + count):
                served.engine.sink.event(event(tick, detail=detail))

        # What the kernel takes by itself comes first.
        num_sent = 0
        connection = next(
            session.connection
            for session in served.server._clients[0]._sessions.values()
            if session.connection.client == "raw"
        )
        while not connection.wants_write:
            served.on_loop(partial(fill, num_sent, 1))
            num_sent += 1
            reader.receive(60.0)
        served.on_loop(partial(fill, num_sent, MAX_UNSENT_EVENTS - 1))
        num_sent += MAX_UNSENT_EVENTS - 1
        ticks = []
        for _ in range(num_sent):
            message = protocol.decode_from_engine(sock.recv(65536))
            assert isinstance(message, Event)
            ticks.append(message.tick)
        assert ticks == list(range(num_sent))
        # And once more, without a reader and without an end.
        served.on_loop(lambda: fill(0, 2 * num_sent))
        served.wait_for_clients(0)
    assert f"left {MAX_UNSENT_EVENTS} events unread" in caplog.text


def test_replies_come_after_the_events_before_them(serve: Serve) -> None:
    served = serve()
    with served.socket() as sock:
        sock.send(protocol.encode(protocol.Subscribe(1, 0, False, False, True)))
        sock.recv(65536)
        served.on_loop(
            lambda: [served.engine.sink.event(event(t, detail="x" * 2000)) for t in range(200)]
        )
        sock.send(protocol.encode(protocol.Ping(2)))
        messages = [protocol.decode_from_engine(sock.recv(65536)) for _ in range(201)]
        assert messages[-1] == protocol.Ack(2)


def test_a_long_reason_still_fits_an_event(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.subscribe(events=True)
        served.on_loop(lambda: served.engine.sink.event(event(1, detail="x" * 70_000)))
        got = client.receive(60.0)
        assert isinstance(got, Event)
        assert 0 < len(got.detail) < 70_000


# large outputs -------------------------------------------------------------------------------


def large(served: Any, *sequences: int) -> None:
    def run() -> None:
        for sequence in sequences:
            payload = np.full(LARGE, sequence, np.float32).tobytes()
            served.engine.sink.output(OutputKind.CHUNK, made(sequence), 0, payload)

    served.on_loop(run)


def test_a_large_output_comes_in_a_slot(serve: Serve) -> None:
    served = serve(chunk_items=LARGE)
    with served.client() as client:
        client.subscribe(chunks=True)
        for sequence in range(1, 100):
            large(served, sequence)
            output = take(client, is_released=False)
            assert output.slot >= 0
            assert output.payload == b""
            assert np.unique(client.values(output)).tolist() == [sequence]
            assert client.values(output).shape == (LARGE // 2, 2)
            client.release(output)
            client.ping()


def test_a_slot_is_not_overwritten_while_anyone_reads_it(serve: Serve) -> None:
    served = serve(chunk_items=LARGE)
    with served.client() as slow, served.client() as fast:
        slow.subscribe(chunks=True)
        fast.subscribe(chunks=True)
        large(served, 1)
        first = take(slow, is_released=False)
        view = slow.payload(first)
        for sequence in range(2, 200):
            take(fast)
            large(served, sequence)
        assert np.unique(np.frombuffer(view, np.float32)).tolist() == [1]
        slow.release(first)
        newest = take(slow, is_released=False)
        assert np.unique(slow.values(newest)).tolist() == [199]
        assert newest.missed == 197
        with pytest.raises(TypeError):
            slow.payload(first)[:1] = b"x"


def test_a_client_can_not_write_the_output_ring(serve: Serve) -> None:
    served = serve(chunk_items=LARGE)
    with served.socket() as sock:
        sock.send(protocol.encode(protocol.Subscribe(1, 0, False, True, False)))
        _, fds, _, _ = socket.recv_fds(sock, 65536, 1)
        with pytest.raises(PermissionError):
            mmap.mmap(fds[0], 4096)
        with pytest.raises(PermissionError):
            os.ftruncate(fds[0], 0)
        with pytest.raises(PermissionError):
            os.write(fds[0], b"x")
        os.close(fds[0])


def test_slots_come_back_from_whoever_goes(serve: Serve) -> None:
    served = serve(chunk_items=LARGE)
    outputs: Outputs = served.engine.sink
    for sequence in range(1, 60):
        with served.client() as client:
            client.subscribe(chunks=True)
            large(served, sequence, sequence + 1)
            take(client, is_released=False)
    served.wait_for_clients(0)
    ring = outputs._rings[0]
    assert ring.num_free == ring.num_slots


def test_subscribers_of_large_outputs_are_bounded(serve: Serve) -> None:
    served = serve(chunk_items=LARGE)
    clients = [served.client() for _ in range(MAX_RING_SUBSCRIBERS + 1)]
    for client in clients[:-1]:
        client.subscribe(actions=True, chunks=True)
    with pytest.raises(BusyError):
        clients[-1].subscribe(chunks=True)
    # Every one holds a different slot, and there is still one to write.
    for sequence, client in enumerate(clients[:-1], 1):
        large(served, sequence)
        take(client, is_released=False)
        for later in clients[sequence:-1]:
            take(later)
    large(served, 99)
    for client in clients:
        client.close()
    served.wait_for_clients(0)


def test_closing_with_views_alive_keeps_the_memory(serve: Serve) -> None:
    served = serve(chunk_items=LARGE)
    client = served.client()
    client.subscribe(chunks=True)
    large(served, 8)
    output = take(client, is_released=False)
    array = np.frombuffer(client.payload(output), np.float32)
    before = linux.num_shared_mappings()
    client.close()
    assert np.unique(array).tolist() == [8]
    del array
    assert linux.num_shared_mappings() <= before
