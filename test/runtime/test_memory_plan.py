from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.runtime.memory_plan import Lifetime, plan_memory

lifetimes = st.lists(
    st.builds(
        lambda first, length, num_bytes: Lifetime(first, first + length, num_bytes),
        st.integers(0, 20),
        st.integers(0, 6),
        st.integers(0, 3000),
    ),
    max_size=25,
)


@given(lifetimes)
def test_values_alive_at_one_step_never_overlap(values: list[Lifetime]) -> None:
    plan = plan_memory(values)
    spans = [
        (value, offset, offset + value.num_bytes)
        for value, offset in zip(values, plan.offsets, strict=True)
        if value.num_bytes
    ]
    for at, (a, a_start, a_end) in enumerate(spans):
        assert a_start % 256 == 0
        assert a_end <= plan.num_bytes
        for b, b_start, b_end in spans[at + 1 :]:
            if a.first <= b.last and b.first <= a.last:
                assert a_end <= b_start or b_end <= a_start


def test_memory_of_a_dead_value_is_used_again() -> None:
    plan = plan_memory([Lifetime(0, 1, 512), Lifetime(2, 3, 512)])
    assert plan.offsets == (0, 0)
    assert plan.num_bytes == 512


def test_an_operation_does_not_write_over_what_it_reads() -> None:
    plan = plan_memory([Lifetime(0, 1, 512), Lifetime(1, 2, 512)])
    assert plan.num_bytes == 1024


def test_gaps_are_filled() -> None:
    plan = plan_memory([Lifetime(0, 9, 1024), Lifetime(0, 1, 512), Lifetime(2, 9, 256)])
    assert plan.num_bytes == 1536


def test_no_values_take_no_memory() -> None:
    assert plan_memory([]).num_bytes == 0
