"""A policy whose chunks begin where the last executed action was, whatever policy it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch

from flashrt_ros.errors import ConfigError
from flashrt_ros.models.action_queue import QUEUE, bridge, last_action, remember_action
from flashrt_ros.models.base import (
    CHUNK,
    LAST_ACTION,
    Buffers,
    OutletSpec,
    PolicyModel,
    PolicyPlan,
    Program,
    Slots,
)
from flashrt_ros.runtime.spec import BufferSpec, ChannelSpec, Role, ShapeKey

_SEAM: ShapeKey = ("seam",)


class SeamPolicy(PolicyModel):
    """Another policy, with its seams bridged; see ``action_queue.bridge``.

    What was executed last is STATE, so that a capsule carries it and the bytes stay a function
    of state and inputs. Chunks are bridged by the commit node, in the queue and as published;
    they must be what the other policy queues. With nothing to bridge don't use it: the other
    policy alone has fewer bytes of STATE.

    Args:
        inner: Taken over.
        blend_steps: Actions at a seam that are blended with the one executed last; 0 for none.
        max_step: Largest change from one action to the next, for each joint, in the unit of
            the action; () for no bound.

    Raises:
        ConfigError: There is nothing to bridge, a bound is not positive, there is not one for
            each joint, or the policy keeps no queue of chunks.
    """

    def __init__(
        self, inner: PolicyModel, *, blend_steps: int = 0, max_step: tuple[float, ...] = ()
    ) -> None:
        check_seam(inner, blend_steps, max_step)
        self.name = inner.name
        self.horizon = inner.horizon
        self.action_dim = inner.action_dim
        self.execute_horizon = inner.execute_horizon
        self.joint_names = inner.joint_names
        self.step_ns = inner.step_ns
        self.noise_shape = inner.noise_shape
        self._inner = inner
        self._settings = (blend_steps, max_step)
        self._blend_steps = blend_steps
        self._places = torch.arange(inner.horizon, dtype=torch.float32)
        self._max_step = torch.tensor(max_step, dtype=torch.float32) if max_step else None

    def to(self, device: torch.device) -> None:
        """Move the weights of the other policy, and the bounds."""
        self._inner.to(device)
        self._places = self._places.to(device)
        if self._max_step is not None:
            self._max_step = self._max_step.to(device)

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return those of the other policy, and the action executed last."""
        return (*self._inner.buffers(), last_action(self.action_dim))

    def channels(self) -> tuple[ChannelSpec, ...]:
        """Return those of the other policy."""
        return self._inner.channels()

    def inputs(self) -> Mapping[str, str]:
        """Return those of the other policy."""
        return self._inner.inputs()

    def programs(self) -> Mapping[ShapeKey, Program]:
        """Return those of the other policy, with commit and pop of its own, and the seam."""
        programs, plan = self._inner.programs(), self._inner.plan()
        commit, pop = programs[plan.commit], programs[plan.pop]

        def commit_bridged(buffers: Buffers, slots: Slots) -> None:
            commit(buffers, slots)
            self._bridge(buffers, slots)
            buffers[CHUNK].copy_(buffers[QUEUE])

        def pop_remembered(buffers: Buffers, slots: Slots) -> None:
            pop(buffers, slots)
            remember_action(buffers)

        return {
            **programs,
            plan.commit: commit_bridged,
            plan.pop: pop_remembered,
            _SEAM: self._bridge,
        }

    def optional_programs(self) -> Mapping[ShapeKey, Program]:
        """Return those of the other policy."""
        return self._inner.optional_programs()

    def outlets(self) -> tuple[OutletSpec, ...]:
        """Return those of the other policy."""
        return self._inner.outlets()

    def plan(self) -> PolicyPlan:
        """Return the other policy's, with a seam."""
        plan = self._inner.plan()
        return PolicyPlan(
            latch=plan.latch,
            steps=plan.steps,
            commit=plan.commit,
            pop=plan.pop,
            flush=plan.flush,
            retarget=plan.retarget,
            seam=_SEAM,
        )

    def initial_state(self) -> Mapping[str, torch.Tensor]:
        """Return that of the other policy: nothing was executed yet."""
        return self._inner.initial_state()

    def weights_digest(self) -> str:
        """Return a hash over the other policy's digest, the blend and the bounds."""
        facts = json.dumps([self._inner.weights_digest(), *self._settings])
        return hashlib.sha256(facts.encode()).hexdigest()

    def score(self, chunk: torch.Tensor, buffers: Buffers) -> float:
        """Rate a chunk as the other policy does."""
        return self._inner.score(chunk, buffers)

    def _bridge(self, buffers: Buffers, slots: Slots) -> None:
        bridge(buffers, places=self._places, blend_steps=self._blend_steps, max_step=self._max_step)


def check_seam(inner: PolicyModel, blend_steps: int, max_step: tuple[float, ...]) -> None:
    """Refuse what :class:`SeamPolicy` can't be made of.

    Raises:
        ConfigError: See there.
    """
    if not blend_steps and not max_step:
        raise ConfigError("there is nothing to bridge a seam with", expected="a blend or a bound")
    if max_step and len(max_step) != inner.action_dim:
        raise ConfigError(
            f"model '{inner.name}' has other joints than seams are bounded for",
            expected=f"{inner.action_dim} bounds: {', '.join(inner.joint_names)}",
            found=len(max_step),
        )
    buffers = {spec.name: spec for spec in inner.buffers()}
    queue = buffers.get(QUEUE)
    shape = (inner.horizon, inner.action_dim)
    if queue is None or (queue.shape, queue.dtype, queue.role) != (shape, "float32", Role.STATE):
        raise ConfigError(
            f"seams of model '{inner.name}' can't be bridged",
            expected=f"a STATE buffer '{QUEUE}', float32{list(shape)}",
            found="none" if queue is None else f"{queue.role.value} {queue.dtype}{queue.shape}",
        )
    if LAST_ACTION in buffers:
        raise ConfigError(f"model '{inner.name}' keeps a '{LAST_ACTION}' of its own")
