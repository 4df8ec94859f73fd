"""Controls that need no ROS: the policy in this process, on the table without a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashrt_ros.demo.judge import Judge
from flashrt_ros.engine import protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.sim.table import Table

_TICK_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode without ROS ended.

    Attributes:
        seed: Of the episode.
        is_reached: Judged a success.
        distance_m: From the subgoal, at the end.
        block_shift_m: How far the block was pushed.
        ticks: Control ticks it took.
    """

    seed: int
    is_reached: bool
    distance_m: float
    block_shift_m: float
    ticks: int


def drive(
    model: PolicyModel,
    seeds: Iterable[int],
    *,
    is_blackened: bool = False,
    on_episode: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run episodes in lockstep, each from ``home``.

    Args:
        model: With channels as the flow policy has them.
        seeds: Of the episodes; the noise is seeded with them too.
        is_blackened: The policy sees a black image instead of the table.
        on_episode: Told of each as it ends.
    """
    config = EngineConfig(num_standby_lanes=0, num_branch_lanes=0, rollback_depth=0)
    outcomes = []
    with (
        Table() as table,
        Engine(model, config) as engine,
        EmbeddedWriter(engine, "goal") as goals,
        EmbeddedWriter(engine, "observation") as observations,
    ):
        engine.handle(protocol.Activate(0, 0, "step", 0.0))
        clock_ns = 0
        for seed in seeds:
            episode = table.reset(seed)
            clock_ns += _TICK_NS
            engine.handle(protocol.Restore(0, 0, "home", False, seed, True, f"{seed}", clock_ns))
            goals.write(stamp_ns=clock_ns, values=np.array(episode.subgoal, np.float32))
            judge = Judge(episode.subgoal, episode.block)
            while not judge.is_over:
                image = table.render()
                if is_blackened:
                    image = np.zeros_like(image)
                agent = np.array(table.agent(), np.float32)
                observations.write(stamp_ns=clock_ns, image=image, agent_pos=agent)
                stepped = engine.step(protocol.Step(0, 0, 1, -1, clock_ns, 0))
                table.step(np.frombuffer(stepped.actions[0].values, np.float32))
                clock_ns += _TICK_NS
                judge.see(table.agent(), table.block())
            outcome = Outcome(
                seed, judge.is_reached, judge.distance_m, judge.block_shift_m, judge.ticks
            )
            outcomes.append(outcome)
            on_episode(outcome)
    return outcomes


def reach_rate(outcomes: Iterable[Outcome]) -> float:
    """Return the share of episodes that count as reached."""
    reached = [outcome.is_reached for outcome in outcomes]
    return sum(reached) / len(reached)


def inspect_transport(model: PolicyModel, *, staged: bool) -> protocol.Inspection:
    """Latch one goal in an engine of one's own and ask what its graph read.

    Args:
        model: Any policy with one goal channel and one observation channel.
        staged: Force the goal channel through a copy.
    """
    config = EngineConfig(
        num_standby_lanes=0,
        num_branch_lanes=0,
        staged_channels=("goal",) if staged else (),
        test_hooks=True,
    )
    with Engine(model, config) as engine:
        for channel in engine.info.channels:
            values: dict[str, Any] = {
                field.name: np.full(field.shape, field.high or 0, field.dtype)
                for field in channel.fields
            }
            EmbeddedWriter(engine, channel.name).write(stamp_ns=1, **values)
        engine.handle(protocol.Activate(0, 0, "step", 0.0))
        engine.step(protocol.Step(0, 0, 1, -1, 0, 0))
        reply = engine.handle(protocol.Inspect(0, 0))
        assert isinstance(reply, protocol.Inspection)
        return reply
