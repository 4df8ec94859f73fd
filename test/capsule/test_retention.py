"""What a collection lets go, and what it takes for the newest."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from flashrt_ros.capsule.retention import Query, Rules
from flashrt_ros.errors import SpecError


@dataclass
class One:
    """As much of a capsule as rules look at."""

    name: str
    created_ns: int
    labels: tuple[str, ...] = ()
    tier: str = "host"
    pinned: bool = False
    id: str = field(default="")


def names(rules: Rules, candidates: list[One], now_ns: int = 1000) -> list[str]:
    return [one.name for one in rules.choose(candidates, now_ns=now_ns)]


def test_the_newest_are_those_made_last_whatever_the_clock_did() -> None:
    made = [One("a", 500), One("b", 600), One("c", 100), One("d", 110)]  # an hour back after b
    assert names(Rules(unpinned=True, keep_last=2), made) == ["a", "b"]
    assert names(Rules(unpinned=True, keep_last=9), made) == []


def test_what_comes_from_the_future_has_no_age() -> None:
    made = [One("now", 1000), One("old", 1), One("future", 9000)]
    assert names(Rules(older_than_ns=100), made) == ["old"]


def test_pins_never_go() -> None:
    assert names(Rules(unpinned=True), [One("a", 1, pinned=True), One("b", 2)]) == ["b"]


def test_every_rule_given_must_admit() -> None:
    made = [One("run1", 1, ("k=v",)), One("run2", 2), One("x", 3, ("k=v",)), One("run3", 990)]
    assert names(Rules(label="k=v", name_prefix="run"), made) == ["run1"]
    assert names(Rules(name_prefix="run", older_than_ns=100), made) == ["run1", "run2"]


@pytest.mark.parametrize("rules", [Rules(), Rules(keep_last=3), Rules(older_than_ns=-1)])
def test_a_collection_without_a_rule_is_refused(rules: Rules) -> None:
    with pytest.raises(SpecError):
        rules.check()


def test_a_search_finds_what_matches_all_of_it() -> None:
    one = One("run", 50, ("k=v",), tier="disk")
    assert Query(label="k=v", name_prefix="r", since_ns=50, until_ns=50, tier="disk").matches(one)
    for other in (
        Query(label="k=w"),
        Query(name_prefix="x"),
        Query(since_ns=51),
        Query(until_ns=49),
        Query(tier="host"),
        Query(pinned=True),
    ):
        assert not other.matches(one)
