"""A fingerprint that differs names the fields that do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.errors import FingerprintMismatchError

FIELDS = st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=5)


@given(FIELDS, FIELDS)
def test_digests_are_equal_exactly_when_no_field_differs(
    first: dict[str, str], second: dict[str, str]
) -> None:
    one, two = Fingerprint.of(first), Fingerprint.of(second)
    assert (one.digest == two.digest) == (not one.differences(two))


def test_order_does_not_matter() -> None:
    assert Fingerprint.of({"a": 1, "b": 2}) == Fingerprint.of({"b": 2, "a": 1})


def test_a_mismatch_names_the_fields_and_both_values() -> None:
    mine = Fingerprint.of({"torch": "2.13", "threads": 1, "weights": "x"})
    other = Fingerprint.of({"torch": "2.12", "threads": 1, "layout": "y"})
    with pytest.raises(FingerprintMismatchError) as caught:
        mine.require(other, "c0ffee")
    message = str(caught.value)
    for part in ("c0ffee", "torch=2.13", "torch=2.12", "weights=x", "layout=y"):
        assert part in message
    assert "threads" not in message
    mine.require(Fingerprint.of({"torch": "2.13", "threads": 1, "weights": "x"}), "c0ffee")
