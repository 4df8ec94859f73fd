"""Two models for ``--model-factory``, told apart by the name of their weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flashrt_ros.models.base import Buffers, OutletSpec, Program, Slots
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.spec import BufferSpec, ShapeKey

GOAL, _ = MinimalPolicy().channels()


class Leaving(MinimalPolicy):
    """Leaves the end of each chunk for other models."""

    name = "leaving"
    outlet = OutletSpec(replace(GOAL, name="latent"), num_rows=7)

    def buffers(self) -> tuple[BufferSpec, ...]:
        return (*super().buffers(), *self.outlet.buffers())

    def outlets(self) -> tuple[OutletSpec, ...]:
        return (self.outlet,)

    def programs(self) -> dict[ShapeKey, Program]:
        programs, plan = dict(super().programs()), self.plan()
        commit = programs[plan.commit]

        def commit_and_leave(buffers: Buffers, slots: Slots) -> None:
            commit(buffers, slots)
            self.outlet.write(buffers, "values", buffers["path"][-1])

        return {**programs, plan.commit: commit_and_leave}


def make(weights: Path | None) -> MinimalPolicy:
    if weights is not None and weights.name == "broken":
        raise ZeroDivisionError("a bug of the factory")
    return Leaving() if weights is not None and weights.name == "leaving" else MinimalPolicy()
