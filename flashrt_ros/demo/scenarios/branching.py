"""Fork into branches in the middle of an episode, score what each would do, take the best."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashrt_ros.demo.scenarios.episode_run import EpisodeRun
from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.trace import Point
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.demo.witness import Chunk

Array = npt.NDArray[np.float32]

NUM_BRANCHES = 4
BEFORE_FORK_TICKS = 10

_LENGTH_WEIGHT = 0.1  # as the policy's own score has it
_SCORE_TOLERANCE = 1e-5
_CHUNK_S = 5.0


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork and what became of it.

    Attributes:
        chunks: One of each branch.
        scores: Recomputed from them.
        selected: Index of the branch that was selected.
        is_score_equal: The recomputed scores are those that the policy reported.
        is_continued: The actions after the select were the selected chunk's.
    """

    chunks: list[Chunk]
    scores: list[float]
    selected: int
    is_score_equal: bool
    is_continued: bool


def fork_and_select(scene: Scene, run: EpisodeRun) -> Forked:
    """Let the running episode choose among branches, then let it go on in real time.

    The environment is ticked by hand meanwhile, from the end of a chunk, so that every
    branch begins with one of its own, to the end of the selected one.

    Raises:
        ScenarioError: A step made no chunk.
    """
    run.follow(lambda: run.judge.ticks >= BEFORE_FORK_TICKS)
    services, witness, actions = scene.services, scene.witness, scene.stage.ear.actions
    last = scene.execute_horizon - 1
    scene.stage.news.wait(lambda: actions[-1].index == last, _CHUNK_S, "the end of a chunk")
    services.tick_by("step")
    if actions[-1].index != last:  # the next chunk was quicker
        _finish_chunk(scene, last)
    seeds = [run.trace.seed * 10 + number for number in range(NUM_BRANCHES)]
    forked = services.fork(seeds)
    run.trace.happened("fork", run.now_s, witness.truths[-1].agent)
    chunks = [_chunk_of_branch(scene, branch) for branch in forked.branches]
    subgoal = np.array(run.trace.subgoal, np.float32)
    scores = [score(chunk, subgoal, _agent_at(scene, chunk)) for chunk in chunks]
    selected = int(np.argmax(scores))
    services.select(forked.branches[selected])
    run.trace.happened("select", run.now_s, witness.truths[-1].agent)
    is_continued = _finish_chunk(scene, last) == _rows(chunks[selected])[: last + 1].tobytes()
    services.tick_by("timer")
    run.trace.branches = [_rows(chunk).astype(np.float64) for chunk in chunks]
    run.trace.selected = selected
    scene.view.say(
        f"fork: {NUM_BRANCHES} branches scored {', '.join(f'{value:.4f}' for value in scores)}; "
        f"branch {selected} selected"
    )
    return Forked(
        chunks,
        scores,
        selected,
        is_score_equal=bool(
            np.allclose(scores, [chunk.score for chunk in chunks], atol=_SCORE_TOLERANCE)
        ),
        is_continued=is_continued,
    )


def judge_forks(scene: Scene, forks: list[Forked]) -> None:
    """Judge what the episodes' forks have shown, and control both checks."""
    report = scene.report
    smallest = min(len(fork.chunks) for fork in forks)
    report.check("branches", smallest, expected=f"{NUM_BRANCHES}", is_held=smallest == NUM_BRANCHES)
    differ = all(pairwise_different(fork.chunks) for fork in forks)
    report.check("branches_differ", differ, expected="pairwise", is_held=differ)
    is_best = all(
        is_best_selected(fork.scores, fork.selected) and fork.is_score_equal and fork.is_continued
        for fork in forks
    )
    report.check(
        "selected_has_best_score",
        is_best,
        expected="recomputed from its chunk, as reported, and gone on with",
        is_held=is_best,
    )
    report.note("branch_scores", [[round(score, 5) for score in fork.scores] for fork in forks])
    fork = forks[0]
    worst = int(np.argmin(fork.scores))
    report.control(
        "selected_worst",
        "selected_has_best_score",
        "the branch with the worst score taken for the selected one",
        is_best_selected(fork.scores, worst),
        expected="no",
        is_held=not is_best_selected(fork.scores, worst),
    )


def control_forks(scene: Scene) -> None:
    """Fork with one seed for all, and more branches than there are lanes; in lockstep.

    Raises:
        ScenarioError: A step made no chunk.
    """
    services, report = scene.services, scene.report
    scene.finish_chunk()
    forked = services.fork([7] * NUM_BRANCHES)
    chunks = [_chunk_of_branch(scene, branch) for branch in forked.branches]
    differ = pairwise_different(chunks)
    report.control(
        "branches_one_seed",
        "branches_differ",
        "all branches forked with one seed",
        differ,
        expected="no",
        is_held=not differ,
    )
    refused = services.try_fork([1])
    report.control(
        "branches_without_lanes",
        "branches",
        "one more branch than there are lanes",
        refused.error_code,
        expected="refused with 205",
        is_held=refused.error_code == 205 and not refused.branches,
    )
    services.select(forked.branches[0])


def pairwise_different(chunks: list[Chunk]) -> bool:
    """Tell whether no two chunks are equal, byte for byte."""
    return all(a.actions != b.actions for a, b in itertools.combinations(chunks, 2))


def is_best_selected(scores: list[float], selected: int) -> bool:
    """Tell whether no branch scores higher than the selected one."""
    return scores[selected] >= max(scores)


def score(chunk: Chunk, subgoal: Array, agent: Array) -> float:
    """Rate a chunk as the flow policy does, from nothing but its bytes.

    Minus the distance that it leaves to the subgoal, minus a tenth of its way, m.

    Args:
        chunk: Of a branch.
        subgoal: ``float32[2]``, m.
        agent: Where the agent was in the observation that the chunk consumed, m.
    """
    way = np.concatenate([agent[None], _rows(chunk)]).astype(np.float64)
    left = float(np.linalg.norm(way[-1] - subgoal.astype(np.float64)))
    length = float(np.linalg.norm(np.diff(way, axis=0), axis=-1).sum())
    return -left - _LENGTH_WEIGHT * length


def _finish_chunk(scene: Scene, last: int) -> bytes:
    """Run ticks up to the end of a chunk, one for each new picture; returns their actions."""
    done = b""
    for _ in range(last + 1):
        stamp_ns = scene.witness.truths[-1].stamp_ns
        reply = scene.services.step(1, min_stamp_ns=stamp_ns + 1)
        done += bytes(memoryview(reply.actions).cast("B"))
        if reply.action_indices[0] == last:
            break
    return done


def _chunk_of_branch(scene: Scene, branch: int) -> Chunk:
    reply = scene.services.step(0, branch=branch)
    if len(reply.chunks) != 1:
        raise ScenarioError(f"branch {branch} made {len(reply.chunks)} chunks instead of one")
    return Chunk.of(reply.chunks[0])


def _agent_at(scene: Scene, chunk: Chunk) -> Array:
    """Return the agent's position in the observation that a chunk names, ``float32[2]``."""

    def look() -> Point | None:
        for truth in reversed(scene.witness.truths):
            if truth.stamp_ns == chunk.observation_stamp_ns:
                return truth.agent
        return None

    agent = scene.stage.news.wait(look, 2.0, "the observation that a branch's chunk names")
    return np.array(agent, np.float32)


def _rows(chunk: Chunk) -> Array:
    flat = np.frombuffer(chunk.actions, np.float32)
    return flat.reshape(chunk.horizon, chunk.action_dim)
