"""A client against engines that misbehave, and against forks and threads of its own."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flashrt_ros.engine import linux, protocol, wire
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.transport import Transport
from flashrt_ros.errors import (
    EngineGoneError,
    FlashrtError,
    ParameterRangeError,
    ProtocolError,
    ProtocolVersionError,
)

if TYPE_CHECKING:
    from test.engine.conftest import EngineProcess

Serve = Callable[..., Any]
Answer = Callable[[socket.socket], object]

INFO = protocol.ModelInfo("bad", 1, 1, 1, (), 1, (), "", 1, 0, 0)
WELCOME = protocol.encode(protocol.Welcome(1, protocol.PROTOCOL_VERSION, "bad", 1, INFO))


@pytest.fixture
def misbehave(runtime_folder: Path) -> Iterator[Callable[[Answer], str]]:
    """Starts an engine that answers one client as told, and returns its name."""
    claims: list[EngineSocket] = []
    threads: list[threading.Thread] = []

    def start(answer: Answer) -> str:
        name = f"bad/{len(claims)}/{os.getpid()}"
        claim = EngineSocket(name)
        listener = claim.listen()
        listener.setblocking(True)
        listener.settimeout(60)

        def run() -> None:
            sock = listener.accept()[0]
            with sock:
                sock.settimeout(60)
                sock.recv(65536)
                answer(sock)

        claims.append(claim)
        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return name

    yield start
    for thread in threads:
        thread.join(60)
    for claim in claims:
        claim.close()


@pytest.fixture
def spoken(misbehave: Callable[[Answer], str]) -> Iterator[Callable[[bytes], EngineClient]]:
    """Connects to an engine that has sent a message before it is asked for anything."""
    is_over = threading.Event()
    clients: list[EngineClient] = []

    def connect(message: bytes) -> EngineClient:
        is_sent = threading.Event()

        def answer(sock: socket.socket) -> None:
            sock.send(WELCOME)
            sock.send(message)
            is_sent.set()
            assert is_over.wait(60)

        clients.append(EngineClient(misbehave(answer), timeout_s=60))
        assert is_sent.wait(60)
        clients[-1]._transport._held_ns = 100_000  # as if the engine were another process
        return clients[-1]

    yield connect
    is_over.set()
    for client in clients:
        client.close()


def test_imports_no_torch_and_no_ros() -> None:
    code = (
        "import sys, flashrt_ros.engine.client\n"
        "print([m for m in ('torch', 'rclpy', 'flashrt_ros.engine.engine') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_another_version_is_told(misbehave: Callable[[Answer], str]) -> None:
    other = protocol.encode(protocol.Welcome(1, protocol.PROTOCOL_VERSION + 1, "bad", 1, INFO))
    with pytest.raises(ProtocolVersionError):
        EngineClient(misbehave(lambda sock: sock.send(other)), timeout_s=60)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"garbage", ProtocolError),
        (bytes(protocol.MAX_MESSAGE_BYTES + 1), ProtocolError),
        (protocol.encode(protocol.Ack(1)), ProtocolError),
        (protocol.encode(protocol.Ack(99)), ProtocolError),
        (b"", EngineGoneError),
    ],
)
def test_an_engine_that_makes_no_sense_is_given_up(
    misbehave: Callable[[Answer], str], message: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        EngineClient(misbehave(lambda sock: message and sock.send(message)), timeout_s=60)


def test_a_truncated_reply_is_refused_later_too(misbehave: Callable[[Answer], str]) -> None:
    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        sock.recv(65536)
        sock.send(bytes(protocol.MAX_MESSAGE_BYTES + 1))
        assert sock.recv(65536) == b""  # the client hangs up by itself

    with EngineClient(misbehave(answer), timeout_s=60) as client:
        with pytest.raises(ProtocolError, match="did not fit"):
            client.ping()
        with pytest.raises(EngineGoneError):
            client.ping()


PADDED = protocol.encode(protocol.Ack(2)).ljust(protocol.MAX_MESSAGE_BYTES + 1, b"\0")


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"garbage", "could not be decoded"),
        (bytes(protocol.MAX_MESSAGE_BYTES + 1), "did not fit"),
        (PADDED, "did not fit"),
        (protocol.encode(protocol.Ack(99)), "Ack"),
        (b"", "the engine closed it"),
        (protocol.encode(protocol.Ack(2)), None),
    ],
)
def test_what_is_there_is_found_by_a_look(
    spoken: Callable[[bytes], EngineClient], message: bytes, error: str | None
) -> None:
    client = spoken(message)

    def wait(expires: float, look_ns: int) -> bool:
        raise AssertionError("it was waited for")

    client._transport._wait = wait  # type: ignore[method-assign]
    if error is None:
        client.ping()
    else:
        with pytest.raises((ProtocolError, EngineGoneError), match=error):
            client.ping()
        with pytest.raises(EngineGoneError):
            client.ping()


def test_the_handler_of_a_signal_may_close_what_is_looked_at(
    engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor's number may be another's by then."""
    receive, numbers = linux.receive_held, list[int]()

    with engine.client() as client:

        def interrupted(fd: int, *others: int) -> int:
            numbers.append(fd)
            client.close()
            return int(receive(fd, *others))

        monkeypatch.setattr(linux, "receive_held", interrupted)
        client._transport._held_ns = 200_000_000  # it looks again, however long the handler takes
        with pytest.raises(EngineGoneError):
            client.ping()
    assert numbers[0] >= 0
    assert set(numbers[1:]) == {-1}


