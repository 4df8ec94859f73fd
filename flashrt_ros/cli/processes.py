"""Child processes that live and end together: prefixed output, one order of stopping."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import queue
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Self

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

STOP_S = 2.0
"""All children are gone this long after a stop, by SIGKILL if need be."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A child to start.

    Attributes:
        name: Prefix of its output.
        argv: Command line.
        stop_signal: What asks it to end.
    """

    name: str
    argv: tuple[str, ...]
    stop_signal: signal.Signals = signal.SIGINT


@dataclass(frozen=True, slots=True)
class Ended:
    """A child that ended unasked.

    Attributes:
        name: Its name.
        code: Exit code, or minus the number of the signal that killed it.
    """

    name: str
    code: int

    def __str__(self) -> str:
        """Say how it ended."""
        if self.code < 0:
            return f"{self.name} was killed by {signal.Signals(-self.code).name}"
        return f"{self.name} ended with exit code {self.code}"


def child_environment() -> dict[str, str]:
    """Return the environment for a Python child of this installation.

    Where ROS came as wheels, their bootstrapper would start every child's Python a
    second time to set ``LD_LIBRARY_PATH``; set here, with its guard, it does not. The
    entries are sorted, so that every process sees the same libraries.
    """
    environment = dict(os.environ)
    environment["PYTHONUNBUFFERED"] = "1"
    if importlib.util.find_spec("ros_wheels_bootstrapper") is not None:
        site = Path(sysconfig.get_path("purelib"))
        before = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        found = {str(path.resolve()) for path in site.glob("ros_*.libs")}
        found |= {str(Path(sys.prefix) / "lib"), *(entry for entry in before if entry)}
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(sorted(found))
        environment["_ROS_WHEELS_BOOTSTRAP_COMPLETE"] = "1"
    return environment


class Processes:
    """Starts children in order and ends them in the opposite one.

    Each child leads a process group of its own, so that Ctrl-C in the terminal
    reaches it through :meth:`stop` alone; should this process die, the kernel ends
    them. Nothing is ever restarted.

    Args:
        emit: Takes each line of output, prefixed.
        environment: For every child; None takes :func:`child_environment`.
    """

    def __init__(
        self, emit: Callable[[str], None], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._emit = emit
        self._environment = dict(child_environment() if environment is None else environment)
        self._children: list[tuple[ProcessSpec, subprocess.Popen[str]]] = []
        self._threads: list[threading.Thread] = []
        self._ended: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._is_stopping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start children, the first one first; call it from the main thread."""
        width = max(len(spec.name) for spec in specs)
        for spec in specs:
            child = subprocess.Popen(
                spec.argv,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
            self._children.append((spec, child))
            assert child.stdout is not None
            prefix = f"[{spec.name:<{width}}] "
            self._watch(f"{spec.name}-output", self._copy, child.stdout, prefix)
            self._watch(f"{spec.name}-end", self._wait, spec, child)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name, of the children started and not yet stopped."""
        return {spec.name: child.pid for spec, child in self._children}

    def ended(self) -> Ended | None:
        """Return a child that has ended unasked, None while all are there; does not block."""
        try:
            return self._ended.get_nowait()
        except queue.Empty:
            return None

    def wait(self) -> Ended | None:
        """Block until a child ends unasked, or SIGINT or SIGTERM asks for a stop.

        Returns:
            The child that ended, or None for a signal.
        """

        def ask(number: int, frame: FrameType | None) -> None:
            self._ended.put(None)

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, ask) for number in numbers}
        try:
            return self._ended.get()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> tuple[str, ...]:
        """End every child, the last one started first; idempotent.

        The first child (the engine) is asked only when the others are gone. All share
        :data:`STOP_S`; who is still there then is killed, with its group.

        Returns:
            Names of the children that had to be killed.
        """
        self._is_stopping = True
        deadline = time.monotonic() + STOP_S
        killed: list[str] = []
        others = list(reversed(self._children[1:]))
        for group, share in ((others, 0.6), (self._children[:1], 1.0)):
            for spec, child in group:
                if child.poll() is None:
                    child.send_signal(spec.stop_signal)
            until = deadline - STOP_S * (1.0 - share)
            for spec, child in group:
                try:
                    child.wait(max(0.05, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    killed.append(spec.name)
                    self._emit(f"{spec.name} did not end in time and is killed")
                # What a child left behind in its group goes with it.
                _kill_group(child.pid)
                child.wait()
        for thread in self._threads:
            thread.join(1.0)
        for _, child in self._children:
            if child.stdout is not None:
                child.stdout.close()
        self._children.clear()
        self._threads.clear()
        return tuple(killed)

    def _watch(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _copy(self, stream: IO[str], prefix: str) -> None:
        for line in stream:
            self._emit(prefix + line.rstrip("\n"))

    def _wait(self, spec: ProcessSpec, child: subprocess.Popen[str]) -> None:
        code = child.wait()
        if not self._is_stopping:
            self._ended.put(Ended(spec.name, code))


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
