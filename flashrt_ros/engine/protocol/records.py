"""Records of several rooms: channels and their fields, the model, what an output was made from."""

from __future__ import annotations

import msgspec


class FieldInfo(msgspec.Struct, array_like=True, frozen=True):
    """A payload field, as in ``runtime.spec.FieldSpec``; offset in bytes in the slot."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    low: float | None
    high: float | None
    units: str


class ChannelInfo(msgspec.Struct, array_like=True, frozen=True):
    """A slot channel of the model."""

    name: str
    role: str
    frame: str
    slot_bytes: int
    num_ring_slots: int
    ring_bytes: int
    fields: tuple[FieldInfo, ...]


class ModelInfo(msgspec.Struct, array_like=True, frozen=True):
    """What a node needs to know of the engine's model."""

    name: str
    horizon: int
    action_dim: int
    execute_horizon: int
    joint_names: tuple[str, ...]
    step_ns: int
    channels: tuple[ChannelInfo, ...]
    fingerprint: str
    num_environments: int
    num_branches: int
    capsule_bytes: int


class GoalSource(msgspec.Struct, array_like=True, frozen=True):
    """A goal that an output was made under, on a further goal channel of the model."""

    channel: str
    sequence: int
    source_sequence: int
    stamp_ns: int
    expires_ns: int


class Provenance(msgspec.Struct, array_like=True, frozen=True):
    """What an action or chunk was made from.

    ``sequence`` counts outputs of the engine and only grows. ``goal_sequence`` and
    ``observation_sequence`` are the engine's numbers of the commits consumed (0 for
    none), ``goal_source_sequence`` the number the writer gave, the stamps the writers'
    own. ``latched_tick`` is the tick at which the plan latched. ``capsule_id`` names the
    capsule that a verb last put under the timeline, "" for none. From ``goal_expires_ns`` on,
    writer's clock, the goal must not be acted on; 0 where its writer named no lifetime.

    Of a model with several goal channels, the fields named after the goal say that of the
    first one, ``other_goals`` those of the others in the model's order, and
    ``goal_expires_ns`` is the first end of a lifetime among all of them.
    """

    engine_epoch: int
    env_index: int
    branch: int
    generation: int
    sequence: int
    tick: int
    latched_tick: int
    goal_sequence: int
    goal_source_sequence: int
    goal_stamp_ns: int
    observation_sequence: int
    observation_stamp_ns: int
    capsule_id: str = ""
    goal_expires_ns: int = 0
    other_goals: tuple[GoalSource, ...] = ()
