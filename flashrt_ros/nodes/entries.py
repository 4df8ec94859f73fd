"""Lists of small records in parameters: ROS carries lists of strings, but no lists of records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flashrt_ros.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Entry:
    """One string of a list parameter, ``"name key=value key=value"``.

    Attributes:
        parameter: Name of the parameter, for messages.
        text: As it was written.
        name: First word.
        values: The others.
    """

    parameter: str
    text: str
    name: str
    values: Mapping[str, str]

    def number(self, key: str, default: float, *, low: float = -math.inf) -> float:
        """Return a finite number of at least ``low``, or the default where the key is absent.

        Raises:
            ConfigError: It is none.
        """
        if key not in self.values:
            return default
        try:
            number = float(self.values[key])
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < low:
            expected = "a number" if low == -math.inf else f"a number of at least {low:g}"
            raise self.refused(f"'{key}' is out of range", expected=expected)
        return number

    def refused(self, what: str, *, expected: object = None) -> ConfigError:
        """Return the error that names the parameter and the entry."""
        return ConfigError(
            f"parameter '{self.parameter}': {what}", expected=expected, found=repr(self.text)
        )


def parse_entries(parameter: str, texts: Iterable[str], keys: Sequence[str]) -> list[Entry]:
    """Read every entry of a list parameter.

    Args:
        parameter: Its name, for messages.
        texts: ``"name key=value ..."`` each; a name may stand for itself alone.
        keys: Keys that an entry may have.

    Raises:
        ConfigError: An entry can't be read, or has a key twice or another one.
    """
    entries = []
    for text in texts:
        name, *words = text.split() or ("",)
        pairs = [word.partition("=") for word in words]
        values = {key: value for key, _, value in pairs}
        entry = Entry(parameter, text, name, values)
        is_whole = all(sign and value for _, sign, value in pairs)
        if (
            not (name and is_whole)
            or "=" in name
            or len(values) != len(pairs)
            or not values.keys() <= {*keys}
        ):
            raise entry.refused(
                "an entry can't be read",
                expected="'name " + " ".join(f"{key}=..." for key in keys) + "', each key once",
            )
        entries.append(entry)
    return entries
