"""Episodes on held-out seeds in real time, some of them interrupted, some forked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flashrt_ros.demo.judge import REACH_RATE
from flashrt_ros.demo.scenarios.branching import Forked, fork_and_select, judge_forks
from flashrt_ros.demo.scenarios.episode_run import EpisodeRun, Interruption
from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.trace import EpisodeTrace
from flashrt_ros.sim.episodes import HELD_OUT_SEEDS

MAX_PERIODS = 2
"""Control periods from asking for an interrupt to the first action under its goal."""

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
    done = finished(traces)
    report.check(
        "episodes", len(done), expected=f"{count} run to their end", is_held=len(done) == count
    )
    # As an episode stands that broke off in its middle.
    broken_off = replace(traces[0], block_end=None)
    counted = len(finished([*traces[1:], broken_off]))
    report.control(
        "episodes_unfinished",
        "episodes",
        "one of the episodes broken off before its end",
        counted,
        expected=f"{count - 1}",
        is_held=counted == count - 1,
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


def finished(traces: Iterable[EpisodeTrace]) -> list[EpisodeTrace]:
    """Return the episodes that ran to their end."""
    return [trace for trace in traces if trace.block_end is not None]


def _judge_interruptions(scene: Scene, seen: list[Interruption]) -> None:
    report, worst = scene.report, max(one.latency_ticks for one in seen)
    report.check(
        "interrupt_latency_ticks",
        worst,
        expected="1 or less, no action under another goal before",
        is_held=worst <= 1 and not any(one.num_stray for one in seen),
    )
    # Ticks stand still with the engine; time does not.
    limit_ms = MAX_PERIODS * 1e3 * scene.stage.period_s
    slowest = max(one.latency_ms for one in seen)
    report.check(
        "interrupt_latency_ms",
        slowest,
        expected=f"{limit_ms:g} or less: {MAX_PERIODS} control periods, the wait for the next "
        "tick included",
        is_held=slowest <= limit_ms,
    )
    quickest = min(one.plain_ms for one in seen)
    report.control(
        "goal_without_interrupt_ms",
        "interrupt_latency_ms",
        "a goal in the middle of a chunk without an interrupt",
        quickest,
        expected=f"more than {limit_ms:g}",
        is_held=quickest > limit_ms,
    )
    report.note("interrupt_latencies_ms", [one.latency_ms for one in seen])
