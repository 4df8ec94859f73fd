"""The whole chain: words to a planner's subgoals, to goals, to the policy, to the robot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from std_msgs.msg import String

from flashrt_ros.demo.following import Follower
from flashrt_ros.demo.judge import SETTLE_TICKS
from flashrt_ros.demo.saying import (
    Place,
    Said,
    Sentence,
    is_same,
    num_reached,
    num_strays,
    read_turn,
)
from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.trace import EpisodeTrace, Point, Saying
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.models.planner_text import scene_text
from flashrt_ros.sim.episodes import EPISODE_TICKS, PUSH_M, REACH_M, sample_episode
from flashrt_ros.sim.instructions import START
from flashrt_ros.sim.table import METRES_PER_PX, SIZE_PX, block_center, block_shift

SEED = 1_001_385
"""Of the episode: held out, and with the block in the way twice."""

FIRST = Sentence("go to the upper right, then to the lower right", ("upper right", "lower right"))
"""Said first; its first subgoal is reached, and the second is the goal, when the next is said."""

BARGE_IN = Sentence(
    "go round the block to the lower left, then back", ("left of block", "lower left", START)
)
"""Said in the middle of the one before."""

NONSENSE = Sentence("make me a coffee")
"""Said while the plan before is followed, which it must not disturb."""

_TURN_S = 10.0
_TOLD_S = 10.0
_TIMES_TOLD = 2  # the planner node heard the first one long before the second
_PLACES_BEFORE = 3  # ticks for which a scene may be on its way
_TICKS = 3 * EPISODE_TICKS


def run_words(scene: Scene) -> None:
    """Drive an episode by words, and judge what became of them.

    Raises:
        ScenarioError: The planner node heard nothing, or the robot has fallen silent.
    """
    scene.view.phase("in words: instruction, planner, goals, policy, robot")
    run = WordsRun(scene)
    run.begin()
    first = run.say(FIRST)
    run.follow(lambda: run.num_goals(first) >= 2)
    second = run.say(BARGE_IN)
    run.follow(lambda: run.num_goals(second) >= 2)
    third = run.say(NONSENSE)
    run.follow(lambda: run.num_goals(second) >= len(second.told.plan) and run.has_settled())
    _judge(scene, run, first, second, third)


class WordsRun:
    """Says things to the planner node and keeps what the robot does.

    Args:
        scene: The demo's.

    Attributes:
        trace: What was seen and said so far.
    """

    _origin_ns: int
    _follower: Follower  # both from begin on

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._news, self._witness = scene.stage.news, scene.witness
        episode = sample_episode(SEED)
        self.trace = EpisodeTrace(-1, SEED, episode.block, episode.agent)

    def begin(self) -> None:
        """Reset policy and robot, and wait until it was told twice where things are.

        Raises:
            ScenarioError: It was not told, or nobody listens to words.
        """
        scene, trace = self._scene, self.trace
        self._origin_ns = scene.begin_episode("words", SEED)
        self._follower = Follower(self._witness, self._news, self._origin_ns)
        trace.happened("reset", 0.0, trace.subgoal)
        scene.words = trace
        scene.view.board.traces.append(trace)
        scene.view.board.block = trace.block
        told = scene_text(block_center(trace.block), trace.subgoal)
        self._news.wait(
            lambda: self._witness.scenes.count(told) >= _TIMES_TOLD, _TOLD_S, f"'{told}', twice"
        )
        if self._witness.words.get_subscription_count() == 0:
            raise ScenarioError("nobody listens to the topic 'instruction'")

    def say(self, sentence: Sentence) -> Said:
        """Say something, and wait until the planner node has told what it makes of it.

        Raises:
            ScenarioError: It told nothing.
        """
        witness, trace = self._witness, self.trace
        with self._news.change():
            num_events, num_goals = len(witness.goal_events), len(witness.from_words)
            num_places = max(0, len(witness.truths) - _PLACES_BEFORE)
        num_ticks, asked_ns = len(trace.path), time.monotonic_ns()
        witness.words.publish(String(data=sentence.text))
        self._scene.view.say(f"“{sentence.text}”")
        told = self._news.wait(
            lambda: read_turn(witness.goal_events[num_events:]),
            _TURN_S,
            f"a plan for '{sentence.text}'",
        )
        points = ", ".join(f"({x * 1e3:.0f}, {y * 1e3:.0f})" for x, y in told.plan)
        self._scene.view.say(f"plan {told.turn}: {points + ' mm' if points else 'refused'}")
        with self._news.change():
            places: tuple[Place, ...] = tuple(
                (truth.block, truth.agent) for truth in witness.truths[num_places:]
            )
        trace.happened("words", self._now_s, places[0][1])
        return Said(sentence, told, places, num_goals, num_ticks, asked_ns)

    def num_goals(self, said: Said) -> int:
        """Count the goals made of a plan so far, while it is the newest."""
        goals = self.goals
        return len(goals) - said.first_goal(goals)

    @property
    def goals(self) -> list[tuple[float, ...]]:
        """Every goal made of words, in order, m."""
        return [goal.values for goal in list(self._witness.from_words)]

    def latency_ms(self, said: Said) -> float:
        """Return the time from the words to the first goal made of them, as heard here."""
        goal = self._witness.from_words[said.first_goal(self.goals)]
        return round((goal.heard_ns - said.asked_ns) / 1e6, 1)

    def has_settled(self) -> bool:
        """Tell whether the robot has come to the goal in force and stayed."""
        newest = self.trace.path[-SETTLE_TICKS:]
        return all(math.dist(point, self.trace.subgoal) <= REACH_M for point in newest)

    def follow(self, until: Callable[[], bool]) -> None:
        """Keep the trace until something is due, or it takes too long.

        Raises:
            ScenarioError: The robot has fallen silent.
        """
        trace, board = self.trace, self._scene.view.board
        end = len(trace.path) + _TICKS
        while len(trace.path) < end and not until():
            truth = self._follower.next()
            trace.add((truth.stamp_ns - self._origin_ns) / 1e9, truth.agent)
            trace.block_shift_m = max(trace.block_shift_m, block_shift(trace.block, truth.block))
            for x, y in self.goals[-1:]:
                trace.subgoal = x, y
            board.block, board.status = truth.block, self._witness.status

    @property
    def _now_s(self) -> float:
        return self.trace.times_s[-1] if self.trace.times_s else 0.0


def _judge(scene: Scene, run: WordsRun, first: Said, second: Said, third: Said) -> None:
    report, trace, goals = scene.report, run.trace, run.goals
    begun = second.first_goal(goals)
    strays = num_strays(goals[begun:], second.told.plan)
    before, after = trace.path[: second.num_ticks], trace.path[second.num_ticks :]
    reached = (
        num_reached(before, first.told.plan[:1], settles=False),
        num_reached(after, second.told.plan, settles=True),
    )
    trace.is_reached = reached[1] == len(second.told.plan) and trace.block_shift_m <= PUSH_M
    trace.sayings = [
        Saying(said.sentence.text, _time(trace, said), said.told.plan, count)
        for said, count in ((first, reached[0]), (second, reached[1]), (third, 0))
    ]
    understood = first.is_understood + second.is_understood
    report.check(
        "words_understood",
        understood,
        expected="2: the plans are what the words mean where things are, to a millimetre",
        is_held=understood == 2,
    )
    _control_understanding(scene, second)
    wanted = 1 + len(second.sentence.targets)
    report.check(
        "words_reached",
        sum(reached),
        expected=f"{wanted}: in the order of the plans, within 15 px, the block moved 5 px at most",
        is_held=sum(reached) == wanted and trace.block_shift_m <= PUSH_M,
    )
    backwards = num_reached(after, second.told.plan[::-1], settles=True)
    report.control(
        "words_backwards",
        "words_reached",
        "the same path, and the second plan's subgoals in the opposite order",
        backwards,
        expected=f"fewer than {reached[1]}",
        is_held=backwards < reached[1],
    )
    report.check(
        "words_left_behind",
        strays,
        expected="0 goals of a plan once the next one has begun, which all become goals in order",
        is_held=strays == 0 and is_same(goals[begun:], second.told.plan),
    )
    forged = num_strays([*goals[begun:], *first.told.plan[1:]], second.told.plan)
    report.control(
        "words_not_left",
        "words_left_behind",
        "the rest of the plan that was left, followed after all",
        forged,
        expected="1",
        is_held=forged == 1,
    )
    made = len(third.told.plan)
    report.check(
        "words_refused",
        made,
        expected=f"0 subgoals of '{third.sentence.text}', refused with its code",
        is_held=made == 0 and third.told.is_refused,
    )
    report.control(
        "words_followed",
        "words_refused",
        "words that are about the table",
        len(second.told.plan),
        expected="3 subgoals",
        is_held=len(second.told.plan) == 3 and not second.told.is_refused,
    )
    report.note("words_to_goal_ms", [run.latency_ms(said) for said in (first, second)])
    report.note("words", [[saying.text, saying.subgoals] for saying in trace.sayings])


def _control_understanding(scene: Scene, said: Said) -> None:
    """Say the same without a scene, and in a mirrored one; in another environment."""
    pose, agent = said.places[-1]
    size_m = SIZE_PX * METRES_PER_PX
    x, y = block_center(pose)
    mirrored = scene_text((size_m - x, y), (size_m - agent[0], agent[1]))
    for name, what, context in (
        ("words_without_scene", "the scene withheld from the planner", ""),
        ("words_in_another_scene", "a mirrored scene", mirrored),
    ):
        with EngineClient(scene.stage.planner_engine, client="demo/words") as client:
            done = client.instruct(said.sentence.text, context=context, env_index=1)
        plan: tuple[Point, ...] = tuple((x, y) for x, y in done.subgoals)
        is_right = any(is_same(plan, said.sentence.meaning(place)) for place in said.places)
        scene.report.control(
            name,
            "words_understood",
            what,
            done.text,
            expected="another plan, or none",
            is_held=not is_right,
        )


def _time(trace: EpisodeTrace, said: Said) -> float:
    return trace.times_s[said.num_ticks - 1] if said.num_ticks else 0.0
