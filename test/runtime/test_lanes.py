from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flashrt_ros.errors import NoFreeLaneError, SpecError
from flashrt_ros.runtime.arena import Arena, Block
from flashrt_ros.runtime.backend import Buffers, Slots
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane, LanePool
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role

LAYOUT = ArenaLayout.of(
    [
        BufferSpec("memory", (300,), "float32", Role.STATE),
        BufferSpec("goal", (10,), "float32", Role.INPUT),
        BufferSpec("hidden", (10,), "float32", Role.SCRATCH),
    ]
)


def counts(buffers: Buffers, slots: Slots) -> None:
    buffers["memory"].add_(1.0)


class Pool:
    def __init__(self, num_lanes: int, num_standby: int) -> None:
        self.backend = CpuBackend()
        self.arena = Arena(LAYOUT, num_lanes=num_lanes)
        self.arena.seal()
        self.graphs = GraphSet(self.backend, {("count",): counts}, self.arena, {})
        self.pool = LanePool(self.arena, self.graphs, num_standby=num_standby)

    def home(self, value: int) -> Block:
        block = self.backend.allocate_block(LAYOUT.capsule_bytes)
        ctypes.memset(block.address, value, block.num_bytes)
        return block

    def fill_all(self, now_ns: int = 0) -> int:
        slices = 1
        while self.pool.refill(now_ns, 500):
            slices += 1
        return slices

    def close(self) -> None:
        self.graphs.close()
        self.arena.close()


def holds(lane: Lane, value: int) -> bool:
    return ctypes.string_at(lane.address, LAYOUT.capsule_bytes) == bytes([value]) * (
        LAYOUT.capsule_bytes
    )


@pytest.fixture
def four() -> Iterator[Pool]:
    """Four lanes, one of them standby."""
    pool = Pool(4, 1)
    yield pool
    pool.close()


def test_lane_is_its_part_of_the_arena(four: Pool) -> None:
    lane = four.pool.lanes[2]
    assert lane.index == 2
    assert lane.address == four.arena.lane_address(2)
    assert lane.views["memory"].data_ptr() == lane.address
    lane.replay(("count",))
    assert [float(other.views["memory"][0]) for other in four.pool.lanes] == [0.0, 0.0, 1.0, 0.0]


def test_lanes_are_handed_out_lowest_first_and_come_back(four: Pool) -> None:
    pool = four.pool
    lanes = [pool.acquire() for _ in range(3)]
    assert [lane.index for lane in lanes] == [0, 1, 2]
    assert (pool.num_free, pool.num_used, pool.num_standby) == (0, 3, 1)
    pool.release(lanes[1])
    pool.release(lanes[0])
    assert pool.acquire().index == 0


def test_none_free_names_the_counts(four: Pool) -> None:
    for _ in range(3):
        four.pool.acquire()
    with pytest.raises(NoFreeLaneError, match="3 used and 1 standby of 4"):
        four.pool.acquire()
    assert four.pool.num_used == 3


def test_a_lane_is_given_back_once(four: Pool) -> None:
    lane = four.pool.acquire()
    four.pool.release(lane)
    with pytest.raises(SpecError, match="not handed out"):
        four.pool.release(lane)
    with pytest.raises(SpecError, match="not handed out"):
        four.pool.retire(four.pool.lanes[3], 0)
    assert (four.pool.num_free, four.pool.num_used) == (3, 0)


@pytest.mark.parametrize("num_standby", [-1, 5])
def test_more_standby_lanes_than_lanes_are_refused(four: Pool, num_standby: int) -> None:
    with pytest.raises(SpecError, match="0 to 4"):
        LanePool(four.arena, four.graphs, num_standby=num_standby)


def test_graphs_of_another_arena_are_refused(four: Pool) -> None:
    with Arena(LAYOUT, num_lanes=4) as other, pytest.raises(SpecError, match="another arena"):
        LanePool(other, four.graphs)


def test_nothing_is_filled_without_a_home(four: Pool) -> None:
    assert four.pool.next_refill_ns() is None
    assert four.pool.refill(0, 4096) is False
    assert four.pool.take_standby("a") is None


