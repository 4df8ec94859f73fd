"""What events say in their details comes back as it was told, whatever is in a name."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashrt_ros.engine.protocol import Detail, format_detail, parse_detail

AWKWARD = st.text(alphabet="ab1.-=:\"\\' \t\n\u00a0\u2028é中{}")
VALUES = AWKWARD | st.text()
KEYS = st.text(alphabet="abcdefghij_", min_size=1, max_size=5)


@settings(deadline=None)
@given(VALUES, st.dictionaries(KEYS, VALUES | st.integers(), max_size=5), VALUES)
@example("", {}, "")
@example("a=b", {"c": "d:"}, ": e")
@example("", {"only": ""}, "x")
def test_what_is_told_is_read_back(word: str, facts: dict[str, str | int], text: str) -> None:
    said = parse_detail(format_detail(word, text=text, **facts))
    assert said == Detail(word, {key: str(value) for key, value in facts.items()}, text)
    assert list(said.facts) == list(facts)


@settings(deadline=None)
@given(st.text() | AWKWARD)
def test_nothing_that_is_read_raises(detail: str) -> None:
    said = parse_detail(detail)
    assert parse_detail(format_detail(said.word, text=said.text, **said.facts)) == said


@settings(deadline=None)
@given(st.lists(st.floats(), max_size=4), VALUES)
def test_the_numbers_of_a_list_stand_without_quotes(numbers: list[float], after: str) -> None:
    detail = format_detail("", turn=3, values=numbers, after=after)
    written = " ".join(f"{number:.6g}" for number in numbers)
    assert detail.startswith(f"turn=3 values={written} after=")
    assert parse_detail(detail).facts == {"turn": "3", "values": written, "after": after}
    for number, read in zip(numbers, written.split(), strict=True):
        assert math.isclose(float(read), number, rel_tol=1e-5) or math.isnan(number)


@settings(deadline=None)
@given(KEYS, st.text(alphabet="ab1.-=:\\'é中{}/_").filter(lambda value: not value.endswith(":")))
def test_a_value_without_blanks_and_quotes_stands_as_it_is(key: str, value: str) -> None:
    assert format_detail("done", **{key: value}) == f"done {key}={value}"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("left arm", 'planner="left arm"'),
        (' "x" ', 'planner=" \\"x\\" "'),
        ("a\nb", 'planner="a\\nb"'),
        ("été là", 'planner="été là"'),
        ("été", "planner=été"),
        ("nav:", 'planner="nav:"'),
        ("it's", "planner=it's"),
        ("a=b", "planner=a=b"),
        ("", "planner="),
    ],
)
def test_only_what_would_be_read_otherwise_is_quoted(value: str, written: str) -> None:
    assert format_detail("", planner=value) == written
    assert parse_detail(written).facts == {"planner": value}


def test_a_fact_that_is_none_is_left_out() -> None:
    assert format_detail("accepted", channel=None, sequence=0) == "accepted sequence=0"


@pytest.mark.parametrize(
    ("detail", "word"),
    [
        ("the operator said stop=1", "the"),
        ("goal 'left arm' age_ms=1.0", "goal"),
        ("channel=left arm sequence=1", ""),
        ("turn=1 index=0 values=0.1 0.2x", ""),
        ("done turn=3 turn=4", "done"),
        ('done turn="3', "done"),
        ('done turn="3"4', "done"),
        (r'done turn="\q"', "done"),
        (r'"\q" turn=3', ""),
        ('"done turn=3', ""),
        ("done turn=3 why", "done"),
        ('refused planner="a long name that was cut off…', "refused"),
    ],
)
def test_another_form_has_no_facts(detail: str, word: str) -> None:
    assert parse_detail(detail) == Detail(word)


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("", Detail("")),
        ("flip", Detail("flip")),
        ("hold: sent", Detail("hold", {}, "sent")),
        ("done  turn=3 \n", Detail("done", {"turn": "3"})),
        (
            "failed turn=7 code=9 name=X: expected code=1 or turn=8: no",
            Detail(
                "failed", {"turn": "7", "code": "9", "name": "X"}, "expected code=1 or turn=8: no"
            ),
        ),
    ],
)
def test_what_engines_say_is_read(detail: str, said: Detail) -> None:
    assert parse_detail(detail) == said
