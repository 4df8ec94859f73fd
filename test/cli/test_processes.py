from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flashrt_ros.cli.processes import Ended, Processes, ProcessSpec, child_environment

POLITE = """
import signal, sys
print('up', flush=True)
signal.sigwait([signal.SIGINT, signal.SIGTERM])
print('down', flush=True)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
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


def python(name: str, code: str, stop_signal: signal.Signals = signal.SIGINT) -> ProcessSpec:
    # Blocked from the start, so that a signal before sigwait is not lost.
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    return ProcessSpec(name, (sys.executable, "-c", block + code), stop_signal)


def test_output_is_prefixed_and_the_first_child_ends_last() -> None:
    console = Console()
    with Processes(console) as processes:
        processes.start([python("engine", POLITE, signal.SIGTERM), python("node", POLITE)])
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait(number: signal.Signals) -> None:
    console = Console()
    with Processes(console) as processes:
        processes.start([python("engine", POLITE)])
        console.wait_for("[engine] up")
        before = signal.getsignal(number)
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        assert processes.wait() is None
        assert signal.getsignal(number) is before


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


def test_the_environment_spares_children_a_second_start() -> None:
    pytest.importorskip("ros_wheels_bootstrapper")
    environment = child_environment()
    assert environment["_ROS_WHEELS_BOOTSTRAP_COMPLETE"] == "1"
    entries = environment["LD_LIBRARY_PATH"].split(os.pathsep)
    assert entries == sorted(entries)
    assert any("ros_rclpy.libs" in entry for entry in entries)
