from __future__ import annotations

import pytest

from flashrt_ros.demo.judge import SETTLE_TICKS, Judge

SUBGOAL = (0.3, 0.3)
BLOCK = (0.2, 0.2, 0.0)
NEAR = (0.31, 0.3)
FAR = (0.32, 0.3)
PUSHED = (0.2, 0.206, 0.0)


def see(judge: Judge, agent: tuple[float, float], times: int) -> None:
    for _ in range(times):
        judge.see(agent, BLOCK)


def test_staying_within_reach_counts() -> None:
    judge = Judge(SUBGOAL, BLOCK)
    see(judge, FAR, 5)
    assert not judge.is_over
    see(judge, NEAR, SETTLE_TICKS)
    assert judge.is_over
    assert judge.is_reached
    assert judge.ticks == 5 + SETTLE_TICKS
    assert judge.distance_m == pytest.approx(0.01)


def test_passing_by_does_not_count() -> None:
    judge = Judge(SUBGOAL, BLOCK, max_ticks=20)
    while not judge.is_over:
        see(judge, NEAR, SETTLE_TICKS - 1)
        see(judge, FAR, 1)
    assert not judge.is_reached


def test_time_runs_out() -> None:
    judge = Judge(SUBGOAL, BLOCK, max_ticks=4)
    see(judge, FAR, 4)
    assert judge.is_over
    assert not judge.is_reached


def test_a_pushed_block_does_not_count() -> None:
    judge = Judge(SUBGOAL, BLOCK)
    for _ in range(SETTLE_TICKS):
        judge.see(NEAR, PUSHED)
    assert judge.has_settled
    assert judge.block_shift_m == pytest.approx(0.006)
    assert not judge.is_reached