def test_standby_is_filled_in_slices_and_taken_whole(four: Pool) -> None:
    pool = four.pool
    with four.home(7) as home:
        pool.set_home(home, "a")
        assert pool.next_refill_ns() == 0
        assert pool.refill(0, 500) is True
        assert ctypes.string_at(pool.lanes[3].address, 501) == b"\7" * 500 + b"\0"
        assert pool.take_standby("a") is None  # not whole yet
        assert 1 + four.fill_all() == -(-LAYOUT.capsule_bytes // 500)
        assert (pool.num_whole, pool.next_refill_ns()) == (1, None)
        assert pool.refill(0, 500) is False
        lane = pool.take_standby("a")
    assert lane is pool.lanes[3]
    assert holds(lane, 7)
    assert (pool.num_standby, pool.num_used) == (0, 1)
    assert pool.take_standby("a") is None


def test_filling_touches_standby_lanes_only(four: Pool) -> None:
    lane = four.pool.acquire()
    with four.home(7) as home:
        four.pool.set_home(home, "a")
        four.fill_all()
    assert not any(ctypes.string_at(four.arena.address, 3 * LAYOUT.lane_bytes))
    rest = LAYOUT.lane_bytes - LAYOUT.capsule_bytes
    assert not any(ctypes.string_at(four.pool.lanes[3].address + LAYOUT.capsule_bytes, rest))
    assert not lane.is_poisoned


def test_flip_and_refill_of_the_lane_that_was_left(four: Pool) -> None:
    pool = four.pool
    active = pool.acquire()
    with four.home(7) as home:
        pool.set_home(home, "a")
        four.fill_all()
        standby = pool.take_standby("a")
        assert standby is not None
        active.poison("a failed replay")
        pool.retire(active, 1000)
        assert (pool.num_standby, pool.next_refill_ns()) == (1, 1000)
        assert pool.refill(999, 1 << 20) is False
        assert not holds(active, 7)
        assert pool.take_standby("a") is None
        assert pool.refill(1000, 1 << 20) is False  # done in one slice
        assert holds(active, 7)
        assert pool.take_standby("a") is active
        assert not active.is_poisoned


def test_a_token_other_than_homes_gets_no_standby(four: Pool) -> None:
    with four.home(7) as home:
        four.pool.set_home(home, "a")
        four.fill_all()
        assert four.pool.take_standby("b") is None
        assert four.pool.num_standby == 1


def test_another_home_is_filled_from_the_start(four: Pool) -> None:
    pool = four.pool
    with four.home(7) as first, four.home(8) as second:
        pool.set_home(first, "a")
        four.fill_all()
        pool.set_home(second, "b")
        assert pool.take_standby("a") is None
        assert pool.take_standby("b") is None
        four.fill_all()
        lane = pool.take_standby("b")
        assert lane is not None
        assert holds(lane, 8)


def test_home_changed_in_the_middle_of_a_fill_leaves_no_mixture(four: Pool) -> None:
    pool = four.pool
    with four.home(7) as first, four.home(8) as second:
        pool.set_home(first, "a")
        pool.refill(0, 500)
        pool.set_home(second, "b")
        four.fill_all()
        assert holds(pool.lanes[3], 8)


def test_the_same_home_again_keeps_what_is_filled(four: Pool) -> None:
    with four.home(7) as home, four.home(7) as moved:
        four.pool.set_home(home, "a")
        four.fill_all()
        four.pool.set_home(moved, "a")
        assert four.pool.num_whole == 1


def test_no_home_any_more(four: Pool) -> None:
    with four.home(7) as home:
        four.pool.set_home(home, "a")
        four.fill_all()
        four.pool.set_home(None, "")
        assert four.pool.take_standby("a") is None
        assert four.pool.take_standby("") is None
        assert four.pool.next_refill_ns() is None
        four.pool.set_home(home, "a")
        assert four.pool.take_standby("a") is None  # what it holds is not trusted


def test_a_block_that_is_too_small_is_refused(four: Pool) -> None:
    with four.home(7) as home, Block(64) as small:
        four.pool.set_home(home, "a")
        with pytest.raises(SpecError, match="too small"):
            four.pool.set_home(small, "b")
        four.fill_all()
        assert four.pool.take_standby("a") is not None


def test_a_slice_of_no_bytes_is_refused(four: Pool) -> None:
    with pytest.raises(SpecError, match="positive"):
        four.pool.refill(0, 0)


def test_released_lane_fills_a_missing_standby(four: Pool) -> None:
    pool = four.pool
    branch = pool.acquire()
    with four.home(7) as home:
        pool.set_home(home, "a")
        four.fill_all()
        assert pool.take_standby("a") is not None
        pool.release(branch)
        assert (pool.num_standby, pool.num_free) == (1, 2)
        assert pool.next_refill_ns() == 0


def test_two_standby_lanes_are_filled_one_after_the_other() -> None:
    four = Pool(4, 2)
    with four.home(7) as home:
        four.pool.set_home(home, "a")
        assert four.pool.refill(0, 1 << 20) is True
        assert four.pool.num_whole == 1
        assert four.pool.refill(0, 1 << 20) is False
        assert four.pool.num_whole == 2
    four.close()


def test_a_lane_not_yet_due_does_not_hold_up_another() -> None:
    four = Pool(4, 2)
    pool = four.pool
    active = [pool.acquire(), pool.acquire()]
    with four.home(7) as home:
        pool.set_home(home, "a")
        four.fill_all()
        for lane, not_before_ns in zip(active, (5000, 100), strict=True):
            assert pool.take_standby("a") is not None
            pool.retire(lane, not_before_ns)
        assert pool.next_refill_ns() == 100
        assert pool.refill(200, 1 << 20) is False
        assert pool.take_standby("a") is active[1]
        assert pool.next_refill_ns() == 5000
    four.close()


class PoolMachine(RuleBasedStateMachine):
    """Random histories of a pool, against a model that only counts."""

    def __init__(self) -> None:
        super().__init__()
        self.four = Pool(5, 2)
        self.pool = self.four.pool
        self.used: list[Lane] = []
        self.homes = {token: self.four.home(ord(token)) for token in "ab"}
        self.home = ""
        self.now_ns = 0

    def teardown(self) -> None:
        self.four.close()

    @precondition(lambda self: self.pool.num_free > 0)
    @rule()
    def acquire(self) -> None:
        lane = self.pool.acquire()
        assert lane not in self.used
        self.used.append(lane)

    @precondition(lambda self: self.used)
    @rule(data=st.data(), delay_ns=st.integers(0, 5))
    def give_back(self, data: st.DataObject, delay_ns: int) -> None:
        lane = self.used.pop(data.draw(st.integers(0, len(self.used) - 1)))
        lane.views["memory"].fill_(-1.0)
        if delay_ns:
            self.pool.retire(lane, self.now_ns + delay_ns)
        else:
            self.pool.release(lane)

    @rule(token=st.sampled_from(["a", "b", ""]))
    def set_home(self, token: str) -> None:
        self.pool.set_home(self.homes.get(token), token)
        self.home = token

    @rule(max_bytes=st.integers(1, 2000), wait_ns=st.integers(0, 3))
    def refill(self, max_bytes: int, wait_ns: int) -> None:
        self.now_ns += wait_ns
        self.pool.refill(self.now_ns, max_bytes)

    @rule(token=st.sampled_from(["a", "b", ""]))
    def take(self, token: str) -> None:
        lane = self.pool.take_standby(token)
        if lane is not None:
            assert token == self.home
            assert token
            assert holds(lane, ord(token))
            assert lane not in self.used
            self.used.append(lane)

    @invariant()
    def every_lane_is_somewhere_once(self) -> None:
        pool = self.pool
        assert pool.num_used == len(self.used)
        assert pool.num_free + pool.num_used + pool.num_standby == 5
        assert pool.num_whole <= pool.num_standby <= 2


TestPoolHistories = PoolMachine.TestCase
TestPoolHistories.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
