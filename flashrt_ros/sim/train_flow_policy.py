"""Train the flow policy's weights from the scripted expert, on a CPU.

    python -m flashrt_ros.sim.train_flow_policy --out flow_policy.safetensors

Two stages: the encoder learns to find the block in rendered images; trunk and
expert learn to plan from what such an encoder would find. Equal arguments on
equal machines give equal weights.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn.functional import mse_loss, smooth_l1_loss

from flashrt_ros.models.flow_network import (
    EXECUTE_HORIZON,
    FEATURE_DIM,
    HORIZON,
    IMAGE_PX,
    NUM_LATCHES,
    FlowNetwork,
    to_flat,
)
from flashrt_ros.models.flow_policy import PACKAGED_WEIGHTS, FlowPolicy
from flashrt_ros.sim.camera import SceneCamera
from flashrt_ros.sim.demonstrations import ChunkFormat, sample_demonstrations
from flashrt_ros.sim.episodes import sample_blocks, sample_points
from flashrt_ros.sim.expert import block_corners
from flashrt_ros.sim.training import training_cost, training_progress

ENCODER_BATCH = 64
"""Images in a step of the encoder's training."""

EXPERT_BATCH = 512
"""Demonstrations in a step of the expert's training."""

NUM_DRAWS = 4
"""Noise draws per demonstration and step; they share the trunk's work."""

_ENCODER_RATE = 3e-3
_EXPERT_RATE = 1.5e-3
_DATA_BATCH = 4096
_COLUMNS = ("features", "agent_pos", "goal", "history", "tail", "chunk")

Advance = Callable[[], object]
"""Told that a step is done."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How much is drawn and how long it is trained; all of it decides the weights.

    Attributes:
        seed: Of data, first weights and flow noise.
        num_images: Scenes rendered for the encoder.
        encoder_steps: Steps of :data:`ENCODER_BATCH` images.
        num_demonstrations: Situations drawn for the expert, in whole batches of 4096.
        expert_steps: Steps of :data:`EXPERT_BATCH` situations.
    """

    seed: int = 0
    num_images: int = 30_000
    encoder_steps: int = 2200
    num_demonstrations: int = 60 * _DATA_BATCH
    expert_steps: int = 3500


def train(plan: TrainingPlan, progress: Progress) -> FlowPolicy:
    """Draw the data, train both stages and return the policy.

    Seeds torch's own generator; the number of threads is the caller's.

    Args:
        plan: What to do.
        progress: Started; gets a bar per stage.
    """
    torch.manual_seed(plan.seed)
    network = FlowNetwork()
    sequence = np.random.SeedSequence(plan.seed).spawn(2)
    _train_encoder(network, plan, np.random.default_rng(sequence[0]), progress)
    _train_expert(network, plan, np.random.default_rng(sequence[1]), progress)
    return FlowPolicy(network)


def _train_encoder(
    network: FlowNetwork, plan: TrainingPlan, generator: np.random.Generator, progress: Progress
) -> None:
    bar = progress.add_task("images", total=plan.num_images)
    blocks = sample_blocks(generator, plan.num_images)
    agents = sample_points(generator, blocks)
    camera = SceneCamera()
    images = np.empty((plan.num_images, IMAGE_PX, IMAGE_PX, 3), np.uint8)
    for row in range(plan.num_images):
        images[row] = camera.render(blocks[row], agents[row : row + 1])[0]
        progress.advance(bar)
    pixels = torch.from_numpy(images)
    corners = torch.from_numpy(block_corners(blocks).reshape(-1, FEATURE_DIM)).float()

    def loss() -> Tensor:
        rows = torch.from_numpy(generator.integers(0, plan.num_images, ENCODER_BATCH))
        found = network.encoder(pixels[rows])
        # In units of 0.1 m; errors below 10 mm count by their square.
        return smooth_l1_loss(found * 10.0, corners[rows] * 10.0, beta=0.1)

    bar = progress.add_task("encoder", total=plan.encoder_steps)
    _fit(network.encoder, loss, plan.encoder_steps, _ENCODER_RATE, lambda: progress.advance(bar))


def _train_expert(
    network: FlowNetwork, plan: TrainingPlan, generator: np.random.Generator, progress: Progress
) -> None:
    form = ChunkFormat(HORIZON, EXECUTE_HORIZON, NUM_LATCHES)
    num_batches = plan.num_demonstrations // _DATA_BATCH
    bar = progress.add_task("demonstrations", total=num_batches)
    batches = []
    for _ in range(num_batches):
        batches.append(sample_demonstrations(generator, _DATA_BATCH, form))
        progress.advance(bar)
    data = {
        name: torch.from_numpy(np.concatenate([getattr(batch, name) for batch in batches]))
        for name in _COLUMNS
    }

    def loss() -> Tensor:
        rows = torch.from_numpy(generator.integers(0, num_batches * _DATA_BATCH, EXPERT_BATCH))
        batch = {name: column[rows] for name, column in data.items()}
        frame = network.frame(batch["features"])
        condition = network.condition(
            frame, batch["agent_pos"], batch["goal"], batch["history"], batch["tail"]
        ).repeat(NUM_DRAWS, 1)
        clean = to_flat(frame, batch["agent_pos"], batch["chunk"]).repeat(NUM_DRAWS, 1)
        # Flow matching over straight lines from noise to data (Lipman et al., 2023).
        noise = torch.randn_like(clean)
        time_ = torch.rand(len(clean))
        noisy = torch.lerp(noise, clean, time_[:, None])
        flow = network.velocity(condition, network.embed_time(time_), noisy)
        return mse_loss(flow, clean - noise)

    planner = nn.ModuleList(
        module for name, module in network.named_children() if name != "encoder"
    )
    bar = progress.add_task("expert", total=plan.expert_steps)
    _fit(planner, loss, plan.expert_steps, _EXPERT_RATE, lambda: progress.advance(bar))


def _fit(
    module: nn.Module, loss: Callable[[], Tensor], num_steps: int, peak: float, advance: Advance
) -> None:
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=peak, weight_decay=1e-4, betas=(0.9, 0.99))
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, num_steps, peak)
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        advance()


def _rate(step: int, num_steps: int, peak: float) -> float:
    """Rise over 100 steps, then fall to a hundredth of ``peak`` along a cosine."""
    fall = 0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * step / num_steps))
    return peak * min(1.0, (step + 1) / 100) * fall


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line and write the weights file."""
    default = TrainingPlan()
    parser = argparse.ArgumentParser(description="Train the flow policy on a CPU.")
    parser.add_argument("--out", type=Path, default=PACKAGED_WEIGHTS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--images", type=int, default=default.num_images)
    parser.add_argument("--encoder-steps", type=int, default=default.encoder_steps)
    parser.add_argument("--demonstrations", type=int, default=default.num_demonstrations)
    parser.add_argument("--expert-steps", type=int, default=default.expert_steps)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    plan = TrainingPlan(
        seed=options.seed,
        num_images=options.images,
        encoder_steps=options.encoder_steps,
        num_demonstrations=options.demonstrations,
        expert_steps=options.expert_steps,
    )
    began = time.monotonic()
    with training_progress() as progress:
        policy = train(plan, progress)
    figures = {**asdict(plan), "threads": options.threads, **training_cost(began)}
    policy.save(options.out, figures)
    print(f"wrote {options.out}: {figures}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
