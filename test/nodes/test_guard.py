from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flashrt_ros.engine.protocol import GoalSource, Provenance
from flashrt_ros.nodes.guard import Cause, Guard, GuardSettings
from flashrt_ros.nodes.lifetimes import GoalLifetimes

S = 1_000_000_000
NOW = 100 * S


def made(**changes: Any) -> Provenance:
    plain = Provenance(1, 0, -1, 1, 1, 10, 9, 1, 1, NOW, 1, NOW)
    return msgspec.structs.replace(plain, **changes)


def guard(*, goal_ns: int = 0, is_timed: bool = True, observation_ns: int = S) -> Guard:
    found = Guard(GuardSettings(observation_ns, S // 10), GoalLifetimes(goal_ns))
    found.begin(is_timed=is_timed, silence_ns=S)
    found.observed(NOW)
    found.heard(NOW)
    return found


def act(found: Guard, *, now_ns: int = NOW, **changes: Any) -> bool:
    record = made(**changes)
    if found.objection(record, now_ns=now_ns):
        return False
    found.passed(record)
    return True


class TestObservations:
    def test_a_stale_one_stops_once_and_until_a_newer_one_was_acted_on(self) -> None:
        found = guard()
        assert act(found)
        found.heard(NOW + 2 * S)
        assert found.look(now_ns=NOW + S, monotonic_ns=NOW + S) is None
        at_ns = NOW + S + 1
        assert found.look(now_ns=at_ns, monotonic_ns=at_ns) is Cause.OBSERVATION
        assert found.look(now_ns=at_ns, monotonic_ns=at_ns) is None
        assert not act(found, now_ns=at_ns)
        found.observed(at_ns + 5)
        # What is left in the queue was made from the old one.
        assert not act(found, now_ns=at_ns + 9)
        assert act(found, now_ns=at_ns + 9, observation_stamp_ns=at_ns + 5)
        assert found.num_refused == {Cause.OBSERVATION: 2}

    def test_it_is_judged_although_no_action_comes(self) -> None:
        found = guard()
        act(found)
        assert found.look(now_ns=NOW + 9 * S, monotonic_ns=NOW) is Cause.OBSERVATION

    def test_before_the_first_action_nothing_stops_but_nothing_passes_either(self) -> None:
        found = guard()
        late_ns = NOW + 2 * S
        assert found.look(now_ns=late_ns, monotonic_ns=late_ns) is None
        assert not act(found, now_ns=late_ns)

    def test_a_clock_set_back_makes_it_stale_and_new_time_counts(self) -> None:
        found = guard()
        act(found)
        assert found.look(now_ns=50 * S, monotonic_ns=NOW) is Cause.OBSERVATION
        assert not act(found, now_ns=50 * S)
        found.observed(51 * S)
        assert not act(found, now_ns=51 * S)
        assert act(found, now_ns=51 * S, observation_stamp_ns=51 * S)

    def test_a_clock_set_back_twice_does_not_lock_out(self) -> None:
        found = guard()
        act(found)
        assert found.look(now_ns=50 * S, monotonic_ns=NOW) is Cause.OBSERVATION
        found.observed(10 * S)
        assert act(found, now_ns=10 * S, observation_stamp_ns=10 * S)

    def test_within_the_tolerance_a_stamp_may_be_ahead(self) -> None:
        found = guard()
        found.observed(NOW + S // 10)
        assert act(found, observation_stamp_ns=NOW + S // 10)

    def test_zero_never_judges(self) -> None:
        found = guard(observation_ns=0)
        act(found)
        assert found.look(now_ns=NOW + 999 * S, monotonic_ns=NOW) is None
        assert act(found, now_ns=1)


class TestGoals:
    def test_a_stale_one_stops_until_another_comes(self) -> None:
        found = guard(goal_ns=2 * S, observation_ns=0)
        assert act(found)
        found.heard(NOW + 3 * S)
        assert found.look(now_ns=NOW + 3 * S, monotonic_ns=NOW + 3 * S) is Cause.GOAL
        assert not act(found, now_ns=NOW + 3 * S)
        assert act(found, now_ns=NOW + 3 * S, goal_stamp_ns=NOW + 2 * S, goal_source_sequence=2)

    def test_its_own_lifetime_counts_before_the_nodes(self) -> None:
        lifetimes = GoalLifetimes(2 * S)
        lifetimes.remember(stamp_ns=NOW, sequence=1, lifetime_ns=5 * S)
        assert lifetimes.end_ns(stamp_ns=NOW, sequence=1) == NOW + 5 * S
        assert lifetimes.end_ns(stamp_ns=NOW, sequence=2) == NOW + 2 * S
        assert GoalLifetimes(0).end_ns(stamp_ns=NOW, sequence=1) is None

    def test_what_came_with_the_action_counts_before_both(self) -> None:
        found = guard(goal_ns=2 * S, observation_ns=0)
        end_ns = NOW + 4 * S
        assert act(found, now_ns=NOW + 3 * S, goal_expires_ns=end_ns)
        assert found.look(now_ns=end_ns, monotonic_ns=NOW) is None
        assert found.look(now_ns=end_ns + 1, monotonic_ns=NOW) is Cause.GOAL
        assert not act(found, now_ns=end_ns + 1, goal_expires_ns=end_ns)
        assert not act(found, now_ns=NOW + 3 * S)

    def test_each_of_several_channels_is_judged(self) -> None:
        found = guard(goal_ns=2 * S, observation_ns=0)

        def may_act(*, first_ns: int, other_ns: int, stamp_ns: int = NOW) -> bool:
            ends = [end_ns for end_ns in (first_ns, other_ns) if end_ns]
            return act(
                found,
                now_ns=NOW + 3 * S,
                goal_stamp_ns=NOW,
                goal_expires_ns=min(ends, default=0),
                other_goals=(GoalSource("gripper", 1, 9, stamp_ns, other_ns),),
            )

        later_ns = NOW + 9 * S
        assert may_act(first_ns=later_ns - S, other_ns=later_ns)
        assert not may_act(first_ns=later_ns, other_ns=NOW + S)
        # One that came with no end has the node's, whatever the other one has.
        assert not may_act(first_ns=later_ns, other_ns=0)
        assert not may_act(first_ns=0, other_ns=later_ns)
        assert may_act(first_ns=later_ns, other_ns=0, stamp_ns=NOW + 2 * S)

    def test_lifetimes_are_bounded(self) -> None:
        lifetimes = GoalLifetimes(0)
        for number in range(1000):
            lifetimes.remember(stamp_ns=NOW, sequence=number, lifetime_ns=S)
        assert lifetimes.end_ns(stamp_ns=NOW, sequence=999) == NOW + S
        assert lifetimes.end_ns(stamp_ns=NOW, sequence=0) is None


class TestSilence:
    def test_it_stops_and_what_was_made_before_stays_out(self) -> None:
        found = guard(observation_ns=0)
        act(found)
        at_ns = NOW + S + 1
        assert found.look(now_ns=at_ns, monotonic_ns=at_ns) is Cause.SILENCE
        found.heard(at_ns + 1)
        assert not act(found, now_ns=at_ns + 1)
        assert act(found, now_ns=at_ns + 5, observation_stamp_ns=at_ns + 2)

    def test_a_policy_that_waits_is_not_silent(self) -> None:
        found = guard(observation_ns=0)
        act(found)
        found.moved()  # a reset: the engine waits for a goal
        assert found.look(now_ns=NOW, monotonic_ns=NOW + 99 * S) is None

    def test_who_steps_has_all_the_time(self) -> None:
        found = guard(is_timed=False)
        assert act(found, now_ns=NOW + 99 * S)
        assert found.look(now_ns=NOW + 99 * S, monotonic_ns=NOW + 99 * S) is None


def test_a_limit_stops_until_the_environment_moves() -> None:
    found = guard(is_timed=False)
    act(found)
    found.stop(Cause.LIMIT, now_ns=NOW)
    assert not act(found, observation_stamp_ns=NOW + S)
    found.moved()
    assert act(found)


class Machine(RuleBasedStateMachine):
    """Whatever happens, nothing passes that was made before the last stop for age or silence."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = guard(goal_ns=3 * S)
        self.now_ns = NOW
        self.heard_ns = NOW
        self.observed_ns = NOW
        self.stopped_ns = -1
        self.passed: list[Provenance] = []

    @rule(step=st.integers(0, 2 * S))
    def time_passes(self, step: int) -> None:
        self.now_ns += step

    @rule(back=st.integers(S, 50 * S))
    def the_clock_is_set_back(self, back: int) -> None:
        self.now_ns = max(10 * S, self.now_ns - back)
        self.heard_ns = min(self.heard_ns, self.now_ns)
        self.guard.heard(self.heard_ns)
        self.stopped_ns = -1

    @rule(age=st.integers(0, S))
    def an_observation_comes(self, age: int) -> None:
        self.observed_ns = self.now_ns - age
        self.guard.observed(self.observed_ns)

    @rule(age=st.integers(0, 3 * S), goal_age=st.integers(0, 4 * S))
    def an_action_comes(self, age: int, goal_age: int) -> None:
        record = made(
            observation_stamp_ns=self.now_ns - age,
            goal_stamp_ns=self.now_ns - goal_age,
        )
        self.heard_ns = self.now_ns
        self.guard.heard(self.now_ns)
        if not self.guard.objection(record, now_ns=self.now_ns):
            self.guard.passed(record)
            assert goal_age <= 3 * S
            assert abs(self.now_ns - self.observed_ns) <= S
            assert record.observation_stamp_ns >= self.stopped_ns

    @rule()
    def the_watch_looks(self) -> None:
        was_acting = self.guard.is_acting
        cause = self.guard.look(now_ns=self.now_ns, monotonic_ns=self.now_ns)
        assert cause is None or was_acting
        if cause in (Cause.OBSERVATION, Cause.SILENCE):
            self.stopped_ns = self.now_ns
        if was_acting and self.now_ns - self.observed_ns > S:
            assert cause is Cause.OBSERVATION

    @rule()
    def the_environment_moves(self) -> None:
        self.guard.moved()

    @invariant()
    def a_look_after_a_stop_finds_nothing(self) -> None:
        if not self.guard.is_acting:
            assert self.guard.look(now_ns=self.now_ns, monotonic_ns=self.now_ns) is None


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(1, 10**12), st.integers(0, 10**12))
def test_an_age_is_judged_on_the_nodes_clock_alone(stamp_ns: int, now_ns: int) -> None:
    found = Guard(GuardSettings(S, 0), GoalLifetimes(0))
    found.begin(is_timed=True)
    found.observed(stamp_ns)
    cause = found.objection(made(observation_stamp_ns=stamp_ns), now_ns=now_ns)
    assert (cause is None) == (0 <= now_ns - stamp_ns <= S)