def test_an_engine_of_the_same_process_may_run_while_it_is_looked_for(
    serve: Serve, engine: EngineProcess
) -> None:
    with serve().client() as inside, engine.client() as outside:
        assert inside._transport._held_ns == 0
        assert outside._transport._held_ns == 1000 * wire.BUSY_POLL_US


def test_who_waits_for_descriptors_looks_as_long(
    engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks_ns: list[int] = []

    def wait(transport: Transport, expires: float, look_ns: int) -> bool:
        looks_ns.append(look_ns)
        return True

    with engine.client(busy_poll_us=1000) as client:
        monkeypatch.setattr(Transport, "_wait", wait)
        client.open_writer("goal").close()
    assert looks_ns[0] == 1_000_000


def test_no_other_thread_runs_while_an_answer_is_looked_for(
    spoken: Callable[[bytes], EngineClient],
) -> None:
    """Whoever lets go of the interpreter's lock may get it back much later."""
    transport = spoken(protocol.encode(protocol.Ack(2)))._transport
    assert transport._look() == protocol.Ack(2)
    transport._held_ns = 5_000_000
    num_rounds, is_over = 0, False

    def work() -> None:
        nonlocal num_rounds
        while not is_over:
            num_rounds += 1

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.1)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        begin = num_rounds
        assert transport._look() is None
        held = num_rounds - begin
        begin = num_rounds
        assert not transport._wait(0.0, 5_000_000)  # lets others run
        let_go = num_rounds - begin
    finally:
        is_over = True
        sys.setswitchinterval(interval_s)
        thread.join(60)
    assert held == 0
    assert let_go > 0


def test_descriptors_that_nobody_asked_for_are_closed(misbehave: Callable[[Answer], str]) -> None:
    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        for _ in range(2):
            ping = protocol.decode_request(sock.recv(65536))
            assert isinstance(ping, protocol.Ping)
            wire.send(sock, protocol.encode(protocol.Ack(ping.rid)), [sock.fileno()])
        assert sock.recv(65536) == b""

    with EngineClient(misbehave(answer), timeout_s=60) as client:
        client.ping()
        num_fds = linux.num_fds()
        client.ping()
        assert linux.num_fds() == num_fds


OPENED = protocol.WriterOpened(
    2, 0, protocol.ChannelInfo("goal", "goal", "", 4096, 1, 4096, ()), 0, 0, 1, 1
)


@pytest.mark.parametrize(
    ("message", "num_fds"),
    [
        (b"", 1),
        (b"", 2),
        (protocol.encode(OPENED), 2),
        (protocol.encode(protocol.Failure(2, 100, "no")), 1),
        (protocol.encode(protocol.Ack(2)), 1),
    ],
)
def test_descriptors_that_come_with_nonsense_are_closed(
    misbehave: Callable[[Answer], str], message: bytes, num_fds: int
) -> None:
    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        sock.recv(65536)
        wire.send(sock, message, [sock.fileno()] * num_fds)
        is_sent.set()
        assert is_over.wait(60)

    is_sent, is_over = threading.Event(), threading.Event()
    with EngineClient(misbehave(answer), timeout_s=60) as client:
        num_before = linux.num_fds()
        with pytest.raises(FlashrtError):
            client.open_writer("goal")
        assert is_sent.is_set()
        assert linux.num_fds() == num_before
        is_over.set()


