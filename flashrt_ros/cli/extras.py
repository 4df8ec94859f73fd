"""Packages that only some commands need: asked for before a command begins."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from flashrt_ros.errors import ConfigError


def require(what: str, modules: Mapping[str, str]) -> None:
    """Return unless a module is not installed; nothing is imported.

    Args:
        what: Needs them; begins the message.
        modules: With the extra that installs each.

    Raises:
        ConfigError: Names the first that is missing, and what installs it.
    """
    for module, extra in modules.items():
        if importlib.util.find_spec(module) is None:
            more = " on x86_64, or source a ROS 2 installation" if extra == "ros" else ""
            raise ConfigError(
                f"{what} needs '{module}', which is not installed",
                fix=f"pip install 'flashrt_ros[{extra}]'{more}",
            )
