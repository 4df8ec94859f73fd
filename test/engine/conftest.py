"""Engines to connect to: a real one in a process, and a stand-in on a thread."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flashrt_ros.engine import address, protocol
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.channels import Channel, WriterRing
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.server import EngineServer
from flashrt_ros.errors import UnknownChannelError
from flashrt_ros.runtime.spec import ChannelRole, ChannelSpec, FieldSpec

WAIT_S = 60.0
"""Longest wait for anything here; nothing that passes comes near."""


@pytest.fixture(scope="session")
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of this session's sockets, for this process and those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("run")
        folder.chmod(0o700)
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.delenv(address.FOLDER_VARIABLE, raising=False)
        yield folder / "flashrt"


def wait_readable(fd: int, what: str) -> None:
    """Wait until a descriptor is readable."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(WAIT_S * 1000):
        raise TimeoutError(what)


class EngineProcess:
    """A real engine in a process of its own, ready for clients."""

    module = "flashrt_ros.engine"
    defaults: ClassVar[dict[str, object]] = {"model": "minimal", "test_hooks": True}

    def __init__(self, name: str, arguments: tuple[str, ...] = (), **config: object) -> None:
        self.name = name
        ready, told = os.pipe()
        self.log_fd = os.memfd_create("log")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", self.module),
                *("--config", "-", "--name", name, "--ready-fd", str(told), *arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log_fd,
            pass_fds=[told],
            text=True,
        )
        os.close(told)
        assert self.process.stdin is not None
        values = {**self.defaults, **config}
        self.process.stdin.write(json.dumps(values))
        self.process.stdin.close()
        self.process.stdin = None
        try:
            wait_readable(ready, f"engine '{name}' did not start")
            if os.read(ready, 16) != b"ready\n":
                raise RuntimeError(f"engine '{name}' ended: {self.stop()}")
        finally:
            os.close(ready)

    def client(self, **options: Any) -> EngineClient:
        """Connect."""
        return EngineClient(self.name, timeout_s=WAIT_S, **options)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal, wait for the end; returns exit code and what stood on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, os.pread(self.log_fd, 1 << 20, 0).decode()


@pytest.fixture
def start_engine(runtime_folder: Path) -> Iterator[Callable[..., EngineProcess]]:
    """Starts real engines; those still there at the end are stopped."""
    engines: list[EngineProcess] = []

    def start(name: str, arguments: tuple[str, ...] = (), **config: object) -> EngineProcess:
        engines.append(EngineProcess(name, arguments, **config))
        return engines[-1]

    yield start
    for engine in engines:
        engine.stop()
        os.close(engine.log_fd)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def engine(runtime_folder: Path, request: pytest.FixtureRequest) -> Iterator[EngineProcess]:
    """One real engine for the tests of a module; they leave it as they found it."""
    engine = EngineProcess(f"tests/{os.getpid()}/{time.monotonic_ns()}", device=request.param)
    yield engine
    code, log = engine.stop()
    os.close(engine.log_fd)
    assert code == 0, log


@pytest.fixture
def client(engine: EngineProcess) -> Iterator[EngineClient]:
    """A client of the module's engine."""
    with engine.client(client="test") as client:
        yield client


GOAL = ChannelSpec(
    name="goal",
    role=ChannelRole.GOAL,
    fields=(FieldSpec("values", (2,), "float32", low=-1.0, high=1.0, units="m"),),
    num_rings=3,
)


