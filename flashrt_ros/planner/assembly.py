"""Building the parts of a planner engine from a model and a configuration."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack

import torch

from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.engine.identity import common_facts, dtypes_of
from flashrt_ros.engine.storage import Storage
from flashrt_ros.engine.timeline import ENVIRONMENT
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.planner.config import Habits, PlannerConfig, parse_scorers
from flashrt_ros.planner.constraint import PlanConstraint
from flashrt_ros.planner.core import PlannerCore, TextEnvironment
from flashrt_ros.planner.lane_session import LaneSession
from flashrt_ros.planner.scorers import load_scorers
from flashrt_ros.planner.vocabulary import Tokenizer, token_pieces
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.devices import make_backend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.noise import NoiseRing
from flashrt_ros.runtime.spec import ArenaLayout

NUM_NOISE_SLOTS = 4
"""One token is chosen at a time; the rest keeps draws for a repeat."""


def assemble(
    model: HybridLm,
    tokenizer: Tokenizer,
    config: PlannerConfig,
    clock_ns: Callable[[], int],
    *,
    habits: Habits,
    is_background: bool = False,
) -> tuple[PlannerCore, ExitStack]:
    """Allocate lanes and capsules, capture every graph, compile the grammar.

    Returns:
        The parts, and what frees them.

    Raises:
        ConfigError: The configuration does not fit model or tokenizer.
        CaptureError: A program can't be captured.
        BackendError: There is no such device or memory.
    """
    constraint = PlanConstraint(
        config.grammar(), pieces := token_pieces(tokenizer, model.config.vocab_size)
    )
    constraint.check_budget(config.max_tokens)
    scorers = load_scorers(parse_scorers(config.scorers))
    torch.set_num_threads(config.num_threads)
    with ExitStack() as undo:
        backend = undo.enter_context(make_backend(config.device, is_background=is_background))
        layout = ArenaLayout.of(model.buffers())
        num_lanes = config.num_environments + 1  # the last one builds prefixes
        arena = undo.enter_context(backend.create_arena(layout, num_lanes=num_lanes))
        arena.seal()
        noise = undo.enter_context(
            NoiseRing(model.noise_shape, num_slots=NUM_NOISE_SLOTS, backend=backend)
        )
        graphs = undo.enter_context(GraphSet(backend, model.programs(), arena, noise.slots))
        lanes = [Lane(graphs, index) for index in range(num_lanes)]
        sessions = [undo.enter_context(LaneSession(model, graphs, lane, noise)) for lane in lanes]
        fingerprint = _fingerprint(model, layout, backend, config)
        storage = Storage(config.storage(), layout, backend, fingerprint, clock_ns=clock_ns)
        undo.callback(storage.close)
        core = PlannerCore(
            epoch=secrets.randbits(62),
            config=config,
            model=model,
            tokenizer=tokenizer,
            backend=backend,
            layout=layout,
            fingerprint=fingerprint,
            storage=storage,
            constraint=constraint,
            pieces=pieces,
            scorers=scorers,
            environments=[
                TextEnvironment(
                    env_index=index, branch=ENVIRONMENT, lane=lanes[index], session=sessions[index]
                )
                for index in range(config.num_environments)
            ],
            builder=sessions[-1],
            clock_ns=clock_ns,
            habits=habits.under(config),
        )
        return core, undo.pop_all()


def _fingerprint(
    model: HybridLm, layout: ArenaLayout, backend: Backend, config: PlannerConfig
) -> Fingerprint:
    """Gather what decides the bytes of a text, as ``engine.identity`` does for a policy."""
    return Fingerprint.of(
        {
            **common_facts(model, layout, backend, config.num_threads),
            "dtypes": dtypes_of(layout),
            "kernels": model.kernels.name,
        }
    )
