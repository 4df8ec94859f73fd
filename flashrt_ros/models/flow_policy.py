"""The flow policy: a goal-conditioned flow-matching action expert over one camera.

A plan is: latch, encode, ten denoise steps, commit. What one chunk leaves to the
next is in STATE: the features of the last two latches, and the tail of the chunk
that was not executed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from flashrt_ros.errors import WeightsError
from flashrt_ros.models.action_queue import (
    QUEUE,
    commit_queue,
    counter,
    flush,
    policy_counters,
    pop,
)
from flashrt_ros.models.base import (
    ACTION,
    CHUNK,
    Buffers,
    PolicyModel,
    PolicyPlan,
    Program,
    Slots,
    slot_binding,
)
from flashrt_ros.models.flow_network import (
    ACTION_DIM,
    CHUNK_DIM,
    CONDITION_DIM,
    EXECUTE_HORIZON,
    FEATURE_DIM,
    FRAME_DIM,
    HORIZON,
    IMAGE_PX,
    LATCH_DIM,
    NUM_LATCHES,
    NUM_STEPS,
    TAIL_DIM,
    TAIL_LENGTH,
    FlowNetwork,
    next_history,
    next_tail,
    to_chunk,
)
from flashrt_ros.runtime.spec import (
    BufferSpec,
    ChannelRole,
    ChannelSpec,
    FieldSpec,
    Role,
    ShapeKey,
)

ARCHITECTURE = "flow_policy/1"
"""Written into weights files; another one is refused."""

PACKAGED_WEIGHTS = Path(__file__).parent / "weights" / "flow_policy.safetensors"

TABLE_SIZE_M = 0.512
"""Extent of the frame "table", both axes, m."""

_LATCH: ShapeKey = ("latch",)
_ENCODE: ShapeKey = ("encode",)
_COMMIT: ShapeKey = ("commit",)
_POP: ShapeKey = ("pop",)
_FLUSH: ShapeKey = ("flush",)
_RETARGET: ShapeKey = ("retarget",)
_LENGTH_WEIGHT = 0.1  # how much a metre of way weighs against a metre of distance left

_BUFFERS = (
    *policy_counters(),
    BufferSpec(QUEUE, (HORIZON, ACTION_DIM), "float32", Role.STATE),
    BufferSpec("tail", (TAIL_LENGTH, TAIL_DIM), "float32", Role.STATE),
    BufferSpec("history", (NUM_LATCHES, LATCH_DIM), "float32", Role.STATE),
    BufferSpec("goal", (ACTION_DIM,), "float32", Role.INPUT),
    BufferSpec("agent_pos", (ACTION_DIM,), "float32", Role.INPUT),
    BufferSpec("noise", (HORIZON, ACTION_DIM), "float32", Role.INPUT),
    BufferSpec("image", (IMAGE_PX, IMAGE_PX, 3), "uint8", Role.INPUT),
    counter(slot_binding("goal"), Role.BINDING),
    counter(slot_binding("observation"), Role.BINDING),
    BufferSpec(ACTION, (ACTION_DIM,), "float32", Role.OUTPUT),
    BufferSpec(CHUNK, (HORIZON, ACTION_DIM), "float32", Role.OUTPUT),
    BufferSpec("latched_goal", (1, ACTION_DIM), "float32", Role.SCRATCH),
    BufferSpec("latched_agent_pos", (1, ACTION_DIM), "float32", Role.SCRATCH),
    BufferSpec("latched_noise", (1, HORIZON, ACTION_DIM), "float32", Role.SCRATCH),
    BufferSpec("latched_image", (1, IMAGE_PX, IMAGE_PX, 3), "uint8", Role.SCRATCH),
    BufferSpec("features", (1, FEATURE_DIM), "float32", Role.SCRATCH),
    BufferSpec("frame", (1, FRAME_DIM), "float32", Role.SCRATCH),
    BufferSpec("condition", (1, CONDITION_DIM), "float32", Role.SCRATCH),
    BufferSpec("denoised", (1, CHUNK_DIM), "float32", Role.SCRATCH),
)

_CHANNELS = (
    ChannelSpec(
        "goal",
        ChannelRole.GOAL,
        (FieldSpec("values", (ACTION_DIM,), "float32", 0.0, TABLE_SIZE_M, "m"),),
        frame="table",
    ),
    ChannelSpec(
        "observation",
        ChannelRole.OBSERVATION,
        (
            FieldSpec("image", (IMAGE_PX, IMAGE_PX, 3), "uint8"),
            FieldSpec("agent_pos", (ACTION_DIM,), "float32", units="m"),
        ),
        frame="table",
    ),
)


_INPUTS = {
    "goal.values": "goal",
    "observation.image": "image",
    "observation.agent_pos": "agent_pos",
    "noise.values": "noise",
}


class FlowPolicy(PolicyModel):
    """Drives the pusher to a subgoal, round the block that the camera shows.

    An action is an absolute target position of the pusher, m, frame "table".

    Args:
        network: Taken over; its parameters are frozen.
    """

    name = "flow_policy"
    horizon = HORIZON
    action_dim = ACTION_DIM
    execute_horizon = EXECUTE_HORIZON
    joint_names = ("agent_x", "agent_y")
    step_ns = 100_000_000
    noise_shape = (HORIZON, ACTION_DIM)

    def __init__(self, network: FlowNetwork) -> None:
        self._network = network.requires_grad_(False).eval()
        self._time_embeddings = _embed_times(network)

    @classmethod
    def load(cls, weights: Path | None = None) -> Self:
        """Read a weights file; nothing in it is executed.

        Args:
            weights: A safetensors file, or None for the trained weights in the package.

        Raises:
            WeightsError: The file is missing, damaged or of another architecture.
        """
        path = PACKAGED_WEIGHTS if weights is None else weights
        tensors, metadata = _read(path)
        found = metadata.get("architecture")
        if found != ARCHITECTURE:
            raise WeightsError(
                f"weights file '{path}' is of another architecture",
                expected=ARCHITECTURE,
                found=found,
                fix="train it again with flashrt_ros.sim.train_flow_policy",
            )
        network = FlowNetwork()
        _check(path, tensors, network.state_dict())
        network.load_state_dict(tensors)
        return cls(network)

    @classmethod
    def untrained(cls, seed: int) -> Self:
        """Build the policy with random weights; the control of every trained figure.

        Args:
            seed: Equal seeds give equal weights. The process's own random state stays.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(FlowNetwork())

    def to(self, device: torch.device) -> None:
        """Move the network to a device."""
        self._network.to(device)
        self._time_embeddings = tuple(part.to(device) for part in self._time_embeddings)

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return every buffer of a lane, small and often changed STATE first."""
        return _BUFFERS

    def channels(self) -> tuple[ChannelSpec, ...]:
        """Return the channels "goal" and "observation"."""
        return _CHANNELS

    def inputs(self) -> Mapping[str, str]:
        """Return the INPUT buffer that keeps each slot field, noise included."""
        return dict(_INPUTS)

    def programs(self) -> Mapping[ShapeKey, Program]:
        """Return one program for each key of the plan."""
        return {
            _LATCH: _latch,
            _ENCODE: self._encode,
            **{("denoise", i): self._denoise(i) for i in range(NUM_STEPS)},
            _COMMIT: _commit,
            _POP: pop,
            _FLUSH: flush,
        }

    def optional_programs(self) -> Mapping[ShapeKey, Program]:
        """Return what bends a chunk in the making to another goal."""
        return {_RETARGET: self._retarget}

    def plan(self) -> PolicyPlan:
        """Return latch, encode, the denoise steps and commit; pop and flush; retarget."""
        steps: tuple[ShapeKey, ...] = tuple(("denoise", i) for i in range(NUM_STEPS))
        return PolicyPlan(
            latch=_LATCH,
            steps=(_ENCODE, *steps),
            commit=_COMMIT,
            pop=_POP,
            flush=_FLUSH,
            retarget=_RETARGET,
        )

    def initial_state(self) -> Mapping[str, Tensor]:
        """Return nothing: a fresh environment has no history, and that is all zeros."""
        return {}

    def weights_digest(self) -> str:
        """Return a SHA-256 over every weight's name, dtype, shape and bytes, as hex."""
        digest = hashlib.sha256()
        for name, value in sorted(self._network.state_dict().items()):
            head = json.dumps([name, str(value.dtype), list(value.shape)], separators=(",", ":"))
            digest.update(head.encode())
            digest.update(value.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()

    def score(self, chunk: Tensor, buffers: Buffers) -> float:
        """Rate a chunk: minus the distance it leaves to the goal, minus a tenth of its way.

        Args:
            chunk: ``float32[16, 2]``, m.
            buffers: The branch's lane; its INPUT goal and agent position are read.
        """
        way = torch.cat([buffers["agent_pos"][None], chunk]).to(torch.float64)
        left = torch.linalg.vector_norm(way[-1] - buffers["goal"].to(torch.float64))
        length = torch.linalg.vector_norm(way.diff(dim=0), dim=-1).sum()
        return -float(left) - _LENGTH_WEIGHT * float(length)

    def save(self, path: Path, training: Mapping[str, object]) -> None:
        """Write the weights as safetensors, with the architecture and training figures.

        Args:
            path: Written in place of what is there.
            training: Figures for people, kept as JSON in the file's metadata.
        """
        tensors = {name: value.contiguous() for name, value in self._network.state_dict().items()}
        metadata = {"architecture": ARCHITECTURE, "training": json.dumps(dict(training))}
        safetensors.torch.save_file(tensors, path, metadata=metadata)

    def _encode(self, buffers: Buffers, slots: Slots) -> None:
        network = self._network
        features = network.encoder(buffers["latched_image"])
        frame = network.frame(features)
        condition = network.condition(
            frame,
            buffers["latched_agent_pos"],
            buffers["latched_goal"],
            buffers["history"][None],
            buffers["tail"][None],
        )
        buffers["features"].copy_(features)
        buffers["frame"].copy_(frame)
        buffers["condition"].copy_(condition)

    def _retarget(self, buffers: Buffers, slots: Slots) -> None:
        """Condense under the goal that its slot holds now; the image is not encoded again."""
        index = buffers[slot_binding("goal")]
        torch.index_select(slots["goal.values"], 0, index, out=buffers["latched_goal"])
        condition = self._network.condition(
            buffers["frame"],
            buffers["latched_agent_pos"],
            buffers["latched_goal"],
            buffers["history"][None],
            buffers["tail"][None],
        )
        buffers["condition"].copy_(condition)

    def _denoise(self, step: int) -> Program:
        network, embedding = self._network, self._time_embeddings[step]

        def program(buffers: Buffers, slots: Slots) -> None:
            flow = network.velocity(buffers["condition"], embedding, buffers["denoised"])
            buffers["denoised"].add_(flow, alpha=1.0 / NUM_STEPS)

        return program


def _embed_times(network: FlowNetwork) -> tuple[Tensor, ...]:
    """Embed the time of each step, ``float32[1, 160]``.

    By one thread, whatever the process has: their number changes the last bits, and an engine
    sets it only after its model was loaded.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            times = torch.arange(NUM_STEPS, dtype=torch.float32) / NUM_STEPS
            return torch.split(network.embed_time(times), 1)
    finally:
        torch.set_num_threads(num_threads)


def _latch(buffers: Buffers, slots: Slots) -> None:
    for field, kept in _INPUTS.items():
        index = buffers[slot_binding(field.partition(".")[0])]
        torch.index_select(slots[field], 0, index, out=buffers[f"latched_{kept}"])
    buffers["denoised"].copy_(buffers["latched_noise"].view(1, CHUNK_DIM))


def _commit(buffers: Buffers, slots: Slots) -> None:
    agent = buffers["latched_agent_pos"]
    chunk = to_chunk(buffers["frame"], agent, buffers["denoised"]).clamp(0.0, TABLE_SIZE_M)
    history = next_history(buffers["history"][None], buffers["features"], agent)
    buffers["history"].copy_(history[0])
    buffers["tail"].copy_(next_tail(chunk)[0])
    buffers[CHUNK].copy_(chunk[0])
    commit_queue(buffers, chunk[0], EXECUTE_HORIZON)
    for name in _INPUTS.values():
        buffers[name].copy_(buffers[f"latched_{name}"][0])


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not path.is_file():
        raise WeightsError(
            f"weights file '{path}' is missing", fix="name an existing safetensors file"
        )
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(
            f"weights file '{path}' can't be read", expected="whole safetensors", found=error
        ) from error


def _check(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    if found.keys() != expected.keys():
        raise WeightsError(
            f"weights file '{path}' holds other tensors than {ARCHITECTURE}",
            expected=f"{len(expected)} tensors",
            found=f"{len(found)}; differing: {sorted(found.keys() ^ expected.keys())[:4]}",
        )
    for name, value in found.items():
        want = expected[name]
        if value.shape != want.shape or value.dtype != want.dtype:
            raise WeightsError(
                f"tensor '{name}' in weights file '{path}' does not fit",
                expected=f"{want.dtype} {tuple(want.shape)}",
                found=f"{value.dtype} {tuple(value.shape)}",
            )
        if not bool(torch.isfinite(value).all()):
            raise WeightsError(
                f"tensor '{name}' in weights file '{path}' is damaged",
                expected="finite values",
                found="NaN or Inf",
            )
