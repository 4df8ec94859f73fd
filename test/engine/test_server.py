"""The loop and its manners towards clients, over a stand-in engine."""

from __future__ import annotations

import array
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flashrt_ros.engine import address, linux, protocol, wire
from flashrt_ros.engine.address import EngineSocket, socket_path
from flashrt_ros.engine.connection import MAX_UNSENT_REPLIES
from flashrt_ros.engine.server import EngineServer
from flashrt_ros.errors import (
    AbandonedError,
    CapsuleNotFoundError,
    DeviceLostError,
    EngineGoneError,
    FlashrtError,
    LoanError,
    PeerRefusedError,
    ProtocolError,
)
from test.engine.conftest import Served

Serve = Callable[..., Any]
Refusal = Callable[[socket.socket], protocol.Failure]


# bad messages --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\xc1", "could not be decoded"),
        (b"garbage that is no msgpack", "could not be decoded"),
        (msgspec.msgpack.encode([200, 1]), "could not be decoded"),
        (msgspec.msgpack.encode([2, "rid"]), "could not be decoded"),
        (msgspec.msgpack.encode({"rid": 1}), "could not be decoded"),
        (protocol.encode(protocol.Ack(1)), "could not be decoded"),
        (bytes(protocol.MAX_MESSAGE_BYTES + 1), "did not fit"),
        (protocol.encode(protocol.Hello(3, protocol.PROTOCOL_VERSION, "", 0)), "out of order"),
        (protocol.encode(protocol.Release(0, 0, 0)), "not subscribed"),
        (protocol.encode(protocol.Release(10**18, -7, 10**18)), "not subscribed"),
    ],
)
def test_a_bad_message_costs_its_sender_alone(
    serve: Serve, refusal: Refusal, message: bytes, reason: str
) -> None:
    served = serve()
    with served.client() as bystander, served.socket() as sock:
        sock.send(message)
        failure = refusal(sock)
        assert failure.code == ProtocolError.code
        assert reason in failure.message
        bystander.ping()
        served.wait_for_clients(1)


def test_a_message_with_descriptors_is_refused_and_leaks_none(
    serve: Serve, refusal: Refusal
) -> None:
    served = serve()
    with served.socket() as sock, socket.socket() as sent:
        served.on_loop(lambda: None)
        num_fds = linux.num_fds()
        rights = array.array("i", [sent.fileno()])
        sock.sendmsg(
            [protocol.encode(protocol.Ping(1))],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)],
        )
        assert "did not fit" in refusal(sock).message
        served.wait_for_clients(0)
        assert linux.num_fds() <= num_fds


@pytest.mark.parametrize(
    "hello",
    [
        protocol.encode(protocol.Hello(9, protocol.PROTOCOL_VERSION + 1, "new", 1)),
        # A Hello of a later form that this side can't decode, and one that grew.
        msgspec.msgpack.encode([1, 9, protocol.PROTOCOL_VERSION + 1, {"client": "new"}]),
        msgspec.msgpack.encode([1, 9, protocol.PROTOCOL_VERSION + 1, "new", 1, "more"]),
    ],
)
def test_another_version_is_told_both(serve: Serve, refusal: Refusal, hello: bytes) -> None:
    with serve().socket(is_welcome=False) as sock:
        sock.send(hello)
        failure = refusal(sock)
        assert (failure.rid, failure.code) == (9, 300)
        for version in (protocol.PROTOCOL_VERSION, protocol.PROTOCOL_VERSION + 1):
            assert f"version {version}" in failure.message


def test_hello_comes_first(serve: Serve, refusal: Refusal) -> None:
    with serve().socket(is_welcome=False) as sock:
        sock.send(protocol.encode(protocol.Ping(4)))
        failure = refusal(sock)
        assert (failure.rid, failure.code) == (4, ProtocolError.code)


def test_a_handler_that_fails_costs_the_connection_and_is_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: object) -> object:
        raise ZeroDivisionError("a bug")

    served = serve(on_handle=fail)
    with served.client() as bystander, served.client() as client:
        with pytest.raises(FlashrtError, match="a bug") as caught:
            client.drop("x")
        assert caught.value.code == 1
        with pytest.raises(EngineGoneError):
            client.ping()
        bystander.ping()
    assert "ZeroDivisionError" in caplog.text