@dataclass
class StandInEngine:
    """What the server asks for, with channels and nothing behind them.

    Attributes:
        on_handle: Answers verbs; by default each is an Ack.
        deadline_ns: What the server is told.
        trace: What the server called, in order.
    """

    chunk_items: int = 2
    action_items: int = 2
    on_handle: Callable[[Any], Any] = lambda request: protocol.Ack(request.rid)
    deadline_ns: int | None = None
    background_ns: int | None = None
    work: int = 0
    trace: list[str] = field(default_factory=list)
    steps: list[Callable[[Any], None]] = field(default_factory=list)
    cancelled: list[Any] = field(default_factory=list)
    sink: Any = None
    epoch: int = 77

    def __post_init__(self) -> None:
        self.channel = Channel(GOAL)
        self.told = threading.Condition()

    @property
    def info(self) -> protocol.ModelInfo:
        fields = tuple(
            protocol.FieldInfo(
                f.name, f.shape, f.dtype, GOAL.field_offset(f.name), f.low, f.high, f.units
            )
            for f in GOAL.fields
        )
        goal = protocol.ChannelInfo(
            "goal", "goal", "", GOAL.slot_bytes, GOAL.num_ring_slots, GOAL.ring_bytes, fields
        )
        horizon = self.chunk_items // self.action_items
        return protocol.ModelInfo(
            "stand-in", horizon, self.action_items, 1, (), 1, (goal,), "", 2, 0, 0
        )

    def note(self, what: str) -> None:
        with self.told:
            self.trace.append(what)
            self.told.notify_all()

    def wait_for(self, what: str, count: int = 1) -> None:
        """Wait until the server called something so often."""
        with self.told:
            assert self.told.wait_for(lambda: self.trace.count(what) >= count, WAIT_S), self.trace

    def open_writer(self, channel: str, env_index: int) -> WriterRing:
        if channel != "goal":
            raise UnknownChannelError(f"no channel {channel}")
        return self.channel.open_ring(env_index)

    def close_writer(self, ring: WriterRing) -> None:
        self.channel.close_ring(ring)
        self.note("close_writer")

    def loan(self, ring: WriterRing) -> tuple[int, int, int]:
        return (*ring.loan(5), 5)

    def commit(
        self,
        ring: WriterRing,
        slot: int,
        ticket: int,
        *,
        stamp_ns: int,
        source_sequence: int,
        lifetime_ns: int = 0,
    ) -> int:
        sequence = ring.commit(slot, ticket, stamp_ns, source_sequence, 0, lifetime_ns)
        self.note("commit")
        return sequence

    def return_loan(self, ring: WriterRing, slot: int, ticket: int) -> None:
        ring.return_loan(slot, ticket)

    def handle(self, request: Any) -> Any:
        self.note(type(request).__name__)
        return self.on_handle(request)

    def begin(self, request: Any, done: Callable[[Any], None]) -> object:
        done(self.handle(request))
        return None

    def cancel(self, wait: object) -> None:
        pass

    def interrupt(self, request: protocol.Interrupt, ring: WriterRing | None) -> Any:
        return self.handle(request)

    def begin_step(self, request: protocol.Step, done: Callable[[Any], None]) -> object:
        self.steps.append(done)
        self.note("begin_step")
        return done

    def cancel_step(self, job: Any) -> None:
        self.cancelled.append(job)
        self.note("cancel_step")

    is_waiting = False

    @property
    def has_work(self) -> bool:
        return self.work > 0

    def advance(self) -> bool:
        self.work -= 1
        self.note("advance")
        return self.has_work

    def next_deadline_ns(self) -> int | None:
        return self.deadline_ns

    def on_deadline(self, now_ns: int) -> None:
        self.deadline_ns = None
        self.note("on_deadline")

    def next_background_ns(self) -> int | None:
        return self.background_ns

    def background(self, now_ns: int) -> bool:
        self.background_ns = None
        self.note("background")
        return False


@pytest.fixture
def standin() -> Iterator[StandInEngine]:
    """A stand-in engine, not served."""
    engine = StandInEngine()
    with engine.channel:
        yield engine


@dataclass
class Served:
    """A stand-in engine behind a real server on a thread."""

    name: str
    engine: StandInEngine
    server: EngineServer

    def client(self, **options: Any) -> EngineClient:
        """Connect."""
        return EngineClient(self.name, timeout_s=WAIT_S, **options)

    def socket(self, *, is_welcome: bool = True) -> socket.socket:
        """Connect without the client's manners."""
        sock = address.connect(self.name, timeout_s=WAIT_S)
        sock.settimeout(WAIT_S)
        if is_welcome:
            sock.send(protocol.encode(protocol.Hello(0, protocol.PROTOCOL_VERSION, "raw", 0)))
            assert isinstance(protocol.decode_from_engine(sock.recv(65536)), protocol.Welcome)
        return sock

    def on_loop(self, call: Callable[[], object]) -> None:
        """Run something on the server's thread, between two messages."""
        before = self.engine.on_handle

        def handle(request: Any) -> Any:
            self.engine.on_handle = before
            call()
            return protocol.Ack(request.rid)

        self.engine.on_handle = handle
        with self.client() as client:
            client.drop("anything")

    def wait_for_clients(self, count: int) -> None:
        """Wait until the server has this many clients, asking it once a turn."""
        expires = time.monotonic() + WAIT_S
        while self.server.num_clients != count:
            assert time.monotonic() < expires, self.server.num_clients
            time.sleep(0.001)


@pytest.fixture(params=[0, 10_000_000], ids=["sleeps", "looks"])
def serve(runtime_folder: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Served]]:
    """Serves stand-in engines on threads, until the end of the test.

    Once by a loop that sleeps between messages, and once by one that looks for them.
    """

    @contextmanager
    def serving(engine: StandInEngine) -> Iterator[Served]:
        name = f"standin/{os.getpid()}/{time.monotonic_ns()}"
        claim = EngineSocket(name)
        with (
            engine.channel,
            EngineServer(engine, claim, poll_reserve_us=0, busy_poll_us=request.param) as server,
        ):

            def run() -> None:
                with server:
                    server.run()

            thread = threading.Thread(target=run, name="server")
            thread.start()
            try:
                yield Served(name, engine, server)
            finally:
                server.stop()
                thread.join(WAIT_S)
                assert not thread.is_alive()

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(serving(StandInEngine(**options)))


@pytest.fixture
def refusal() -> Callable[[socket.socket], protocol.Failure]:
    """Reads a failure, and then the end, from a raw socket."""

    def read(sock: socket.socket) -> protocol.Failure:
        failure = protocol.decode_from_engine(sock.recv(65536))
        assert isinstance(failure, protocol.Failure)
        assert sock.recv(65536) == b""
        return failure

    return read