def test_no_answer_ends_the_connection(misbehave: Callable[[Answer], str]) -> None:
    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        sock.recv(65536)
        assert sock.recv(65536) == b""

    name = misbehave(answer)
    with EngineClient(name, timeout_s=60) as client:
        client._transport._timeout_s = 0.01
        with pytest.raises(EngineGoneError, match="did not answer Ping"):
            client.ping()
        assert client.is_closed


class Looks:
    """Stands for the poll of a connection's answers; notes how long each look may take.

    Sets the event with the first look that may sleep; a patient one with its first look.
    """

    def __init__(self, poll: Any, sleeps: threading.Event, *, is_patient: bool) -> None:
        self.waits_ms: list[float] = []
        self._poll = poll
        self._sleeps = sleeps
        self._is_patient = is_patient

    def poll(self, timeout_ms: float) -> Any:
        self.waits_ms.append(timeout_ms)
        if timeout_ms or self._is_patient:
            self._sleeps.set()
        return self._poll.poll(timeout_ms)


@pytest.mark.parametrize("busy_poll_us", [0, 1_000, 60_000_000])
def test_who_looks_for_an_answer_sleeps_when_its_time_is_up(
    misbehave: Callable[[Answer], str], busy_poll_us: int
) -> None:
    sleeps = threading.Event()
    is_patient = busy_poll_us > 1_000_000  # need not sleep

    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        ping = protocol.decode_request(sock.recv(65536))
        assert isinstance(ping, protocol.Ping)
        sleeps.wait(60)
        sock.send(protocol.encode(protocol.Ack(ping.rid)))

    name = misbehave(answer)
    with EngineClient(name, timeout_s=60, busy_poll_us=busy_poll_us) as client:
        looks = Looks(client._transport._replies, sleeps, is_patient=is_patient)
        client._transport._replies = looks  # type: ignore[assignment]
        client.ping()
    if is_patient:
        assert set(looks.waits_ms) == {0}
    else:
        assert looks.waits_ms[-1] > 0
        assert not any(looks.waits_ms[:-1])


