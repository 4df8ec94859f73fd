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
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from flashrt_ros.cli import signals
from flashrt_ros.cli.printer import Printer

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

STOP_S = 1.7
"""A stop takes no longer, output included; the interpreter's own end comes on top."""

_OTHERS_S = 1.1
_FIRST_S = 1.45
"""Until when, from the start of a stop, the others and then the first child may take."""

_NEXT_S = 0.2
"""The next child is asked to end when this one has, or after this time.

Two DDS participants that leave at the same instant may wait for each other for 2 s, for a
lock in shared memory; a node ends within 50 ms.
"""

_MAX_LINE = 65_536
"""Characters after which a line without an end is put out."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A child to start.

    Attributes:
        name: Prefix of its output.
        argv: Command line.
    """

    name: str
    argv: tuple[str, ...]


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

    Each child leads a session of its own, so that Ctrl-C in the terminal reaches it
    through :meth:`stop` alone, as SIGTERM: before a child handles that, it ends a child
    without a word, where SIGINT would print the traceback of whatever was being imported.
    Should this process die, the kernel ends them. Nothing is ever restarted.

    The children's pipes are drained whatever becomes of the reader of the output, so that
    no child ever waits to print.

    As a context manager it takes the stop signals (:data:`~flashrt_ros.cli.signals.STOP_SIGNALS`)
    from enter to exit; they end :meth:`wait`. Use it in the main thread.

    Args:
        emit: Takes each line of output, prefixed, in a thread of its own; may block.
        environment: For every child; None takes :func:`child_environment`.
    """

    def __init__(
        self, emit: Callable[[str], None], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._printer = Printer(emit)
        self._exits = ExitStack()
        self._environment = dict(child_environment() if environment is None else environment)
        self._children: list[tuple[ProcessSpec, subprocess.Popen[str]]] = []
        self._threads: list[threading.Thread] = []
        self._ended: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._is_stopping = False

    def __enter__(self) -> Self:
        self._exits.enter_context(signals.handled(lambda number: self._ended.put(None)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._exits:
            self.stop()

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start children, the first one first; call it from the main thread.

        A stop signal that comes meanwhile is delivered when each of them is known.
        """
        with signals.deferred():
            self._start(specs)

    def _start(self, specs: Sequence[ProcessSpec]) -> None:
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
                preexec_fn=_prepare_child,
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
        """Block until a child ends unasked, or a signal asks for a stop.

        Returns:
            The child that ended, or None for a signal.
        """
        return self._ended.get()

    def say(self, line: str) -> None:
        """Put out a line of this process's own, after those that came before."""
        self._printer.put(line)

    def stop(self, *, keeps_signals: bool = False) -> tuple[str, ...]:
        """End every child, one after another, the last one started first; idempotent.

        The first child (the engine) is asked only when the others are gone. Who is still
        there when its time is up is killed, with its group. Returns within :data:`STOP_S`,
        whether or not anybody reads the output.

        Args:
            keeps_signals: Stop signals that come meanwhile are delivered at the end, where
                the process goes on after this; else they do nothing.

        Returns:
            Names of the children that had to be killed.
        """
        with signals.deferred() if keeps_signals else signals.ignored():
            return self._stop()

    def _stop(self) -> tuple[str, ...]:
        self._is_stopping = True
        start = time.monotonic()
        killed: list[str] = []
        others = list(reversed(self._children[1:]))
        for group, share_s in ((others, _OTHERS_S), (self._children[:1], _FIRST_S)):
            for _, child in group:
                if child.poll() is None:
                    child.send_signal(signal.SIGTERM)
                    left_s = start + share_s - time.monotonic()
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(max(0.0, min(_NEXT_S, left_s)))
            for spec, child in group:
                try:
                    child.wait(max(0.0, start + share_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    killed.append(spec.name)
                    self.say(f"{spec.name} did not end in time and is killed")
                # What a child left behind in its group goes with it.
                _kill_group(child.pid)
        deadline = start + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - 0.1 - time.monotonic()))
        # Where something that fled from its group holds a pipe open, the reader goes on, and
        # closing the pipe under it would wait for it.
        if not any(thread.is_alive() for thread in self._threads):
            for _, child in self._children:
                if child.stdout is not None:
                    child.stdout.close()
        self._children.clear()
        self._threads.clear()
        self._printer.close(deadline - time.monotonic())
        return tuple(killed)

    def _watch(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _copy(self, stream: IO[str], prefix: str) -> None:
        with suppress(ValueError):  # closed at the end of a stop
            while line := stream.readline(_MAX_LINE):
                self._printer.put(prefix + line.rstrip("\n"))

    def _wait(self, spec: ProcessSpec, child: subprocess.Popen[str]) -> None:
        code = child.wait()
        if not self._is_stopping:
            self._ended.put(Ended(spec.name, code))


def _prepare_child() -> None:
    """Between fork and exec: end with the parent, by SIGTERM, and by nothing from a terminal."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
