"""How an engine describes itself, its channels and its capsules to clients."""

from __future__ import annotations

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.engine import protocol
from flashrt_ros.engine.core import Core
from flashrt_ros.engine.keeping import Keeping
from flashrt_ros.engine.ticks import Ticks
from flashrt_ros.engine.timeline import Environment, Timeline
from flashrt_ros.runtime.spec import ChannelRole, ChannelSpec


def channel_info(spec: ChannelSpec) -> protocol.ChannelInfo:
    """Describe a channel to clients."""
    return protocol.ChannelInfo(
        name=spec.name,
        role=spec.role.value,
        frame=spec.frame,
        slot_bytes=spec.slot_bytes,
        num_ring_slots=spec.num_ring_slots,
        ring_bytes=spec.ring_bytes,
        fields=tuple(
            protocol.FieldInfo(
                name=part.name,
                shape=part.shape,
                dtype=part.dtype,
                offset=spec.field_offset(part.name),
                low=part.low,
                high=part.high,
                units=part.units,
            )
            for part in spec.fields
        ),
    )


def model_info(core: Core) -> protocol.ModelInfo:
    """Describe the model, as a client is told at the handshake."""
    model = core.model
    return protocol.ModelInfo(
        name=model.name,
        horizon=model.horizon,
        action_dim=model.action_dim,
        execute_horizon=model.execute_horizon,
        joint_names=model.joint_names,
        step_ns=model.step_ns,
        channels=tuple(channel_info(spec) for spec in core.latches.specs.values()),
        fingerprint=core.fingerprint.digest,
        num_environments=core.config.num_environments,
        num_branches=core.config.num_branch_lanes,
        capsule_bytes=core.layout.capsule_bytes,
    )


def capsule_info(capsule: Capsule) -> protocol.CapsuleInfo:
    """Describe a capsule."""
    return protocol.CapsuleInfo(
        id=capsule.id,
        name=capsule.name,
        parent=capsule.parent,
        labels=capsule.labels,
        created_ns=capsule.created_ns,
        tick=capsule.position.tick,
        position=capsule.position.num_positions or capsule.position.queue_head,
        num_bytes=capsule.num_bytes,
        tier=capsule.tier,
        pinned=capsule.pinned,
        fingerprint=capsule.fingerprint.digest,
        digest=capsule.digest,
        persist=capsule.persist,
        is_automatic=capsule.is_automatic,
    )


def tier_infos(core: Keeping) -> tuple[protocol.TierInfo, ...]:
    """Say what lies in every tier; a capsule counts in the fastest that holds it."""
    tiers = core.store.room.all_tiers
    counts = {tier.name: 0 for tier in tiers}  # a Counter is Python's own, and checks types
    for capsule in core.store:
        counts[capsule.tier] += 1
    return tuple(
        protocol.TierInfo(tier.name, counts[tier.name], tier.used_bytes, tier.quota_bytes)
        for tier in tiers
    )


def timeline_infos(core: Keeping) -> tuple[protocol.TimelineInfo, ...]:
    """Say where every environment and branch stands."""
    timelines: list[Timeline] = [*core.environments, *core.branches.values()]
    return tuple(
        protocol.TimelineInfo(
            one.env_index,
            one.branch,
            one.lane.index,
            one.parent,
            one.position.tick,
            core.environments[one.env_index].generation,
        )
        for one in timelines
    )


def status(core: Core, ticks: Ticks, env: Environment, rid: int) -> protocol.Status:
    """Gather the figures of an engine and one of its environments."""
    latches = core.latches
    stats = ticks.plans.stats[env.env_index]

    def age_ns(role: ChannelRole) -> int:
        committed_ns = latches.committed_ns(env, role)
        return core.clock_ns() - committed_ns if committed_ns else -1

    return protocol.Status(
        rid=rid,
        state="active" if env.is_active else "inactive",
        waiting_for=ticks.waiting_for(env) if env.is_active else "",
        tick=env.position.tick,
        generation=env.generation,
        rate_hz=stats.rate_hz,
        tick_source=env.tick_source,
        replay_p50_us=stats.replay_us(50),
        replay_p99_us=stats.replay_us(99),
        replay_max_us=stats.replay_max_us,
        lateness_p50_us=stats.lateness_us(50),
        lateness_p99_us=stats.lateness_us(99),
        deadline_misses=stats.deadline_misses,
        goal_age_ns=age_ns(ChannelRole.GOAL),
        observation_age_ns=age_ns(ChannelRole.OBSERVATION),
        dropped_goals=latches.num_dropped(env.env_index, ChannelRole.GOAL),
        dropped_observations=latches.num_dropped(env.env_index, ChannelRole.OBSERVATION),
        missed_outputs=0,
        lanes_used=core.pool.num_used,
        lanes_total=len(core.pool.lanes),
        num_capsules=len(core.store),
        capsule_bytes=core.store.used_bytes,
        interrupt_depth=len(env.interruptions),
        branches=tuple(b.branch for b in core.branches.values() if b.env_index == env.env_index),
        num_clients=0,
        tiers=tier_infos(core),
        capsule_folder=core.storage.folder,
    )
