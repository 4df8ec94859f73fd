"""The bench of a planner in a policy's slack: a planner that refuses is no slow planner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flashrt_ros.bench.cohost import Load
from flashrt_ros.bench.failures import BenchError
from flashrt_ros.errors import BackendError, BusyError, EngineGoneError, FlashrtError

WAIT_S = 20.0


class Client:
    """Answers like a planner engine's client, by a function of the number of the call."""

    def __init__(self, answer: Callable[[int], None]) -> None:
        self._answer = answer
        self._num_calls = 0

    def instruct(self, prompt: str, *, temperature: float, seed: int) -> Any:
        assert seed == self._num_calls
        self._num_calls += 1
        self._answer(self._num_calls)
        return SimpleNamespace(tokens=(1, 2, 3))


def load_of(answer: Callable[[int], None], **options: float) -> Load:
    return Load(Client(answer), **options)  # type: ignore[arg-type]


def test_tokens_of_the_plans_that_are_done_are_counted() -> None:
    third, leave = threading.Event(), threading.Event()

    def answer(number: int) -> None:
        if number == 3:
            third.set()
            assert leave.wait(WAIT_S)

    with load_of(answer) as load:
        assert third.wait(WAIT_S)
        assert load.num_tokens == 6
        leave.set()


@pytest.mark.parametrize(
    "refusal",
    [BusyError("busy"), BackendError("broken"), EngineGoneError("gone")],
    ids=lambda error: type(error).__name__,
)
def test_whatever_the_planner_refuses_with_is_told(refusal: FlashrtError) -> None:
    ended = threading.Event()

    def answer(number: int) -> None:
        if number == 2:
            ended.set()
            raise refusal

    with load_of(answer) as load:
        assert ended.wait(WAIT_S)
        load._thread.join(WAIT_S)
        with pytest.raises(BenchError, match=type(refusal).__name__) as caught:
            _ = load.num_tokens
    assert caught.value.__cause__ is refusal


def test_a_load_that_nobody_runs_gives_no_figure() -> None:
    with load_of(lambda number: None) as load:
        pass
    with pytest.raises(BenchError, match="nobody asks"):
        _ = load.num_tokens


def test_a_plan_without_an_end_is_told_and_hides_no_other_failure() -> None:
    begun, leave = threading.Event(), threading.Event()

    def answer(number: int) -> None:
        begun.set()
        assert leave.wait(WAIT_S)

    with pytest.raises(BenchError, match="last plan"), load_of(answer, last_plan_s=0.0):
        assert begun.wait(WAIT_S)
    with pytest.raises(ZeroDivisionError), load_of(answer, last_plan_s=0.0):
        raise ZeroDivisionError
    leave.set()