def test_a_refused_verb_costs_nothing(serve: Serve) -> None:
    def refuse(request: object) -> object:
        raise CapsuleNotFoundError("no capsule 'x'", fix="list them")

    with serve(on_handle=refuse).client() as client:
        with pytest.raises(CapsuleNotFoundError, match="list them"):
            client.drop("x")
        client.ping()


def test_a_reply_that_does_not_fit_is_a_failure(serve: Serve) -> None:
    long = protocol.Moved(0, 0, 0, "x" * 70_000, 0, "", 0)
    with serve(on_handle=lambda request: long).client() as client:
        with pytest.raises(ProtocolError, match="does not fit"):
            client.deactivate()
        client.ping()


def test_a_page_that_does_not_fit_is_shorter(serve: Serve) -> None:
    info = protocol.CapsuleInfo("id", "n" * 4000, "", (), 0, 0, 0, 0, "", False, "", "")

    def page(request: protocol.ListCapsules) -> protocol.CapsulePage:
        return protocol.CapsulePage(request.rid, (info,) * (100 - request.offset), 100)

    with serve(on_handle=page).client() as client:
        assert 0 < len(client.list_capsules().capsules) < 100
        assert len(list(client.capsules())) == 100


def test_a_client_that_does_not_read_is_cut_off(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    long = protocol.Moved(0, 0, 0, "x" * 60_000, 0, "", 0)
    served = serve(on_handle=lambda request: long)
    with served.client() as bystander, served.socket() as sock:
        request = protocol.encode(protocol.Deactivate(1, 0))

        def ask_on() -> None:
            for _ in range(1000):
                sock.send(request)

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            ask_on()
        bystander.ping()
        served.wait_for_clients(1)
    assert f"left {MAX_UNSENT_REPLIES} replies unread" in caplog.text


@pytest.mark.parametrize("busy_poll_us", [0, 3_600_000_000], ids=["sleeps", "looks"])
@pytest.mark.parametrize("is_read", [True, False])
def test_events_of_a_plan_reach_who_reads_late_and_end_who_does_not(
    runtime_folder: Path, standin: Any, is_read: bool, busy_poll_us: int
) -> None:
    """Nothing else happens that could have the loop look at the connection again."""
    num_events = 200 if is_read else 600  # the socket takes less than 100

    def advance() -> bool:
        standin.work -= 1
        for tick in range(num_events):
            standin.sink.event(
                protocol.Event(int(protocol.EventKind.GOAL), 1, 0, 1, tick, "", 0, "x" * 2000)
            )
        return False

    def begin_work(request: Any) -> Any:
        standin.work = 1
        return protocol.Ack(request.rid)

    standin.advance, standin.on_handle = advance, begin_work
    name = f"events/{os.getpid()}/{is_read}"
    with ExitStack() as exits:
        server = exits.enter_context(
            EngineServer(standin, EngineSocket(name), busy_poll_us=busy_poll_us)
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        exits.callback(thread.join, 60)
        exits.callback(server.stop)
        sock = exits.enter_context(address.connect(name, timeout_s=60))
        sock.settimeout(60)
        sock.send(protocol.encode(protocol.Hello(1, protocol.PROTOCOL_VERSION, "raw", 0)))
        sock.send(protocol.encode(protocol.Subscribe(2, 0, False, False, True)))
        sock.send(protocol.encode(protocol.Drop(3, "x")))
        told = [protocol.decode_from_engine(sock.recv(65536)) for _ in range(3)]
        assert told[2] == protocol.Ack(3)
        if is_read:
            for tick in range(num_events):
                message = protocol.decode_from_engine(sock.recv(65536))
                assert isinstance(message, protocol.Event)
                assert message.tick == tick
        else:
            Served(name, standin, server).wait_for_clients(0)


@pytest.mark.parametrize(
    ("group_id", "peer", "groups", "is_admitted"),
    [
        (None, wire.Peer(1, 12345, 12345), {12345}, False),
        (50, wire.Peer(1, 12345, 12345), {12345}, False),
        (50, wire.Peer(1, 12345, 50), set(), True),
        (50, wire.Peer(1, 12345, 12345), {7, 50}, True),
        (None, wire.Peer(1, 0, 0), set(), True),
        (None, wire.Peer(1, os.geteuid(), 12345), set(), True),
    ],
)
def test_only_the_user_and_the_group_are_admitted(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    group_id: int | None,
    peer: wire.Peer,
    groups: set[int],
    is_admitted: bool,
) -> None:
    served = serve()
    served.server._clients[0]._address.group_id = group_id
    monkeypatch.setattr(wire, "peer_credentials", lambda sock: peer)
    monkeypatch.setattr(wire, "peer_groups", lambda sock: frozenset(groups))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(socket_path(served.name)))
        sock.settimeout(60)
        if is_admitted:
            sock.send(protocol.encode(protocol.Hello(1, protocol.PROTOCOL_VERSION, "", 0)))
        answer = protocol.decode_from_engine(sock.recv(65536))
        assert isinstance(answer, protocol.Welcome) is is_admitted
        if isinstance(answer, protocol.Failure):
            assert answer.code == PeerRefusedError.code
            assert "user 12345" in answer.message
            assert sock.recv(65536) == b""


def test_the_kernel_names_the_peer() -> None:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, two:
        peer = wire.peer_credentials(one)
        assert peer == wire.Peer(os.getpid(), os.geteuid(), os.getegid())
        assert wire.peer_groups(one) <= set(os.getgroups()) | {os.getegid()}
        fd = wire.peer_descriptor(one, peer)
        assert fd is not None
        os.close(fd)


# what a client holds -------------------------------------------------------------------------


def test_rings_and_steps_end_with_their_client(serve: Serve) -> None:
    served = serve()
    with served.socket() as sock, served.client() as client:
        client.open_writer("goal").loan()
        sock.send(protocol.encode(protocol.Step(1, 0, 1, -1, 0, 0)))
        served.engine.wait_for("begin_step")
    served.engine.wait_for("close_writer")
    served.engine.wait_for("cancel_step")
    assert served.engine.channel.reclaimed == [1]


def test_a_step_is_answered_when_it_is_done(serve: Serve) -> None:
    served = serve()
    engine = served.engine
    with served.socket() as sock:
        for rid in (5, 6):
            sock.send(protocol.encode(protocol.Step(rid, 0, 1, -1, 0, 0)))
        engine.wait_for("begin_step", 2)
        served.on_loop(lambda: engine.steps[1](AbandonedError("reset came")))
        failure = protocol.decode_from_engine(sock.recv(65536))
        assert isinstance(failure, protocol.Failure)
        assert (failure.rid, failure.code) == (6, AbandonedError.code)
        served.on_loop(lambda: engine.steps[0](protocol.Stepped(0, 3, 4, (), ())))
        assert protocol.decode_from_engine(sock.recv(65536)) == protocol.Stepped(5, 3, 4, (), ())
    served.wait_for_clients(0)
    assert engine.cancelled == []


def test_a_refused_interrupt_ends_its_loan(serve: Serve) -> None:
    def refuse(request: object) -> object:
        raise CapsuleNotFoundError("no")

    served = serve(on_handle=refuse)
    with served.client() as client:
        writer = client.open_writer("goal")
        for _ in range(10):  # more than there are slots
            prepared = writer.prepare(stamp_ns=1, values=[0.0, 0.5])
            with pytest.raises(CapsuleNotFoundError):
                client.interrupt(goal=prepared)
        with pytest.raises(LoanError):
            client.interrupt(goal=prepared)


def test_a_writer_of_another_client_can_not_be_named(serve: Serve) -> None:
    served = serve()
    with served.client() as one, served.client() as two:
        one.open_writer("goal").loan()
        with pytest.raises(LoanError, match="no writer 0"):
            two.call(protocol.Loan(0, 0), protocol.Loaned)
        two.ping()


# the loop ------------------------------------------------------------------------------------


def test_the_deadline_comes_before_messages(serve: Serve) -> None:
    """With a message waiting and a tick due, the tick runs first."""
    served = serve()
    engine = served.engine
    with served.socket() as sock:

        def hold() -> None:
            sock.send(protocol.encode(protocol.Drop(1, "x")))
            engine.deadline_ns = time.monotonic_ns()

        served.on_loop(hold)
        sock.recv(65536)
    trace = [step for step in engine.trace if step in ("on_deadline", "Drop")]
    assert trace == ["Drop", "on_deadline", "Drop"]


def test_a_deadline_wakes_the_loop(serve: Serve) -> None:
    served = serve()
    due_ns = time.monotonic_ns() + 20_000_000

    def arm() -> None:
        served.engine.deadline_ns = due_ns

    served.on_loop(arm)
    served.engine.wait_for("on_deadline")
    assert time.monotonic_ns() >= due_ns


def test_messages_are_served_between_plan_nodes(serve: Serve) -> None:
    served = serve()
    engine = served.engine

    def work() -> None:
        engine.work = 100_000

    served.on_loop(work)
    with served.client() as client:
        client.drop("x")
        assert engine.work > 0
        engine.work = 0
    assert "advance" in engine.trace


@pytest.mark.parametrize("is_tick_near", [True, False])
def test_background_work_only_fills_slack(serve: Serve, is_tick_near: bool) -> None:
    served = serve()
    engine = served.engine
    served.server._reserve_ns = 10**18 if is_tick_near else 0

    def arm() -> None:
        engine.deadline_ns = time.monotonic_ns() + 20_000_000
        engine.background_ns = 1

    served.on_loop(arm)
    engine.wait_for("on_deadline")
    engine.wait_for("background")  # after the tick there is nothing near
    order = [step for step in engine.trace if step in ("on_deadline", "background")]
    first = "on_deadline" if is_tick_near else "background"
    assert order.index(first) == 0


def test_background_work_wakes_the_loop_when_it_is_due(serve: Serve) -> None:
    served = serve()
    due_ns = time.monotonic_ns() + 20_000_000

    def arm() -> None:
        served.engine.background_ns = due_ns

    served.on_loop(arm)
    served.engine.wait_for("background")
    assert time.monotonic_ns() >= due_ns


def test_stop_ends_every_connection(serve: Serve) -> None:
    served = serve()
    with served.client() as one, served.client() as two:
        one.stop()
        assert two.fileno() >= 0
        with pytest.raises(EngineGoneError):
            two.receive(60.0)


def test_clients_come_and_go_and_leave_nothing(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.ping()

    served.wait_for_clients(0)
    before = linux.num_fds(), linux.num_shared_mappings()
    for _ in range(200):
        with served.client() as client:
            writer = client.open_writer("goal")
            writer.write(stamp_ns=1, values=[0.0, 0.0])
            client.subscribe(actions=True, events=True)
    served.wait_for_clients(0)
    served.on_loop(lambda: served.engine.channel.drop_pending(0))
    served.wait_for_clients(0)
    assert linux.num_fds() == before[0]
    assert linux.num_shared_mappings() == before[1]


def test_an_engine_that_fails_by_itself_ends_the_server(runtime_folder: Path, standin: Any) -> None:
    """Its state can't be relied on; clients see the end, and the process its exit code."""

    def fail(now_ns: int) -> None:
        raise ZeroDivisionError("a bug")

    standin.on_deadline = fail
    standin.deadline_ns = 1
    name = f"fails/{os.getpid()}"
    with EngineServer(standin, EngineSocket(name)) as server:
        sock = address.connect(name, timeout_s=0)
        with pytest.raises(ZeroDivisionError):
            server.run()
    with sock:
        sock.settimeout(60)
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), DeviceLostError("it is gone")])
def test_what_fails_after_a_verb_was_answered_ends_the_engine_not_the_client(
    runtime_folder: Path, standin: Any, error: Exception
) -> None:
    """One answer, never two; its twin that fails before is a refusal and costs one client."""

    def begin(request: Any, done: Callable[[Any], None]) -> None:
        done(protocol.Ack(request.rid))
        raise error

    standin.begin = begin
    name = f"unkept/{os.getpid()}"
    with EngineServer(standin, EngineSocket(name)) as server:
        sock = address.connect(name, timeout_s=0)
        sock.send(protocol.encode(protocol.Hello(1, protocol.PROTOCOL_VERSION, "raw", 0)))
        sock.send(protocol.encode(protocol.Drop(2, "x")))
        with pytest.raises(type(error)):
            server.run()
    with sock:
        sock.settimeout(60)
        told = [protocol.decode_from_engine(sock.recv(65536)) for _ in range(2)]
        assert isinstance(told[0], protocol.Welcome)
        assert told[1] == protocol.Ack(2)
        if isinstance(error, DeviceLostError):
            last = protocol.decode_from_engine(sock.recv(65536))
            assert isinstance(last, protocol.Failure)
            assert last.rid == 0  # about the connection, not the request
        assert sock.recv(65536) == b""
