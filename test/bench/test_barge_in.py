"""The bench of barge-ins: what it says, what it refuses to time, what counts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
import torch

from flashrt_ros.bench import barge_in
from flashrt_ros.bench.barge_in import BARGE, COLD, WAIT, check
from flashrt_ros.bench.barge_in_driver import Driver, Times, Told, Way, Written
from flashrt_ros.bench.barge_in_stand import (
    LONG_PLAN,
    NUM_INSTRUCTED,
    SCALES,
    SHORT_PLAN,
    START,
    BargeInStand,
    BargeScale,
    Texts,
)
from flashrt_ros.bench.cohost_planner import CharacterTokenizer
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.devices import GpuDevice, HostDevice
from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.engine import protocol
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_session import HybridSession
from flashrt_ros.planner.boundaries import Boundaries
from flashrt_ros.planner.engine import PlannerEngine

SCALE = SCALES["tiny"]
CHUNK = SCALE.chunks[0]


@pytest.fixture(scope="module")
def stand() -> BargeInStand:
    return BargeInStand(HostDevice(), SCALE)


@pytest.fixture(scope="module")
def model(stand: BargeInStand) -> HybridLm:
    return stand.model(CHUNK)


@dataclasses.dataclass(frozen=True)
class Alone:
    """What both turns write, each on an engine that ran nothing before, and the long one's seed."""

    short: Written
    long: Written
    seed: int


@pytest.fixture(scope="module")
def alone(stand: BargeInStand, model: HybridLm) -> Alone:
    with stand.engine(model, time.thread_time_ns) as engine:
        driver = Driver(engine, stand.texts, time.thread_time_ns)
        short, seed = driver.short_alone(), driver.find_seed()
    with stand.engine(model, time.thread_time_ns) as engine:
        driver = Driver(engine, stand.texts, time.thread_time_ns, seed=seed)
        return Alone(short, driver.long_alone()[0], seed)


@pytest.fixture
def engine(stand: BargeInStand, model: HybridLm) -> Iterator[PlannerEngine]:
    with stand.engine(model, time.thread_time_ns) as made:
        yield made


@pytest.fixture
def driver(engine: PlannerEngine, stand: BargeInStand, alone: Alone) -> Driver:
    return Driver(engine, stand.texts, time.thread_time_ns, seed=alone.seed)


# what is said ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
def test_texts_are_as_long_as_the_scale_says(scale: BargeScale) -> None:
    texts = Texts.of(scale)
    encode = CharacterTokenizer().encode
    first, rest = (text.partition(" = ")[2] for text in texts.prefixes)
    prefix = encode(f"{first}\n{rest}")
    assert len(encode(first)) == 1
    assert len(prefix) == scale.prefix
    assert not scale.prefix % 64
    for text, length in ((texts.long, scale.long), (texts.short, NUM_INSTRUCTED)):
        assert text == text.strip()
        assert len(encode(b"\n" + text + b"\n")) == length
    assert (*prefix[1:], *encode(b"\n" + texts.short + b"\n")) == texts.cold
    assert scale.prefix + scale.long + LONG_PLAN <= scale.max_positions


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
def test_the_long_turn_has_nodes_to_interrupt_at_either_length(scale: BargeScale) -> None:
    assert all(not chunk % 64 and chunk < scale.long for chunk in scale.chunks)
    assert scale.chunks[0] < scale.chunks[1]


def test_the_texts_begin_where_they_should(engine: PlannerEngine, stand: BargeInStand) -> None:
    assert engine.core.store.get(START).position.num_positions == 0
    assert engine.prefixes.num_tokens == SCALE.prefix
    end = engine.core.store.get(engine.prefixes.end_id)
    assert end.position.num_positions == SCALE.prefix
    assert end.pinned


# what is refused ------------------------------------------------------------------------------


def test_barge_ins_write_what_fresh_engines_write(
    driver: Driver, stand: BargeInStand, alone: Alone
) -> None:
    short, long = alone.short, alone.long
    assert len(short[0]) <= SHORT_PLAN < len(long[0]) <= LONG_PLAN
    check(driver, short, long, stand.num_prefill_nodes(CHUNK))


@pytest.mark.parametrize(
    ("is_resumed", "what"), [(False, "after a barge-in"), (True, "was resumed")]
)
def test_a_restore_that_is_left_out_is_noticed(
    driver: Driver,
    stand: BargeInStand,
    alone: Alone,
    monkeypatch: pytest.MonkeyPatch,
    is_resumed: bool,
    what: str,
) -> None:
    driver.long_alone()
    whole = Boundaries.load

    def load(self: Boundaries, session: HybridSession, capsule: Capsule) -> None:
        is_interrupted = "automatic=interrupt" in capsule.labels
        state = session.read("recurrent")
        whole(self, session, capsule)
        if is_interrupted == is_resumed:
            session.write("recurrent", state)

    monkeypatch.setattr(Boundaries, "load", load)
    with pytest.raises(WrongResultError, match=what):
        check(driver, alone.short, alone.long, stand.num_prefill_nodes(CHUNK))


