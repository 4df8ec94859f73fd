from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.errors import BusyError, ConfigError, GoalExpiredError
from flashrt_ros.nodes.arbitration import Arbiter, Rank, Ruling, parse_ranks

S = 1_000_000_000
PLACE = (0, "goal")


def arbiter(*ranks: str, max_planners: int = 16) -> Arbiter:
    return Arbiter(
        parse_ranks(ranks, lease_ns=S),
        Rank(0, S),
        max_planners=max_planners,
        tolerance_ns=S // 10,
    )


class Clock:
    """Sends goals stamped now, of planners that count."""

    def __init__(self, judge: Arbiter) -> None:
        self.arbiter = judge
        self.now_ns = 100 * S
        self.sequences: dict[str, int] = {}

    def write(self, planner: str, *, age_ns: int = 0, sequence: int | None = None) -> Ruling:
        self.now_ns += 1
        number = self.sequences.get(planner, 0) + 1 if sequence is None else sequence
        stamp_ns = self.now_ns - age_ns
        ruling = self.arbiter.judge(
            PLACE, planner, stamp_ns=stamp_ns, sequence=number, now_ns=self.now_ns
        )
        self.arbiter.accept(PLACE, planner, stamp_ns=stamp_ns, sequence=number, now_ns=self.now_ns)
        self.sequences[planner] = number
        return ruling

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)


def test_the_last_writer_wins_within_a_priority() -> None:
    clock = Clock(arbiter())
    assert clock.write("a") == Ruling("first")
    assert clock.write("a") == Ruling("holder")
    assert clock.write("b") == Ruling("newer", "a")
    with pytest.raises(GoalExpiredError, match="made later"):
        clock.write("a", age_ns=S)


