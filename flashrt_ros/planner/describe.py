"""How a planner engine describes itself to clients."""

from __future__ import annotations

from flashrt_ros.engine import protocol
from flashrt_ros.engine.describe import tier_infos
from flashrt_ros.planner.core import PlannerCore, TextEnvironment

SUBGOAL = "subgoal"
"""Name of the channel that a plan is for, as the handshake describes it; nobody writes it."""


def planner_info(core: PlannerCore) -> protocol.ModelInfo:
    """Describe the model; its one channel says what a subgoal is."""
    grammar = core.constraint.grammar
    values = protocol.FieldInfo(
        name="values",
        shape=(grammar.num_coordinates,),
        dtype="float32",
        offset=0,
        low=grammar.low,
        high=grammar.high,
        units="m",
    )
    subgoal = protocol.ChannelInfo(
        name=SUBGOAL,
        role=SUBGOAL,
        frame=core.config.subgoal_frame,
        slot_bytes=0,
        num_ring_slots=0,
        ring_bytes=0,
        fields=(values,),
    )
    return protocol.ModelInfo(
        name=core.config.model,
        horizon=0,
        action_dim=0,
        execute_horizon=0,
        joint_names=(),
        step_ns=0,
        channels=(subgoal,),
        fingerprint=core.fingerprint.digest,
        num_environments=len(core.environments),
        num_branches=0,
        capsule_bytes=core.layout.capsule_bytes,
    )


def planner_status(core: PlannerCore, env: TextEnvironment, rid: int) -> protocol.Status:
    """Gather figures; ``tick`` counts turns, ``replay_*_us`` time plan nodes."""
    turn = env.turn
    return protocol.Status(
        rid=rid,
        state="idle" if turn is None else turn.phase,
        waiting_for=_waiting_for(env),
        tick=env.position.tick,
        generation=env.generation,
        rate_hz=0.0,
        tick_source="",
        replay_p50_us=env.stats.replay_us(50),
        replay_p99_us=env.stats.replay_us(99),
        replay_max_us=env.stats.replay_max_us,
        lateness_p50_us=0.0,
        lateness_p99_us=0.0,
        deadline_misses=0,
        goal_age_ns=-1,
        observation_age_ns=-1,
        dropped_goals=0,
        dropped_observations=0,
        missed_outputs=0,
        lanes_used=len(core.environments) + 1,
        lanes_total=len(core.environments) + 1,
        num_capsules=len(core.store),
        capsule_bytes=core.store.used_bytes,
        interrupt_depth=len(env.unfinished),
        branches=(),
        num_clients=0,
        tiers=tier_infos(core),
        capsule_folder=core.storage.folder,
    )


def _waiting_for(env: TextEnvironment) -> str:
    if env.turn is None:
        return ""
    if env.is_short_of_slack:
        return "slack"
    return "" if env.turn.is_started else "prefix"
