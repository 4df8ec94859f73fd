"""Configuration of an engine, validated once; imports without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from flashrt_ros.engine.wire import BUSY_POLL_US
from flashrt_ros.errors import ConfigError
from flashrt_ros.runtime.devices import check_device

RANGES: dict[str, tuple[float, float]] = {
    "num_environments": (1, 64),
    "num_standby_lanes": (0, 64),
    "num_branch_lanes": (0, 256),
    "replan_threshold": (0, 1024),
    "rollback_depth": (0, 1024),
    "rollback_every_ticks": (0, 1_000_000),
    "seam_blend_steps": (0, 1024),
    "interrupt_depth": (1, 64),
    "observation_max_age_ms": (0.0, 86_400_000.0),
    "goal_max_age_ms": (0.0, 86_400_000.0),
    "capsule_quota_bytes": (0, 1 << 50),
    "capsule_host_quota_bytes": (0, 1 << 50),
    "capsule_disk_quota_bytes": (0, 1 << 50),
    "seed": (0, 1 << 62),
    "refill_delay_ms": (0.0, 10_000.0),
    "refill_slice_bytes": (4096, 1 << 32),
    "poll_reserve_us": (0, 1_000_000),
    "busy_poll_us": (0, 10_000_000),
    "wake_early_us": (0, 5_000),
    "rt_priority": (0, 99),
    "num_threads": (1, 256),
}
"""Smallest and largest value of each parameter that has a range."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an engine is told at its start.

    Attributes:
        name: Engine name; a namespace and slashes are fine.
        model: Registry name of the policy, or "module:function" for your own.
        weights: Path of a safetensors file; "" takes the packaged weights.
        device: "cpu", "cuda" (device 0) or "cuda:N".
        num_environments: Environments served at once.
        num_standby_lanes: Lanes per engine kept ready with ``home`` for a flip.
        num_branch_lanes: Lanes for branches made by fork.
        replan_threshold: A tick that finds at most this many actions queued also makes
            the next chunk, beside them; 0 waits until the queue is empty, the model's
            `execute_horizon` makes one at every tick.
        replan_on_goal: A tick that finds a goal committed since the last latch makes the next
            chunk too, however many actions are queued.
        retarget: Bend a chunk in the making to a goal committed meanwhile, from the next
            plan node on, where the model can.
        seam_blend_steps: Actions blended with the one executed last where a chunk or a
            resume begins; 0 for none.
        seam_max_step: Largest change between actions there, one number a joint, in the
            action's unit; none for no bound.
        rollback_depth: Boundaries kept per environment, newest first.
        rollback_every_ticks: Ticks between two of them; 0 keeps one for each chunk.
        rollback_tier: Memory they lie in: "device" or "host"; "" takes the fastest.
        interrupt_depth: Interrupted boundaries an environment may stack up.
        observation_max_age_ms: Age at which an observation starts no plan any more, ms
            since its commit; 0 for never.
        goal_max_age_ms: The same of a goal; one that a verb brought back is new again.
        capsule_quota_bytes: Memory beside the lanes that callers' capsules may take, bytes.
        capsule_host_quota_bytes: Host memory below it, on a device with memory of its own, bytes.
        capsule_disk_quota_bytes: Disk below them, in `capsule_folder`, bytes of payload.
        capsule_folder: Folder for capsule files, mode 0700; "" for none: then nothing
            survives the engine, and nothing moves to disk.
        seed: First seed of environment 0; environment ``i`` starts with ``seed + i``.
        refill_delay_ms: Pause between a flip and the refill of the lane it left, ms.
        refill_slice_bytes: Bytes copied at a time by a refill.
        poll_reserve_us: No refill slice starts nearer than this to a tick, us.
        busy_poll_us: How long the loop goes on looking at its sockets without a pause after
            it served a message, us; 0 sleeps at once. A core stays awake where this is longer
            than the pause between two messages.
        wake_early_us: How long before a tick the loop wakes up and looks at its sockets instead
            of sleeping, us, so that the tick does not wait for a core to wake up; 0 sleeps
            until the tick. Costs as much of a core for each tick (2 % of one at 100 Hz; all of it
            where that is no less than the period), and other threads of the process wait for as
            long.
        rt_priority: SCHED_FIFO priority, 0 for none.
        num_threads: Intra-op threads; changing it changes the bytes.
        socket_group: Group that may connect besides the user, "" for none.
        staged_channels: Channels forced through a copy before the latch reads them
            (hardware that can't map a ring; also the control of the copy count).
        shared_channels: Channels that are read together with the other engines of the process
            that name them: what is committed to one reaches all.
        fed_channels: Channels that another model of the process feeds too, by an engine that is
            named before: 'channel = engine:outlet' each.
        test_hooks: Admit verbs that exist for tests and demos (reseed, state digest).
    """

    name: str = "engine"
    model: str = "flow_policy"
    weights: str = ""
    device: str = "cpu"
    num_environments: int = 1
    num_standby_lanes: int = 1
    num_branch_lanes: int = 4
    replan_threshold: int = 0
    replan_on_goal: bool = False
    retarget: bool = False
    seam_blend_steps: int = 0
    seam_max_step: tuple[float, ...] = ()
    rollback_depth: int = 8
    rollback_every_ticks: int = 0
    rollback_tier: Literal["", "device", "host"] = ""
    interrupt_depth: int = 8
    observation_max_age_ms: float = 0.0
    goal_max_age_ms: float = 0.0
    capsule_quota_bytes: int = 256 * 1024 * 1024
    capsule_host_quota_bytes: int = 1024 * 1024 * 1024
    capsule_disk_quota_bytes: int = 16 * 1024 * 1024 * 1024
    capsule_folder: str = ""
    seed: int = 0
    refill_delay_ms: float = 3.0
    refill_slice_bytes: int = 1 << 20
    poll_reserve_us: int = 600
    busy_poll_us: int = BUSY_POLL_US
    wake_early_us: int = 200
    rt_priority: int = 0
    num_threads: int = 1
    socket_group: str = ""
    staged_channels: tuple[str, ...] = ()
    shared_channels: tuple[str, ...] = ()
    fed_channels: tuple[str, ...] = ()
    test_hooks: bool = False

    def __post_init__(self) -> None:
        check_device(self.device)
        check_ranges(self, RANGES, "engine")
        if not all(0.0 < bound < math.inf for bound in self.seam_max_step):
            raise ConfigError(
                "engine parameter 'seam_max_step' is out of range",
                expected="positive, finite numbers",
                found=self.seam_max_step,
            )


def check_ranges(
    config: msgspec.Struct, ranges: Mapping[str, tuple[float, float]], owner: str
) -> None:
    """Refuse a parameter that is out of its range.

    Args:
        config: Has the parameters.
        ranges: Smallest and largest value of each that has a range.
        owner: Whose parameters they are, for the message.

    Raises:
        ConfigError: One is.
    """
    for name, (low, high) in ranges.items():
        value = getattr(config, name)
        if not low <= value <= high:
            raise ConfigError(
                f"{owner} parameter '{name}' is out of range",
                expected=f"{low} to {high}",
                found=value,
            )
