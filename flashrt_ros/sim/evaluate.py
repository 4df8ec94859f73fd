"""Measure how often a flow policy reaches its subgoals, in closed loop without ROS.

    python -m flashrt_ros.sim.evaluate --episodes 100 [--untrained SEED] [--black]

Runs the model's programs as plain functions, eight actions a chunk, on held-out
episodes; what the engine replays is the same, byte for byte.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from flashrt_ros.models.base import (
    ACTION,
    NOISE_COUNTER,
    QUEUE_HEAD,
    QUEUE_LENGTH,
    PolicyModel,
    slot_binding,
)
from flashrt_ros.models.flow_policy import FlowPolicy
from flashrt_ros.runtime.noise import draw_normal
from flashrt_ros.sim.episodes import EPISODE_TICKS, HELD_OUT_SEEDS, PUSH_M, REACH_M, Episode
from flashrt_ros.sim.table import Table, block_shift

HOLD_TICKS = 8
"""An episode ends early once the agent has stayed in reach for this many ticks."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one episode ended; lengths in m.

    Attributes:
        seed: Of the episode.
        is_detour: Its straight path would push the block.
        distance: From the subgoal at the end.
        shift: Of the block's corner that moved most.
        num_ticks: Control ticks it took.
    """

    seed: int
    is_detour: bool
    distance: float
    shift: float
    num_ticks: int

    @property
    def is_success(self) -> bool:
        """Reached the subgoal and left the block alone."""
        return self.distance <= REACH_M and self.shift <= PUSH_M


class EagerPolicy:
    """Runs a model's programs over plain tensors, one slot per channel.

    Args:
        model: Its plan is run as is.
        seed: Of the noise.

    Attributes:
        buffers: By name.
        slots: The one slot of each channel, by ``"channel.field"``, ``[1, *shape]``.
    """

    def __init__(self, model: PolicyModel, seed: int) -> None:
        self._plan, self._programs = model.plan(), model.programs()
        self.buffers: dict[str, torch.Tensor] = {
            spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
            for spec in model.buffers()
        }
        for name, value in model.initial_state().items():
            self.buffers[name].copy_(value)
        self.slots: dict[str, torch.Tensor] = {
            f"{channel.name}.{part.name}": torch.zeros(
                (1, *part.shape), dtype=getattr(torch, part.dtype)
            )
            for channel in model.channels()
            for part in channel.fields
        }
        self._seed, self._noise_shape = seed, model.noise_shape
        if model.noise_shape is not None:
            self.slots["noise.values"] = torch.zeros((1, *model.noise_shape))
        for name in {key.partition(".")[0] for key in self.slots}:
            self.buffers[slot_binding(name)].zero_()

    def act(self, fields: Mapping[str, np.ndarray | Sequence[float]]) -> np.ndarray:
        """Return the next action, making a chunk first when the queue is empty.

        Args:
            fields: Payloads by ``"channel.field"``; read only when a chunk is made.

        Returns:
            ``float32[A]``.
        """
        if int(self.buffers[QUEUE_HEAD]) >= int(self.buffers[QUEUE_LENGTH]):
            for name, value in fields.items():
                self.slots[name][0].copy_(torch.as_tensor(np.asarray(value)))
            if self._noise_shape is not None:
                counter = int(self.buffers[NOISE_COUNTER])
                noise = draw_normal(self._seed, counter, self._noise_shape)
                self.slots["noise.values"][0].copy_(torch.from_numpy(noise))
            for key in self._plan.nodes:
                self._programs[key](self.buffers, self.slots)
        self._programs[self._plan.pop](self.buffers, self.slots)
        return self.buffers[ACTION].numpy().copy()


def run_episode(
    model: PolicyModel, table: Table, episode: Episode, *, is_black: bool = False
) -> Outcome:
    """Drive one episode to its end.

    Args:
        model: Policy with the channels "goal" and "observation".
        table: Placed anew; left as the episode ends.
        episode: Task; its seed also seeds the noise.
        is_black: Show the policy a black image, as a control.
    """
    table.place(episode)
    policy = EagerPolicy(model, episode.seed)
    num_held, num_ticks, distance = 0, 0, np.inf
    while num_ticks < EPISODE_TICKS and num_held < HOLD_TICKS:
        image = table.render()
        action = policy.act(
            {
                "goal.values": episode.subgoal,
                "observation.image": np.zeros_like(image) if is_black else image,
                "observation.agent_pos": table.agent(),
            }
        )
        table.step(action)
        num_ticks += 1
        distance = float(np.hypot(*np.subtract(table.agent(), episode.subgoal)))
        num_held = num_held + 1 if distance <= REACH_M else 0
    return Outcome(
        seed=episode.seed,
        is_detour=episode.is_detour,
        distance=float(distance),
        shift=block_shift(episode.block, table.block()),
        num_ticks=num_ticks,
    )


def evaluate(model: PolicyModel, seeds: Sequence[int], *, is_black: bool = False) -> list[Outcome]:
    """Drive the episodes of all seeds, in order; see :func:`run_episode`."""
    with Table() as table:
        return [run_episode(model, table, table.reset(seed), is_black=is_black) for seed in seeds]


@dataclass(frozen=True, slots=True)
class Summary:
    """Rates over the episodes of a run.

    Attributes:
        episodes: How many were driven.
        detours: How many of them need a way round the block.
        reach_rate: Share that succeeded.
        reach_rate_detours: The same among the detours.
        in_reach: Share that ended within reach of the subgoal, whatever the block did.
        block_untouched: Share that left the block alone, wherever they ended.
        median_distance_mm: From the subgoal at the end.
        median_ticks: Control ticks an episode took.
        failed_seeds: Of the episodes that did not succeed.
    """

    episodes: int
    detours: int
    reach_rate: float
    reach_rate_detours: float
    in_reach: float
    block_untouched: float
    median_distance_mm: float
    median_ticks: int
    failed_seeds: tuple[int, ...]


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """Return the rates of a run of one episode or more."""
    detours = [outcome for outcome in outcomes if outcome.is_detour]
    return Summary(
        episodes=len(outcomes),
        detours=len(detours),
        reach_rate=_share([o.is_success for o in outcomes]),
        reach_rate_detours=_share([o.is_success for o in detours]),
        in_reach=_share([o.distance <= REACH_M for o in outcomes]),
        block_untouched=_share([o.shift <= PUSH_M for o in outcomes]),
        median_distance_mm=round(float(np.median([o.distance for o in outcomes])) * 1e3, 2),
        median_ticks=int(np.median([o.num_ticks for o in outcomes])),
        failed_seeds=tuple(o.seed for o in outcomes if not o.is_success),
    )


def _share(flags: Sequence[bool]) -> float:
    return round(sum(flags) / len(flags), 4) if flags else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate from the command line; print one JSON object."""
    parser = argparse.ArgumentParser(description="Evaluate the flow policy on held-out episodes.")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=HELD_OUT_SEEDS.start)
    parser.add_argument("--weights", type=Path, default=None)
    parser.add_argument("--untrained", type=int, default=None, metavar="SEED")
    parser.add_argument("--black", action="store_true", help="show a black image")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = (
        FlowPolicy.load(options.weights)
        if options.untrained is None
        else FlowPolicy.untrained(options.untrained)
    )
    seeds = range(options.first_seed, options.first_seed + options.episodes)
    summary = summarise(evaluate(model, seeds, is_black=options.black))
    print(json.dumps(asdict(summary), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
