"""Sizes, times and ages, as they are shown and as they are typed."""

from __future__ import annotations

import argparse
import re
import time
from datetime import datetime

from flashrt_ros.engine.protocol import TimelineInfo

_END = 1 << 63
"""What goes over the wire is smaller."""

_LONGEST_S = 1e6

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def size_text(num_bytes: int) -> str:
    """Write a size as people read it: bytes, k, M or G of a thousand."""
    for unit, most in (("", 10_000), ("k", 10_000_000), ("M", 10_000_000_000)):
        if num_bytes < most:
            return f"{num_bytes * 10_000 / most:.0f} {unit}".rstrip()
    return f"{num_bytes / 1e9:.0f} G"


def time_text(created_ns: int) -> str:
    """Write a wall time as the hour of today, or with its date."""
    moment = datetime.fromtimestamp(created_ns / 1e9).astimezone()
    is_today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M")


def timeline_title(one: TimelineInfo) -> str:
    """Name an environment or a branch."""
    name = f"environment {one.env_index}"
    return name if one.branch < 0 else f"branch {one.branch} of {name}"


def age_ns(text: str) -> int:
    """Read an age like ``90s``, ``15m``, ``2h``, ``7d`` or ``1w``, for ``argparse``.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}' is no age: 90s, 15m, 2h, 7d or 1w")
    age = float(match[1]) * _UNIT_S[match[2]] * 1e9
    if age >= _END:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is too old: 292 years at most")
    return round(age)


def moment_ns(text: str) -> int:
    """Read a wall time: ISO 8601, or an age that is counted back from now, for ``argparse``.

    Raises:
        argparse.ArgumentTypeError: It is neither.
    """
    if re.fullmatch(r"[\d.]+[smhdw]", text):
        return time.time_ns() - age_ns(text)
    try:
        moment = round(datetime.fromisoformat(text).timestamp() * 1e9)
        if not 0 <= moment < _END:
            raise ValueError(text)
        return moment
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no time: 2026-01-31T12:00 (1970 to 2262), or an age like 2h"
        ) from error


def whole(text: str) -> int:
    """Read a whole number of 64 bits, for ``argparse``.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if re.fullmatch(r"-?[0-9]{1,19}", text) and -_END <= int(text) < _END:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text[:40]}' is no whole number of 64 bits")


def seconds(text: str) -> float:
    """Read a wait in seconds, for ``argparse``.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = 0.0
    if not 0.0 < wait_s <= _LONGEST_S:  # which is what it is for no number too
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is no wait: more than 0, at most 1e6 s")
    return wait_s


def word(text: str) -> str:
    """Read a name or label, for ``argparse``; what it may be made of is the engine's to say.

    Raises:
        argparse.ArgumentTypeError: It is no UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is no UTF-8") from error
    return text
