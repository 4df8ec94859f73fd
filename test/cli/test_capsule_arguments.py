"""What no engine could be asked is wrong usage, and never a traceback."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Call = Callable[..., tuple[int, str, str]]

HUGE = "9" * 30
NO_TEXT = "\udcff"  # how Python spells a byte of the command line that is no UTF-8


@pytest.mark.parametrize(
    "words",
    [
        ("list", "--timeout", "0"),
        ("list", "--timeout", "-1"),
        ("list", "--timeout", "nan"),
        ("list", "--timeout", "inf"),
        ("list", "--timeout", "soon"),
        ("list", "--env", HUGE),
        ("list", "--since", "2999-01-01"),
        ("list", "--since", "1900-01-01"),
        ("list", "--since", "9999-12-31T23:59:59"),
        ("list", "--since", f"{HUGE}w"),
        ("list", "--tier", ""),
        ("list", "--label", f"a={NO_TEXT}"),
        ("list", "--engine", NO_TEXT),
        ("gc", "--older-than", "9" * 400 + "d"),
        ("gc", "--keep-last", HUGE),
        ("fork", HUGE),
        ("fork", "1_000"),
        ("rollback", HUGE),
        ("rollback", "--to", NO_TEXT),
        ("reset", "--seed", HUGE),
        ("reset", "--stamp-ns", HUGE),
        ("select", str(2**63)),
        ("snapshot", NO_TEXT),
        ("snapshot", "one", "--label", NO_TEXT),
        ("drop", "one", NO_TEXT),
    ],
)
def test_what_can_not_be_sent_is_wrong_usage(flashrt: Call, words: tuple[str, ...]) -> None:
    code, out, err = flashrt("capsule", *words)
    assert (code, out) == (2, "")
    assert "usage: flashrt-ros capsule" in err
    assert err.encode()


@pytest.mark.parametrize(
    "words",
    [
        ("list", "--env", HUGE),
        ("list", "--planner", NO_TEXT),
        ("list", "--timeout", "nan"),
        ("restore", NO_TEXT),
    ],
)
def test_nor_of_an_episode(flashrt: Call, words: tuple[str, ...]) -> None:
    code, out, err = flashrt("episode", *words)
    assert (code, out) == (2, "")
    assert "usage: flashrt-ros episode" in err


def test_the_largest_numbers_get_an_answer(flashrt: Call, engine: str) -> None:
    most = str(2**63 - 1)
    for words in (
        ("select", most),
        ("select", "--", str(-(2**63))),
        ("rollback", most),
        ("fork", most),
        ("reset", "--seed", "-1"),
        ("reset", "--stamp-ns", most),
        ("gc", "--unpinned", "--keep-last", most),
        ("list", "--env", most),
        ("list", "--since", "14000w", "--until", "2262-04-11"),
    ):
        code, _, err = flashrt("capsule", words[0], "--engine", engine, *words[1:])
        assert code in (0, 1), err
        assert "Traceback" not in err
