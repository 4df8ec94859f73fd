"""Second variants of the graphs that read goals: from the rows of another model's outlet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, combinations

from flashrt_ros.models.base import Buffers, Program, Slots
from flashrt_ros.runtime.spec import ShapeKey

_FED = "@outlet"


def fed_name(channel: str) -> str:
    """Name a channel's rows among the slots that graphs read."""
    return channel + _FED


def plain_name(field: str) -> str:
    """Return the channel of ``"channel.field"``, whichever kind of slot it is of."""
    return field.partition(".")[0].removesuffix(_FED)


def variants(channels: Iterable[str]) -> Iterator[frozenset[str]]:
    """Yield every choice of the channels that are read from an outlet, but for none of them."""
    names = tuple(channels)
    choices = (combinations(names, count) for count in range(1, len(names) + 1))
    return map(frozenset, chain.from_iterable(choices))


def fed_key(key: ShapeKey, channels: frozenset[str]) -> ShapeKey:
    """Return the shape key of a program's variant; that of the program itself for none."""
    return (*key, *map(fed_name, sorted(channels)))


def fed_program(program: Program, channels: frozenset[str]) -> Program:
    """Return a program that reads some channels from the outlets that feed them."""

    def read_outlets(buffers: Buffers, slots: Slots) -> None:
        fed = {
            key: slots[fed_name(channel) + dot + field]
            for key, (channel, dot, field) in ((key, key.partition(".")) for key in slots)
            if channel in channels
        }
        program(buffers, {**slots, **fed})

    return read_outlets
