"""Plans of the flow policy, ready to be run: what the bench ``replay`` compares ways of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from flashrt_ros.bench.compiled import Call
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.stand import Stand
from flashrt_ros.bench.wide_flow import WideFlowPolicy
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.models.registry import create

_WIDE = {"cpu": ((128, 4), (256, 8)), "cuda": ((512, 6), (1024, 11))}

_DTYPE = {"cpu": "float32", "cuda": "bfloat16"}
"""What policies of such a size run in there."""


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """A plan that may be run.

    Attributes:
        stand: An engine with the policy, which has made a chunk.
        eager: Runs the programs by their Python.
        captured: Replays what was captured of them.
        in_order: Makes a call run in the backend's order, without gradients.
    """

    stand: Stand
    eager: Call
    captured: Call
    in_order: Callable[[Call], Call]


def makers(context: Context) -> list[Callable[[], tuple[PolicyModel, str]]]:
    """Return what makes the policies of a device, each with its size in words; smallest first."""
    device = context.device.name

    def packaged() -> tuple[PolicyModel, str]:
        return create("flow_policy"), "flow_policy as packaged"

    def wide(width: int, layers: int) -> Callable[[], tuple[PolicyModel, str]]:
        def make() -> tuple[PolicyModel, str]:
            model = WideFlowPolicy(width=width, layers=layers, dtype=_DTYPE[device])
            return model, f"{model.num_parameters / 1e6:.0f} M parameters, {model.dtype}"

        return make

    if context.is_tiny:
        return [packaged]
    return [packaged, *(wide(*size) for size in _WIDE[device])]


@contextmanager
def open_plan(context: Context, model: PolicyModel, size: str) -> Iterator[OpenPlan]:
    """Give a policy an engine, and have it make its first chunk.

    Args:
        context: Device, and whom to tell.
        model: Taken over.
        size: In words.
    """
    with Stand(context.device, model) as stand:
        stand.activate()
        stand.feed()
        context.say(f"{size}: first chunk")
        stand.step()
        programs, keys = model.programs(), model.plan().nodes
        views, slots, lane = stand.views, stand.slots, stand.environment.lane
        backend = stand.engine.core.backend

        def programs_in_order() -> None:
            for key in keys:
                programs[key](views, slots)

        def captured() -> None:
            for key in keys:
                lane.replay(key)

        def in_order(call: Call) -> Call:
            def ordered() -> object:
                with backend.ordered(), torch.no_grad():
                    return call()

            return ordered

        yield OpenPlan(stand, in_order(programs_in_order), captured, in_order)
