"""Goals in words: by a table in the YAML, or as text for a model that reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from flashrt_ros.engine.protocol import FieldInfo
from flashrt_ros.errors import ConfigError, PayloadShapeError, UnsupportedError

Array = npt.NDArray[np.generic]


def parse_named_goals(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Read the parameter ``named_goals``.

    Args:
        texts: ``"some words = 0.1 0.2"`` each.

    Raises:
        ConfigError: An entry can't be read, holds what is no finite number, or comes twice.
    """
    goals: dict[str, tuple[float, ...]] = {}
    for text in texts:
        name, sign, numbers = text.rpartition("=")
        try:
            values = tuple(float(number) for number in numbers.split())
        except ValueError:
            values = ()
        if not (sign and name.strip() and values and all(map(math.isfinite, values))):
            raise ConfigError(
                "an entry of parameter 'named_goals' can't be read",
                expected="'some words = 0.1 0.2'",
                found=repr(text),
            )
        if _plain(name) in goals:
            raise ConfigError("parameter 'named_goals' names a goal twice", found=repr(name))
        goals[_plain(name)] = values
    return goals


def is_named(text: str, named: Mapping[str, tuple[float, ...]]) -> bool:
    """Tell whether words are a named goal, whatever case and spaces."""
    return _plain(text) in named


def word_values(text: str, field: FieldInfo, named: Mapping[str, tuple[float, ...]]) -> Array:
    """Return a goal in words as values of a field.

    Named goals come first, whatever case and spaces. A field ``uint8[n]`` takes other
    text as UTF-8, filled up with zeros: that is how a model reads words.

    Args:
        text: As it came.
        field: The channel's only field.
        named: Values by words, of the field's number and in its frame.

    Raises:
        UnsupportedError: The words have no name, and the model reads none.
        PayloadShapeError: The text is longer than the field.
    """
    count = math.prod(field.shape)
    values = named.get(_plain(text))
    if values is not None:
        if len(values) != count:
            raise PayloadShapeError(
                f"named goal '{text}' does not fit field '{field.name}'",
                expected=f"{count} values",
                found=len(values),
            )
        return np.array(values, dtype=field.dtype).reshape(field.shape)
    if field.dtype != "uint8" or len(field.shape) != 1:
        raise UnsupportedError(
            "the goal in words can't be followed",
            expected="one of " + ", ".join(repr(name) for name in named)
            if named
            else "values, or a model that reads words",
            found=repr(text),
            fix="send a subgoal, goal_pose or goal_joints, name it in named_goals, or have a "
            "planner engine read it (model_engine)",
        )
    data = text.encode("utf-8")
    if len(data) > count:
        raise PayloadShapeError(
            f"the goal in words does not fit field '{field.name}'",
            expected=f"at most {count} bytes of UTF-8",
            found=len(data),
        )
    array = np.zeros(count, np.uint8)
    array[: len(data)] = np.frombuffer(data, np.uint8)
    return array


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
