from __future__ import annotations

import mmap
import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flashrt_ros.engine import linux
from flashrt_ros.engine.channels import Channel, SlotMeta, SlotState, WriterRing
from flashrt_ros.errors import LoanError, NoFreeSlotError, NoWriterRingError
from flashrt_ros.runtime.spec import ChannelRole, ChannelSpec, FieldSpec

SPEC = ChannelSpec(
    name="goal",
    role=ChannelRole.GOAL,
    fields=(FieldSpec("target", (1024,), "float32"),),
    num_rings=2,
    num_ring_slots=3,
)
SMALL = ChannelSpec(
    name="small",
    role=ChannelRole.GOAL,
    fields=(FieldSpec("xy", (2,), "float32"),),
    num_rings=2,
    num_ring_slots=3,
)


def commit(ring: WriterRing, text: bytes = b"", stamp_ns: int = 0) -> int:
    slot, ticket = ring.loan(generation=1)
    index = ring.first_slot + slot
    ring.channel.view(index)[: len(text)] = text
    ring.commit(slot, ticket, stamp_ns, 7, 11)
    return index


def test_a_commit_is_latched_with_its_meta() -> None:
    with Channel(SPEC) as channel:
        ring = channel.open_ring(0)
        slot, ticket = ring.loan(generation=4)
        assert ring.loan_generation(slot, ticket) == 4
        assert ring.commit(slot, ticket, 100, 9, 200) == 1
        index = ring.first_slot + slot
        assert channel.pending(0) == index
        assert channel.latch(0) == index
        assert channel.pending(0) is None
        assert channel.meta(index) == SlotMeta(1, 9, 100, 200, 4)
        assert channel.state(index) is SlotState.HELD


def test_newest_commit_wins_and_the_replaced_slot_is_free() -> None:
    with Channel(SPEC) as channel:
        first, second = channel.open_ring(0), channel.open_ring(0)
        old = commit(first)
        new = commit(second)
        assert channel.pending(0) == new
        assert channel.state(old) is SlotState.FREE
        assert channel.skipped == [1]


def test_a_writer_holds_one_loan() -> None:
    with Channel(SPEC) as channel:
        ring = channel.open_ring(0)
        slot, ticket = ring.loan(0)
        with pytest.raises(LoanError, match="one loan at a time"):
            ring.loan(0)
        ring.return_loan(slot, ticket)
        ring.loan(0)


def test_no_free_slot_is_an_answer() -> None:
    with Channel(SPEC) as channel:
        ring = channel.open_ring(0)
        for _ in range(2):
            commit(ring)
            channel.latch(0)
        commit(ring)
        with pytest.raises(NoFreeSlotError):
            ring.loan(0)


@pytest.mark.parametrize("slot", [-1, 1, 2, 3, 99])
def test_a_foreign_slot_or_ticket_changes_nothing(slot: int) -> None:
    with Channel(SPEC) as channel:
        ring = channel.open_ring(0)
        mine, ticket = ring.loan(0)
        with pytest.raises(LoanError, match="not on loan"):
            ring.commit(slot, ticket, 0, 0, 0)
        with pytest.raises(LoanError, match="another ticket"):
            ring.return_loan(mine, ticket + 1)
        assert ring.loaned_slot == mine
        assert channel.pending(0) is None


def test_environments_do_not_share_rings() -> None:
    with Channel(SPEC, num_environments=2) as channel:
        zero, one = channel.open_ring(0), channel.open_ring(1)
        commit(zero)
        index = commit(one)
        assert channel.pending(1) == index
        assert channel.pending(0) != index
        assert channel.meta(index).sequence == 1


def test_rings_are_admitted_up_to_their_number() -> None:
    with Channel(SPEC) as channel:
        channel.open_ring(0)
        ring = channel.open_ring(0)
        with pytest.raises(NoWriterRingError, match="2 open"):
            channel.open_ring(0)
        channel.close_ring(ring)
        channel.open_ring(0)


