"""Rounds in random order, budgets that are kept, samples that don't count."""

from __future__ import annotations

import gc
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.bench.sampling import (
    NO_SAMPLE,
    Budget,
    Case,
    Plan,
    Sample,
    lost,
    measure,
    median,
    p99,
)


class Clock:
    """Stands until it is pushed on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_round_runs_every_peer_once_in_an_order_of_its_own() -> None:
    calls: list[str] = []

    def case(name: str) -> Case:
        def run() -> None:
            calls.append(name)

        def timer(call: object) -> tuple[Sample, object]:
            run()
            return Sample(1000.0, 2000.0), None

        return Case(run, timer)

    plan = Plan(0.0, min_rounds=40, warm_up=1)
    samples = measure({name: case(name) for name in "abc"}, plan, random.Random(1))
    assert Counter(calls) == {"a": 41, "b": 41, "c": 41}
    rounds = ["".join(calls[i : i + 3]) for i in range(3, len(calls), 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) == 6
    assert samples["a"].device_us.tolist() == [1.0] * 40
    assert samples["a"].host_us.tolist() == [2.0] * 40


def test_what_did_not_do_its_work_does_not_count() -> None:
    answers = iter([None, NO_SAMPLE, False, None])
    case = Case(lambda: None, lambda run: (Sample(1e3, 1e3), next(answers)))
    samples = measure({"a": case}, Plan(0.0, min_rounds=3, warm_up=1), random.Random(0))
    assert [math.isnan(value) for value in samples["a"].host_us] == [True, False, False]
    assert median(samples["a"].host_us) == 1.0


def test_what_was_lost_is_told() -> None:
    nan = float("nan")
    assert lost(np.array([1.0, nan, nan, 2.0])) == "2 of 4 lost"
    assert not lost(np.array([1.0, 2.0]))


def test_preparation_is_outside_the_timing() -> None:
    order: list[str] = []

    def timer(run: object) -> tuple[Sample, object]:
        order.append("timed")
        return Sample(1.0, 1.0), None

    case = Case(lambda: None, timer, lambda: order.append("prepared"))
    measure({"a": case}, Plan(0.0, min_rounds=2, warm_up=0), random.Random(0))
    assert order == ["prepared", "timed"] * 2


def test_the_collector_rests_and_goes_on() -> None:
    seen: list[bool] = []

    def timer(run: object) -> tuple[Sample, object]:
        seen.append(gc.isenabled())
        return Sample(1.0, 1.0), None

    measure({"a": Case(lambda: None, timer)}, Plan(0.0, warm_up=0), random.Random(0))
    assert seen == [False] * 3
    assert gc.isenabled()


def test_nothing_that_counts_has_no_median() -> None:
    nothing = np.array([float("nan")])
    assert math.isnan(median(nothing))
    assert math.isnan(p99(nothing))


@given(
    st.lists(st.floats(0.001, 100), min_size=1, max_size=20),
    st.floats(0.01, 1000),
)
def test_a_budget_is_never_shared_out_twice(spent: list[float], seconds: float) -> None:
    clock = Clock()
    budget = Budget(seconds, clock=clock)
    for index, seconds_spent in enumerate(spent):
        share = budget.share_s(len(spent) - index)
        assert 0.0 <= share <= seconds + 1e-9
        clock.now += min(share, seconds_spent)
    assert clock.now - 100.0 <= seconds * (1 + 1e-9)
    assert 0.0 <= budget.spent <= 1.0


def test_a_part_that_took_too_long_leaves_less_for_the_rest() -> None:
    clock = Clock()
    budget = Budget(10.0, clock=clock)
    assert budget.share_s(2) == pytest.approx(5.0)
    clock.now += 8.0
    assert budget.share_s(1) == pytest.approx(2.0)
    clock.now += 8.0
    assert budget.left_s == 0.0
    assert budget.spent == 1.0


def test_rounds_follow_from_the_time() -> None:
    def count(plan: Plan) -> int:
        clock = Clock()

        def timer(run: object) -> tuple[Sample, object]:
            clock.now += 1.0
            return Sample(1.0, 1.0), None

        cases = {"a": Case(lambda: None, timer)}
        return int(measure(cases, plan, random.Random(0), clock=clock)["a"].host_us.size)

    assert count(Plan(0.0, min_rounds=3)) == 3
    assert count(Plan(20.0)) == 20
    assert count(Plan(20.0, max_rounds=7)) == 7
