"""Rules for names, for who has to judge one before there is any ROS: ROS's own, and planners'."""

from __future__ import annotations

import re

from flashrt_ros.errors import ConfigError, PayloadRangeError

_MAX_NAMESPACE = 245
_TOKEN = "[A-Za-z_][A-Za-z0-9_]*"
_NAMESPACE = re.compile(f"/?(?:{_TOKEN}(?:/{_TOKEN})*/?)?")
_TOPIC = re.compile(f"(?:/|~/)?{_TOKEN}(?:/{_TOKEN})*")
_MAX_PLANNER = 64
_BLURS = re.compile(r"[\s=\x00-\x1f\x7f]+")  # what would end a word in an event's text


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


def check_planner(name: str) -> None:
    """Return if a planner's name is one word of an event's text.

    Raises:
        PayloadRangeError: It is none.
    """
    if not 0 < len(name) <= _MAX_PLANNER or _BLURS.search(name):
        raise PayloadRangeError(
            "a planner can't have this name",
            expected=f"1 to {_MAX_PLANNER} characters, no blanks and no '='",
            found=repr(name[: 2 * _MAX_PLANNER]),
        )


def one_word(name: str) -> str:
    """Return a name that :func:`check_planner` may have refused as one word, for an event."""
    return _BLURS.sub("_", name[:_MAX_PLANNER])
