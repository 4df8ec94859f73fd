"""Files that a command writes at its end: judged before it begins, since it may take minutes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flashrt_ros.cli.extras import require
from flashrt_ros.errors import ConfigError


def target(text: str) -> Path:
    """Return the file to write that an option names.

    Raises:
        argparse.ArgumentTypeError: It names none: "", as of a shell's variable that is not
            set, would be the current folder. "-" is standard output elsewhere, which has the
            answer for people here.
    """
    if text in ("", "-"):
        more = "; './-' is a file of that name" if text else ""
        raise argparse.ArgumentTypeError(f"expected the name of a file, found {text!r}{more}")
    return Path(text)


def check_target(path: Path) -> None:
    """Return unless no file can be written there.

    Raises:
        ConfigError: Its folder is not there, it is a folder itself, or it may not be written.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"there is no folder for '{path}'", fix="make it first")
    if path.is_dir():
        raise ConfigError(f"'{path}' is a folder", expected="the name of a file")
    is_there = path.exists()
    # A file comes to be in a folder that may be both written and entered.
    if not os.access(path if is_there else folder, os.W_OK if is_there else os.W_OK | os.X_OK):
        raise ConfigError(f"'{path}' may not be written", fix="name a file somewhere else")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say it in words where a file can't be written after all.

    Raises:
        ConfigError: The system refused, or has no room.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"'{path}' can't be written",
            found=error.strerror or error,
            fix="name a file somewhere else",
        ) from error


def check_picture(path: Path) -> None:
    """Return unless no picture can be drawn into a file.

    Raises:
        ConfigError: As :func:`check_target`; or matplotlib is not installed, or does not
            know the format that the ending names.
    """
    check_target(path)
    require("a picture", {"matplotlib": "demo"})
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    ending = path.suffix.removeprefix(".").lower()
    if ending not in known:
        raise ConfigError(
            f"'{path}' names no picture's format",
            expected="an ending of " + ", ".join(f".{name}" for name in sorted(known)),
            found=repr(path.suffix),
        )
