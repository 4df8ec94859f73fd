"""An engine's part of an episode where things go wrong in the middle of a verb."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.episode.catalog import MemoryCatalog
from flashrt_ros.episode.client import EpisodeClient
from flashrt_ros.episode.coordinator import Episodes
from flashrt_ros.episode.engine_part import PLANNER, POLICY, EnginePart
from flashrt_ros.episode.participant import Taking
from flashrt_ros.episode.state_part import StatePart
from flashrt_ros.errors import BusyError, EngineGoneError, EpisodeError
from flashrt_ros.nodes.episode_planner import PlannerPart
from flashrt_ros.nodes.subgoals import SubgoalSequence, SubgoalThread
from test.episode.conftest import Start, labelled, stepped
from test.episode.fakes import Fake

LONG = "go round the block, " * 8


class Losing:
    """A connection on which one answer is lost, once what was asked for has been done."""

    def __init__(self, client: EngineClient, verb: str, *, after: int = 0) -> None:
        self._client, self._verb, self._left = client, verb, after + 1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name != self._verb:
            return found

        def act(*arguments: Any, **more: Any) -> Any:
            answer = found(*arguments, **more)
            self._left -= 1
            if not self._left:
                raise EngineGoneError(f"the answer to {name} is lost")
            return answer

        return act


def part_over(client: Any, **more: Any) -> EnginePart:
    return EnginePart(nullcontext(client), name=POLICY, **more)


def test_a_turn_is_waited_for_and_not_asked_about(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, other = start("planner"), start("planner")
    part = EnginePart(nullcontext(planner), name=PLANNER)
    states: list[str] = []
    status = EngineClient.status

    def note(client: EngineClient, **more: Any) -> Any:
        found = status(client, **more)
        states.append(found.state)
        return found

    def refuse(seconds: float) -> None:
        raise AssertionError("a wait that nothing ends")

    monkeypatch.setattr(EngineClient, "status", note)
    monkeypatch.setattr(time, "sleep", refuse)
    for _ in range(20):  # a turn may be over before the hold has come
        states.clear()
        turn = other.begin_turn(LONG, mode="new").turn
        part.hold()
        taken = part.take(Taking("turned"))
        part.release()
        part.settle()
        part.drop(taken)
        if states[0] != "idle":
            break
    assert states[0] != "idle"
    assert states[-1] == "idle"
    assert int(taken.facts["tick"]) == planner.status().tick >= 1
    assert turn


def test_a_turn_that_does_not_end_lets_go(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = start("planner")
    part = EnginePart(nullcontext(planner), name=PLANNER)
    status = EngineClient.status

    def endless(client: EngineClient, **more: Any) -> Any:
        return msgspec.structs.replace(status(client, **more), state="decode")

    with monkeypatch.context() as patch:
        patch.setattr("flashrt_ros.episode.engine_part.TURN_WAIT_S", 0.0)
        patch.setattr(EngineClient, "status", endless)
        with pytest.raises(BusyError, match="turn is under way"):
            part.hold()
    part.revert()
    part.hold()  # its lock was given back
    part.revert()


def test_two_verbs_over_one_environment_are_not_interleaved(start: Start) -> None:
    policy, second = start(), start()
    stepped(policy)
    told: list[EpisodeError] = []

    def intrude() -> bytes:
        with EpisodeClient(second) as others, pytest.raises(EpisodeError) as caught:
            others.snapshot("theirs")
        told.append(caught.value)
        return b""

    intruder = StatePart("intruder", "intruder/1", intrude, lambda state: None)
    held = Fake("held")  # the policy is held last: by its release it must be
    held.release = intrude  # type: ignore[assignment, method-assign]
    with EpisodeClient(policy, others=[held, intruder]) as episodes:
        episodes.snapshot("ours")
        episodes.drop("ours")
    assert len(told) == 2
    assert all("'policy' failed at hold: BUSY" in str(error) for error in told)
    with EpisodeClient(second) as others:
        others.snapshot("theirs")
        others.drop("theirs")
    assert not labelled(policy)


def test_who_moved_it_last_is_not_overruled_by_a_revert(start: Start) -> None:
    """An interrupt amid a restore that fails stays in force; the others go back."""
    policy, operator = start(), start()
    robot = stepped(policy)
    late = Fake("late")

    def release() -> None:
        operator.interrupt(reason="hand in the cell", hold=True)
        raise late.error()

    with EpisodeClient(policy, others=[robot.part(), late]) as episodes:
        episodes.snapshot("one")
        robot.run(3)
        world = list(robot.world)
        late.release = release  # type: ignore[method-assign]
        with pytest.raises(EpisodeError, match=r"not put back: .*'policy'.*moved by somebody else"):
            episodes.restore("one")
        assert robot.world == world
        assert policy.status().interrupt_depth == 1
        late.release = late._release  # type: ignore[method-assign]
        assert len(labelled(policy)) == 1  # what was replaced is not kept for ever
        episodes.drop("one")
    policy.resume()


def test_a_restore_whose_answer_is_lost_is_taken_back(start: Start) -> None:
    policy = start()
    robot = stepped(policy)
    part = part_over(Losing(policy, "restore"))
    episodes = Episodes(part, [], MemoryCatalog())
    episodes.snapshot("one")
    robot.run(3)
    before = policy.inspect().state_digest
    with pytest.raises(EpisodeError, match="'policy' failed at put: ENGINE_GONE"):
        episodes.restore("one")
    assert policy.inspect().state_digest == before
    episodes.drop("one")
    assert not labelled(policy)


def test_a_capsule_whose_answer_is_lost_is_not_left_behind(start: Start) -> None:
    policy = start()
    stepped(policy)
    # the second status is asked for once the capsule is there
    part = part_over(Losing(policy, "status", after=1))
    with pytest.raises(EpisodeError, match="'policy' failed at take: ENGINE_GONE"):
        Episodes(part, [], MemoryCatalog()).snapshot("one")
    assert not labelled(policy)


def test_a_timer_that_was_not_started_again_is_tried_again(start: Start) -> None:
    policy = start()
    policy.activate(tick_source="timer", rate_hz=20.0)
    activations: list[str] = []

    class Refusing(Losing):
        def __getattr__(self, name: str) -> Any:
            if name != "activate":
                return super().__getattr__(name)

            def activate(**more: Any) -> Any:
                activations.append(more["tick_source"])
                if len(activations) == 3:
                    raise BusyError("not now")
                return policy.activate(**more)

            return activate

    part = part_over(Refusing(policy, ""), rate_hz=lambda: 20.0)
    with pytest.raises(EpisodeError, match="'policy' failed at release: BUSY"):
        Episodes(part, [], MemoryCatalog()).snapshot("one")
    assert activations == ["timer", "step", "timer", "timer"]
    assert policy.status().tick_source == "timer"
    assert not labelled(policy)


class Host:
    """A node's session with a planner engine, without the node."""

    def __init__(self, thread: SubgoalThread) -> None:
        self.thread = thread
        self.last_turn = 0
        self.has_first_channel = True
        self.scene = ""
        self.is_held = False


