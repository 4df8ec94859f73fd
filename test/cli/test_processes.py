from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.cli import processes as room
from flashrt_ros.cli.printer import Printer
from flashrt_ros.cli.processes import Ended, Processes, ProcessSpec, child_environment

POLITE = """
import signal, sys
print('up', flush=True)
signal.sigwait([signal.SIGINT, signal.SIGTERM])
print('down', flush=True)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up', flush=True)
while True: time.sleep(1)
"""


class Console:
    """Collects lines; a line can be waited for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._condition = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._condition:
            self.lines.append(line)
            self._condition.notify_all()

    def wait_for(self, *wanted: str) -> None:
        with self._condition:
            assert self._condition.wait_for(
                lambda: all(line in self.lines for line in wanted), timeout=60
            ), self.lines


def python(name: str, code: str) -> ProcessSpec:
    # Blocked from the start, so that a signal before sigwait is not lost.
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    return ProcessSpec(name, (sys.executable, "-c", block + code))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first child that ends by itself is not killed, however busy the machine is."""
    for name in ("_FIRST_S", "STOP_S"):
        monkeypatch.setattr(room, name, 60.0)


@pytest.mark.usefixtures("patient")
def test_output_is_prefixed_and_the_first_child_ends_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_OTHERS_S", 60.0)
    console = Console()
    with Processes(console) as processes:
        processes.start([python("engine", POLITE), python("node", POLITE)])
        console.wait_for("[engine] up", "[node  ] up")
        assert processes.stop() == ()
    assert console.lines.index("[engine] down") == len(console.lines) - 1


def test_a_child_that_ends_is_named_with_its_code() -> None:
    console = Console()
    with Processes(console) as processes:
        processes.start([python("engine", POLITE), python("node", "raise SystemExit(7)")])
        ended = processes.wait()
    assert ended == Ended("node", 7)
    assert str(ended) == "node ended with exit code 7"


def test_a_child_that_was_killed_is_named_with_the_signal() -> None:
    console = Console()
    with Processes(console) as processes:
        kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        processes.start([python("engine", kill)])
        assert str(processes.wait()) == "engine was killed by SIGKILL"


@pytest.mark.usefixtures("patient")
def test_a_child_that_does_not_listen_is_killed_with_what_it_started() -> None:
    console = Console()
    grandchild = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('grandchild', child.pid, flush=True)\n"
    )
    with Processes(console) as processes:
        processes.start([python("engine", POLITE), python("node", grandchild + STUBBORN)])
        console.wait_for("[engine] up", "[node  ] up")
        line = next(line for line in console.lines if "grandchild" in line)
        assert processes.stop() == ("node",)
    assert process_state(os.getpid()) == "R"  # so that the next line means something
    assert process_state(int(line.rsplit(" ", 1)[1])) in ("", "Z")


