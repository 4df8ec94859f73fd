"""Making a channel that several engines of one device read."""

from __future__ import annotations

from flashrt_ros.engine.shared import SharedChannel
from flashrt_ros.runtime.devices import make_backend
from flashrt_ros.runtime.spec import ChannelSpec


def share_channel(
    spec: ChannelSpec,
    *,
    device: str = "cpu",
    num_environments: int = 1,
    num_consumers: int = 2,
    num_branches: int = 4,
) -> SharedChannel:
    """Make a channel for several engines, in memory that their device reads in place.

    Usage::

        (spec,) = (spec for spec in model.channels() if spec.name == "goal")
        with share_channel(spec, device="cuda") as goal:
            one = Engine(model, config, shared={"goal": goal})
            two = Engine(other_model, other_config, shared={"goal": goal})

    A writer of either reaches both. Close the engines before the channel.

    Args:
        spec: What each model expects of the channel; see ``SharedChannel``.
        device: Of every engine that reads it.
        num_environments: Each gets rings of its own.
        num_consumers: Engines that may read it at once.
        num_branches: Branches of each, as their ``num_branch_lanes``.

    Raises:
        BackendError: There is no such device, or the memory can't be locked.
        SharedMemoryError: The range can't be reserved.
    """
    backend = make_backend(device)
    try:
        return SharedChannel(
            spec,
            num_environments=num_environments,
            num_consumers=num_consumers,
            num_branches=num_branches,
            locker=backend if backend.name != "cpu" and backend.reads_host_in_place else None,
            on_close=backend.close,
        )
    except BaseException:
        backend.close()
        raise
