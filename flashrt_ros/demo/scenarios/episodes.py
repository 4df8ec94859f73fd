"""Episodes on held-out seeds in real time, some of them interrupted, some forked."""

from __future__ import annotations

from flashrt_ros.demo.scenarios.branching import Forked, fork_and_select, judge_forks
from flashrt_ros.demo.scenarios.episode_run import EpisodeRun, Interruption
from flashrt_ros.demo.scene import Scene
from flashrt_ros.sim.episodes import HELD_OUT_SEEDS

REACH_RATE = 0.9
"""Share of episodes that must reach their subgoal."""

_EVERY = 5


def run_episodes(scene: Scene, count: int) -> None:
    """Run episodes and judge how many reached their subgoal.

    Args:
        scene: The demo's.
        count: How many; seeds are the first held-out ones.

    Raises:
        ScenarioError: An episode could not be run to its end.
    """
    interruptions: list[Interruption] = []
    forks: list[Forked] = []
    origin_ns = 0
    for index in range(count):
        scene.view.phase(f"episode {index + 1} of {count}")
        run = EpisodeRun(scene, index, HELD_OUT_SEEDS[index])
        run.begin(origin_ns)
        origin_ns = run.origin_ns
        if index % _EVERY == min(1, count - 1):
            interruptions.append(run.interrupt_and_resume())
        if index % _EVERY == min(2, count - 1):
            forks.append(fork_and_select(scene, run))
        run.finish()
    _judge_reach(scene, count)
    _judge_interruptions(scene, interruptions)
    judge_forks(scene, forks)


def _judge_reach(scene: Scene, count: int) -> None:
    report, traces = scene.report, scene.traces
    done = [trace for trace in traces if trace.block_end is not None]
    report.check(
        "episodes", len(done), expected=f"{count} run to their end", is_held=len(done) == count
    )
    report.control(
        "episodes_unfinished",
        "episodes",
        "an episode without an end left out of the count",
        len(done[:-1]),
        expected=f"fewer than {count}",
        is_held=len(done[:-1]) < count,
    )
    rate = sum(trace.is_reached for trace in done) / max(1, len(done))
    report.check(
        "reach_rate",
        round(rate, 4),
        expected=f"{REACH_RATE:g} or more, within 15 px and the block moved 5 px at most",
        is_held=rate >= REACH_RATE,
    )
    report.note("seeds", [trace.seed for trace in done])
    report.note("distances_px", [round(trace.distance_m * 1e3, 1) for trace in done])
    report.note("block_shifts_px", [round(trace.block_shift_m * 1e3, 2) for trace in done])


def _judge_interruptions(scene: Scene, seen: list[Interruption]) -> None:
    worst = max(one.latency_ticks for one in seen)
    scene.report.check(
        "interrupt_latency_ticks",
        worst,
        expected="1 or less, no action under another goal before",
        is_held=worst <= 1 and not any(one.num_stray for one in seen),
    )
    scene.report.note("interrupt_latency_ms", [one.latency_ms for one in seen])
