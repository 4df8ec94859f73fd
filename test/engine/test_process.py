"""Real engine processes, real clients in other processes, and signals between them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.address import socket_path
from flashrt_ros.errors import (
    EngineGoneError,
    NoWriterRingError,
    StaleGenerationError,
    StaleStampError,
    StepTimeoutError,
    UnknownEnvironmentError,
)

StartEngine = Callable[..., Any]
RunClient = Callable[[str], Any]

WAIT_S = 60.0


class ClientProcess:
    """Python code with a ``client`` of the engine, in a process of its own."""

    def __init__(self, name: str, code: str) -> None:
        head = (
            "import ctypes, os, signal, sys\n"
            "from flashrt_ros.engine.client import EngineClient\n"
            f"client = EngineClient({name!r}, timeout_s={WAIT_S})\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", head + textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Wait for the next line it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """End it as it stands, and wait until it has."""
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)


@pytest.fixture
def run_client(engine: Any) -> Iterator[RunClient]:
    """Starts clients of the module's engine; those still there at the end are killed."""
    clients: list[ClientProcess] = []

    def run(code: str) -> ClientProcess:
        clients.append(ClientProcess(engine.name, code))
        return clients[-1]

    yield run
    for client in clients:
        client.kill()


@pytest.fixture
def stepped(client: Any) -> Iterator[Any]:
    """A client whose environment is stepped, with a goal and an observation."""
    client.activate(tick_source="step")
    client.reset()
    client.goal = client.open_writer("goal")
    client.observation = client.open_writer("observation")
    client.goal.write(stamp_ns=1, values=[0.5, -0.5])
    client.observation.write(stamp_ns=1, position=[0.1, 0.2])
    yield client
    client.deactivate()


# verbs ---------------------------------------------------------------------------------------


def test_every_verb_gets_its_answer(stepped: Any) -> None:
    client = stepped
    first = client.step(2)
    assert len(first.actions) == 2
    assert first.chunks[0].provenance.goal_sequence == 1
    name = f"test-{os.getpid()}"
    capsule = client.snapshot(name, labels=("kind=test",)).capsule
    after = client.step(2)
    assert client.restore(name).capsule_id == capsule.id
    client.observation.write(stamp_ns=2, position=[0.1, 0.2])
    again = client.step(2)
    assert [a.values for a in again.actions] == [a.values for a in after.actions]
    forked = client.fork(2, seeds=(1, 2))
    chunks = [client.step(1, branch=branch) for branch in forked.branches]
    assert chunks[0].actions[0].provenance.branch == forked.branches[0]
    assert client.select(forked.branches[1]).path == "flip"
    interrupted = client.interrupt(
        reason="test", goal=client.goal.prepare(stamp_ns=5, values=[0.0, 0.0])
    )
    assert (interrupted.depth, interrupted.goal_sequence) == (1, 2)
    assert client.resume().depth == 0
    assert [c.id for c in client.capsules(label="kind=test")] == [capsule.id]
    assert client.list_capsules(label="kind=test").total == 1
    assert client.pin(name).capsule.pinned
    client.pin(name, pinned=False)
    client.drop(name)
    client.reseed(4, counter=2)
    seen = client.inspect()
    assert (seen.noise_seed, seen.noise_counter) == (4, 2)
    status = client.status()
    assert (status.num_clients, status.missed_outputs, status.state) == (1, 0, "active")
    with pytest.raises(UnknownEnvironmentError):
        client.status(env_index=1)


def test_a_step_waits_for_its_observation(stepped: Any, engine: Any) -> None:
    with engine.client() as other:
        with pytest.raises(StepTimeoutError):
            other.step(1, min_observation_stamp_ns=50, timeout_ns=1_000_000)
        writer = other.open_writer("observation")
        writer.write(stamp_ns=50, position=[0.0, 0.0])
        stepped_to = other.step(1, min_observation_stamp_ns=50)
        assert stepped_to.actions[0].provenance.observation_stamp_ns >= 0