def test_a_dead_writers_loan_comes_back() -> None:
    with Channel(SPEC) as channel:
        ring = channel.open_ring(0)
        ring.loan(0)
        channel.close_ring(ring)
        channel.close_ring(ring)
        assert channel.reclaimed == [1]
        with pytest.raises(LoanError, match="closed"):
            ring.loan(0)


def test_a_closed_ring_keeps_its_bytes_while_they_are_read_and_then_is_replaced() -> None:
    with Channel(SPEC) as channel:
        ring = channel.open_ring(0)
        inode = ring.memory.inode
        index = commit(ring, b"goal")
        channel.close_ring(ring)
        assert channel.latch(0) == index
        address = channel.slot_address(index)
        assert bytes(channel.view(index)[:4]) == b"goal"
        assert linux.locate(address)[1] == inode
        channel.release(index)
        assert linux.locate(address)[1] == 0
        assert bytes(channel.view(index)[:4]) == bytes(4)


def test_an_old_mapping_cannot_reach_the_next_writer() -> None:
    with Channel(SPEC) as channel:
        ring = channel.open_ring(0)
        old = mmap.mmap(os.dup(ring.memory.fd), SPEC.ring_bytes)
        old[:4] = b"mine"
        assert bytes(channel.view(ring.first_slot)[:4]) == b"mine"
        channel.close_ring(ring)
        new = channel.open_ring(0)
        assert new.first_slot == ring.first_slot
        index = commit(new, b"next")
        old[:4] = b"evil"
        assert bytes(channel.view(index)[:4]) == b"next"
        assert channel.identity(index)[1] == new.memory.inode != ring.memory.inode
        old.close()


def test_identity_by_the_books_is_what_the_kernel_says() -> None:
    with Channel(SMALL, num_environments=2) as channel:
        ring = channel.open_ring(1)
        commit(ring)
        index = commit(ring)
        assert channel.identity(index) == linux.locate(channel.slot_address(index))
        own = channel.engine_slot(SlotMeta())
        assert channel.identity(own)[1] == linux.locate(channel.slot_address(own))[1] == 0


def test_addresses_stay_whatever_comes_and_goes() -> None:
    with Channel(SPEC) as channel:
        before = [channel.slot_address(slot) for slot in range(channel.num_slots)]
        num_mappings, num_fds = linux.num_shared_mappings(), linux.num_fds()
        for _ in range(200):
            ring = channel.open_ring(0)
            commit(ring)
            channel.latch(0)
            channel.close_ring(ring)
            channel.release(ring.first_slot)
        assert [channel.slot_address(slot) for slot in range(channel.num_slots)] == before
        assert linux.num_fds() == num_fds
        assert abs(linux.num_shared_mappings() - num_mappings) <= 1


def test_engine_slots_run_out_and_come_back() -> None:
    with Channel(SPEC, num_engine_slots=5) as channel:
        slots = [channel.engine_slot(SlotMeta(sequence=3)) for _ in range(5)]
        assert all(
            channel.slot_address(slot) < channel.address + channel.num_bytes for slot in slots
        )
        with pytest.raises(NoFreeSlotError):
            channel.engine_slot(SlotMeta())
        channel.release(slots[2])
        assert channel.engine_slot(SlotMeta()) == slots[2]


def test_what_is_not_held_cannot_be_acquired_or_released() -> None:
    with Channel(SPEC) as channel:
        ring = channel.open_ring(0)
        index = commit(ring)
        for verb in (channel.acquire, channel.release):
            with pytest.raises(LoanError, match="committed"):
                verb(index)
        with pytest.raises(LoanError, match="nothing to latch"):
            channel.drop_pending(0) and channel.latch(0)


