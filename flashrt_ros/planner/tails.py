"""Tokens past a border, kept with the capsule of the border in its labels."""

from __future__ import annotations

from collections.abc import Sequence

from flashrt_ros.errors import CapsuleNameError

PREFIX = "prefix"
"""Key of the label that names a part of the prefix library."""

TEXT = "text"
"""Key of the label that tells one text of the prefix library from another."""

_KEY = "tail"
_PER_LABEL = 24  # so that a label of the largest vocabulary stays under 256 characters


def tail_labels(tail: Sequence[int]) -> tuple[str, ...]:
    """Return labels that hold tokens; none for none."""
    return tuple(
        f"{_KEY}.{at // _PER_LABEL}=" + ",".join(map(str, tail[at : at + _PER_LABEL]))
        for at in range(0, len(tail), _PER_LABEL)
    )


def tail_of(labels: Sequence[str]) -> tuple[int, ...]:
    """Return the tokens that labels hold, in order; foreign labels don't count.

    A label that only looks like one, from a file, holds no tokens that could be told apart:
    what is no number is left out.
    """
    parts: dict[int, str] = {}
    for label in labels:
        key, _, text = label.partition("=")
        name, _, number = key.partition(".")
        if name == _KEY and number.isdecimal():
            parts[int(number)] = text
    tokens = (word for number in sorted(parts) for word in parts[number].split(","))
    return tuple(int(word) for word in tokens if word.isdecimal())


def check_own_labels(labels: Sequence[str]) -> None:
    """Refuse labels of a caller that would say of a text what the engine says of it.

    Raises:
        CapsuleNameError: One has a key that the engine reads.
    """
    for label in labels:
        key = label.partition("=")[0]
        if key in (PREFIX, TEXT) or key.partition(".")[0] == _KEY:
            raise CapsuleNameError(
                "a text's capsule can't have this label",
                expected=f"another key than {PREFIX}, {TEXT} and {_KEY}.N",
                found=repr(label),
            )


def without_tail(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels that hold no tokens."""
    return tuple(label for label in labels if not label.startswith(f"{_KEY}."))