def process_state(process_id: int) -> str:
    """State letter of a process, "" once it is gone."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait(number: signal.Signals) -> None:
    console = Console()
    outside = signal.getsignal(number)
    with Processes(console) as processes:
        processes.start([python("engine", POLITE)])
        console.wait_for("[engine] up")
        before = signal.getsignal(number)
        os.kill(os.getpid(), number)
        assert processes.wait() is None
        assert signal.getsignal(number) is before
    assert signal.getsignal(number) is outside


def test_children_end_with_a_launcher_that_is_killed() -> None:
    code = (
        "import sys\n"
        "from flashrt_ros.cli.processes import Processes, ProcessSpec\n"
        "child = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'\n"
        "processes = Processes(lambda line: print(line, flush=True))\n"
        "processes.start([ProcessSpec('c', (sys.executable, '-c', child))])\n"
        "processes.wait()\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=child_environment()
    )
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline().rsplit(" ", 1)[1])
    descriptor = os.pidfd_open(child)
    launcher.kill()
    launcher.wait(60)
    launcher.stdout.close()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(60_000), "the child outlived its launcher"
    os.close(descriptor)


def test_stop_twice_does_nothing_more() -> None:
    processes = Processes(Console())
    processes.start([python("engine", POLITE)])
    processes.stop()
    assert processes.stop() == ()


def noisy(tmp_path: Path) -> tuple[ProcessSpec, Path]:
    """Return a child that prints more than a pipe holds, and the fifo it writes to after that."""
    fifo = tmp_path / "done"
    os.mkfifo(fifo)
    code = (
        "import os, signal\n"
        "for n in range(500): os.write(1, b'%d ' % n + b'x' * 1000 + b'\\n')\n"
        f"open({str(fifo)!r}, 'w').write('.')\n"
        "signal.pause()\n"
    )
    return ProcessSpec("node", (sys.executable, "-c", code)), fifo


def wait_for_byte(fifo: Path) -> None:
    """Wait until a fifo is written to."""
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(60_000), "the child waits to print"
    finally:
        os.close(descriptor)


def test_a_reader_that_pauses_stops_neither_a_child_nor_the_stop(tmp_path: Path) -> None:
    is_over = threading.Event()
    spec, fifo = noisy(tmp_path)

    def emit(line: str) -> None:
        is_over.wait(60)

    with Processes(emit) as processes:
        processes.start([spec])
        wait_for_byte(fifo)
        assert processes.stop() == ()
        assert not is_over.is_set()
    is_over.set()


def test_a_process_ends_well_under_a_reader_that_pauses(tmp_path: Path) -> None:
    spec, fifo = noisy(tmp_path)
    code = (
        "from flashrt_ros.cli.printer import write_line\n"
        "from flashrt_ros.cli.processes import Processes, ProcessSpec\n"
        "with Processes(lambda line: write_line(1, line)) as processes:\n"
        f"    processes.start([ProcessSpec('node', {spec.argv!r})])\n"
        "    processes.wait()\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
    )
    wait_for_byte(fifo)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(60) == 0
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    assert launcher.stderr.read() == b""
    assert launcher.stdout.read().count(b"\n") < 500  # so that it did wait for its reader
    launcher.stdout.close()
    launcher.stderr.close()


def test_a_reader_that_has_gone_is_not_missed(tmp_path: Path) -> None:
    spec, fifo = noisy(tmp_path)

    def emit(line: str) -> None:
        raise BrokenPipeError

    with Processes(emit) as processes:
        processes.start([spec])
        wait_for_byte(fifo)
        assert processes.ended() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_during_a_stop_do_nothing(number: signal.Signals) -> None:
    def emit(line: str) -> None:
        is_up.set()
        if line.endswith("stopping"):
            os.kill(os.getpid(), number)  # the main thread is in stop() now
            is_sent.set()

    code = (
        "import os, signal\n"
        "def leave(*_): os.write(1, b'stopping\\n'); signal.sigwait([signal.SIGUSR1])\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('up', flush=True)\n"
        "while True: signal.pause()\n"
    )
    is_sent = threading.Event()
    is_up = threading.Event()
    processes = Processes(emit)
    before = signal.getsignal(number)
    processes.start([ProcessSpec("engine", (sys.executable, "-c", code))])
    assert is_up.wait(60)
    assert processes.stop() == ("engine",)
    assert is_sent.is_set()
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("patient")
def test_a_signal_during_a_stop_that_keeps_it_comes_when_every_child_is_gone() -> None:
    known: list[int] = []
    has_come: list[bool] = []

    def emit(line: str) -> None:
        if line.endswith("down"):
            os.kill(os.getpid(), signal.SIGTERM)  # the main thread is in stop() now
            has_come.append(bool(known))
        elif line.endswith("up"):
            is_up.set()

    is_up = threading.Event()
    processes = Processes(emit)
    before = signal.signal(signal.SIGTERM, lambda number, frame: known.append(len(processes.pids)))
    try:
        processes.start([python("engine", POLITE)])
        assert is_up.wait(60)
        processes.stop(keeps_signals=True)
    finally:
        signal.signal(signal.SIGTERM, before)
        processes.stop()
    assert has_come == [False]
    assert known == [0]


def test_a_signal_during_the_start_comes_when_every_child_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known: list[int] = []
    popen = subprocess.Popen

    def start(*words: Any, **options: Any) -> Any:
        child = popen(*words, **options)
        signal.raise_signal(signal.SIGINT)
        return child

    def heard(number: int, frame: object) -> None:
        known.append(len(processes.pids))

    monkeypatch.setattr(subprocess, "Popen", start)
    processes = Processes(Console())
    before = signal.signal(signal.SIGINT, heard)
    try:
        processes.start([python("engine", POLITE), python("node", POLITE)])
    finally:
        signal.signal(signal.SIGINT, before)
        processes.stop()
    assert known == [2]


def test_a_child_that_is_stopped_while_it_starts_says_nothing() -> None:
    console = Console()
    code = "import sys, time\nprint('importing', flush=True)\ntime.sleep(600)\n"
    with Processes(console) as processes:
        processes.start([ProcessSpec("node", (sys.executable, "-c", code))])
        console.wait_for("[node] importing")
        os.kill(processes.pids["node"], signal.SIGINT)  # as somebody else would
        assert processes.stop() == ()
    assert console.lines == ["[node] importing"]


def test_dropped_lines_are_counted() -> None:
    lines: list[str] = []
    is_held, may_go = threading.Event(), threading.Event()

    def emit(line: str) -> None:
        is_held.set()
        assert may_go.wait(60)
        lines.append(line)

    printer = Printer(emit, capacity=3)
    printer.put("0")
    assert is_held.wait(60)
    for number in range(1, 6):
        printer.put(str(number))
    may_go.set()
    printer.close(60)
    assert lines == ["0", "2 lines were dropped, because nobody read them", "3", "4", "5"]


def test_the_environment_spares_children_a_second_start() -> None:
    pytest.importorskip("ros_wheels_bootstrapper")
    environment = child_environment()
    assert environment["_ROS_WHEELS_BOOTSTRAP_COMPLETE"] == "1"
    entries = environment["LD_LIBRARY_PATH"].split(os.pathsep)
    assert entries == sorted(entries)
    assert any("ros_rclpy.libs" in entry for entry in entries)
