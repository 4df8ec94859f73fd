"""One episode on the robot in real time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashrt_ros.demo.ear import Heard
from flashrt_ros.demo.following import Follower
from flashrt_ros.demo.judge import Judge
from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.trace import EpisodeTrace, Point
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.demo.witness import Truth
from flashrt_ros.sim.episodes import AGENT_RANGE_M, EPISODE_TICKS, sample_episode
from flashrt_ros.sim.expert import AGENT_RADIUS_M, clearance

DETOUR_TICKS = 12
"""How long an interrupt's goal is pursued before the resume, ticks."""

_RETURN_TICKS = 15  # to come back from it
_BEFORE_INTERRUPT = 8
_MID_CHUNK = range(2, 6)  # places in a chunk that count as its middle
_DETOUR_M = (0.06, 0.11)
_FIRST_ACTION_S = 5.0


@dataclass(frozen=True, slots=True)
class Interruption:
    """How an interrupt went, and how a goal without one did, shortly before.

    Attributes:
        latency_ticks: Control ticks from the interrupt to the first action of a chunk
            made under its goal.
        latency_ms: The same as time, from asking.
        num_stray: Actions in between under another goal, or not heard.
        plain_ms: Time from sending a goal in the middle of a chunk, without an
            interrupt, to the first action of a chunk made under it.
    """

    latency_ticks: int
    latency_ms: float
    num_stray: int
    plain_ms: float


