"""What a model is to the engine: buffers, channels, programs and a plan.

A *program* is a plain function over a lane's buffers that a backend captures
once and replays. The engine knows five of a policy's programs by their place in
:class:`PolicyPlan` and nothing else of the network.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from flashrt_ros.models.outlet import OutletSpec as OutletSpec
from flashrt_ros.runtime.backend import Buffers as Buffers
from flashrt_ros.runtime.backend import Program as Program
from flashrt_ros.runtime.backend import Slots as Slots
from flashrt_ros.runtime.spec import BufferSpec, ChannelSpec, ShapeKey

# Buffers every policy has, whose meaning the engine knows. All int64[1].
TICK = "tick"  # STATE, counter: control ticks committed
QUEUE_HEAD = "queue_head"  # STATE: index of the next action in the queue
QUEUE_LENGTH = "queue_length"  # STATE: index past the last action in the queue
NOISE_SEED = "noise_seed"  # STATE, feeds_noise
NOISE_COUNTER = "noise_counter"  # STATE, feeds_noise: draws made so far
GOAL_SEQUENCE = "goal_sequence"  # STATE, provenance: of the goal the last chunk was made under
ELAPSED = "elapsed"  # BINDING: ticks between the chunk's latch and its commit
LAST_ACTION = "last_action"  # STATE, float32[A + 1], with a seam: popped last; 1 once there was one
GOAL_SEQUENCE_IN = "goal_sequence_in"  # BINDING: copied to GOAL_SEQUENCE by the commit node
ACTION = "action"  # OUTPUT, float32[A]: what the last tick popped
CHUNK = "chunk"  # OUTPUT, float32[H, A]: what the last plan made


NOISE_SLOT = "noise_slot"  # BINDING: index into the slots "noise.values"


def slot_binding(channel: str) -> str:
    """Name of the BINDING buffer (int64[1]) that holds a channel's latched slot index."""
    return f"{channel}_slot"


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """Which programs make a chunk, and which run at a tick.

    Attributes:
        latch: First node: reads the latched slots once, into SCRATCH.
        steps: Nodes between (encoder, denoise steps), in order. They write SCRATCH only.
        commit: Last node: the only one that writes STATE, INPUT and OUTPUT.
        pop: Takes one action from the queue, counts the tick. Writes STATE and OUTPUT.
        flush: Empties the queue. Writes STATE.
        retarget: Reads the goal's slot again, and bends what was made so far to it; may run
            once before any of ``steps``. Writes SCRATCH only. None where the model can't;
            its program is one of :meth:`PolicyModel.optional_programs`.
        seam: Has the queue begin at :data:`LAST_ACTION`; run after a resume. Writes STATE.
            None where the model leaves seams as they are.
    """

    latch: ShapeKey
    steps: tuple[ShapeKey, ...]
    commit: ShapeKey
    pop: ShapeKey
    flush: ShapeKey
    retarget: ShapeKey | None = None
    seam: ShapeKey | None = None

    @property
    def nodes(self) -> tuple[ShapeKey, ...]:
        """Keys of the chunk plan, in the order they are submitted."""
        return (self.latch, *self.steps, self.commit)


class PolicyModel(abc.ABC):
    """A goal-conditioned policy that turns observations into action chunks.

    Ownership: a model owns its weights, read-only after construction and shared
    by every lane. All that changes lives in the declared buffers.

    Attributes:
        name: Registry name.
        horizon: Actions in a chunk (``H``).
        action_dim: Size of an action (``A``).
        execute_horizon: Actions of a chunk that are queued; at most ``horizon``.
        joint_names: ``A`` names, in the order of an action's elements.
        step_ns: Time between two actions, ns.
        noise_shape: Shape of the float32 noise one plan consumes, or None.
    """

    name: str
    horizon: int
    action_dim: int
    execute_horizon: int
    joint_names: tuple[str, ...]
    step_ns: int
    noise_shape: tuple[int, ...] | None

    def to(self, device: torch.device) -> None:  # noqa: B027 - not every model has weights
        """Move the weights to the device that programs run on; once, before :meth:`programs`.

        Programs find buffers and slots there, and make what they make there too.
        """

    @abc.abstractmethod
    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return every buffer of a lane, the well-known ones above included."""

    @abc.abstractmethod
    def channels(self) -> tuple[ChannelSpec, ...]:
        """Return the slot channels that the latch node reads."""

    @abc.abstractmethod
    def inputs(self) -> Mapping[str, str]:
        """Return the INPUT buffer that keeps each slot field, by ``"channel.field"``.

        The commit node copies what the plan latched there; a restore brings a goal
        back from there.
        """

    @abc.abstractmethod
    def programs(self) -> Mapping[ShapeKey, Program]:
        """Return one program for each key of the plan."""

    def optional_programs(self) -> Mapping[ShapeKey, Program]:
        """Return the programs that an engine captures only where it is told to.

        One for ``plan().retarget``, if there is one. They are no part of the fingerprint:
        what a lane holds means the same with and without them.
        """
        return {}

    def outlets(self) -> tuple[OutletSpec, ...]:
        """Return what its plans leave for other models; their buffers are among its own."""
        return ()

    @abc.abstractmethod
    def plan(self) -> PolicyPlan:
        """Return the order in which programs run."""

    @abc.abstractmethod
    def initial_state(self) -> Mapping[str, torch.Tensor]:
        """Return the STATE of a fresh environment, by buffer name; what is absent is zero."""

    @abc.abstractmethod
    def weights_digest(self) -> str:
        """Return a hash over every weight's name, dtype, shape and bytes, as hex."""

    @abc.abstractmethod
    def score(self, chunk: torch.Tensor, buffers: Buffers) -> float:
        """Rate a chunk of a branch, higher is better; host side, outside any capture.

        Args:
            chunk: ``float32[H, A]``, the branch's last chunk.
            buffers: The branch's lane, read only.
        """
