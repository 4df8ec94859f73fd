"""What every engine's process does besides serving: reads its settings, stops, says it is ready."""

from __future__ import annotations

import difflib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TypeVar

import msgspec
import yaml

from flashrt_ros.engine.address import socket_path
from flashrt_ros.engine.server import EngineServer
from flashrt_ros.errors import ConfigError, ParameterTypeError, UnknownParameterError

FAILURE = 1
"""Exit code where the engine could not start, or can't be relied on any more."""

DEVICE_LOST = 3
"""Exit code after an error that the device's context does not survive: start it anew."""

_Config = TypeVar("_Config", bound=msgspec.Struct)


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
        return msgspec.convert({**_with_numbers(values, kind), **given}, kind)
    except msgspec.ValidationError as error:
        raise ParameterTypeError("the engine's configuration can't be used", found=error) from error


def _with_numbers(values: Mapping[str, object], kind: type[msgspec.Struct]) -> dict[str, object]:
    """Read numbers out of lists of words: the file for ROS has lists of words alone."""
    changed = dict(values)
    for field in msgspec.structs.fields(kind):
        words = changed.get(field.name)
        if field.type == tuple[float, ...] and isinstance(words, list):
            changed[field.name] = [_number(word) for word in words if word != ""]
    return changed


def _number(word: object) -> object:
    try:
        return float(word) if isinstance(word, str) else word
    except ValueError:
        return word  # refused with the other types


class Stopper:
    """Turns SIGTERM and SIGINT into a stop: of the server, or of the start before there is one."""

    def __init__(self) -> None:
        self._server: EngineServer | None = None

    def install(self) -> None:
        """Handle the signals from here on; in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def attach(self, server: EngineServer) -> None:
        """Stop this server from here on."""
        self._server = server

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._server is None:
            raise SystemExit(0)
        self._server.stop()


def announce(name: str, epoch: int, ready_fd: int) -> None:
    """Say that clients can connect: a line on standard output, and on a descriptor if there is one.

    Args:
        name: Of the engine.
        epoch: Of the engine.
        ready_fd: Written to and closed; -1 for none.
    """
    print(
        f"ready: engine {name} epoch {epoch} pid {os.getpid()} at {socket_path(name)}", flush=True
    )
    if ready_fd >= 0:
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