class Ownership(RuleBasedStateMachine):
    """Random histories against a model that only knows who owns what.

    Each owner keeps the bytes it wrote or read; a slot whose bytes change under a reader
    was writable and held at once.
    """

    @initialize()
    def start(self) -> None:
        self.channel = Channel(SPEC)
        self.rings: list[tuple[WriterRing, tuple[int, int] | None]] = []
        self.held: list[tuple[int, bytes]] = []
        self.pending: bytes | None = None
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "channel"):
            self.channel.close()

    @rule()
    def open_ring(self) -> None:
        try:
            self.rings.append((self.channel.open_ring(0), None))
        except NoWriterRingError:
            # Refused only if every ring is open or still read.
            places = {ring.index for ring, _ in self.rings}
            places |= {slot // SPEC.num_ring_slots_padded for slot, _ in self.held}
            if self.channel.pending(0) is not None:
                places.add(self.channel.pending(0) // SPEC.num_ring_slots_padded)  # type: ignore[operator]
            assert places >= set(range(SPEC.num_rings))

    @precondition(lambda self: self.rings)
    @rule(data=st.data())
    def loan_or_write(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.rings) - 1))
        ring, loan = self.rings[place]
        if loan is None:
            try:
                loan = ring.loan(0)
            except NoFreeSlotError:
                assert SlotState.FREE not in ring.states[: SPEC.num_ring_slots]
                return
            self.rings[place] = (ring, loan)
        self.count += 1
        self.channel.view(ring.first_slot + loan[0])[:8] = self.count.to_bytes(8, "little")

    @precondition(lambda self: any(loan for _, loan in self.rings))
    @rule(data=st.data(), is_commit=st.booleans())
    def end_loan(self, data: st.DataObject, is_commit: bool) -> None:
        loaned = [place for place, (_, loan) in enumerate(self.rings) if loan]
        place = data.draw(st.sampled_from(loaned))
        ring, loan = self.rings[place]
        assert loan is not None
        if is_commit:
            self.pending = bytes(self.channel.view(ring.first_slot + loan[0])[:8])
            ring.commit(*loan, 0, 0, 0)
        else:
            ring.return_loan(*loan)
        self.rings[place] = (ring, None)

    @precondition(lambda self: self.rings)
    @rule(data=st.data())
    def close_ring(self, data: st.DataObject) -> None:
        ring, _ = self.rings.pop(data.draw(st.integers(0, len(self.rings) - 1)))
        self.channel.close_ring(ring)

    @precondition(lambda self: self.pending is not None)
    @rule()
    def latch(self) -> None:
        assert self.pending is not None
        self.held.append((self.channel.latch(0), self.pending))
        self.pending = None

    @rule()
    def barrier(self) -> None:
        assert self.channel.drop_pending(0) is (self.pending is not None)
        self.pending = None

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        self.channel.acquire(held[0])
        self.held.append(held)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.channel.release(slot)

    @rule()
    def engine_slot(self) -> None:
        try:
            slot = self.channel.engine_slot(SlotMeta())
        except NoFreeSlotError:
            return
        self.count += 1
        text = self.count.to_bytes(8, "little")
        self.channel.view(slot)[:8] = text
        self.held.append((slot, text))

    @invariant()
    def readers_see_what_was_committed(self) -> None:
        if not hasattr(self, "channel"):
            return
        for slot, text in self.held:
            assert bytes(self.channel.view(slot)[:8]) == text
        pending = self.channel.pending(0)
        assert (pending is None) is (self.pending is None)
        if pending is not None:
            assert bytes(self.channel.view(pending)[:8]) == self.pending

    @invariant()
    def slots_are_conserved(self) -> None:
        if not hasattr(self, "channel"):
            return
        channel = self.channel
        loaned = {ring.first_slot + loan[0] for ring, loan in self.rings if loan}
        held = {slot for slot, _ in self.held}
        newest = channel.pending(0)
        pending = set() if newest is None else {newest}
        assert not loaned & held
        assert not pending & (loaned | held)
        expected = {SlotState.LOANED: loaned, SlotState.HELD: held, SlotState.COMMITTED: pending}
        for slot in range(channel.num_slots):
            owners = [state for state, slots in expected.items() if slot in slots]
            assert [channel.state(slot)] == (owners or [SlotState.FREE])


Ownership.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestOwnership = Ownership.TestCase
