"""An engine in this process, fed and ready to be timed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import torch

from flashrt_ros.bench.checks import copies
from flashrt_ros.bench.devices import Device
from flashrt_ros.bench.failures import BenchError
from flashrt_ros.bench.sampling import Timer
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.store import home_name
from flashrt_ros.engine import protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.timeline import Environment
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.runtime.spec import CAPSULE_ROLES, ChannelSpec, Role

_MAX_SLICES = 1_000_000


def engine_config(device: Device, **parameters: Any) -> EngineConfig:
    """Return the configuration of a bench's engine: nothing automatic, unless asked for.

    Raises:
        msgspec.ValidationError: The engine has no such parameter.
        ConfigError: A parameter is out of range.
    """
    values: dict[str, Any] = {
        "device": device.name,
        "num_standby_lanes": 0,
        "num_branch_lanes": 0,
        "rollback_depth": 0,
        "interrupt_depth": 1,
        # Below a device: locked memory, which takes seconds to come by.
        "capsule_host_quota_bytes": 0,
        "test_hooks": True,
    }
    return msgspec.convert({**values, **parameters}, EngineConfig)


class Stand:
    """An embedded engine of one environment, ticked by steps.

    Args:
        device: Where it runs.
        model: Taken over.
        **parameters: Of the engine, where they differ from :func:`engine_config`.
    """

    def __init__(self, device: Device, model: PolicyModel, **parameters: Any) -> None:
        self.device = device
        self.model = model
        self._exits = contextlib.ExitStack()
        self._rng = np.random.default_rng(0)
        self._stamp_ns = 0
        self.engine = self._exits.enter_context(Engine(model, engine_config(device, **parameters)))
        self._writers = {
            spec.name: self._exits.enter_context(EmbeddedWriter(self.engine, spec.name))
            for spec in model.channels()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free everything. Idempotent."""
        self.device.settle()
        self._exits.close()

    @property
    def timer(self) -> Timer:
        """Times what submits work to the engine's backend."""
        return self.device.timer(self.engine.core.backend)

    @property
    def torch_timer(self) -> Timer:
        """Times torch operators in the backend's order."""
        return self.device.torch_timer(self.engine.core.backend)

    @property
    def environment(self) -> Environment:
        """The one environment."""
        return self.engine.environment(0)

    @property
    def views(self) -> Mapping[str, torch.Tensor]:
        """Buffers of the lane that the environment is on now."""
        return self.environment.lane.views

    @property
    def slots(self) -> dict[str, torch.Tensor]:
        """Tensors that programs read, as graphs do."""
        core = self.engine.core
        slots = core.latches.slots()
        if core.noise is not None:
            slots.update(core.noise.slots)
        return slots

    @property
    def home(self) -> Capsule:
        """The capsule ``home``."""
        return self.engine.core.store.get(home_name(0))

    # bytes -----------------------------------------------------------------------------------

    def buffers(self, *roles: Role) -> dict[str, torch.Tensor]:
        """Clone the buffers of some roles; STATE and INPUT where none is named."""
        wanted = roles or CAPSULE_ROLES
        self.device.settle()
        return copies(
            {
                place.spec.name: self.views[place.spec.name]
                for place in self.engine.core.layout.placements
                if place.spec.role in wanted
            }
        )

    def put(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Write buffers that :meth:`buffers` gave back into the lane."""
        self.device.settle()
        for name, value in buffers.items():
            self.views[name].copy_(value)
        self.device.settle()

    def scramble(self, seed: int, prefix: str = "ballast") -> None:
        """Fill the STATE buffers of a prefix with random bytes."""
        self.device.settle()
        generator = torch.Generator(device=self.device.torch_device).manual_seed(seed)
        for name, view in self.views.items():
            if name.startswith(prefix):
                view.random_(0, 256, generator=generator)
        self.device.settle()

    # driving ---------------------------------------------------------------------------------

    def activate(self, *, tick_source: str = "step", rate_hz: float = 100.0) -> None:
        """Take ``home``, and start."""
        self.engine.handle(protocol.Activate(0, 0, tick_source, rate_hz))
        self.device.settle()

    def feed(self) -> None:
        """Commit a goal and an observation of random numbers, within the ranges they have."""
        self._stamp_ns += 1
        for spec in self.model.channels():
            self._writers[spec.name].write(stamp_ns=self._stamp_ns, **self._values(spec))

    def step(self, count: int = 1) -> protocol.Stepped:
        """Run ticks to their end."""
        return self.engine.step(protocol.Step(0, 0, count, -1, 0, 0))

    def restore(self, capsule: str = "home") -> protocol.Moved:
        """Bring a capsule back, as an episode's reset."""
        reply = self.restoring(capsule)()
        assert isinstance(reply, protocol.Moved)
        return reply

    def restoring(self, capsule: str = "home") -> Callable[[], protocol.Reply]:
        """Return :meth:`restore` with its message made: what is left is the engine's part."""
        request = protocol.Restore(0, 0, capsule, False, None, True, "", 0)
        return partial(self.engine.handle, request)

    def snapshot(self, name: str) -> protocol.CapsuleReply:
        """Freeze the boundary, in place of the capsule of that name."""
        reply = self.engine.handle(protocol.Snapshot(0, 0, name, (), False, True, False))
        assert isinstance(reply, protocol.CapsuleReply)
        return reply

    def refill(self) -> None:
        """Fill every standby lane, now.

        Raises:
            BenchError: It has no end.
        """
        pool = self.engine.core.pool
        for _ in range(_MAX_SLICES):
            if pool.num_whole == pool.num_standby:
                return
            self.engine.background(2**62)
        raise BenchError(
            f"{pool.num_whole} of {pool.num_standby} standby lanes are whole after {_MAX_SLICES} "
            "slices of background work: make refill_slice_bytes larger, or the state smaller"
        )

    def _values(self, spec: ChannelSpec) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for part in spec.fields:
            if part.dtype.startswith("float"):
                low = 0.1 if part.low is None else part.low
                high = 0.4 if part.high is None else part.high
                values[part.name] = self._rng.uniform(low, high, part.shape).astype(part.dtype)
            else:
                values[part.name] = self._rng.integers(0, 127, part.shape).astype(part.dtype)
        return values