class EpisodeRun:
    """Drives an episode and keeps its trace.

    Args:
        scene: The demo's.
        index: Of the episode.
        seed: Of the episode; the policy's noise is seeded with it too.

    Attributes:
        episode: What the seed says of it.
        trace: What was seen so far.
        judge: Watches it.
    """

    _origin_ns: int
    _follower: Follower  # both from begin on

    def __init__(self, scene: Scene, index: int, seed: int) -> None:
        self._scene = scene
        self.episode = sample_episode(seed)
        self.trace = EpisodeTrace(index, seed, self.episode.block, self.episode.subgoal)
        self.judge = Judge(self.episode.subgoal, self.episode.block)

    def begin(self, origin_ns: int) -> None:
        """Reset the policy, then the robot, then send the subgoal.

        Args:
            origin_ns: Stamp that times are counted from; 0 for the episode's first.
        """
        scene = self._scene
        start_ns = scene.begin_episode(f"episode-{self.trace.index}", self.trace.seed)
        self._follower = Follower(scene.witness, scene.stage.news, start_ns)
        self._origin_ns = origin_ns or start_ns
        self.trace.start_s = (start_ns - self._origin_ns) / 1e9
        self.trace.happened("reset", self.trace.start_s, self.episode.agent)
        scene.traces.append(self.trace)
        scene.view.board.traces.append(self.trace)
        scene.view.board.block = self.episode.block
        number = scene.services.send_goal(self.episode.subgoal)
        x, y = self.episode.subgoal
        scene.view.say(f"subgoal {number}: {x * 1e3:.0f}, {y * 1e3:.0f} mm")

    @property
    def origin_ns(self) -> int:
        """Stamp that times are counted from."""
        return self._origin_ns

    @property
    def now_s(self) -> float:
        """Time of the newest truth, s."""
        return self.trace.times_s[-1] if self.trace.times_s else self.trace.start_s

    def follow(self, until: Callable[[], bool]) -> None:
        """Keep the trace until the episode is over or something else is due.

        Raises:
            ScenarioError: The robot has fallen silent.
        """
        while not self.judge.is_over and not until():
            self._see(self._follower.next())

    def finish(self) -> None:
        """Follow to the end, and write down how it ended."""
        self.follow(lambda: False)
        trace, judge = self.trace, self.judge
        trace.ticks = judge.ticks
        trace.distance_m = judge.distance_m
        trace.block_shift_m = judge.block_shift_m
        trace.block_end = self._scene.view.board.block
        trace.is_reached = judge.is_reached
        self._scene.view.say(
            f"{'reached' if judge.is_reached else 'missed'} after {judge.ticks / 10:.1f} s: "
            f"{judge.distance_m * 1e3:.1f} px away, block moved {judge.block_shift_m * 1e3:.1f} px"
        )

    def interrupt_and_resume(self) -> Interruption:
        """Barge in with another goal in the middle of a chunk, then go back.

        Raises:
            ScenarioError: No action came under the new goal.
        """
        scene, actions = self._scene, self._scene.stage.ear.actions
        scene.services.prepare_interrupt()
        plain_ms = self._send_again()
        self.follow(lambda: self.judge.ticks >= _BEFORE_INTERRUPT)
        detour = self._detour()
        self._follow_to_middle()
        asked_ns = time.monotonic_ns()
        before = len(actions)
        reply = scene.services.interrupt(detour)
        self.trace.detour = detour
        self.trace.happened("interrupt", self.now_s)

        def first() -> Heard | None:
            for action in actions[before:]:
                if action.made.generation >= reply.generation:
                    return action
            return None

        action = scene.stage.news.wait(first, _FIRST_ACTION_S, "an action after the interrupt")
        under_goal = scene.stage.news.wait(
            lambda: next(
                (
                    one
                    for one in actions[before:]
                    if one.made.generation >= reply.generation
                    and one.made.goal_sequence == reply.goal_sequence
                ),
                None,
            ),
            _FIRST_ACTION_S,
            "an action under the interrupt's goal",
        )
        seen = Interruption(
            latency_ticks=under_goal.made.tick - reply.tick,
            latency_ms=round((under_goal.produced_ns - asked_ns) / 1e6, 2),
            num_stray=under_goal.made.tick - action.made.tick + under_goal.num_missed,
            plain_ms=plain_ms,
        )
        place = "between plans" if reply.boundary < 0 else f"at plan node {reply.boundary}"
        scene.view.say(
            f"interrupt {place}: first action under the new goal after "
            f"{seen.latency_ticks} tick, {seen.latency_ms:.0f} ms"
        )
        until = self.judge.ticks + DETOUR_TICKS
        self.judge.max_ticks = EPISODE_TICKS + DETOUR_TICKS + _RETURN_TICKS
        self.follow(lambda: self.judge.ticks >= until)
        back = scene.services.resume()
        self.trace.happened("resume", self.now_s)
        scene.view.say(f"resume: back by {back.path} in {back.duration_ns / 1e3:.0f} µs")
        return seen

    # parts -----------------------------------------------------------------------------------

    def _follow_to_middle(self) -> None:
        """Follow until an action from the middle of a chunk was heard."""
        actions = self._scene.stage.ear.actions
        heard = len(actions)
        self.follow(lambda: len(actions) > heard and actions[-1].index in _MID_CHUNK)

    def _send_again(self) -> float:
        """Send the same subgoal again in the middle of a chunk; returns what it takes, ms.

        It changes nothing but the number that the next chunk's actions name.
        """
        scene, actions = self._scene, self._scene.stage.ear.actions
        self._follow_to_middle()
        asked_ns, before = time.monotonic_ns(), len(actions)
        number = scene.services.send_goal(self.trace.subgoal)

        def under() -> Heard | None:
            return next(
                (one for one in actions[before:] if one.made.goal_source_sequence >= number), None
            )

        self.follow(lambda: under() is not None)
        first = scene.stage.news.wait(under, _FIRST_ACTION_S, "an action under a goal sent again")
        return round((first.produced_ns - asked_ns) / 1e6, 2)

    def _see(self, truth: Truth) -> None:
        self.trace.add((truth.stamp_ns - self._origin_ns) / 1e9, truth.agent)
        self.judge.see(truth.agent, truth.block)
        board = self._scene.view.board
        board.block = truth.block
        board.status = self._scene.witness.status

    def _detour(self) -> Point:
        """Choose a goal beside the path that a straight line reaches and comes back from."""
        truth = self._scene.witness.truths[-1]
        generator = np.random.default_rng(self.trace.seed)
        block = np.array([truth.block])
        here = np.array([truth.agent])
        best, best_gap = truth.agent, -math.inf
        low, high = AGENT_RANGE_M
        for _ in range(256):
            radius, angle = generator.uniform(*_DETOUR_M), generator.uniform(-np.pi, np.pi)
            there = here + radius * np.array([[np.cos(angle), np.sin(angle)]])
            if not ((there > low) & (there < high)).all():
                continue
            if math.dist(there[0], self.trace.subgoal) < _DETOUR_M[0]:
                continue
            line = here + np.linspace(0.0, 1.0, 32)[:, None] * (there - here)
            gap = float(clearance(block, line[None]).min())
            if gap > best_gap:
                best, best_gap = (float(there[0, 0]), float(there[0, 1])), gap
        if best_gap < AGENT_RADIUS_M:
            raise ScenarioError("no goal beside the path is free for an interrupt")
        return best
