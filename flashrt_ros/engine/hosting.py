"""What every engine's process does besides serving: reads its settings, stops, says it is ready."""

from __future__ import annotations

import argparse
import difflib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import msgspec
import yaml

from flashrt_ros.engine.address import EngineSocket, socket_path
from flashrt_ros.engine.host import Host
from flashrt_ros.engine.logs import LossyHandler
from flashrt_ros.errors import (
    ConfigError,
    DeviceLostError,
    FlashrtError,
    ParameterTypeError,
    UnknownParameterError,
)

FAILURE = 1
"""Exit code where the engine could not start, or can't be relied on any more."""

DEVICE_LOST = 3
"""Exit code after an error that the device's context does not survive: start it anew."""

_Config = TypeVar("_Config", bound=msgspec.Struct)


def add_options(parser: argparse.ArgumentParser, *, builds: str, takes: str) -> None:
    """Declare the options that every engine's process has.

    Args:
        parser: Gets them.
        builds: What a factory of the user's own builds.
        takes: What it is called with.
    """
    parser.add_argument("--name", default="", help="engine name, instead of the first file's")
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:N, instead of the file's")
    parser.add_argument(
        "--model-factory",
        default="",
        metavar="MODULE:FUNCTION",
        help=f"build {builds} with this function; it takes {takes}",
    )
    parser.add_argument(
        "--ready-fd",
        type=int,
        default=-1,
        metavar="FD",
        help="write 'ready' to this descriptor and close it, once clients can connect",
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )


def run_process(program: str, log_level: str, work: Callable[[Stopper], None]) -> int:
    """Set up logging and signals, do the work, and say on standard error why it failed.

    Args:
        program: Named in that line.
        log_level: Of what goes to standard error.
        work: Serves until it is stopped.

    Returns:
        0 after a stop, :data:`FAILURE` when it could not start, :data:`DEVICE_LOST`.
    """
    logging.basicConfig(
        level=log_level.upper(),
        handlers=[LossyHandler(sys.stderr.fileno())],
        format="%(levelname)s %(name)s: %(message)s",
    )
    stopper = Stopper()
    stopper.install()
    try:
        work(stopper)
    except FlashrtError as error:
        told = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
        print(f"{program}: {told}{error.name}: {error}", file=sys.stderr)
        return DEVICE_LOST if isinstance(error, DeviceLostError) else FAILURE
    return 0


def read_settings(file: str, kind: type[_Config], **told: str) -> _Config:
    """Read a configuration from a YAML or JSON file.

    Args:
        file: Its path; "-" for standard input, "" for the defaults.
        kind: What the values are of.
        **told: Values that take the place of the file's, unless "".

    Raises:
        ConfigError: The file can't be read, or is no mapping.
        UnknownParameterError: Nothing declares a parameter in it.
        ParameterTypeError: A parameter has another type.
    """
    values: object = {}
    if file:
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
            values = json.loads(text) if file.endswith(".json") else yaml.safe_load(text)
        except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError) as error:
            raise ConfigError(
                f"the engine's configuration '{file}' can't be read", found=error
            ) from error
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"the engine's configuration '{file}' is no mapping",
            expected="parameter: value",
            found=type(values).__name__,
        )
    known = kind.__struct_fields__
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(str(key), known)
            raise UnknownParameterError(
                f"the engine has no parameter '{key}'",
                expected=" or ".join(close) or ", ".join(known),
            )
    try:
        given = {key: value for key, value in told.items() if value}
        return msgspec.convert({**values, **given}, kind)
    except msgspec.ValidationError as error:
        raise ParameterTypeError("the engine's configuration can't be used", found=error) from error


class Stopper:
    """Turns SIGTERM and SIGINT into a stop: of the server, or of the start before there is one.

    A start ends at once, with its names given back: an exception could come up in the middle
    of an import, which then fails in ways of its own.
    """

    def __init__(self) -> None:
        self._server: Host | None = None
        self._claims: Sequence[EngineSocket] = ()
        self._is_claiming = False
        self._is_due = False

    def install(self) -> None:
        """Handle the signals from here on; in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def claim(self, take: Callable[[], Sequence[EngineSocket]]) -> Sequence[EngineSocket]:
        """Take names, which are given back should the start be stopped; they are the caller's.

        A signal that comes meanwhile waits, so that no name is taken and not known.

        Raises:
            EngineRunningError: As ``take`` does.
        """
        self._is_claiming = True
        try:
            self._claims = take()
        finally:
            self._is_claiming = False
        if self._is_due:
            self._leave()
        return self._claims

    def attach(self, server: Host) -> None:
        """Stop this server from here on."""
        self._server = server

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._server is not None:
            self._server.stop()
        elif self._is_claiming:
            self._is_due = True
        else:
            self._leave()

    def _leave(self) -> NoReturn:
        for address in self._claims:
            address.close()
        os._exit(0)


def announce(epochs: Mapping[str, int], ready_fd: int) -> None:
    """Say that clients can connect: a line on standard output for each engine, and on a descriptor.

    Args:
        epochs: By the engine's name.
        ready_fd: Written to and closed; -1 for none.
    """
    for name, epoch in epochs.items():
        print(f"ready: engine {name} epoch {epoch} pid {os.getpid()} at {socket_path(name)}")
    sys.stdout.flush()
    if ready_fd >= 0:
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
