"""What a budget means: a look at the smallest size, or figures that targets are for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashrt_ros.bench import cohost, steady
from flashrt_ros.bench.cohost import Phases
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.registry import BENCHES
from flashrt_ros.bench.result import Row


@pytest.mark.parametrize(("seconds", "is_tiny"), [(9.0, True), (9.99, False), (10.0, False)])
def test_what_is_gone_when_a_bench_begins_makes_no_look_of_it(
    seconds: float, is_tiny: bool, make_context: Callable[..., Context]
) -> None:
    context = make_context(seconds)
    assert context.is_tiny is is_tiny
    for has_sizes in (True, False):
        summary = context.result("it", [], [], "what there is", has_sizes=has_sizes).summary
        assert summary.startswith("smallest size only: ") is (is_tiny and has_sizes)
        assert summary.endswith("what there is")


@pytest.mark.parametrize("name", ["pinned", "fork", "archive"])
def test_a_look_is_bound_by_no_target_of_the_full_size(
    name: str, make_context: Callable[..., Context]
) -> None:
    result = BENCHES[name].run(make_context())
    assert not [row.title for row in result.rows if row.target is not None]


def test_restores_of_the_smallest_size_are_bound_by_host_time_alone(
    make_context: Callable[..., Context],
) -> None:
    rows = BENCHES["restore"].run(make_context()).rows
    assert all("host time added" in row.name for row in rows if row.target is not None)


def test_memory_is_bound_from_the_number_of_ticks_that_the_bound_is_for() -> None:
    few, enough = (steady._host_row(0, count) for count in (steady.NUM_TICKS - 1, steady.NUM_TICKS))
    assert few.target is None
    assert "10000 ticks" in few.note
    assert enough.met


def test_missed_ticks_are_compared_as_shares() -> None:
    def missed(phases: Phases) -> Row:
        alone = phases_of(num_missed=1, num_due=100)
        rows = cohost._rows("the way", phases, alone, "", is_ours=True)
        return next(row for row in rows if row.name.startswith("ticks missed"))

    assert missed(phases_of(num_missed=2, num_due=200)).met
    assert missed(phases_of(num_missed=1, num_due=50)).met is False


def phases_of(num_missed: int, num_due: int) -> Phases:
    figures = [(1.0, 2.0)]
    return Phases(list(figures), list(figures), num_missed, num_due)