def test_a_comparison_that_could_not_fail_is_noticed(
    driver: Driver,
    stand: BargeInStand,
    alone: Alone,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Driver, "_damage", lambda self: None)
    with pytest.raises(WrongResultError, match="without its recurrent state"):
        check(driver, alone.short, alone.long, stand.num_prefill_nodes(CHUNK))


def test_each_sample_is_compared(driver: Driver, alone: Alone) -> None:
    with pytest.raises(WrongResultError, match="barge-in"):
        driver.sample(BARGE, 0, (alone.short[0], 0.5))


def test_a_turn_that_does_not_end_is_given_up(
    driver: Driver, engine: PlannerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "advance", lambda: True)
    monkeypatch.setattr("flashrt_ros.bench.barge_in_driver.ANSWER_S", 0.0)
    with pytest.raises(BenchError, match="did not end"):
        driver.short_alone()


# what counts ----------------------------------------------------------------------------------


def test_an_instruction_in_prefill_and_one_in_decode(driver: Driver, alone: Alone) -> None:
    done = driver.long_alone()[1]
    in_decode_ns = (done.first_token_ns + done.duration_ns) / 2
    for arrival_ns, is_in_prefill in ((0, True), (in_decode_ns, False)):
        times = driver.sample(BARGE, arrival_ns, alone.short)
        assert times is not None
        assert times.is_in_prefill == is_in_prefill
        assert 0 < times.own_first_token <= times.first_token < times.first_subgoal
        assert times.first_subgoal <= times.whole
        assert times.first_token_by_wall > 0


@pytest.mark.parametrize("way", [WAIT, COLD])
def test_peers_take_longer(driver: Driver, alone: Alone, way: Way) -> None:
    """They run more nodes of the same kinds; a thread's own time has no luck of the machine."""
    ours, theirs = (driver.sample(one, 0, alone.short) for one in (BARGE, way))
    assert ours is not None
    assert theirs is not None
    assert theirs.first_token > ours.first_token


def test_after_the_end_there_is_nothing_to_interrupt(driver: Driver, alone: Alone) -> None:
    assert driver.sample(BARGE, 1e12, alone.short) is None
    assert driver.sample(BARGE, 0, alone.short) is not None


def test_the_first_subgoal_is_noted_and_no_other_event() -> None:
    now = iter(range(5, 9))
    told = Told(lambda: next(now))
    event = protocol.Event(
        kind=int(EventKind.TURN),
        engine_epoch=1,
        env_index=0,
        generation=0,
        tick=0,
        capsule_id="",
        duration_ns=0,
        detail="",
    )
    told.event(event)
    assert told.first_ns == 0
    for _ in range(2):
        told.event(msgspec.structs.replace(event, kind=int(EventKind.SUBGOAL)))
    assert told.first_ns == 5
    told.forget()
    assert told.first_ns == 0


# targets --------------------------------------------------------------------------------------


def test_the_target_is_for_the_shorter_chunk_alone(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(
        context: Context, stand: BargeInStand, chunk: int, ways: Sequence[Way], *rest: object
    ) -> barge_in.Found:
        times = [Times(True, ms, ms, ms, ms, ms) for ms in (10_000_000, 20_000_000)]
        peers = {way.name: times for way in ways if way is not BARGE}
        return barge_in.Found(chunk, {"decode": 1}, {"in prefill": times, "in decode": [], **peers})

    monkeypatch.setattr(barge_in, "_measure", measure)
    monkeypatch.setattr(barge_in, "SCALES", {"cpu": SCALE})
    result = barge_in.run(make_context(20.0))
    (bound,) = (row for row in result.rows if row.met is not None)
    assert bound.name == f"barge-in in prefill, first token, chunks of {CHUNK}"
    assert str(bound.target) == "p99 <= 150"
    assert bound.met
    assert bound.median == 15.0
    gone = [row for row in result.rows if row.median is None]
    assert gone
    assert all(row.name.startswith("barge-in in decode") for row in gone)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_bench_runs_on_a_device(make_context: Callable[..., Context]) -> None:
    result = barge_in.run(dataclasses.replace(make_context(), device=GpuDevice()))
    measured = [row for row in result.rows if row.median is not None]
    assert any(row.name.startswith("barge-in in decode, first token") for row in measured)
    assert not any("processor time" in row.title for row in result.rows)