def test_what_was_loaned_before_a_reset_does_not_act(stepped: Any) -> None:
    client = stepped
    loan = client.goal.loan()
    generation = client.reset(stamp_ns=100).generation
    assert loan.generation < generation
    with pytest.raises(StaleGenerationError):
        client.goal.commit(loan, stamp_ns=200)
    client.goal.loan()
    client.reset(stamp_ns=100)
    assert client.goal.write(stamp_ns=200, values=[0.0, 0.0]) > 1  # renewed by itself
    with pytest.raises(StaleStampError):
        client.goal.write(stamp_ns=99, values=[0.0, 0.0])
    client.goal.write(stamp_ns=201, values=[0.0, 0.0])


def test_outputs_and_events_come_while_a_timer_ticks(client: Any, engine: Any) -> None:
    with engine.client() as reader:
        reader.subscribe(actions=True, chunks=True, events=True)
        client.activate(tick_source="timer", rate_hz=200.0)
        generation = client.reset().generation
        client.open_writer("goal").write(stamp_ns=1, values=[0.5, -0.5])
        client.open_writer("observation").write(stamp_ns=1, position=[0.1, 0.2])
        kinds: set[object] = set()
        sequence = 0
        while len(kinds) < 4:
            message = reader.receive(WAIT_S)
            assert message is not None, kinds
            if isinstance(message, protocol.Event):
                kinds.add(protocol.EventKind(message.kind))
                kinds &= {protocol.EventKind.RESET, protocol.EventKind.GOAL, 0, 1}
                continue
            made = message.provenance
            assert (made.engine_epoch, made.generation) == (reader.engine_epoch, generation)
            assert made.sequence != sequence
            sequence = made.sequence
            assert reader.values(message).shape[-1] == reader.model.action_dim
            kinds.add(message.kind)
            reader.release(message)
        client.deactivate()


# writers that die ----------------------------------------------------------------------------


def fill_rings(client: Any) -> list[Any]:
    """Open goal rings until none is left."""
    writers = []
    while True:
        try:
            writers.append(client.open_writer("goal"))
        except NoWriterRingError:
            return writers


def test_a_writer_killed_in_mid_write_gives_its_ring_back(
    engine: Any, run_client: RunClient
) -> None:
    for _ in range(3):
        writer = run_client(
            """
            loan = client.open_writer("goal").loan()
            loan.fields["values"][0] = 1.0
            print("loaned", flush=True)
            sys.stdin.read()
            """
        )
        assert writer.line() == "loaned"
        with engine.client() as client:
            others = fill_rings(client)
            writer.kill()
            client.ping()
            # The dead one's ring is the only one there is.
            client.open_writer("goal").write(stamp_ns=1, values=[0.0, 0.0])
            fill_rings(client)
            assert others


def test_writers_killed_at_any_moment_cost_nothing(engine: Any, run_client: RunClient) -> None:
    with engine.client() as client:
        client.activate(tick_source="step")
        client.reset()
        num_rings = len(fill_rings(client))
    for num_writes in (1, 7, 100, 1000):
        writer = run_client(
            f"""
            writer = client.open_writer("goal")
            for count in range(10**9):
                writer.write(stamp_ns=count, values=[0.5, 0.5])
                if count == {num_writes}:
                    print("going", flush=True)
            """
        )
        assert writer.line() == "going"
        writer.kill()
        with engine.client() as client:
            client.ping()
            # What it committed last may still wait to be read, in one ring.
            assert len(fill_rings(client)) >= num_rings - 1
    with engine.client() as client:
        client.reset()
        assert len(fill_rings(client)) == num_rings


def test_a_childs_copy_of_the_socket_does_not_keep_a_dead_writer_alive(
    engine: Any, run_client: RunClient
) -> None:
    """The C library's fork runs none of Python's hooks: only the pidfd tells."""
    writer = run_client(
        """
        loan = client.open_writer("goal").loan()
        pid = ctypes.CDLL(None).fork()
        if pid == 0:
            signal.pause()
        print(pid, flush=True)
        sys.stdin.read()
        """
    )
    grandchild = int(writer.line())
    try:
        with engine.client() as client:
            others = fill_rings(client)
            writer.process.kill()
            writer.process.wait(WAIT_S)
            os.kill(grandchild, 0)  # is alive, with the socket open
            client.ping()
            client.open_writer("goal").loan()
            assert others
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_a_client_without_a_descriptor_left_is_told_so(run_client: RunClient) -> None:
    starved = run_client(
        """
        import contextlib, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        for descriptor in range(64):
            with contextlib.suppress(OSError):
                os.dup(0)
        try:
            client.open_writer("goal")
        except Exception as error:
            print(error, flush=True)
        """
    )
    assert "limit of open files" in starved.line()


