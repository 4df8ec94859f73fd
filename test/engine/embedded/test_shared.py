"""Two engines of one process that read one goal channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from flashrt_ros.engine import linux, protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.protocol import EventKind, OutputKind
from flashrt_ros.engine.ring import SlotState
from flashrt_ros.engine.shared import SharedChannel
from flashrt_ros.engine.sharing import share_channel
from flashrt_ros.errors import (
    AbandonedError,
    BusyError,
    ConfigError,
    DeviceLostError,
    StaleGenerationError,
    StaleStampError,
    UnknownChannelError,
)
from flashrt_ros.models.minimal import MinimalPolicy

SPEC = MinimalPolicy().channels()[0]


class Consumer:
    """An engine with an observation writer, ticked by steps."""

    def __init__(self, shared: SharedChannel, **options: Any) -> None:
        config = EngineConfig(model="minimal", test_hooks=True, **options)
        self.now_ns = 1_000_000_000
        self.engine = Engine(
            MinimalPolicy(), config, clock_ns=lambda: self.now_ns, shared={"goal": shared}
        )
        self.events: list[protocol.Event] = []
        self.engine.sink = self
        self.observations = EmbeddedWriter(self.engine, "observation")
        for env_index in range(config.num_environments):
            self.engine.handle(protocol.Activate(1, env_index, "step", 10.0))
        self.stamp_ns = 0

    def output(self, kind: OutputKind, *made: Any) -> None:
        pass

    def event(self, event: protocol.Event) -> None:
        self.events.append(event)

    def observe(self) -> None:
        self.stamp_ns += 1
        self.observations.write(stamp_ns=self.stamp_ns, position=[0.1, 0.2])

    def chunk(self) -> protocol.ChunkRecord:
        """Make the next chunk, and empty its queue."""
        made = self.engine.step(protocol.Step(2, 0, 0, -1, 0, 0)).chunks[0]
        self.engine.step(protocol.Step(2, 0, 4, -1, 0, 0))
        return made

    def restore(self, name: str = "home", *, reset: bool = True, stamp_ns: int = 0) -> None:
        self.engine.handle(protocol.Restore(4, 0, name, False, 3, reset, "", stamp_ns))

    def goal(self) -> tuple[bytes, int] | None:
        """Copy the goal in force, and its sequence."""
        copies = self.engine.core.goals.in_force(self.engine.environment(0))
        return (copies["goal"][0][:8], copies["goal"][1].sequence) if copies else None

    def waiting_for(self) -> str:
        status = self.engine.handle(protocol.GetStatus(9, 0))
        assert isinstance(status, protocol.Status)
        return status.waiting_for

    def dropped(self) -> int:
        status = self.engine.handle(protocol.GetStatus(9, 0))
        assert isinstance(status, protocol.Status)
        return status.dropped_goals

    def inspect(self) -> protocol.Inspection:
        seen = self.engine.handle(protocol.Inspect(8, 0))
        assert isinstance(seen, protocol.Inspection)
        return seen


class Pair:
    """Two consumers of one channel, and a writer that came through the first."""

    def __init__(self, device: str, **options: Any) -> None:
        num_environments = options.get("num_environments", 1)
        self.channel = share_channel(SPEC, device=device, num_environments=num_environments)
        self.one, self.two = (Consumer(self.channel, device=device, **options) for _ in range(2))
        self.writer = EmbeddedWriter(self.one.engine, "goal")
        self.stamp_ns = 0

    def write(self, x: float, y: float, **more: int) -> int:
        self.stamp_ns += 1
        stamp_ns = more.pop("stamp_ns", self.stamp_ns)
        return self.writer.write(stamp_ns=stamp_ns, values=[x, y], **more)

    def ready(self) -> None:
        self.write(0.5, -0.5)
        self.one.observe()
        self.two.observe()

    def states(self) -> list[SlotState]:
        for one in (self.one, self.two):
            one.engine.core.backend.synchronize()
            one.engine.core.latches.release_read()
        return self.writer._ring.states

    def close(self) -> None:
        self.one.engine.close()
        self.two.engine.close()
        self.channel.close()


@pytest.fixture
def make(device: str) -> Iterator[Callable[..., Pair]]:
    with ExitStack() as undo:

        def start(**options: Any) -> Pair:
            pair = Pair(device, **options)
            undo.callback(pair.close)
            return pair

        yield start


@pytest.fixture
def pair(make: Callable[..., Pair]) -> Pair:
    made = make()
    made.ready()
    return made


def test_one_commit_is_latched_by_both_in_place(pair: Pair) -> None:
    first, second = pair.one.chunk(), pair.two.chunk()
    assert first.actions == second.actions  # same seed, same goal, same observation
    assert first.provenance.goal_sequence == second.provenance.goal_sequence == 1
    seen = [one.inspect() for one in (pair.one, pair.two)]
    assert [one.goal_transport_copies for one in seen] == [0, 0]
    places = [(one.read_device, one.read_inode, one.read_offset) for one in seen]
    assert places[0] == places[1]
    ring = pair.writer._ring
    slot = ring.states.index(SlotState.HELD)
    assert places[0] == linux.locate(pair.channel.slot_address(ring.first_slot + slot))


def test_a_staged_consumer_is_counted_as_a_copy(make: Callable[..., Pair]) -> None:
    pair = make(staged_channels=("goal",))
    pair.ready()
    pair.one.chunk()
    assert pair.one.inspect().goal_transport_copies == 1


def test_a_slot_goes_back_once_both_have_let_go(pair: Pair) -> None:
    pair.one.chunk()
    pair.write(0.1, 0.1)
    pair.one.observe()
    pair.one.chunk()  # reads the second; the first is still the second engine's newest
    assert pair.states().count(SlotState.HELD) == 1
    assert pair.two.goal() is None
    assert pair.two.engine.core.latches.channel("goal").skipped == [1]
    pair.two.chunk()
    assert pair.two.goal() == pair.one.goal()
    pair.write(0.2, 0.2)
    pair.one.observe()
    pair.one.chunk()
    assert pair.states().count(SlotState.HELD) == 2  # each reads one
    pair.two.observe()
    pair.two.chunk()
    assert pair.states().count(SlotState.HELD) == 1
    assert pair.two.goal() == pair.one.goal()


def test_a_fast_writer_never_lacks_a_slot(pair: Pair) -> None:
    for turn in range(60):
        pair.write(0.01 * turn, 0.0)
        consumer = (pair.one, pair.two)[turn % 3 == 0]
        if turn % 2:
            consumer.observe()
            consumer.chunk()
    assert pair.one.inspect().torn_reads == pair.two.inspect().torn_reads == 0
    assert pair.states().count(SlotState.LOANED) == 0


def test_a_steps_wait_ends_with_a_commit_through_the_other(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.two.observe()
    answers: list[Any] = []
    pair.two.engine.begin_step(protocol.Step(2, 0, 1, -1, 0, 10**12), answers.append)
    pair.write(0.5, -0.5)
    while not answers:
        assert pair.two.engine.advance() or pair.two.engine.wait() or answers
    assert answers[0].chunks[0].provenance.goal_sequence == 1


def test_a_reset_of_one_is_a_barrier_for_it_alone(pair: Pair) -> None:
    pair.one.chunk()
    pair.two.chunk()
    ring = pair.writer._ring
    slot, ticket, _ = pair.one.engine.loan(ring)
    pair.two.restore()
    pair.two.observe()
    assert pair.two.goal() is None
    assert pair.one.goal() is not None
    # loaned before the reset of the second: the first takes it, the second does not
    sequence = pair.one.engine.commit(ring, slot, ticket, stamp_ns=9, source_sequence=0)
    pair.one.observe()
    assert pair.one.chunk().provenance.goal_sequence == sequence
    assert pair.two.waiting_for() == "goal"
    assert (pair.one.dropped(), pair.two.dropped()) == (0, 1)
    newer = pair.write(0.3, 0.3)
    assert pair.two.chunk().provenance.goal_sequence == newer


def test_one_that_every_consumer_refuses_is_an_error(pair: Pair) -> None:
    ring = pair.writer._ring
    slot, ticket, _ = pair.one.engine.loan(ring)
    pair.one.restore()
    pair.two.restore()
    with pytest.raises(StaleGenerationError):
        pair.one.engine.commit(ring, slot, ticket, stamp_ns=9, source_sequence=0)
    assert pair.states().count(SlotState.FREE) == len(ring.states)
    pair.one.restore(stamp_ns=100)
    pair.two.restore(stamp_ns=200)
    with pytest.raises(StaleStampError, match="100 ns"):  # the engine's that was asked
        pair.write(0.1, 0.1, stamp_ns=50)
    pair.write(0.1, 0.1, stamp_ns=150)
    assert pair.one.waiting_for() == "observation"
    assert pair.two.waiting_for() == "goal"


def test_restore_brings_a_goal_back_to_one_alone(pair: Pair) -> None:
    pair.one.chunk()
    before = pair.one.goal()
    pair.one.engine.handle(protocol.Snapshot(3, 0, "before", (), False, True, False))
    pair.write(-0.1, -0.2)
    for one in (pair.one, pair.two):
        one.observe()
        one.chunk()
    live = pair.two.goal()
    assert pair.one.goal() == live
    pair.one.restore("before", reset=False)
    assert pair.one.goal() == before
    assert pair.two.goal() == live
    for _ in range(20):  # the engine's own part of the ring is given back too
        pair.one.restore("before", reset=False)
    pair.one.observe()
    assert pair.one.chunk().provenance.goal_sequence == 1


def test_an_interrupt_of_one_leaves_the_other(pair: Pair) -> None:
    pair.one.chunk()
    pair.two.chunk()
    ring = pair.writer._ring
    slot, ticket, _ = pair.one.engine.loan(ring)
    commit = protocol.Commit(0, 0, slot, ticket, 50, 0, False)
    reply = pair.one.engine.interrupt(protocol.Interrupt(6, 0, "test", False, commit), ring)
    generation = pair.two.engine.environment(0).generation
    assert pair.one.chunk().provenance.goal_sequence == reply.goal_sequence
    # a goal of the first's interrupt is one of the second's goals
    pair.two.observe()
    assert pair.two.chunk().provenance.goal_sequence == reply.goal_sequence
    assert pair.two.engine.environment(0).generation == generation
    pair.write(0.3, 0.3, stamp_ns=40)  # older than the interrupt's: refused to the first alone
    assert pair.one.dropped() == 1
    pair.two.observe()
    assert pair.two.chunk().provenance.goal_sequence == reply.goal_sequence + 1
    pair.one.engine.handle(protocol.Resume(7, 0, False))
    assert pair.one.goal() is not None
    assert pair.one.goal() != pair.two.goal()


def test_a_chunk_in_the_making_bends_in_each(make: Callable[..., Pair]) -> None:
    pair = make(retarget=True)
    pair.ready()
    for one in (pair.one, pair.two):
        one.engine.begin_step(protocol.Step(2, 0, 1, -1, 0, 0), lambda answer: None)
        while one.engine._ticks.plans._flight is None:
            one.engine.advance()
    sequence = pair.write(-0.8, 0.7)
    for one in (pair.one, pair.two):
        while one.engine.advance() or one.engine.wait():
            pass
        assert one.engine.environment(0).position.origin.goal_sequence == sequence
        goals = [e.detail for e in one.events if e.kind == EventKind.GOAL]
        assert " node=" in goals[-1]
    assert pair.states().count(SlotState.HELD) == 1


def test_environments_map_one_to_one(make: Callable[..., Pair]) -> None:
    pair = make(num_environments=2)
    with EmbeddedWriter(pair.two.engine, "goal", 1) as writer:
        writer.write(stamp_ns=1, values=[0.3, 0.3])
    for one in (pair.one, pair.two):
        channel = one.engine.core.latches.channel("goal")
        assert channel.pending(0) is None
        assert channel.pending(1) is not None


def test_an_engine_that_closes_gives_back_what_it_read(pair: Pair) -> None:
    pair.one.chunk()
    pair.two.chunk()
    pair.one.engine.handle(protocol.Snapshot(3, 0, "kept", (), False, True, False))
    pair.one.restore("kept", reset=False)
    pair.write(0.1, 0.1)
    pair.one.engine.close()  # ends the writer that came through it; what it committed stays
    pair.two.observe()
    assert pair.two.chunk().provenance.goal_sequence == 2
    with EmbeddedWriter(pair.two.engine, "goal") as writer:
        writer.write(stamp_ns=3, values=[0.2, 0.2])
        pair.two.observe()
        assert pair.two.chunk().provenance.goal_sequence == 3
    with pytest.raises(BusyError, match="1 open"):
        pair.channel.close()
    third = Consumer(pair.channel, device=pair.two.engine.core.config.device)
    with EmbeddedWriter(third.engine, "goal") as writer:
        writer.write(stamp_ns=4, values=[0.2, 0.2])
        third.observe()
        third.chunk()
    third.engine.close()
    pair.two.engine.close()
    held = [pair.channel.state(slot) for slot in range(pair.channel.num_slots)]
    assert set(held) == {SlotState.FREE}


@pytest.mark.parametrize(("index", "own"), [(0, "observation"), (1, "goal")])
def test_an_engine_leaves_though_its_own_channels_can_not_be_closed(
    monkeypatch: pytest.MonkeyPatch, index: int, own: str
) -> None:
    """On a device that is lost: the reason is that, and not a channel that is still read."""

    def fail() -> None:
        raise DeviceLostError("the device is lost")

    spec = MinimalPolicy().channels()[index]
    channel = share_channel(spec)
    shared = {spec.name: channel}
    owned = ExitStack()
    owned.enter_context(channel)
    engine = owned.enter_context(
        Engine(MinimalPolicy(), EngineConfig(model="minimal"), shared=shared)
    )
    monkeypatch.setattr(engine.core.latches.channel(own), "close", fail)
    with pytest.raises(DeviceLostError):
        owned.close()
    channel.close()


def test_an_error_is_not_replaced_by_that_of_an_engine_left_open() -> None:
    consumers: list[Consumer] = []

    def fail() -> None:
        with share_channel(SPEC) as channel:
            consumers.append(Consumer(channel))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    consumer: Any = consumers[0].engine.core.latches.channel("goal")
    channel = consumer.channel
    consumers[0].engine.close()
    channel.close()


def test_ages_count_on_each_clock(make: Callable[..., Pair]) -> None:
    pair = make(goal_max_age_ms=10.0)
    pair.two.now_ns += 5_000_000_000
    pair.ready()
    pair.two.now_ns += 11_000_000
    pair.one.chunk()
    assert pair.two.waiting_for() == "fresh goal"


def test_refusals_say_what_does_not_fit(pair: Pair, device: str) -> None:
    with pytest.raises(ConfigError, match="consumers"):
        Consumer(pair.channel, device=device)
    other = MinimalPolicy().channels()[1]
    with share_channel(other, device=device) as channel:
        with pytest.raises(ConfigError, match="another one"):
            Consumer(channel, device=device)
        with pytest.raises(UnknownChannelError, match="shared channel 'arm'"):
            Engine(
                MinimalPolicy(),
                EngineConfig(model="minimal", device=device),
                shared={"arm": channel},
            )
    with share_channel(SPEC, device=device) as channel:
        for options, what in (
            ({"num_environments": 2}, "environments"),
            ({"num_branch_lanes": 9}, "slots"),
        ):
            with pytest.raises(ConfigError, match=f"too few {what}"):
                Consumer(channel, device=device, **options)


def test_alone_each_waits_for_a_goal_of_its_own(make: Callable[..., Pair]) -> None:
    """Negative control: channels that are not shared."""
    pair = make()
    with Engine(MinimalPolicy(), EngineConfig(model="minimal")) as lonely:
        lonely.handle(protocol.Activate(1, 0, "step", 10.0))
        EmbeddedWriter(lonely, "observation").write(stamp_ns=1, position=[0.1, 0.2])
        pair.ready()
        with pytest.raises(AbandonedError, match="waiting for goal"):
            lonely.step(protocol.Step(2, 0, 0, -1, 0, 0))
