"""Random histories of a channel that two engines read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flashrt_ros.engine.barriers import Barriers
from flashrt_ros.engine.consumer import Consumer
from flashrt_ros.engine.ring import SlotMeta, SlotState
from flashrt_ros.engine.shared import SharedChannel, SharedRing
from flashrt_ros.errors import (
    FlashrtError,
    LoanError,
    NoFreeSlotError,
    NoWriterRingError,
    StaleGenerationError,
)
from flashrt_ros.runtime.spec import ChannelRole, ChannelSpec, FieldSpec

SPEC = ChannelSpec(
    name="goal",
    role=ChannelRole.GOAL,
    fields=(FieldSpec("target", (1024,), "float32"),),
    num_rings=2,
    num_ring_slots=4,
)
SLOTS = 6
"""Of a ring that two engines read."""


class Reader:
    """An engine, as far as the channel knows: barriers, and slots it lets go of later."""

    def __init__(self, channel: SharedChannel) -> None:
        self.barriers = Barriers(("goal",), 1)
        self.generation = 1
        self.num_wakes = 0
        self.leaving: list[int] = []
        self.consumer: Consumer = channel.attach(self, SPEC, num_environments=1, num_engine_slots=3)

    def bound(self, env_index: int, channel: str) -> int:
        return self.barriers.generation(env_index, channel)

    def admit(self, env_index: int, channel: str, *, bound: int, stamp_ns: int) -> None:
        self.barriers.admit(env_index, channel, generation=bound, stamp_ns=stamp_ns)

    def now_ns(self) -> int:
        return 11

    def wake(self) -> None:
        self.num_wakes += 1

    def release_read(self) -> None:
        while self.leaving:
            self.consumer.release(self.leaving.pop())

    def reset(self) -> None:
        """Raise the barrier, and forget what is newest."""
        self.generation += 1
        self.barriers.renew(0, ["goal"], self.generation)
        self.consumer.drop_pending(0)


def make(kind: type[SharedChannel] = SharedChannel) -> SharedChannel:
    return kind(SPEC, num_consumers=2, num_branches=0)


def commit(ring: Any, slot: int, ticket: int, via: Reader, stamp_ns: int = 0) -> int:
    ring.choose(slot, ticket, stamp_ns, via=via)
    return ring.commit(slot, ticket, stamp_ns, 7, 11)  # type: ignore[no-any-return]


def test_a_loan_has_consumers_let_go_of_what_they_read() -> None:
    with make() as channel:
        one, two = Reader(channel), Reader(channel)
        ring = channel.open_ring(0)
        for _ in range(50):
            commit(ring, *ring.loan(1), via=one)
            for reader in (one, two):
                reader.leaving.append(reader.consumer.latch(0))
        ring.loan(1)
        assert not one.leaving
        one.consumer.close()
        two.consumer.close()


def test_an_engine_that_rests_keeps_no_writer_from_another() -> None:
    """Writers that come, commit once and go, while one engine holds what it read last."""
    with make() as channel:
        one, two = Reader(channel), Reader(channel)
        for turn in range(8):
            ring = one.consumer.open_ring(0)
            commit(ring, *ring.loan(1), via=one)
            channel.close_ring(ring)
            if turn == 0:
                two.consumer.latch(0)  # and never again
            if turn == 1:  # its newest from here on: it refuses what comes
                two.generation += 1
                two.barriers.renew(0, ["goal"], two.generation)
                two.barriers.set_stamp(0, "goal", 1)
            one.consumer.release(one.consumer.latch(0))
        assert channel.spec.num_rings == SPEC.num_rings + 2
        one.consumer.close()
        two.consumer.close()


def test_slots_of_one_engine_are_not_anothers() -> None:
    with make() as channel:
        one, two = Reader(channel), Reader(channel)
        ring = channel.open_ring(0)
        commit(ring, *ring.loan(1), via=one)
        slot = one.consumer.latch(0)
        with pytest.raises(LoanError):
            two.consumer.release(slot)  # its newest, and not latched
        own = [one.consumer.engine_slot(SlotMeta()) for _ in range(3)]
        with pytest.raises(NoFreeSlotError):
            one.consumer.engine_slot(SlotMeta())
        two.consumer.engine_slot(SlotMeta())
        one.consumer.release(own[0])
        one.consumer.engine_slot(SlotMeta())
        one.consumer.close()
        two.consumer.close()


class History(RuleBasedStateMachine):
    """Knows what each consumer must see, and who has each slot."""

    kind = SharedChannel

    @initialize()
    def begin(self) -> None:
        self.channel = make(self.kind)
        self.readers = [Reader(self.channel), Reader(self.channel)]
        self.rings: list[tuple[SharedRing, tuple[int, int, list[int]] | None]] = []
        self.newest: list[bytes | None] = [None, None]
        self.held: list[list[tuple[int, bytes]]] = [[], []]
        self.count = 0

    def text(self) -> bytes:
        self.count += 1
        return self.count.to_bytes(8, "little")

    @rule()
    def open_ring(self) -> None:
        try:
            ring = self.readers[self.count % 2].consumer.open_ring(0)
        except NoWriterRingError:
            return
        assert isinstance(ring, SharedRing)
        self.rings.append((ring, None))

    @precondition(lambda self: any(loan is None for _, loan in self.rings))
    @rule(data=st.data())
    def loan(self, data: st.DataObject) -> None:
        free = [at for at, (_, loan) in enumerate(self.rings) if loan is None]
        at = data.draw(st.sampled_from(free))
        ring = self.rings[at][0]
        try:
            slot, ticket = ring.loan(1)
        except NoFreeSlotError:
            states = [self.channel.state(ring.first_slot + slot) for slot in range(SLOTS)]
            assert SlotState.FREE not in states
            return
        self.channel.view(ring.first_slot + slot)[:8] = b"\xff" * 8  # scribbles
        self.rings[at] = ring, (slot, ticket, [one.generation for one in self.readers])

    @precondition(lambda self: any(loan for _, loan in self.rings))
    @rule(data=st.data(), is_return=st.booleans())
    def end_loan(self, data: st.DataObject, is_return: bool) -> None:
        at = data.draw(st.sampled_from([at for at, (_, loan) in enumerate(self.rings) if loan]))
        ring, loan = self.rings[at]
        assert loan is not None
        slot, ticket, generations = loan
        self.rings[at] = ring, None
        if is_return:
            ring.return_loan(slot, ticket)
            return
        text = self.text()
        self.channel.view(ring.first_slot + slot)[:8] = text
        admitted = [
            one.generation == then for one, then in zip(self.readers, generations, strict=True)
        ]
        try:
            commit(ring, slot, ticket, via=self.readers[0])
        except StaleGenerationError:
            assert not any(admitted)
            ring.return_loan(slot, ticket)
            return
        assert ring.num_stale == admitted.count(False)
        for index, is_admitted in enumerate(admitted):
            if is_admitted:
                self.newest[index] = text

    @precondition(lambda self: self.rings)
    @rule(data=st.data())
    def a_writer_goes(self, data: st.DataObject) -> None:
        ring, _ = self.rings.pop(data.draw(st.integers(0, len(self.rings) - 1)))
        self.channel.close_ring(ring)

    @rule(who=st.integers(0, 1))
    def latch(self, who: int) -> None:
        text = self.newest[who]
        if text is None:
            with pytest.raises(LoanError):
                self.readers[who].consumer.latch(0)
            return
        self.held[who].append((self.readers[who].consumer.latch(0), text))
        self.newest[who] = None

    @rule(who=st.integers(0, 1))
    def reset(self, who: int) -> None:
        self.readers[who].reset()
        self.newest[who] = None

    @rule(who=st.integers(0, 1), data=st.data(), is_later=st.booleans())
    def release(self, who: int, data: st.DataObject, is_later: bool) -> None:
        if not self.held[who]:
            return
        slot, _ = self.held[who].pop(data.draw(st.integers(0, len(self.held[who]) - 1)))
        reader = self.readers[who]
        if is_later:
            reader.leaving.append(slot)
        else:
            reader.consumer.release(slot)

    @rule(who=st.integers(0, 1), data=st.data())
    def acquire(self, who: int, data: st.DataObject) -> None:
        if self.held[who]:
            held = data.draw(st.sampled_from(self.held[who]))
            self.readers[who].consumer.acquire(held[0])
            self.held[who].append(held)

    @rule(who=st.integers(0, 1))
    def bring_back(self, who: int) -> None:
        try:
            slot = self.readers[who].consumer.engine_slot(SlotMeta())
        except NoFreeSlotError:
            return
        text = self.text()
        self.channel.view(slot)[:8] = text
        self.held[who].append((slot, text))

    @rule(who=st.integers(0, 1))
    def an_engine_goes_and_another_comes(self, who: int) -> None:
        consumer = self.readers[who].consumer
        through = {id(ring) for ring in consumer._rings}
        consumer.close()
        consumer.close()
        self.rings = [(ring, loan) for ring, loan in self.rings if id(ring) not in through]
        with pytest.raises(FlashrtError):
            self.channel.close()  # the other still reads it
        self.readers[who] = Reader(self.channel)
        self.held[who], self.newest[who] = [], None
        # what was loaned before it came is not refused to it
        for at, (ring, loan) in enumerate(self.rings):
            if loan is not None:
                loan[2][who] = self.readers[who].generation
                self.rings[at] = ring, loan

    @invariant()
    def each_sees_the_newest_that_it_admits(self) -> None:
        for reader, text, held in zip(self.readers, self.newest, self.held, strict=True):
            slot = reader.consumer.pending(0)
            assert (slot is None) is (text is None)
            if slot is not None:
                assert bytes(self.channel.view(slot)[:8]) == text
            for held_slot, held_text in held:
                assert bytes(self.channel.view(held_slot)[:8]) == held_text

    @invariant()
    def slots_are_conserved(self) -> None:
        loaned = {ring.first_slot + loan[0] for ring, loan in self.rings if loan}
        read: set[int] = set()
        for reader, held in zip(self.readers, self.held, strict=True):
            read |= {slot for slot, _ in held} | set(reader.leaving)
            slot = reader.consumer.pending(0)
            read |= set() if slot is None else {slot}
        assert not loaned & read
        for slot in range(self.channel.num_slots):
            expected = (
                SlotState.LOANED
                if slot in loaned
                else SlotState.HELD
                if slot in read
                else SlotState.FREE
            )
            assert self.channel.state(slot) is expected

    def teardown(self) -> None:
        if not hasattr(self, "channel"):
            return
        for reader in self.readers:
            reader.consumer.close()  # ends the writers too: each came through one of them
        left = {self.channel.state(slot) for slot in range(self.channel.num_slots)}
        self.channel.close()
        assert left == {SlotState.FREE}


History.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestHistory = History.TestCase


class Forgetful(SharedChannel):
    """Lets go of a slot as soon as one of its readers does."""

    def release(self, slot: int) -> None:
        super().release(slot)
        if self._references[slot]:
            super().release(slot)


class CarelessHistory(History):
    kind = Forgetful


def test_the_histories_find_a_channel_that_lets_go_too_early() -> None:
    with pytest.raises((AssertionError, LoanError, pytest.fail.Exception)):
        run_state_machine_as_test(
            CarelessHistory,
            settings=settings(
                max_examples=60,
                stateful_step_count=30,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                derandomize=True,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
