"""Building the parts of an engine from a model and a configuration."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch

from flashrt_ros.engine.ages import Ages
from flashrt_ros.engine.bindings import Bindings
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.core import Core
from flashrt_ros.engine.feeding import fed_key, fed_program, variants
from flashrt_ros.engine.goals import Goals
from flashrt_ros.engine.identity import fingerprint_of
from flashrt_ros.engine.latches import Latches
from flashrt_ros.engine.outlet import Outlet
from flashrt_ros.engine.seams import Seams
from flashrt_ros.engine.shared import SharedChannel
from flashrt_ros.engine.storage import Storage
from flashrt_ros.engine.timeline import ENVIRONMENT, Environment
from flashrt_ros.errors import ConfigError
from flashrt_ros.models.base import PolicyModel, slot_binding
from flashrt_ros.models.checks import check_model
from flashrt_ros.models.seam import SeamPolicy
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.devices import make_backend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import LanePool
from flashrt_ros.runtime.noise import NoiseRing
from flashrt_ros.runtime.plan import Plan
from flashrt_ros.runtime.spec import ArenaLayout, ChannelRole

NUM_NOISE_SLOTS = 4
"""One plan is between latch and commit at a time; the rest keeps draws for a repeat."""


def assemble(
    model: PolicyModel,
    config: EngineConfig,
    clock_ns: Callable[[], int],
    shared: Mapping[str, SharedChannel],
    feeds: Mapping[str, Outlet],
) -> tuple[Core, GraphSet, Arena]:
    """Allocate lanes, channels and capsules, capture every graph, write the first state.

    Args:
        model: Shared by all lanes.
        config: Checked against the model.
        clock_ns: Monotonic clock, ns.
        shared: Channels that other engines read too.
        feeds: Outlets of other models that feed channels.

    Returns:
        The parts, and the graphs and the arena, which the caller closes.

    Raises:
        ConfigError: The configuration does not fit the model.
        CaptureError: A program can't be captured.
        SpecError: The model's declarations are inconsistent.
    """
    if config.replan_threshold > model.execute_horizon:
        raise ConfigError(
            "engine parameter 'replan_threshold' is out of range",
            expected=f"at most the model's execute_horizon of {model.execute_horizon}",
            found=config.replan_threshold,
        )
    if config.seam_blend_steps or config.seam_max_step:
        model = SeamPolicy(
            model, blend_steps=config.seam_blend_steps, max_step=config.seam_max_step
        )
    check_model(model)
    if config.retarget and model.plan().retarget is None:
        raise ConfigError(
            f"model '{model.name}' can't be retargeted",
            expected="a plan with a retarget node",
            found="none",
            fix="set the engine parameter 'retarget' to false",
        )
    torch.set_num_threads(config.num_threads)
    with ExitStack() as undo:
        parts = _build(model, config, clock_ns, shared, feeds, undo)
        undo.pop_all()
    return parts


def _build(
    model: PolicyModel,
    config: EngineConfig,
    clock_ns: Callable[[], int],
    shared: Mapping[str, SharedChannel],
    feeds: Mapping[str, Outlet],
    undo: ExitStack,
) -> tuple[Core, GraphSet, Arena]:
    """Make the parts, each with its own undoing should a later one fail."""
    backend = make_backend(config.device)
    undo.callback(backend.close)
    with backend.ordered():
        model.to(backend.device)
    layout = ArenaLayout.of(model.buffers())
    latches = Latches(
        model,
        backend,
        num_environments=config.num_environments,
        num_branches=config.num_branch_lanes,
        staged=config.staged_channels if backend.reads_host_in_place else all_channels(model),
        detect_torn=config.test_hooks,
        shared=shared,
        feeds=feeds,
        clock_ns=clock_ns,
    )
    undo.callback(latches.close)
    slots = latches.slots()
    noise = None
    if model.noise_shape is not None:
        noise = NoiseRing(model.noise_shape, num_slots=NUM_NOISE_SLOTS, backend=backend)
        undo.callback(noise.close)
        slots.update(noise.slots)
    num_lanes = config.num_environments + config.num_standby_lanes + config.num_branch_lanes
    arena = backend.create_arena(layout, num_lanes=num_lanes)
    undo.callback(arena.close)
    arena.seal()
    programs, between = dict(model.programs()), None
    if config.retarget and (between := model.plan().retarget) is not None:
        programs[between] = model.optional_programs()[between]
    plan = model.plan()
    for fed in variants(feeds):
        for key in (plan.latch, between):
            if key is not None:
                programs[fed_key(key, fed)] = fed_program(programs[key], fed)
    graphs = GraphSet(backend, programs, arena, slots)
    undo.callback(graphs.close)
    pool = LanePool(arena, graphs, num_standby=config.num_standby_lanes)
    fingerprint = fingerprint_of(model, layout, backend, config)
    storage = Storage(config, layout, backend, fingerprint, clock_ns=clock_ns)
    undo.callback(storage.close)
    seams = Seams(model, layout, backend)
    undo.callback(seams.close)
    plans = {
        fed: Plan(
            graphs,
            (fed_key(plan.latch, fed), *plan.nodes[1:]),
            between=between and fed_key(between, fed),
            slot_bindings=[slot_binding(channel.name) for channel in model.channels()],
        )
        for fed in (frozenset[str](), *variants(feeds))
    }
    core = Core(
        epoch=secrets.randbits(62),
        config=config,
        model=model,
        backend=backend,
        layout=layout,
        fingerprint=fingerprint,
        plan=plans[frozenset()],
        fed_plans=plans if feeds else {},
        outlets={spec.name: Outlet(spec, arena) for spec in model.outlets()},
        pool=pool,
        noise=noise,
        storage=storage,
        latches=latches,
        goals=Goals(latches, layout, model.inputs(), backend, clock_ns),
        ages=Ages(
            latches,
            clock_ns,
            {
                ChannelRole.OBSERVATION: round(config.observation_max_age_ms * 1e6),
                ChannelRole.GOAL: round(config.goal_max_age_ms * 1e6),
            },
        ),
        bindings=Bindings(layout, backend),
        seams=seams,
        environments=[
            Environment(env_index=index, branch=ENVIRONMENT, lane=pool.acquire())
            for index in range(config.num_environments)
        ],
        clock_ns=clock_ns,
    )
    for env in core.environments:
        with backend.ordered():
            for name, value in model.initial_state().items():
                env.lane.views[name].copy_(value)
        core.reseed(env, config.seed + env.env_index, 0)
    return core, graphs, arena


def all_channels(model: PolicyModel) -> tuple[str, ...]:
    """Name every channel of a model."""
    return tuple(spec.name for spec in model.channels())
