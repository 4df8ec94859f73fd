"""Files that a command writes at its end: judged before it begins, since it may take minutes."""

from __future__ import annotations

import os
from pathlib import Path

from flashrt_ros.cli.extras import require
from flashrt_ros.errors import ConfigError


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
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"'{path}' may not be written", fix="name a file somewhere else")


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
