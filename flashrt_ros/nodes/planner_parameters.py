"""Parameters of the planner node."""

from __future__ import annotations

from flashrt_ros.nodes.parameters import ParameterSpec
from flashrt_ros.nodes.shared_parameters import GOALS, SESSION

PLANNER: tuple[ParameterSpec, ...] = (
    *SESSION,
    ParameterSpec(
        "channel",
        "str",
        "",
        "Goal channel for goals that name none; empty: the only one served.",
    ),
    ParameterSpec(
        "channels",
        "str[]",
        [],
        "Goal channels served, 'gripper topics=instruction+goal_joints' each: what comes on these "
        "topics and names no channel goes there; empty: all of the model's.",
    ),
    ParameterSpec(
        "joint_names",
        "str[]",
        [],
        "Joints that goal_joints must name, in the order of the goal; empty: the model's joints.",
    ),
    ParameterSpec(
        "goal_schema",
        "str[]",
        [],
        "What goals are, 'channel.field shape=2 dtype=float32 low=-1 high=1 frame=table units=m' "
        "each, any key left out; the model must agree, and a narrower range counts.",
    ),
    ParameterSpec(
        "planners",
        "str[]",
        [],
        "Rank of planners, 'planner priority=10 lease_s=0.5 channel=goal' each; goal_pose, "
        "goal_joints and instruction are the planners of those topics.",
    ),
    ParameterSpec(
        "default_priority",
        "int",
        0,
        "Priority of planners that the list does not name; the higher one wins.",
        "",
        -1000,
        1000,
    ),
    ParameterSpec(
        "lease_s",
        "float",
        1.0,
        "How long an accepted goal keeps planners of a lower priority out, where the list says "
        "nothing.",
        "s",
        0.0,
        3600.0,
    ),
    ParameterSpec(
        "max_planners",
        "int",
        16,
        "Planners remembered at once on a channel; one more is refused unless another has been "
        "silent for its lease.",
        "",
        1,
        1000,
    ),
    ParameterSpec(
        "named_goals",
        "str[]",
        [],
        "Goals in words, 'go left = -0.5 0.0' each: values in the channel's frame.",
    ),
    ParameterSpec(
        "model_engine",
        "str",
        "",
        "Planner engine that turns instructions into subgoals; a relative name stands in the "
        "node's namespace, empty: none.",
    ),
    ParameterSpec(
        "instruction_mode",
        "str",
        "new",
        "Whether an instruction begins a text of its own or goes on with the one before.",
        choices=("new", "append"),
    ),
    ParameterSpec(
        "num_candidates",
        "int",
        1,
        "Plans made for each instruction, with a seed each; the best is followed.",
        "",
        1,
        256,
    ),
    ParameterSpec(
        "plan_temperature",
        "float",
        -1.0,
        "Temperature at which plans are drawn, above 0 for several; 0 takes the likeliest, -1 the "
        "planner engine's own.",
        "",
        -1.0,
        100.0,
    ),
    ParameterSpec(
        "plan_scorer",
        "str",
        "",
        "What judges several plans, as the planner engine names it; empty: their log-probability.",
    ),
    ParameterSpec(
        "subgoal_dwell_s",
        "float",
        3.0,
        "How long a subgoal of a plan is the goal, before the next one is.",
        "s",
        0.0,
        3600.0,
    ),
    ParameterSpec(
        "subgoal_reached_m",
        "float",
        0.0,
        "Distance of joint_states from a subgoal at which the next one is the goal at once; 0 "
        "waits for the dwell time.",
        "m",
        0.0,
        1000.0,
    ),
    *GOALS,
)
