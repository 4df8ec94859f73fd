from __future__ import annotations

import threading

import pytest

from flashrt_ros.demo.waiting import News, ScenarioError


def test_what_is_there_needs_no_waiting() -> None:
    assert News().wait(lambda: 7, 0.0, "a number") == 7


def test_zero_and_empty_count_as_found() -> None:
    assert News().wait(lambda: 0, 0.0, "a number") == 0
    assert News().wait(list, 0.0, "a list") == []


def test_a_change_from_another_thread_ends_the_wait() -> None:
    news, found = News(), list[int]()

    def record() -> None:
        with news.change():
            found.append(3)

    thread = threading.Timer(0.01, record)
    thread.start()
    assert news.wait(lambda: found[0] if found else None, 20.0, "a number") == 3
    thread.join()


def test_what_does_not_come_is_an_error_that_says_so() -> None:
    with pytest.raises(ScenarioError, match="an answer: it did not come"):
        News().wait(lambda: False, 0.01, "an answer")


def test_waiting_ends_when_it_has_become_pointless() -> None:
    def check() -> None:
        raise ScenarioError("the engine has ended, unasked")

    with pytest.raises(ScenarioError, match="unasked"):
        News(check).wait(lambda: None, 60.0, "an answer")