def test_a_client_can_not_truncate_the_memory(client: Any) -> None:
    request = protocol.OpenWriter(0, "goal", 0)
    opened, fds = client._transport.exchange(request, protocol.WriterOpened, max_fds=1)
    for size in (0, 4096, 1 << 20):
        if size != opened.channel.ring_bytes:
            with pytest.raises(PermissionError):
                os.ftruncate(fds[0], size)
    os.close(fds[0])
    client.ping()


# torn reads ----------------------------------------------------------------------------------


def test_no_goal_is_read_while_it_is_written(stepped: Any, engine: Any) -> None:
    """A writer in another process commits as fast as it can while chunks are made."""
    before = stepped.inspect()
    with ClientWriter(engine.name, scribble=False):
        for count in range(200):
            stepped.observation.write(stamp_ns=count + 10, position=[0.1, 0.2])
            stepped.step(4)
    seen = stepped.inspect()
    assert seen.num_latches > before.num_latches
    assert seen.torn_reads == before.torn_reads
    assert seen.goal_transport_copies == 0


def test_a_writer_that_scribbles_after_its_commit_is_detected(stepped: Any, engine: Any) -> None:
    """The control of the test above."""
    before = stepped.inspect().torn_reads
    with ClientWriter(engine.name, scribble=True):
        for count in range(100_000):
            stepped.observation.write(stamp_ns=count + 10, position=[0.1, 0.2])
            stepped.step(4)
            if stepped.inspect().torn_reads > before:
                return
    raise AssertionError("no torn read was seen")


class ClientWriter:
    """A process that commits goals as fast as it can, until the block ends."""

    def __init__(self, name: str, *, scribble: bool) -> None:
        extra = "old[0][:] = count % 7 / 7" if scribble else "pass"
        self.client = ClientProcess(
            name,
            f"""
            writer = client.open_writer("goal")
            old = []
            for count in range(10**9):
                prepared = writer.prepare(stamp_ns=count, values=[count % 5 / 5] * 2)
                old.append(prepared.loan.fields["values"].view())
                writer.commit(prepared.loan, stamp_ns=count)
                {extra}
                if len(old) > 3:
                    old.pop(0)
                if count == 10:
                    print("writing", flush=True)
            """,
        )

    def __enter__(self) -> None:
        assert self.client.line() == "writing"

    def __exit__(self, *error: object) -> None:
        self.client.kill()


# clients and engines come and go -------------------------------------------------------------


def test_two_hundred_clients_leave_nothing(client: Any, engine: Any) -> None:
    def visit() -> None:
        with engine.client() as visitor:
            visitor.subscribe(actions=True, chunks=True, events=True)
            goal = visitor.open_writer("goal")
            goal.write(stamp_ns=1, values=[0.0, 0.0])
            visitor.open_writer("observation").loan()

    visit()
    client.reset()
    client.ping()
    before = client.inspect()
    for _ in range(200):
        visit()
    client.reset()
    client.ping()
    after = client.inspect()
    assert after.num_fds == before.num_fds
    assert after.num_mappings == before.num_mappings


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "stop"])
def test_a_stop_is_graceful(start_engine: StartEngine, how: str) -> None:
    engine = start_engine(f"stop/{how}")
    with engine.client() as client, engine.client() as other:
        client.activate(tick_source="timer", rate_hz=100.0)
        if how == "stop":
            client.stop()
        else:
            engine.process.send_signal(getattr(signal, how))
        with pytest.raises(EngineGoneError):
            other.receive(WAIT_S)
    engine.process.wait(WAIT_S)
    code, log = engine.stop()
    assert code == 0, log
    assert not socket_path(engine.name).exists()
    assert "Traceback" not in log


