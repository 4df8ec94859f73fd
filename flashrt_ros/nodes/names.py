"""ROS's rules for names, for who has to judge one before there is any ROS."""

from __future__ import annotations

import re

from flashrt_ros.errors import ConfigError

_MAX_NAMESPACE = 245
_TOKEN = "[A-Za-z_][A-Za-z0-9_]*"
_NAMESPACE = re.compile(f"/?(?:{_TOKEN}(?:/{_TOKEN})*/?)?")
_TOPIC = re.compile(f"(?:/|~/)?{_TOKEN}(?:/{_TOKEN})*")


def check_namespace(namespace: str) -> None:
    """Return if ROS takes a namespace; a slash before or after it is no part of it.

    Raises:
        ConfigError: It does not.
    """
    if not _NAMESPACE.fullmatch(namespace) or len(namespace) > _MAX_NAMESPACE:
        raise ConfigError(
            "the namespace can't be used",
            expected=f"letters, digits and _ between single slashes, no part beginning with a "
            f"digit, {_MAX_NAMESPACE} characters at most",
            found=repr(namespace),
        )


def is_topic(name: str) -> bool:
    """Say whether ROS takes the name of a topic; one with substitutions in braces is refused."""
    return _TOPIC.fullmatch(name) is not None