def test_a_higher_priority_wins_at_once_also_with_an_older_stamp() -> None:
    clock = Clock(arbiter("operator priority=10"))
    clock.write("nav")
    assert clock.write("operator", age_ns=S // 2) == Ruling("priority", "nav")


def test_a_lower_priority_waits_for_the_lease() -> None:
    clock = Clock(arbiter("operator priority=10 lease_s=0.5"))
    clock.write("operator")
    with pytest.raises(BusyError, match=r"'operator' holds channel 'goal'"):
        clock.write("nav")
    clock.wait(0.4)
    clock.write("operator")
    clock.wait(0.4)
    with pytest.raises(BusyError):
        clock.write("nav")
    clock.wait(0.2)
    assert clock.write("nav") == Ruling("silence", "operator")
    assert clock.write("operator") == Ruling("priority", "nav")
    assert clock.arbiter.num_hand_overs == 2


def test_what_a_lower_priority_made_before_the_higher_ones_goal_stays_out() -> None:
    clock = Clock(arbiter("operator priority=10 lease_s=0.5"))
    clock.write("operator")
    clock.wait(1.0)
    with pytest.raises(GoalExpiredError, match="made later"):
        clock.write("nav", age_ns=2 * S)


def test_channels_rank_planners_apart() -> None:
    judge = arbiter("a priority=5 channel=arm", "a priority=-1")
    assert judge.rank("arm", "a").priority == 5
    assert judge.rank("goal", "a").priority == -1
    assert judge.rank("goal", "b").priority == 0


def test_a_restarted_planner_is_heard_once_its_lease_has_run_out() -> None:
    clock = Clock(arbiter())
    clock.write("a", sequence=500)
    with pytest.raises(GoalExpiredError, match="sequence above 500"):
        clock.write("a", sequence=1)
    clock.wait(1.0)
    with pytest.raises(GoalExpiredError):
        clock.write("a", sequence=1, age_ns=3 * S)
    assert clock.write("a", sequence=1) == Ruling("holder", "", is_restart=True)
    assert clock.write("a", sequence=2) == Ruling("holder")


def test_a_duplicate_is_refused_also_after_the_lease() -> None:
    clock = Clock(arbiter())
    clock.write("a", sequence=5)
    stamp_ns = clock.now_ns
    clock.wait(2.0)
    with pytest.raises(GoalExpiredError, match="not newer"):
        clock.arbiter.judge(PLACE, "a", stamp_ns=stamp_ns, sequence=5, now_ns=clock.now_ns)


def test_the_record_is_bounded_and_says_so() -> None:
    clock = Clock(arbiter(max_planners=3))
    for name in ("a", "b", "c"):
        clock.write(name)
    with pytest.raises(BusyError, match="too many planners"):
        clock.write("d")
    clock.wait(2.0)
    clock.write("c")
    clock.write("d")
    assert clock.arbiter.num_forgotten == 1
    assert clock.arbiter.num_known(PLACE) == 3
    assert clock.arbiter.next_sequence(PLACE, "a") == 1
    assert clock.arbiter.next_sequence(PLACE, "c") == 3


def test_a_clock_set_back_makes_everything_be_forgotten() -> None:
    clock = Clock(arbiter("operator priority=10 lease_s=50"))
    clock.write("operator", sequence=9)
    clock.now_ns = 5 * S
    assert clock.write("nav") == Ruling("first")


def test_who_holds_a_channel() -> None:
    clock = Clock(arbiter("operator priority=10 lease_s=0.5"))
    assert clock.arbiter.holder(PLACE, clock.now_ns) is None
    clock.write("operator")
    found = clock.arbiter.holder(PLACE, clock.now_ns + S // 4)
    assert found is not None
    assert (found.planner, found.priority, found.left_ns) == ("operator", 10, S // 4)
    found = clock.arbiter.holder(PLACE, clock.now_ns + S)
    assert found is not None
    assert found.left_ns == 0


@pytest.mark.parametrize(
    "text",
    [
        "a priority",
        "a priority=high",
        "a priority=1.5",
        "a priority=1 priority=2",
        "a lease_s=-1",
        "a colour=red",
        "priority=1",
        "p" * 65 + " priority=1",
        "a\x1b priority=1",
    ],
)
def test_a_rank_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="planners"):
        parse_ranks([text], lease_ns=S)


def test_a_planner_ranked_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="one entry"):
        parse_ranks(["a priority=1", "a priority=2"], lease_ns=S)


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["low", "mid", "mate", "high"]),
        st.floats(0.0, 1.5),  # time that passes before, s
        st.floats(0.0, 0.5),  # age of the goal, s
    ),
    max_size=40,
)


@given(_STEPS)
def test_no_accepted_goal_overrides_a_higher_one_whose_lease_runs(
    steps: list[tuple[str, float, float]],
) -> None:
    clock = Clock(
        arbiter("high priority=9 lease_s=0.7", "mid priority=5", "mate priority=5", max_planners=4)
    )
    priority = {"low": 0, "mid": 5, "mate": 5, "high": 9}
    lease = {"low": 1.0, "mid": 1.0, "mate": 1.0, "high": 0.7}
    holder, until_ns = "", 0
    stamps: dict[str, int] = {}
    for planner, pause_s, age_s in steps:
        clock.wait(pause_s)
        try:
            ruling = clock.write(planner, age_ns=round(age_s * S))
        except (BusyError, GoalExpiredError):
            continue
        if holder and priority[planner] < priority[holder]:
            assert clock.now_ns >= until_ns
            assert ruling.reason == "silence"
        stamp_ns = clock.now_ns - round(age_s * S)
        above = [at for name, at in stamps.items() if priority[name] >= priority[planner]]
        assert stamp_ns >= max(above, default=0)
        assert ruling.over == (holder if holder != planner else "")
        stamps[planner] = stamp_ns
        holder, until_ns = planner, clock.now_ns + round(lease[planner] * S)
    found = clock.arbiter.holder(PLACE, clock.now_ns)
    assert (found.planner if found else "") == holder
