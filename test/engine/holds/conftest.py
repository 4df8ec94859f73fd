"""Engines over goals of any size, and crews of writers beside them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
WAIT_S = 60.0
SIZE_VARIABLE = "FLASHRT_TORTURE"


@pytest.fixture
def pick() -> Callable[[int, int], int]:
    """Chooses between the size for every day and the full one."""
    return lambda small, full: full if os.environ.get(SIZE_VARIABLE) else small


@pytest.fixture
def start_echo(
    start_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Starts an engine whose goal has a scene of so many bytes."""

    def start(num_bytes: int, *more: str, **config: object) -> Any:
        monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        monkeypatch.setenv("FLASHRT_ECHO_ITEMS", str(num_bytes // 4))
        small = {"num_standby_lanes": 0, "num_branch_lanes": 0, "rollback_depth": 0}
        name = f"echo/{os.getpid()}/{num_bytes}"
        arguments = ("--model-factory", "echo_policy:make")
        return start_engine(name, (*arguments, *more), **{**small, **config})

    return start


class Crew:
    """A process that forks writers, and what they say."""

    def __init__(self, name: str) -> None:
        self.pids: list[int] = []
        self._left = b""
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "crew.py"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def start(self, what: str) -> int:
        """Start a writer, and wait until it has its ring; returns its process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n".encode())
        word, pid = self.line().split()
        assert word == "ready"
        self.pids.append(int(pid))
        return int(pid)

    def line(self, wait_s: float = WAIT_S) -> str:
        """Wait for the next line of any of them."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._left:
            ready, _, _ = select.select([fd], [], [], wait_s)
            assert ready, "nobody says a word"
            read = os.read(fd, 65536)
            assert read, "the crew is gone"
            self._left += read
        line, _, self._left = self._left.partition(b"\n")
        return line.decode()

    def end(self) -> None:
        """Kill whoever is left."""
        for pid in self.pids:
            with_signal(pid, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()


def with_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@pytest.fixture
def hire() -> Iterator[Callable[[str], Crew]]:
    """Starts crews beside engines; ends them."""
    crews: list[Crew] = []

    def start(name: str) -> Crew:
        crews.append(Crew(name))
        return crews[-1]

    yield start
    for crew in crews:
        crew.end()
