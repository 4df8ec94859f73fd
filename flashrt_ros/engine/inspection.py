"""What an engine shows of itself to a test: digests, addresses really read, leaks."""

from __future__ import annotations

import xxhash

from flashrt_ros.engine import linux
from flashrt_ros.engine.core import Core
from flashrt_ros.engine.protocol import Inspection
from flashrt_ros.engine.timeline import Environment
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.spec import ChannelRole


def inspect(core: Core, graphs: GraphSet, env: Environment, rid: int) -> Inspection:
    """Gather the facts; reads only.

    The address that the goal was read from is computed from the captured latch node
    itself: the storage it reads, the pitch of its rows, and the index now in its
    binding. It is compared with the slot that the goal was committed in.
    """
    layout = core.layout
    payload = core.read_section(env.lane)
    inputs_end = layout.state_bytes + layout.input_bytes
    read_address, committed_address = _goal_addresses(core, graphs, env)
    device, inode, offset = linux.locate(read_address) if read_address else (0, 0, 0)
    return Inspection(
        rid=rid,
        state_digest=xxhash.xxh3_128_hexdigest(
            payload[: layout.state_bytes] + payload[inputs_end:]
        ),
        input_digest=xxhash.xxh3_128_hexdigest(payload[layout.state_bytes : inputs_end]),
        noise_seed=env.position.noise_seed,
        noise_counter=env.position.noise_counter,
        read_inode=inode,
        read_device=device,
        read_offset=offset,
        goal_transport_copies=int(read_address != committed_address),
        torn_reads=core.latches.torn_reads,
        num_latches=core.latches.num_latches,
        num_fds=linux.num_fds(),
        num_mappings=linux.num_shared_mappings(),
    )


def _goal_addresses(core: Core, graphs: GraphSet, env: Environment) -> tuple[int, int]:
    for name, spec in core.latches.specs.items():
        latched = env.latched.get(name)
        if spec.role is not ChannelRole.GOAL or latched is None:
            continue
        committed = core.latches.channel(name).slot_address(latched.slot)
        for read in graphs.graph(env.lane.index, core.model.plan().latch).slot_reads():
            if read.field.startswith(f"{name}."):
                index = core.bindings.read(env.lane, read.binding)
                offset = spec.field_offset(read.field.partition(".")[2])
                return read.row_address(index) - offset, committed
    return 0, 0
