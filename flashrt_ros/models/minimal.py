"""The smallest complete policy: an example to start from, and what tests run on.

It has everything the engine can exercise (a goal, an observation, noise, several
plan nodes, history that matters) and no weights to speak of, so that it captures in
milliseconds. A point moves towards a goal; each chunk leans on the one before.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flashrt_ros.models.action_queue import (
    QUEUE,
    commit_queue,
    counter,
    flush,
    policy_counters,
    pop,
)
from flashrt_ros.models.base import (
    ACTION,
    CHUNK,
    NOISE_SLOT,
    Buffers,
    PolicyModel,
    PolicyPlan,
    Program,
    Slots,
    slot_binding,
)
from flashrt_ros.runtime.spec import (
    BufferSpec,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
    ShapeKey,
)

HORIZON = 8
ACTION_DIM = 2
EXECUTE_HORIZON = 4
NUM_STEPS = 3


class MinimalPolicy(PolicyModel):
    """A point that moves towards a goal, ``float32[2]`` in metres, 10 actions a second."""

    name = "minimal"
    horizon = HORIZON
    action_dim = ACTION_DIM
    execute_horizon = EXECUTE_HORIZON
    joint_names = ("x", "y")
    step_ns = 100_000_000
    noise_shape = (HORIZON, ACTION_DIM)

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return every buffer of a lane."""
        chunk, pair = (HORIZON, ACTION_DIM), (ACTION_DIM,)
        return (
            *policy_counters(),
            BufferSpec(QUEUE, chunk, "float32", Role.STATE),
            BufferSpec("momentum", pair, "float32", Role.STATE),
            BufferSpec("goal", pair, "float32", Role.INPUT),
            BufferSpec("position", pair, "float32", Role.INPUT),
            BufferSpec("noise", chunk, "float32", Role.INPUT),
            counter(slot_binding("goal"), Role.BINDING),
            counter(slot_binding("observation"), Role.BINDING),
            BufferSpec(CHUNK, chunk, "float32", Role.OUTPUT),
            BufferSpec(ACTION, pair, "float32", Role.OUTPUT),
            BufferSpec("goal_latched", pair, "float32", Role.SCRATCH),
            BufferSpec("position_latched", pair, "float32", Role.SCRATCH),
            BufferSpec("noise_latched", chunk, "float32", Role.SCRATCH),
            BufferSpec("path", chunk, "float32", Role.SCRATCH),
        )

    def channels(self) -> tuple[ChannelSpec, ...]:
        """Return the goal and the observation, both ``float32[2]`` in metres."""
        part = (ACTION_DIM,)
        return (
            ChannelSpec(
                "goal",
                ChannelRole.GOAL,
                (FieldSpec("values", part, "float32", low=-1.0, high=1.0, units="m"),),
                frame="table",
            ),
            ChannelSpec(
                "observation",
                ChannelRole.OBSERVATION,
                (FieldSpec("position", part, "float32", units="m"),),
                frame="table",
            ),
        )

    def inputs(self) -> Mapping[str, str]:
        """Return the INPUT buffer of each slot field."""
        return {"goal.values": "goal", "observation.position": "position"}

    def optional_programs(self) -> Mapping[ShapeKey, Program]:
        """Return what takes another goal between two steps."""
        return {("retarget",): _latch_goal}

    def plan(self) -> PolicyPlan:
        """Return latch, three steps and commit."""
        return PolicyPlan(
            latch=("latch",),
            steps=tuple(("step", index) for index in range(NUM_STEPS)),
            commit=("commit",),
            pop=("pop",),
            flush=("flush",),
            retarget=("retarget",),
        )

    def programs(self) -> Mapping[ShapeKey, Program]:
        """Return one program for each key."""
        plan = self.plan()
        return {
            plan.latch: _latch,
            **dict.fromkeys(plan.steps, _step),
            plan.commit: _commit,
            plan.pop: pop,
            plan.flush: flush,
        }

    def initial_state(self) -> Mapping[str, torch.Tensor]:
        """Return nothing: every buffer starts at zero."""
        return {}

    def weights_digest(self) -> str:
        """Return a constant: there are no weights."""
        return "none"

    def score(self, chunk: torch.Tensor, buffers: Buffers) -> float:
        """Rate a chunk by how near its end comes to the goal, in metres below zero."""
        return -float(torch.linalg.vector_norm(chunk[-1] - buffers["goal"]))


def _latch(buffers: Buffers, slots: Slots) -> None:
    for source, index, target in (
        ("goal.values", slot_binding("goal"), "goal_latched"),
        ("observation.position", slot_binding("observation"), "position_latched"),
        ("noise.values", NOISE_SLOT, "noise_latched"),
    ):
        buffers[target].copy_(slots[source].index_select(0, buffers[index])[0])
    buffers["path"].copy_(buffers["position_latched"] + 0.05 * buffers["noise_latched"])


def _latch_goal(buffers: Buffers, slots: Slots) -> None:
    goal = slots["goal.values"].index_select(0, buffers[slot_binding("goal")])
    buffers["goal_latched"].copy_(goal[0])


def _step(buffers: Buffers, slots: Slots) -> None:
    pull = buffers["goal_latched"] - buffers["path"]
    buffers["path"].add_(0.3 * pull + 0.1 * buffers["momentum"])


def _commit(buffers: Buffers, slots: Slots) -> None:
    path = buffers["path"]
    buffers[CHUNK].copy_(path)
    buffers["momentum"].mul_(0.5).add_(path[-1] - path[0])
    buffers["goal"].copy_(buffers["goal_latched"])
    buffers["position"].copy_(buffers["position_latched"])
    buffers["noise"].copy_(buffers["noise_latched"])
    commit_queue(buffers, path, EXECUTE_HORIZON)