@pytest.fixture
def hosted(start: Start) -> Any:
    client = start("planner")
    client.reset()
    thread = SubgoalThread(
        SubgoalSequence(dwell_ns=1, reached_m=0.0),
        now_ns=lambda: 0,
        commit=lambda subgoal: 0,
        on_error=pytest.fail,
    )

    link = nullcontext(client)
    part = PlannerPart(Host(thread), link, env_index=lambda: 0, on_moved=lambda moved: None)
    yield client, part
    thread.close()


def test_a_planner_node_drops_later_what_a_text_stood_at(
    hosted: tuple[EngineClient, PlannerPart],
) -> None:
    planner, part = hosted

    def verb(*acts: Callable[[], object]) -> None:
        part.hold()
        for act in acts:
            act()
        part.release()
        part.settle()

    planner.instruct("go left")
    kept: list[Any] = []
    verb(lambda: kept.append(part.take(Taking("one"))))
    verb(lambda: part.put(kept[0]))
    part.drop(kept[0])
    assert len(labelled(planner)) == 1  # the text stands at it
    planner.reset()
    verb(lambda: kept.append(part.take(Taking("two"))))
    part.drop(kept[1])
    assert not labelled(planner)


@pytest.mark.parametrize("rate_hz", [0.0, -1.0, 1e9, float("nan")])
def test_a_rate_that_no_timer_has_stops_no_timer(start: Start, rate_hz: float) -> None:
    policy = start()
    policy.activate(tick_source="timer", rate_hz=20.0)
    part = part_over(policy, rate_hz=lambda: rate_hz)
    with pytest.raises(EpisodeError, match="'policy' failed at hold: "):
        Episodes(part, [], MemoryCatalog()).snapshot("one")
    assert policy.status().tick_source == "timer"
