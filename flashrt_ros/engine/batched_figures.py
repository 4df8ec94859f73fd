"""Times a batched replay against single ones: ``python -m flashrt_ros.engine.batched_figures``."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

import numpy as np
import torch

from flashrt_ros.engine.batched import BatchedEngine
from flashrt_ros.engine.batched_assembly import assemble_batched
from flashrt_ros.errors import FlashrtError
from flashrt_ros.models.base import CHUNK, NOISE_SLOT, PolicyModel, slot_binding
from flashrt_ros.models.registry import MODELS, create
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.devices import make_backend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.noise import NOISE_FIELD

_TOLERANCES = {"cpu": 1e-4, "cuda": 2e-3}
"""Largest difference of a chunk; convolutions on CUDA round their factors to TF32."""


def measure(
    make: Callable[[], PolicyModel], num_rows: int, seconds: float, device: str = "cpu"
) -> dict[str, float]:
    """Time one number of environments, interleaved, after a warm-up; medians in ms.

    Args:
        make: Makes the model; registry models and those like them.
        num_rows: Environments.
        seconds: About how long to measure.
        device: "cpu", "cuda" or "cuda:N".

    Returns:
        ``batched`` and ``single`` make a chunk for every environment, by one plan over a
        batch and by one plan a lane; ``pop`` is a step that makes none; ``reset`` moves
        one environment.

    Raises:
        FlashrtError: The two ways give chunks that differ by more than rounding.
    """
    with make_backend(device) as backend:
        figures = _measure_plans(make(), num_rows, seconds, backend)
        model = make()
        with BatchedEngine(model, num_environments=num_rows, backend=backend) as engine:
            for channel in model.channels():
                engine.commit(channel.name)
            engine.step()
            actions = [_milliseconds(engine.step) for _ in range(model.execute_horizon - 1)]
            resets = [_milliseconds(lambda: engine.reset([0])) for _ in range(50)]
    return {**figures, "pop": median(actions), "reset": median(resets)}


def _measure_plans(
    model: PolicyModel, num_rows: int, seconds: float, backend: Backend
) -> dict[str, float]:
    parts = assemble_batched(model, num_rows, backend, 1, {})
    with parts.undo:
        rng = np.random.default_rng(0)
        for channel in model.channels():
            for view in parts.inputs.views(channel.name).values():
                view[...] = rng.uniform(0.0, 0.5, view.shape) * (500 if view.dtype == "u1" else 1)
        slots = dict(parts.inputs.slots)
        with backend.ordered():
            if parts.noise is not None:
                slots.update(parts.noise.slots)
                slots[NOISE_FIELD].copy_(torch.randn(slots[NOISE_FIELD].shape))
            for name in (NOISE_SLOT, *(slot_binding(c.name) for c in model.channels())):
                parts.batch.views[name].copy_(torch.arange(num_rows)[:, None])
        arena = parts.batch.arena
        nodes = model.plan().nodes
        with GraphSet(backend, model.programs(), arena, slots) as graphs:

            def batched() -> None:
                parts.plan.replay()
                backend.synchronize()

            def single() -> None:
                for lane in range(num_rows):
                    for key in nodes:
                        graphs.replay(lane, key)
                backend.synchronize()

            before = backend.read(arena.address, arena.num_bytes)
            batched()
            chunks = parts.batch.read(CHUNK)
            backend.write(arena.address, before)
            single()
            worst = float((parts.batch.read(CHUNK) - chunks).abs().max())
            tolerance = _TOLERANCES[backend.name]
            if not worst <= tolerance:
                raise FlashrtError(
                    "a batched chunk is not that of a lane", expected=tolerance, found=worst
                )
            ways: dict[str, Callable[[], None]] = {"batched": batched, "single": single}
            return {**_time(ways, seconds), "worst": worst}


def _time(ways: Mapping[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["single"]) < 5:
        for name, way in ways.items():
            times[name].append(_milliseconds(way))
    return {name: median(values) for name, values in times.items()}


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of medians."""
    parser = argparse.ArgumentParser(prog="python -m flashrt_ros.engine.batched_figures")
    parser.add_argument("--model", choices=sorted(MODELS), default="flow_policy")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--environments", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=3.0, help="per number of environments")
    given = parser.parse_args(arguments)
    where = f"{given.device}, {platform.machine()}, 1 thread"
    print(f"{given.model}, torch {torch.__version__}, {where}, medians in ms")
    print("   n   batched  n single  ratio     pop   reset   differs")
    for count in given.environments:
        row = measure(partial(create, given.model), count, given.seconds, given.device)
        print(
            f"{count:>4} {row['batched']:>9.2f} {row['single']:>9.2f} "
            f"{row['single'] / row['batched']:>6.2f} {row['pop']:>7.3f} {row['reset']:>7.3f} "
            f"{row['worst']:>9.1e}"
        )


if __name__ == "__main__":
    main()
