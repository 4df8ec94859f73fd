"""Engine records into ROS messages.

Arrays go in as ``array.array``: a numpy array or list assigned to a sequence field
is checked element by element.
"""

from __future__ import annotations

import array
import math
from collections.abc import Sequence

import numpy as np
from std_msgs.msg import Float64MultiArray, Header, MultiArrayDimension
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from flashrt_ros.engine import protocol
from flashrt_ros.msg import ActionChunk, CapsuleInfo, EngineStatus, ExecutionEvent
from flashrt_ros.nodes.conversions import ns_to_duration, ns_to_stamp


def header(stamp_ns: int, frame: str = "") -> Header:
    """Return a header with a stamp of the node's clock."""
    return Header(stamp=ns_to_stamp(stamp_ns), frame_id=frame)


def action_chunk(
    model: protocol.ModelInfo,
    provenance: protocol.Provenance,
    payload: bytes | memoryview,
    *,
    stamp_ns: int,
    frame: str,
    score: float = math.nan,
) -> ActionChunk:
    """Return a chunk with all that it was made from.

    Args:
        model: Whose chunk it is.
        provenance: What it was made from.
        payload: ``float32[H, A]``, row-major; copied.
        stamp_ns: Time of the first action on the node's clock.
        frame: Frame that the actions stand in, "" for none.
        score: The model's own judgement of a branch; NaN for none.
    """
    actions = array.array("f")
    actions.frombytes(payload)
    goals = goals_of(model, provenance)
    return ActionChunk(
        header=header(stamp_ns, frame),
        joint_names=list(model.joint_names),
        horizon=model.horizon,
        action_dim=model.action_dim,
        execute_horizon=model.execute_horizon,
        actions=actions,
        step=ns_to_duration(model.step_ns),
        engine_epoch=provenance.engine_epoch,
        env_index=provenance.env_index,
        branch=provenance.branch,
        generation=provenance.generation,
        sequence=provenance.sequence,
        tick=provenance.tick,
        latched_tick=provenance.latched_tick,
        goal_sequence=provenance.goal_sequence,
        goal_source_sequence=provenance.goal_source_sequence,
        goal_stamp=ns_to_stamp(provenance.goal_stamp_ns),
        goal_expires=ns_to_stamp(provenance.goal_expires_ns),
        goal_channels=[goal.channel for goal in goals],
        goal_sequences=array.array("Q", [goal.sequence for goal in goals]),
        goal_source_sequences=array.array("Q", [goal.source_sequence for goal in goals]),
        goal_stamps=[ns_to_stamp(goal.stamp_ns) for goal in goals],
        observation_sequence=provenance.observation_sequence,
        observation_stamp=ns_to_stamp(provenance.observation_stamp_ns),
        capsule_id=provenance.capsule_id,
        score=score,
    )


def goals_of(
    model: protocol.ModelInfo, made: protocol.Provenance
) -> tuple[protocol.GoalSource, ...]:
    """Return every goal that an output was made under, in the model's order; none before any."""
    if not made.goal_sequence:
        return made.other_goals
    first = next(channel.name for channel in model.channels if channel.role == "goal")
    return (
        protocol.GoalSource(
            first, made.goal_sequence, made.goal_source_sequence, made.goal_stamp_ns, 0
        ),
        *made.other_goals,
    )


def joint_trajectory(chunk: ActionChunk) -> JointTrajectory:
    """Return a chunk's actions as positions over time, one point for each action."""
    step_ns = int(chunk.step.sec) * 1_000_000_000 + int(chunk.step.nanosec)
    rows = np.frombuffer(chunk.actions, np.float32).astype(np.float64)
    rows = rows.reshape(chunk.horizon, chunk.action_dim)
    return JointTrajectory(
        header=chunk.header,
        joint_names=chunk.joint_names,
        points=[
            JointTrajectoryPoint(
                positions=array.array("d", row.tobytes()),
                time_from_start=ns_to_duration(index * step_ns),
            )
            for index, row in enumerate(rows)
        ],
    )


def hold_trajectory(
    model: protocol.ModelInfo, positions: Sequence[float], *, time_ns: int
) -> JointTrajectory:
    """Return a trajectory of one point, which replaces what a controller holds.

    Its stamp is zero, which means now: one in the past would be refused with the
    trajectory still running.

    Args:
        model: Names the joints.
        positions: One for each joint.
        time_ns: When to be there, from now on.
    """
    point = JointTrajectoryPoint(
        positions=array.array("d", positions), time_from_start=ns_to_duration(time_ns)
    )
    return JointTrajectory(joint_names=list(model.joint_names), points=[point])


def empty_trajectory(model: protocol.ModelInfo) -> JointTrajectory:
    """Return a trajectory without points, which overrides the running one where it is taken."""
    return JointTrajectory(joint_names=list(model.joint_names))


def command(values: Sequence[float]) -> Float64MultiArray:
    """Return one action, one value for each joint."""
    message = Float64MultiArray(data=array.array("d", values))
    message.layout.dim = [MultiArrayDimension(label="joint", size=len(values), stride=len(values))]
    return message


def capsule_info(info: protocol.CapsuleInfo) -> CapsuleInfo:
    """Return a capsule's description."""
    return CapsuleInfo(
        id=info.id,
        name=info.name,
        parent=info.parent,
        labels=list(info.labels),
        created=ns_to_stamp(info.created_ns),
        tick=info.tick,
        position=info.position,
        num_bytes=info.num_bytes,
        tier=info.tier,
        pinned=info.pinned,
        fingerprint=info.fingerprint,
        digest=info.digest,
        persist=info.persist,
    )


def execution_event(event: protocol.Event, *, stamp_ns: int) -> ExecutionEvent:
    """Return an event; the stamp says when the node heard of it."""
    return ExecutionEvent(
        header=header(stamp_ns),
        kind=int(event.kind),
        engine_epoch=event.engine_epoch,
        env_index=event.env_index,
        generation=event.generation,
        tick=event.tick,
        capsule_id=event.capsule_id,
        duration_ns=event.duration_ns,
        detail=event.detail,
    )


def engine_status(
    message: EngineStatus, status: protocol.Status, model: protocol.ModelInfo
) -> EngineStatus:
    """Fill in the engine's figures; header, names and detail are the caller's."""
    message.model = model.name
    message.fingerprint = model.fingerprint
    for name in (
        "state",
        "waiting_for",
        "tick_source",
        "tick",
        "generation",
        "rate_hz",
        "replay_p50_us",
        "replay_p99_us",
        "replay_max_us",
        "lateness_p50_us",
        "lateness_p99_us",
        "deadline_misses",
        "goal_age_ns",
        "observation_age_ns",
        "dropped_goals",
        "dropped_observations",
        "missed_outputs",
        "lanes_used",
        "lanes_total",
        "interrupt_depth",
        "num_clients",
    ):
        setattr(message, name, getattr(status, name))
    message.branches = array.array("i", status.branches)
    message.tiers = [tier.name for tier in status.tiers]
    message.tier_capsules = array.array("I", [tier.num_capsules for tier in status.tiers])
    message.tier_bytes = array.array("Q", [tier.used_bytes for tier in status.tiers])
    return message
