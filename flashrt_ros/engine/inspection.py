"""What an engine shows of itself to a test: digests, addresses really read, leaks."""

from __future__ import annotations

import xxhash

from flashrt_ros.engine import linux
from flashrt_ros.engine.core import Core
from flashrt_ros.engine.feeding import plain_name
from flashrt_ros.engine.protocol import Inspection
from flashrt_ros.engine.timeline import Environment
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.spec import ChannelRole


def inspect(core: Core, graphs: GraphSet, env: Environment, rid: int) -> Inspection:
    """Gather the facts; reads only.

    The address that a goal was read from is computed from the captured latch node
    itself: the storage it reads, the pitch of its rows, and the index now in its
    binding. It is compared with the slot that the goal was committed in; where there are
    several, the address told is that of the first.
    """
    layout = core.layout
    payload = core.read_section(env.lane)
    inputs_end = layout.state_bytes + layout.input_bytes
    goals = _goal_addresses(core, graphs, env)
    # a row of another model's outlet is memory of the device, of which the kernel tells nothing
    is_host = bool(goals) and not core.latches.fed(env)
    device, inode, offset = linux.locate(goals[0][0]) if is_host else (0, 0, 0)
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
        goal_transport_copies=sum(read != committed for read, committed in goals),
        torn_reads=core.latches.torn_reads,
        num_latches=core.latches.num_latches,
        num_fds=linux.num_fds(),
        num_mappings=linux.num_shared_mappings(),
    )


def _goal_addresses(core: Core, graphs: GraphSet, env: Environment) -> list[tuple[int, int]]:
    """Return where the latch node reads each goal, and where that was committed."""
    addresses: list[tuple[int, int]] = []
    reads = graphs.graph(env.lane.index, core.plan_of(env).nodes[0]).slot_reads()
    for name in core.latches.named(ChannelRole.GOAL):
        latched = env.latched.get(name)
        if latched is None:
            continue
        committed = core.latches.channel(name).slot_address(latched.slot)
        for read in reads:
            part = read.field.partition(".")[2]
            if plain_name(read.field) == name:
                index = core.bindings.read(env.lane, read.binding)
                offset = core.latches.specs[name].field_offset(part)
                addresses.append((read.row_address(index) - offset, committed))
                break
    return addresses
