"""Opening the channels of a model: its own, and those that it shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from flashrt_ros.engine.channels import Channel, Locker
from flashrt_ros.engine.consumer import Readable, Reader
from flashrt_ros.engine.shared import SharedChannel
from flashrt_ros.errors import UnknownChannelError
from flashrt_ros.runtime.spec import ChannelSpec


def open_channels(
    specs: Iterable[ChannelSpec],
    reader: Reader,
    undo: ExitStack,
    *,
    num_environments: int,
    num_branches: int,
    lockers: Mapping[str, Locker],
    shared: Mapping[str, SharedChannel],
) -> dict[str, Readable]:
    """Open every channel of a model.

    Args:
        specs: The model's.
        reader: The engine's, for the channels that others read too.
        undo: Closes what was opened.
        num_environments: Of the engine.
        num_branches: That may live at once.
        lockers: Of the channels that a device reads in place, from another memory.
        shared: Channels that others read too, by name.

    Raises:
        ConfigError: A shared channel is not what the model expects, or has no place left.
        SharedMemoryError: A range can't be reserved.
        BackendError: Memory can't be locked.
    """
    # a goal brought back for each timeline, one that is about to take its place, and one that
    # the device has yet to read for a plan that was left
    num_engine_slots = num_environments + num_branches + 2
    channels: dict[str, Readable] = {}
    for spec in specs:
        name = spec.name
        if name in shared:
            channels[name] = undo.enter_context(
                shared[name].attach(
                    reader,
                    spec,
                    num_environments=num_environments,
                    num_engine_slots=num_engine_slots,
                )
            )
        else:
            channels[name] = undo.enter_context(
                Channel(
                    spec,
                    num_environments=num_environments,
                    num_engine_slots=num_engine_slots,
                    locker=lockers.get(name),
                )
            )
    return channels


def check_names(what: str, wanted: Iterable[str], specs: Iterable[ChannelSpec]) -> None:
    """Refuse channels that a model does not have.

    Raises:
        UnknownChannelError: Names the first, and says what it was wanted for.
    """
    names = [spec.name for spec in specs]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise UnknownChannelError(
            f"{what} channel '{unknown[0]}' is none of the model's", expected=", ".join(names)
        )
