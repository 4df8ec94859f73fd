"""The training script learns, and repeats itself."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.progress import Progress

from flashrt_ros.models.flow_policy import FlowPolicy
from flashrt_ros.sim.train_flow_policy import TrainingPlan, main, train

TINY = TrainingPlan(seed=4, num_images=64, encoder_steps=3, num_demonstrations=4096, expert_steps=3)


def _digest(plan: TrainingPlan) -> str:
    with torch.random.fork_rng(devices=[]), Progress(disable=True) as progress:
        return train(plan, progress).weights_digest()


def test_equal_plans_give_equal_weights() -> None:
    assert _digest(TINY) == _digest(TINY)


def test_command_line_writes_weights_that_load(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    sizes = ["--images", "64", "--encoder-steps", "2"]
    sizes += ["--demonstrations", "4096", "--expert-steps", "2"]
    with torch.random.fork_rng(devices=[]):
        assert main(["--out", str(path), "--threads", "1", *sizes]) == 0
    assert FlowPolicy.load(path).horizon == 16