def test_a_killed_engine_is_gone_and_can_be_started_again(start_engine: StartEngine) -> None:
    engine = start_engine("killed")
    client = engine.client()
    epoch = client.engine_epoch
    engine.stop(signal.SIGKILL)
    with pytest.raises(EngineGoneError):
        client.ping()
    client.close()
    assert socket_path("killed").is_socket()
    with start_engine("killed").client() as client:
        assert client.engine_epoch != epoch


def run_engine(*arguments: str, text: str = "{}") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flashrt_ros.engine", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def test_a_second_engine_on_one_name_is_refused(engine: Any, client: Any) -> None:
    done = run_engine("--name", engine.name)
    assert done.returncode == 1
    assert "ENGINE_RUNNING" in done.stderr
    assert str(engine.process.pid) in done.stderr
    client.ping()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"modle": "minimal"}', "UNKNOWN_PARAMETER"),
        ('{"num_environments": "two"}', "PARAMETER_TYPE"),
        ('{"num_environments": 0}', "CONFIG"),
        ("[1, 2]", "CONFIG"),
        ("{", "CONFIG"),
        ('{"model": "nothing"}', "UNKNOWN_MODEL"),
    ],
)
def test_a_bad_configuration_is_refused(runtime_folder: Path, text: str, code: str) -> None:
    done = run_engine("--config", "-", "--name", "refused", text=text)
    assert done.returncode == 1
    assert f": {code}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(runtime_folder.glob("refused*"))


def test_a_stop_ends_the_start_too(runtime_folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "flashrt_ros.engine", "--name", "early"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    expires = time.monotonic() + WAIT_S
    while not list(runtime_folder.glob("early*.lock")):
        assert time.monotonic() < expires
        assert process.poll() is None
        time.sleep(0.005)
    process.terminate()
    out, log = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, log) == (0, "", "")
    assert not list(runtime_folder.glob("early*"))


STOPPED_AMID_A_CLAIM = """
import os, signal, sys
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.hosting import Stopper

def take():
    address = EngineSocket("early")
    os.kill(os.getpid(), signal.SIGTERM)
    return [address]

stopper = Stopper()
stopper.install()
stopper.claim(take)
sys.exit("went on")
"""


def test_a_stop_while_a_name_is_taken_gives_it_back(runtime_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AMID_A_CLAIM],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(runtime_folder.glob("early*"))


@pytest.mark.parametrize("module", ["torch.version", "numpy.version", "torch._functorch"])
def test_a_stop_in_the_middle_of_an_import_ends_the_start(
    runtime_folder: Path, module: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "flashrt_ros.engine", "--name", "early"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.rpartition("|")[2].strip() == module:
            break
    process.terminate()
    out, log = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, ""), log
    assert "Error" not in log
    assert not list(runtime_folder.glob("early*"))


def test_a_model_of_ones_own(
    start_engine: StartEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_models.py").write_text(
        "from flashrt_ros.models.minimal import MinimalPolicy\n"
        "def make(weights):\n"
        "    assert weights is None\n"
        "    return MinimalPolicy()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    engine = start_engine("own", ("--model-factory", "my_models:make"), model="unused")
    with engine.client() as client:
        assert client.model.name == "minimal"
    done = run_engine("--name", "other", "--model-factory", "my_models:nothing")
    assert done.returncode == 1
    assert "my_models:nothing" in done.stderr


def test_environments_have_slots_of_their_own(start_engine: StartEngine) -> None:
    with start_engine("many", num_environments=3).client() as client:
        writers = [client.open_writer("goal", env_index) for env_index in range(3)]
        assert len({writer.first_slot for writer in writers}) == 3
        for env_index, writer in enumerate(writers):
            client.activate(env_index=env_index, tick_source="step")
            writer.write(stamp_ns=1, values=[env_index / 4, 0.0])
            client.open_writer("observation", env_index).write(stamp_ns=1, position=[0.0, 0.0])
        chunks = [client.step(1, env_index=env_index).chunks[0].actions for env_index in range(3)]
        assert len({np.frombuffer(chunk, np.float32).tobytes() for chunk in chunks}) == 3