@pytest.mark.parametrize(("place", "held_ns"), [("_look", 100_000), ("_wait", 0)])
def test_a_call_that_a_signal_ended_leaves_its_answer_to_nobody(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, place: str, held_ns: int
) -> None:
    def interrupted(*arguments: object) -> bool:
        raise KeyboardInterrupt

    with serve().client() as client:
        client._transport._held_ns = held_ns
        with monkeypatch.context() as patch:
            patch.setattr(f"flashrt_ros.engine.transport.Transport.{place}", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.ping()
        client.ping()
        assert not client._transport._late


class Sends:
    """A socket whose ``send`` goes on to something else once it is over, well or not."""

    def __init__(self, client: EngineClient, after: Callable[[OSError | None], object]) -> None:
        self._socket = client._transport._socket
        self._after = after
        client._transport._socket = self  # type: ignore[assignment]

    def send(self, message: bytes) -> int:
        try:
            num_bytes = self._socket.send(message)
        except OSError as error:
            self._after(error)
            raise
        self._after(None)
        return num_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class Once:
    """Raises, the first time, as the handler of a signal that came during a call would."""

    def __init__(self, error: BaseException) -> None:
        self.errors = [error]

    def __call__(self, found: OSError | None) -> None:
        if self.errors:
            raise self.errors.pop()


def test_a_signal_between_a_request_and_its_answer_costs_the_answer_alone(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        Sends(client, Once(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            client.drop("x")
        client.ping()
        assert not client._transport._late
    assert served.engine.trace.count("Drop") == 1


@pytest.mark.parametrize("is_next_the_same", [False, True])
def test_memory_that_comes_late_is_nobodys(serve: Serve, is_next_the_same: bool) -> None:
    """Neither the call after it nor the descriptors of the process suffer."""
    with serve().client() as client:
        client.ping()
        num_fds = linux.num_fds()
        Sends(client, Once(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            client.open_writer("goal")
        if is_next_the_same:
            client.open_writer("goal").write(stamp_ns=1, values=[0.0, 0.0])
        client.ping()
        assert not client._transport._late
        # the mapping of the writer that there is keeps one
        assert linux.num_fds() == num_fds + is_next_the_same


def test_a_request_is_not_sent_again_after_an_error_that_came_with_it(serve: Serve) -> None:
    """A handler may raise what a socket raises too, such as TimeoutError."""
    served = serve()
    with served.client() as client:
        Sends(client, Once(TimeoutError("the handler's")))
        with pytest.raises(EngineGoneError):
            client.drop("x")
        with pytest.raises(EngineGoneError):
            client.ping()
    served.wait_for_clients(0)
    assert served.engine.trace.count("Drop") == 1


def test_a_request_waits_for_room_and_is_sent_once(misbehave: Callable[[Answer], str]) -> None:
    is_full = threading.Event()
    found: list[Any] = []

    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        assert is_full.wait(60)
        while not isinstance(found[-1] if found else None, protocol.Drop):
            found.append(protocol.decode_request(sock.recv(65536)))
        sock.send(protocol.encode(protocol.Ack(found[-1].rid)))
        found.append(protocol.decode_request(sock.recv(65536)))
        sock.send(protocol.encode(protocol.Ack(found[-1].rid)))

    def note(error: OSError | None) -> None:
        if isinstance(error, BlockingIOError):
            is_full.set()

    with EngineClient(misbehave(answer), timeout_s=60) as client:
        num_filling = fill(client)
        Sends(client, note)
        client.drop("x")
        client.ping()
    assert is_full.is_set(), "there was room"
    assert all(isinstance(one, protocol.Release) for one in found[:num_filling])
    assert [type(one) for one in found[num_filling:]] == [protocol.Drop, protocol.Ping]


def test_a_request_that_finds_no_room_in_time_ends_the_connection(
    misbehave: Callable[[Answer], str],
) -> None:
    is_over = threading.Event()

    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        is_over.wait(60)

    with EngineClient(misbehave(answer), timeout_s=60) as client:
        fill(client)
        with pytest.raises(EngineGoneError, match="takes no messages"):
            client.call(protocol.Ping(0), protocol.Ack, timeout_s=0)
        with pytest.raises(EngineGoneError, match="takes no messages"):
            client.ping()
        is_over.set()


def fill(client: EngineClient) -> int:
    """Send what has no answer until the socket is full; return how often."""
    message = protocol.encode(protocol.Release(0, 0, 0))
    for num_sent in itertools.count():
        try:
            client._transport._socket.send(message)
        except BlockingIOError:
            return num_sent
    raise AssertionError


def test_memory_that_did_not_come_is_missed(misbehave: Callable[[Answer], str]) -> None:
    channel = protocol.ChannelInfo("goal", "goal", "", 256, 4, 4096, ())

    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        sock.recv(65536)
        sock.send(protocol.encode(protocol.WriterOpened(2, 0, channel, 0, 0, 0, 0)))

    client = EngineClient(misbehave(answer), timeout_s=60)
    with client, pytest.raises(ProtocolError, match="no memory"):
        client.open_writer("goal")


def test_an_engine_that_goes_is_gone(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        served.server.stop()
        with pytest.raises(EngineGoneError):
            client.receive(60.0)
        assert client.is_closed


def test_a_request_that_does_not_fit_is_not_sent(serve: Serve) -> None:
    with serve().client() as client:
        with pytest.raises(ProtocolError, match="request Drop does not fit"):
            client.drop("x" * 70_000)
        client.ping()


@pytest.mark.parametrize("timeout_ns", [-1, -(2**31) * 10**9, 2**31 * 10**9])
def test_a_step_that_can_not_wait_so_long_is_not_sent(serve: Serve, timeout_ns: int) -> None:
    with serve().client() as client:
        with pytest.raises(ParameterRangeError, match="wait so long"):
            client.step(timeout_ns=timeout_ns)
        client.ping()


def stepped(rid: int) -> bytes:
    return protocol.encode(protocol.Stepped(rid, 3, 4, (), ()))


def test_a_step_is_waited_for_as_long_as_the_engine_lives(
    misbehave: Callable[[Answer], str],
) -> None:
    signs: list[int] = []

    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        step: Any = protocol.decode_request(sock.recv(65536))
        for _ in range(3):
            ping: Any = protocol.decode_request(sock.recv(65536))
            assert isinstance(ping, protocol.Ping)
            signs.append(ping.rid)
            sock.send(protocol.encode(protocol.Ack(ping.rid)))
        late: Any = protocol.decode_request(sock.recv(65536))
        sock.send(stepped(step.rid))
        again: Any = protocol.decode_request(sock.recv(65536))
        for rid in (late.rid, again.rid):  # the sign comes after what it was asked for
            sock.send(protocol.encode(protocol.Ack(rid)))

    with EngineClient(misbehave(answer), timeout_s=0.05, wait_s=60) as client:
        assert client.step(timeout_ns=1).tick == 3
        client.call(protocol.Ping(0), protocol.Ack, timeout_s=60)
    assert len(set(signs)) == 3


def test_a_sign_of_life_that_comes_late_is_no_output(misbehave: Callable[[Answer], str]) -> None:
    asked = threading.Event()

    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        step: Any = protocol.decode_request(sock.recv(65536))
        ping: Any = protocol.decode_request(sock.recv(65536))
        sock.send(stepped(step.rid))
        asked.wait(60)
        sock.send(protocol.encode(protocol.Ack(ping.rid)))

    with EngineClient(misbehave(answer), timeout_s=0.05, wait_s=60) as client:
        client.step(timeout_ns=1)
        asked.set()
        assert client.receive(60.0) is None
        assert not client.is_closed


def test_a_step_of_an_engine_without_a_sign_of_life_ends(
    misbehave: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashrt_ros.engine.transport._PATIENCE_S", 0.1)
    given_up = threading.Event()

    def answer(sock: socket.socket) -> None:
        sock.send(WELCOME)
        given_up.wait(60)

    client = EngineClient(misbehave(answer), timeout_s=0.05, wait_s=60)
    with client, pytest.raises(EngineGoneError, match="sign of life"):
        client.step(timeout_ns=86_400_000_000_000)
    given_up.set()


def test_another_thread_ends_a_wait(serve: Serve) -> None:
    with serve().client() as client:
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(client.receive()))
        thread.start()
        client.interrupt_wait()
        thread.join(60)
        assert answers == [None]
        client.ping()


def test_outputs_that_come_between_are_kept(serve: Serve) -> None:
    served = serve()
    made = protocol.Provenance(7, 0, -1, 1, 1, 0, 0, 0, 0, 0, 0, 0)

    def give_first(request: Any) -> protocol.Ack:
        served.engine.sink.output(protocol.OutputKind.ACTION, made, 0, b"kept")
        return protocol.Ack(request.rid)

    with served.client() as client:
        client.subscribe(actions=True)
        served.engine.on_handle = give_first
        client.drop("x")
        output = client.receive(0)
        assert isinstance(output, protocol.Output)
        assert output.payload == b"kept"
        assert client.receive(0) is None


def test_an_answer_leaves_before_the_events_it_causes(serve: Serve) -> None:
    served = serve()
    event = protocol.Event(1, 7, 0, 1, 2, "", 0, "told")

    def tell(request: Any) -> protocol.Ack:
        served.engine.sink.event(event)
        return protocol.Ack(request.rid)

    with served.client() as client:
        client.subscribe(events=True)
        served.engine.on_handle = tell
        client.drop("x")
        assert client.receive(60) == event


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_connection(serve: Serve) -> None:
    served = serve()
    client = served.client()
    client.open_writer("goal").loan()
    gate, told = os.pipe()
    result, answer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        try:
            client.ping()
            os.write(answer, b"pinged")
        except EngineGoneError as error:
            os.write(answer, str(error).encode())
        os.read(gate, 1)
        os._exit(0)
    assert b"belongs to the parent" in os.read(result, 4096)
    client.ping()  # the child's attempt changed nothing here
    client.close()
    served.engine.wait_for("close_writer")
    served.wait_for_clients(0)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.close(told)
    os.waitpid(child, 0)
    for fd in (gate, result, answer):
        os.close(fd)
