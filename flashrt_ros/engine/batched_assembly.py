"""Building the parts of a batched engine from a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.engine.batched_inputs import BatchedInputs
from flashrt_ros.engine.identity import common_facts, graphs_of, schema_of
from flashrt_ros.errors import ConfigError, SpecError
from flashrt_ros.models.base import PolicyModel, Program
from flashrt_ros.models.checks import check_model
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.batch import Batch, with_row_mask
from flashrt_ros.runtime.batch_graph import BatchedGraphSet, BatchedPlan
from flashrt_ros.runtime.batch_programs import over_rows
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.noise import NoiseRing
from flashrt_ros.runtime.spec import ArenaLayout, ShapeKey


@dataclass(frozen=True, slots=True)
class BatchedParts:
    """What a batched engine is assembled from.

    Attributes:
        backend: Where all of it lies.
        layout: Of a row.
        inputs: One slot for each row.
        noise: At least one slot for each row, or None where the model takes no noise.
        batch: Every lane.
        graphs: Every program of the model.
        plan: Makes chunks.
        home: The bytes of a fresh environment.
        fingerprint: What capsules are taken under.
        undo: Frees all of it.
    """

    backend: Backend
    layout: ArenaLayout
    inputs: BatchedInputs
    noise: NoiseRing | None
    batch: Batch
    graphs: BatchedGraphSet
    plan: BatchedPlan
    home: Block
    fingerprint: Fingerprint
    undo: ExitStack


def assemble_batched(
    model: PolicyModel,
    num_rows: int,
    backend: Backend | None,
    num_threads: int,
    programs: Mapping[ShapeKey, Program],
) -> BatchedParts:
    """Allocate lanes and slots, capture every graph over all rows, keep a fresh state.

    Args:
        model: Declares everything.
        num_rows: Environments.
        backend: Outlives the parts; None makes one on the CPU, which the parts own.
        num_threads: Intra-op threads, set for the process.
        programs: Programs over a batch to use in place of the model's, by key.

    Raises:
        ConfigError: A number is out of range.
        SpecError: The model's declarations are inconsistent, or a program has no key of it.
        CaptureError: A program can't be captured over rows.
        BackendError: There is no such memory.
    """
    check_model(model)
    for name, value, high in (
        ("num_environments", num_rows, 4096),
        ("num_threads", num_threads, 256),
    ):
        if not 1 <= value <= high:
            raise ConfigError(
                f"batched engine parameter '{name}' is out of range",
                expected=f"1 to {high}",
                found=value,
            )
    plan = model.plan()
    known = (*plan.nodes, plan.pop, plan.flush)
    unknown = [key for key in programs if key not in known]
    if unknown:
        raise SpecError(
            f"model '{model.name}' has no program {unknown[0]} to replace",
            expected=f"one of {', '.join(map(str, known))}",
        )
    torch.set_num_threads(num_threads)
    with ExitStack() as undo:
        backend = backend or undo.enter_context(CpuBackend())
        with backend.ordered():
            model.to(backend.device)
        lane_programs = model.programs()
        batched = {
            key: programs.get(key, over_rows(program)) for key, program in lane_programs.items()
        }
        layout = ArenaLayout.of(with_row_mask(model.buffers()))
        inputs = BatchedInputs(model, layout, backend, num_rows)
        undo.callback(inputs.close)
        slots = dict(inputs.slots)
        noise = None
        if model.noise_shape is not None:
            noise = NoiseRing(model.noise_shape, num_slots=num_rows, backend=backend)
            undo.callback(noise.close)
            slots.update(noise.slots)
        arena = undo.enter_context(backend.create_arena(layout, num_lanes=num_rows))
        arena.seal()
        batch = Batch(backend, arena, range(num_rows))
        graphs = undo.enter_context(BatchedGraphSet(batch, batched, slots))
        home = undo.enter_context(backend.allocate_block(layout.capsule_bytes))
        for buffer, state in model.initial_state().items():
            with backend.ordered():
                batch.views[buffer][0].copy_(state)
        batch.save(0, home.address)
        return BatchedParts(
            backend=backend,
            layout=layout,
            inputs=inputs,
            noise=noise,
            batch=batch,
            graphs=graphs,
            plan=BatchedPlan(graphs, model.plan().nodes),
            home=home,
            fingerprint=_fingerprint_of(model, layout, backend, num_rows, num_threads, programs),
            undo=undo.pop_all(),
        )


def _fingerprint_of(
    model: PolicyModel,
    layout: ArenaLayout,
    backend: Backend,
    num_rows: int,
    num_threads: int,
    programs: Mapping[ShapeKey, Program],
) -> Fingerprint:
    with backend.ordered():  # the weights are read
        facts = common_facts(model, layout, backend, num_threads)
    return Fingerprint.of(
        {
            **facts,
            "channels": schema_of(model),
            "replaced_graphs": graphs_of(programs),
            "rows": num_rows,
        }
    )
