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
from flashrt_ros.errors import NoFreeLaneError

Array = npt.NDArray[np.float32]

NUM_BRANCHES = 4
"""Branches that are forked, each with a seed of its own."""

BEFORE_FORK_TICKS = 10
"""Ticks of the episode before the fork."""

_LENGTH_WEIGHT = 0.1  # as the policy's own score has it
_SCORE_TOLERANCE = 1e-5
_CHUNK_S = 5.0
_OBSERVATION_S = 2.0


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork and what became of it.

    Attributes:
        chunks: One of each branch; their scores are those that the policy reported.
        scores: Recomputed from nothing but the chunks' bytes.
        continued: Index of the branch whose bytes the actions after the select are, -1 if
            they are no branch's.
    """

    chunks: list[Chunk]
    scores: list[float]
    continued: int


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
    scores = _recomputed(scene, chunks, run.trace.subgoal)
    selected = int(np.argmax([chunk.score for chunk in chunks]))
    services.select(forked.branches[selected])
    run.trace.happened("select", run.now_s, witness.truths[-1].agent)
    continued = branch_of(_finish_chunk(scene, last), chunks)
    services.tick_by("timer")
    run.trace.branches = [_rows(chunk).astype(np.float64) for chunk in chunks]
    run.trace.selected = selected
    scene.view.say(
        f"fork: {NUM_BRANCHES} branches scored {', '.join(f'{value:.4f}' for value in scores)}; "
        f"branch {selected} selected"
    )
    return Forked(chunks, scores, continued)


def judge_forks(scene: Scene, forks: list[Forked]) -> None:
    """Judge what the episodes' forks have shown, and control both checks."""
    report = scene.report
    smallest = min(len(fork.chunks) for fork in forks)
    report.check("branches", smallest, expected=f"{NUM_BRANCHES}", is_held=smallest == NUM_BRANCHES)
    differ = all(pairwise_different(fork.chunks) for fork in forks)
    report.check("branches_differ", differ, expected="pairwise", is_held=differ)
    is_best = all(is_best_taken(fork) for fork in forks)
    report.check(
        "selected_has_best_score",
        is_best,
        expected="the bytes acted on are those of the branch that scores best, recomputed",
        is_held=is_best,
    )
    report.note("branch_scores", [[round(score, 5) for score in fork.scores] for fork in forks])


def control_forks(scene: Scene, goal: Point) -> None:
    """Select the worst branch; fork with one seed for all, and without lanes; in lockstep.

    Raises:
        ScenarioError: A step made no chunk.
    """
    _control_worst(scene, goal)
    services, report = scene.services, scene.report
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
        expected=f"refused with {NoFreeLaneError.code}",
        is_held=refused.error_code == NoFreeLaneError.code and not refused.branches,
    )
    services.select(forked.branches[0])


def _control_worst(scene: Scene, goal: Point) -> None:
    """Do all that the check looks at, but select the branch that scores worst."""
    services = scene.services
    scene.finish_chunk()
    services.send_goal(goal)
    scene.chunks_on(scene.lab_frames[:1])
    forked = services.fork(list(range(NUM_BRANCHES)))
    chunks = [_chunk_of_branch(scene, branch) for branch in forked.branches]
    worst = int(np.argmin([chunk.score for chunk in chunks]))
    services.select(forked.branches[worst])
    acted = scene.step_on(scene.lab_frames[1], scene.execute_horizon).actions
    fork = Forked(chunks, _recomputed(scene, chunks, goal), branch_of(acted, chunks))
    is_best = is_best_taken(fork)
    scene.report.control(
        "selected_worst",
        "selected_has_best_score",
        "the branch with the worst score selected and acted on",
        is_best,
        expected="no, because of its bytes and not of its score",
        is_held=not is_best and fork.continued == worst and are_scores_true(fork),
    )


def pairwise_different(chunks: list[Chunk]) -> bool:
    """Tell whether no two chunks are equal, byte for byte."""
    return all(a.actions != b.actions for a, b in itertools.combinations(chunks, 2))


def is_best_taken(fork: Forked) -> bool:
    """Tell whether what was acted on is the branch that scores best, truly scored."""
    if fork.continued < 0 or not are_scores_true(fork):
        return False
    return fork.scores[fork.continued] >= max(fork.scores) - _SCORE_TOLERANCE


def are_scores_true(fork: Forked) -> bool:
    """Tell whether the policy reported the scores that its chunks have."""
    reported = [chunk.score for chunk in fork.chunks]
    return bool(np.allclose(fork.scores, reported, rtol=0.0, atol=_SCORE_TOLERANCE))


def branch_of(actions: bytes, chunks: list[Chunk]) -> int:
    """Return which branch's chunk begins with these actions, -1 if none or several do.

    Args:
        actions: ``float32[ticks, A]``, one tick or more.
        chunks: One of each branch.
    """
    found = [index for index, chunk in enumerate(chunks) if chunk.actions.startswith(actions)]
    return found[0] if len(found) == 1 and actions else -1


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


def _recomputed(scene: Scene, chunks: list[Chunk], goal: Point) -> list[float]:
    """Score chunks from their bytes and the observation that each names."""
    subgoal = np.array(goal, np.float32)
    return [score(chunk, subgoal, _agent_at(scene, chunk)) for chunk in chunks]


def _agent_at(scene: Scene, chunk: Chunk) -> Array:
    """Return the agent's position in the observation that a chunk names, ``float32[2]``."""
    agent = scene.stage.news.wait(
        lambda: scene.witness.agent_at(chunk.observation_stamp_ns),
        _OBSERVATION_S,
        "the observation that a branch's chunk names",
    )
    return np.array(agent, np.float32)


def _rows(chunk: Chunk) -> Array:
    flat = np.frombuffer(chunk.actions, np.float32)
    return flat.reshape(chunk.horizon, chunk.action_dim)
