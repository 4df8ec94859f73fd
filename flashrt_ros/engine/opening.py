"""Opening the channels of a model: its own, and those that it shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

import torch

from flashrt_ros.engine.channels import Channel, Locker
from flashrt_ros.engine.consumer import Reader
from flashrt_ros.engine.fed import FedConsumer
from flashrt_ros.engine.outlet import Outlet
from flashrt_ros.engine.readable import Readable
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
    device: torch.device,
    lockers: Mapping[str, Locker],
    shared: Mapping[str, SharedChannel],
    feeds: Mapping[str, Outlet],
) -> dict[str, Readable]:
    """Open every channel of a model.

    Args:
        specs: The model's.
        reader: The engine's, for the channels that others read too.
        undo: Closes what was opened.
        num_environments: Of the engine.
        num_branches: That may live at once.
        device: Reads them.
        lockers: Of the channels that a device reads in place, from another memory.
        shared: Channels that others read too, by name.
        feeds: Outlets of other models that feed channels too, by name.

    Raises:
        ConfigError: A shared channel or an outlet is not what the model expects, or has no
            place left.
        SharedMemoryError: A range can't be reserved.
        BackendError: Memory can't be locked.
    """
    # a goal brought back for each timeline, one that is about to take its place, and one that
    # the device has yet to read for a plan that was left
    num_engine_slots = num_environments + num_branches + 2
    channels: dict[str, Readable] = {}
    for spec in specs:
        name = spec.name
        if name in shared or name in feeds:
            outlet = feeds.get(name)
            channel = shared.get(name) or undo.enter_context(
                SharedChannel(
                    spec,
                    num_environments=num_environments,
                    num_consumers=1,
                    num_branches=num_branches,
                    locker=lockers.get(name),
                )
            )
            channels[name] = consumer = undo.enter_context(
                channel.attach(
                    reader,
                    spec,
                    num_environments=num_environments,
                    num_engine_slots=num_engine_slots,
                    outlet=outlet,
                )
            )
            if outlet is not None:
                assert isinstance(consumer, FedConsumer)
                outlet.attach(consumer, spec, device)
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
