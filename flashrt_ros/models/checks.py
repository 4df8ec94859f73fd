"""Whether a model's declarations fit together, before anything is built from them."""

from __future__ import annotations

from flashrt_ros.errors import SpecError
from flashrt_ros.models.base import (
    ACTION,
    CHUNK,
    ELAPSED,
    GOAL_SEQUENCE,
    GOAL_SEQUENCE_IN,
    LAST_ACTION,
    NOISE_COUNTER,
    NOISE_SEED,
    NOISE_SLOT,
    QUEUE_HEAD,
    QUEUE_LENGTH,
    TICK,
    PolicyModel,
    slot_binding,
)
from flashrt_ros.runtime.spec import BufferSpec, Role

_COUNTERS = {
    TICK: Role.STATE,
    QUEUE_HEAD: Role.STATE,
    QUEUE_LENGTH: Role.STATE,
    NOISE_SEED: Role.STATE,
    NOISE_COUNTER: Role.STATE,
    GOAL_SEQUENCE: Role.STATE,
    ELAPSED: Role.BINDING,
    GOAL_SEQUENCE_IN: Role.BINDING,
}


def check_model(model: PolicyModel) -> None:
    """Refuse a model whose declarations contradict each other or lack what an engine needs.

    Raises:
        SpecError: Names the declaration, and says what it should be.
    """
    buffers = {spec.name: spec for spec in model.buffers()}
    if not 0 < model.execute_horizon <= model.horizon:
        raise SpecError(
            f"model '{model.name}' executes more of a chunk than there is",
            expected=f"execute_horizon of 1 to {model.horizon}",
            found=model.execute_horizon,
        )
    if len(model.joint_names) != model.action_dim:
        raise SpecError(
            f"model '{model.name}' names other joints than its actions have",
            expected=f"{model.action_dim} names",
            found=model.joint_names,
        )
    for name, role in _COUNTERS.items():
        _require(model, buffers, name, (1,), "int64", role)
    chunk = (model.horizon, model.action_dim)
    _require(model, buffers, CHUNK, chunk, "float32", Role.OUTPUT)
    _require(model, buffers, ACTION, (model.action_dim,), "float32", Role.OUTPUT)
    if model.noise_shape is not None:
        _require(model, buffers, NOISE_SLOT, (1,), "int64", Role.BINDING)
    elif NOISE_SLOT in buffers:
        raise SpecError(
            f"model '{model.name}' has a buffer '{NOISE_SLOT}' and no noise",
            expected="a noise_shape, or policy_counters(draws_noise=False)",
            found="noise_shape None",
        )
    inputs = model.inputs()
    keeps: dict[str, str] = {}
    for channel in model.channels():
        _require(model, buffers, slot_binding(channel.name), (1,), "int64", Role.BINDING)
        for part in channel.fields:
            field = f"{channel.name}.{part.name}"
            if field not in inputs:
                raise SpecError(
                    f"model '{model.name}' keeps '{field}' in no INPUT buffer",
                    expected=f"an entry '{field}' of inputs()",
                    found=", ".join(inputs) or "none",
                )
            _require(model, buffers, inputs[field], part.shape, part.dtype, Role.INPUT)
            if keeps.setdefault(inputs[field], field) != field:
                raise SpecError(
                    f"model '{model.name}' keeps two slot fields in INPUT buffer '{inputs[field]}'",
                    expected="a buffer for each, so that a restore tells them apart",
                    found=f"{keeps[inputs[field]]}, {field}",
                )
    for outlet in model.outlets():
        for spec in outlet.buffers():
            _require(model, buffers, spec.name, spec.shape, spec.dtype, spec.role)
    plan, programs = model.plan(), model.programs()
    keys = [*plan.nodes, plan.pop, plan.flush]
    if plan.seam is not None:
        _require(model, buffers, LAST_ACTION, (model.action_dim + 1,), "float32", Role.STATE)
        keys.append(plan.seam)
    missing = [key for key in keys if key not in programs]
    if missing:
        raise SpecError(
            f"model '{model.name}' has no program for {missing[0]}",
            expected="one for each key of its plan",
            found=", ".join(map(str, programs)) or "none",
        )
    optional = model.optional_programs()
    if plan.retarget is not None and plan.retarget not in optional:
        raise SpecError(
            f"model '{model.name}' has no program for {plan.retarget}",
            expected="one of optional_programs()",
            found=", ".join(map(str, optional)) or "none",
        )
    taken = sorted(map(str, programs.keys() & optional.keys()))
    if taken:
        raise SpecError(
            f"model '{model.name}' has two programs for one key",
            expected="other keys in optional_programs() than in programs()",
            found=", ".join(taken),
        )


def _require(
    model: PolicyModel,
    buffers: dict[str, BufferSpec],
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    role: Role,
) -> None:
    spec = buffers.get(name)
    if spec is None or (spec.shape, spec.dtype, spec.role) != (shape, dtype, role):
        raise SpecError(
            f"model '{model.name}' has to declare a buffer '{name}'",
            expected=f"{role.value} {dtype}{list(shape)}",
            found=f"{spec.role.value} {spec.dtype}{list(spec.shape)}" if spec else "none",
        )
