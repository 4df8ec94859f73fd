"""An engine over a device that does nothing until it is told to, in any order that is legal.

Three queues with marks between them, as on CUDA; the order is that of ``runtime.cuda_streams``
itself. Everything that the host may do while the device lags behind is done here.
"""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import assembly, protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.library import Library
from flashrt_ros.engine.protocol import Event, OutputKind, Provenance
from flashrt_ros.errors import DeviceLostError, FlashrtError
from flashrt_ros.models.base import Buffers, Program, Slots
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.backend import CapturedGraph, Fence, SlotRead
from flashrt_ros.runtime.cpu import CpuBackend, CpuGraph
from flashrt_ros.runtime.cuda_driver import Driver
from flashrt_ros.runtime.cuda_streams import Stream, Streams
from flashrt_ros.runtime.noise import draw_normal
from flashrt_ros.runtime.spec import ArenaLayout, Role, ShapeKey

BLOCK_BYTES = ArenaLayout.of(MinimalPolicy().buffers()).capsule_bytes
PERIOD_NS = 100_000_000


class _Mark:
    """A point in a queue."""

    def __init__(self) -> None:
        self.is_passed = False


Queue = deque[Callable[[], object] | _Mark | tuple[_Mark]]
"""Work, marks, and waits for marks of other queues."""


class SlowDriver(Driver):
    """Queues of work; :meth:`step` does one piece of one of them."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.laziest = -1  # a stream whose work is done when no other has any
        self.queues: dict[int, Queue] = {}
        self._newest: dict[int, _Mark] = {}
        self._num_events = 0

    def submit(self, stream: int, work: Callable[[], object]) -> None:
        self._queue(stream).append(work)

    def step(self) -> bool:
        """Do one piece of work; False when there is none."""
        ready = {
            stream: queue
            for stream, queue in self.queues.items()
            if queue and not _is_stuck(queue[0])
        }
        if len(ready) > 1:
            ready.pop(self.laziest, None)
        if not ready:
            assert not any(self.queues.values()), "queues wait for each other"
            return False
        self.do(self.random.choice([*ready.values()]))
        return True

    def do(self, queue: Queue) -> None:
        """Do the next piece of work of a queue."""
        entry = queue.popleft()
        if isinstance(entry, _Mark):
            entry.is_passed = True
        elif callable(entry):
            entry()

    def create_event(self) -> int:
        self._num_events += 1
        return self._num_events

    def destroy_event(self, event: int) -> None:
        self._newest.pop(event, None)

    def record(self, event: int, stream: int) -> None:
        mark = self._newest[event] = _Mark()
        self._queue(stream).append(mark)

    def is_done(self, event: int) -> bool:
        return self._newest[event].is_passed

    def wait_event(self, event: int) -> None:
        while not self.is_done(event):
            assert self.step()

    def order(self, stream: int, event: int) -> None:
        self._queue(stream).append((self._newest[event],))

    def synchronize(self, stream: int) -> None:
        while self._queue(stream):
            assert self.step()

    def _queue(self, stream: int) -> Queue:
        return self.queues.setdefault(stream, deque())


def _is_stuck(entry: object) -> bool:
    return isinstance(entry, tuple) and not entry[0].is_passed


class _TorchStream:
    """Stands for torch's, which needs a device."""

    _count = 0

    def __init__(self, device: torch.device, priority: int) -> None:
        type(self)._count += 1
        self.cuda_stream = self._count


class SlowBackend(CpuBackend):
    """The host's backend, with nothing done until the driver is stepped."""

    def __init__(self, *, has_own_memory: bool = False) -> None:
        super().__init__()
        self.driver = SlowDriver()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "Stream", _TorchStream)
            self.streams = Streams(self.driver, self.device)
        self._has_own_memory = has_own_memory

    @property
    def has_own_memory(self) -> bool:
        return self._has_own_memory

    def capture(
        self,
        program: Program,
        key: ShapeKey,
        arena: Arena,
        lane: int,
        slots: Slots,
        *,
        num_rows: int | None = None,
    ) -> CpuGraph:
        self.synchronize()
        graph = super().capture(program, key, arena, lane, slots, num_rows=num_rows)
        return SlowGraph(self, graph)  # type: ignore[return-value]

    def submit(self, stream: Stream, work: Callable[[], object]) -> None:
        self.driver.submit(stream.handle, work)
        self.streams.submitted(stream)

    def copy(self, dst_address: int, src_address: int, num_bytes: int) -> None:
        work = partial(ctypes.memmove, dst_address, src_address, num_bytes)
        self.submit(self.streams.before_state(), work)

    def copy_aside(self, dst_address: int, src_address: int, num_bytes: int) -> Fence:
        work = partial(ctypes.memmove, dst_address, src_address, num_bytes)
        self.submit(self.streams.before_copy(), work)
        return self.streams.fence()

    def write(self, address: int, data: bytes | bytearray, *, beside: bool = False) -> None:
        work = partial(ctypes.memmove, address, bytes(data), len(data))
        self.submit(self.streams.before_state(beside=beside), work)

    def read(self, address: int, num_bytes: int) -> bytes:
        found: list[bytes] = []
        self.submit(
            self.streams.before_state(),
            lambda: found.append(ctypes.string_at(address, num_bytes)),
        )
        self.streams.fence().wait()
        return found[0]

    def fence(self) -> Fence:
        return self.streams.fence()

    def fence_all(self) -> Fence:
        return self.streams.fence_all()

    @contextmanager
    def ordered(self) -> Iterator[None]:
        self.synchronize()
        yield

    def synchronize(self) -> None:
        self.streams.synchronize()


class SlowGraph(CapturedGraph):
    """A tape that is replayed when its turn on the device comes."""

    def __init__(self, backend: SlowBackend, graph: CpuGraph) -> None:
        self._backend = backend
        self._graph = graph

    @property
    def key(self) -> ShapeKey:
        return self._graph.key

    @property
    def lane(self) -> int:
        return self._graph.lane

    @property
    def num_ops(self) -> int:
        return self._graph.num_ops

    @property
    def written_buffers(self) -> frozenset[str]:
        return self._graph.written_buffers

    @property
    def touched_buffers(self) -> frozenset[str]:
        return self._graph.touched_buffers

    @property
    def written_roles(self) -> frozenset[Role]:
        return self._graph.written_roles

    def slot_reads(self) -> tuple[SlotRead, ...]:
        return self._graph.slot_reads()

    def private_tensors(self) -> tuple[torch.Tensor, ...]:
        return self._graph.private_tensors()

    def replay(self, *, beside: bool = False) -> None:
        streams = self._backend.streams
        keeps = self.written_roles & {Role.STATE, Role.INPUT}
        stream = streams.before_state(beside=beside) if keeps else streams.before_plan()
        self._backend.submit(stream, self._graph.replay)

    def rebase(self, lane: int) -> CapturedGraph:
        return SlowGraph(self._backend, self._graph.rebase(lane))

    def close(self) -> None:
        self._backend.synchronize()
        self._graph.close()


class Memoryless(MinimalPolicy):
    """Chunks that follow from goal, observation and noise alone, so that they can be foretold."""

    name = "memoryless"

    def programs(self) -> dict[ShapeKey, Program]:
        return {**super().programs(), **dict.fromkeys(self.plan().steps, _step)}


def _step(buffers: Buffers, slots: Slots) -> None:
    pull = buffers["goal_latched"] - buffers["path"]
    buffers["path"].add_(0.3 * pull)


def foretell(goal: tuple[float, ...], position: tuple[float, ...], seed: int, count: int) -> bytes:
    """Compute a chunk as the graphs do."""
    noise = torch.from_numpy(draw_normal(seed, count, (8, 2)))
    path = torch.tensor(position) + 0.05 * noise
    for _ in range(3):
        path.add_(0.3 * (torch.tensor(goal) - path))
    return path.numpy().tobytes()


class Watcher:
    """Takes outputs, and compares each with what it says it was made from."""

    def __init__(self, rig: SlowRig) -> None:
        self._rig = rig
        self.outputs: list[tuple[OutputKind, Provenance, int]] = []
        self.events: list[Event] = []
        self._chunks: dict[tuple[int, int], bytes] = {}

    def output(self, kind: OutputKind, made: Provenance, index: int, payload: bytes) -> None:
        env = self._rig.engine.environment(0)
        assert made.generation == env.generation, "published after what it was made for had ended"
        if self.outputs:  # also where a pop was submitted before the commit, and taken in after
            assert made.sequence > self.outputs[-1][1].sequence
        self.outputs.append((kind, made, index))
        chunk = (made.generation, made.latched_tick)
        if kind is OutputKind.CHUNK:
            assert payload == self._rig.expected(made)
            self._chunks[chunk] = payload
        elif chunk in self._chunks:  # else of a queue that a restore brought back
            assert payload == self._chunks[chunk][8 * index : 8 * index + 8]

    def event(self, event: Event) -> None:
        assert event.kind != protocol.EventKind.FAULT, event.detail
        self.events.append(event)


class SlowRig:
    """An engine over a slow device, with writers that scribble over what they have on loan."""

    def __init__(self, *, has_own_memory: bool = False, **options: object) -> None:
        self.now_ns = 1_000_000_000
        self.stamp_ns = 0
        self.backend = SlowBackend(has_own_memory=has_own_memory)
        config = EngineConfig(model="minimal", **options)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(assembly, "make_backend", lambda device: self.backend)
            self.engine = Engine(Memoryless(), config, clock_ns=lambda: self.now_ns)
        self.written: dict[tuple[str, int], tuple[float, ...]] = {}
        self._rings = {name: self.engine.open_writer(name, 0) for name in ("goal", "observation")}
        self.draws: dict[int, tuple[int, int]] = {}
        self.watcher = Watcher(self)
        self.engine.sink = self.watcher

    # what is asked -----------------------------------------------------------------------

    def write(self, channel: str, x: float, y: float) -> bool:
        """Write into a slot, over scribbles; False where the device has not let go of one."""
        ring = self._rings[channel]
        try:
            slot, ticket, _ = self.engine.loan(ring)
        except FlashrtError:
            return False
        memory = ring.channel.view(ring.first_slot + slot)
        memory[:] = b"\xff" * len(memory)
        np.frombuffer(memory, np.float32, 2)[:] = [x, y]
        self.stamp_ns += 1
        sequence = self.engine.commit(ring, slot, ticket, stamp_ns=self.stamp_ns, source_sequence=0)
        self.written[channel, sequence] = (x, y)
        return True

    def feed(self, x: float = 0.5, y: float = -0.5) -> None:
        assert self.write("goal", x, y)
        assert self.write("observation", y, x)

    def start(self, source: str = "timer") -> None:
        self.engine.handle(protocol.Activate(1, 0, source, 1e9 / PERIOD_NS))

    def begin_step(self, count: int, branch: int = -1) -> list[Any]:
        answers: list[Any] = []
        self.engine.begin_step(protocol.Step(2, 0, count, branch, 0, 0), answers.append)
        return answers

    def restore(self, capsule: str, *, reset: bool = False, seed: int | None = None) -> Any:
        request = protocol.Restore(4, 0, capsule, False, seed, reset, "", 0)
        return self.engine.handle(request)

    def snapshot(self, name: str) -> Any:
        return self.engine.handle(protocol.Snapshot(3, 0, name, (), False, True, False))

    def interrupt(self) -> protocol.Interrupted:
        return self.engine.interrupt(protocol.Interrupt(6, 0, "test", False, None))

    # time --------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do what the server's loop does once."""
        if self.engine.has_work:
            self.engine.advance()
        else:
            self.engine.background(self.now_ns)

    def tick(self) -> None:
        """Let the timer's next deadline come, whatever the device does."""
        deadline = self.engine.next_deadline_ns()
        if deadline is not None:
            self.now_ns = max(self.now_ns, deadline)
            self.engine.on_deadline(self.now_ns)

    def work(self, count: int) -> None:
        """Let the device do some pieces of work."""
        for _ in range(count):
            self.backend.driver.step()

    def begin_background(self) -> None:
        """Have a capsule on its way between tiers."""
        mover = self.engine.core.storage.mover
        while mover._job is None or not mover._job.num_copied:
            self.now_ns += 1_000_000
            self.engine.background(self.now_ns)

    def settle(self) -> None:
        """Let the background come to rest."""
        while self.engine.next_background_ns() is not None:
            self.now_ns += 1_000_000
            self.engine.background(self.now_ns)
            self.work(4)

    def finish(self) -> None:
        """Let everything under way come to its end."""
        while self.engine.advance() or self.engine.wait():
            pass
        self.backend.synchronize()

    # what is true ------------------------------------------------------------------------

    def expected(self, made: Provenance) -> bytes:
        """Foretell the chunk that is published now."""
        position = self.engine.environment(0).position
        return foretell(
            self.written["goal", made.goal_sequence],
            self.written["observation", made.observation_sequence],
            position.noise_seed,
            position.noise_counter - 1,
        )

    def check_counters(self) -> None:
        """The host's counters, and those of every capsule, are those that the bytes hold."""
        core = self.engine.core
        env = core.environments[0]
        self.compare(env.position, core.backend.read(env.lane.address, BLOCK_BYTES))
        for capsule in core.store:
            if capsule.residence.is_in_memory:
                payload = core.backend.read(capsule.block.address, capsule.num_bytes)
                self.compare(capsule.position, payload)

    def compare(self, position: Any, payload: bytes) -> None:
        for name in ("tick", "queue_head", "queue_length", "noise_seed", "noise_counter"):
            offset = self.engine.core.layout.by_name[name].offset
            found = int.from_bytes(payload[offset : offset + 8], "little", signed=True)
            assert found == getattr(position, name), name

    def assert_actions_come_beside_the_plan(self) -> None:
        """The next action comes though the device does not go on with the plan under way."""
        streams, queues = self.backend.streams, self.backend.driver.queues
        assert any(isinstance(entry, _Mark) for entry in queues[streams.plan.handle])
        before = len(self.watcher.outputs)
        self.tick()
        others = (queues[streams.state.handle], queues[streams.copy.handle])
        while len(self.watcher.outputs) == before:
            self.backend.driver.do(next(q for q in others if q and not _is_stuck(q[0])))
            self.engine.advance()
        assert self.kinds()[-1] == ("action", 2)

    def kinds(self) -> list[tuple[str, int]]:
        return [(kind.name.lower(), index) for kind, _, index in self.watcher.outputs]


@pytest.fixture
def make_slow() -> Iterator[Callable[..., SlowRig]]:
    rigs: list[SlowRig] = []

    def make(**options: Any) -> SlowRig:
        rigs.append(SlowRig(**options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.engine.close()


@pytest.fixture
def slow(make_slow: Callable[..., SlowRig]) -> SlowRig:
    """A timed engine that has made its first chunk."""
    rig = make_slow()
    rig.start()
    rig.feed()
    rig.tick()
    rig.finish()
    assert rig.kinds() == [("chunk", 0), ("action", 0)]
    return rig


def test_an_action_that_is_late_is_not_taken_for_the_next(slow: SlowRig) -> None:
    slow.tick()
    slow.tick()
    slow.tick()
    slow.finish()
    assert [index for kind, index in slow.kinds() if kind == "action"] == [0, 1]
    assert slow.engine._ticks.plans.stats[0].deadline_misses == 2
    slow.tick()
    slow.finish()
    assert slow.kinds()[-1] == ("action", 2)
    slow.check_counters()


def fly(rig: SlowRig, nodes: int) -> None:
    """Have a chunk made as far as ``nodes`` nodes submitted, all but the last of them done."""
    rig.write("observation", 0.1, 0.2)
    run = None
    while run is None or run.index < nodes:
        rig.turn()
        flight = rig.engine._ticks.plans._flight
        run = flight.run if flight else run
        if run is None or run.index < nodes:
            rig.work(1)


def empty(rig: SlowRig) -> None:
    """Pop what is queued, and let the tick come that finds nothing."""
    while rig.engine.environment(0).position.queue_remaining:
        rig.tick()
        rig.finish()
    rig.tick()


def test_a_chunk_is_published_before_its_actions(slow: SlowRig) -> None:
    empty(slow)
    fly(slow, 5)
    before = len(slow.watcher.outputs)
    slow.tick()  # the commit is submitted: this pops its first action
    slow.backend.synchronize()
    slow.engine._ticks.plans._land_pops()
    assert len(slow.watcher.outputs) == before
    slow.finish()
    assert slow.kinds()[before : before + 2] == [("chunk", 0), ("action", 0)]
    slow.check_counters()


def test_an_action_of_the_old_chunk_is_published_before_the_new_one(
    make_slow: Callable[..., SlowRig],
) -> None:
    rig = make_slow(replan_threshold=2)
    rig.start()
    rig.feed()
    rig.tick()
    rig.finish()
    rig.tick()
    rig.finish()
    rig.tick()  # finds two: the next chunk is made beside them
    fly(rig, 4)
    rig.work(100)
    rig.tick()
    rig.turn()
    flight = rig.engine._ticks.plans._flight
    assert flight is not None
    assert flight.run.is_done
    before = len(rig.watcher.outputs)
    rig.work(100)  # both are done when the host looks
    rig.finish()
    assert rig.kinds()[before:] == [("action", 3), ("chunk", 0)]


def test_two_ticks_of_one_chunk_pop_no_action_twice(slow: SlowRig) -> None:
    empty(slow)
    fly(slow, 5)
    before = len(slow.watcher.outputs)
    slow.tick()
    slow.finish()
    assert slow.kinds()[before:] == [("chunk", 0), ("action", 0)]
    slow.tick()
    slow.finish()
    assert slow.kinds()[-1] == ("action", 1)


@pytest.mark.parametrize("nodes", [1, 2, 4, 5])
def test_nothing_of_an_interrupted_plan_is_published(slow: SlowRig, nodes: int) -> None:
    empty(slow)
    fly(slow, nodes)
    before = len(slow.watcher.outputs)
    assert slow.interrupt().boundary == nodes
    slow.backend.synchronize()
    for _ in range(8):
        slow.turn()
    slow.check_counters()
    assert len(slow.watcher.outputs) == before


@pytest.mark.parametrize("count", [1, 4])
def test_a_step_answers_when_the_device_is_done(
    make_slow: Callable[..., SlowRig], count: int
) -> None:
    rig = make_slow()
    rig.start("step")
    rig.feed()
    answers = rig.begin_step(count)
    while rig.engine.has_work:
        rig.turn()
    assert not answers
    rig.finish()
    assert [record.index for record in answers[0].actions] == list(range(count))
    assert rig.kinds() == [("chunk", 0), *[("action", index) for index in range(count)]]


def test_a_slot_is_not_lent_while_the_device_may_read_it(make_slow: Callable[..., SlowRig]) -> None:
    rig = make_slow()
    rig.start("step")
    rig.feed()
    rig.begin_step(1)
    rig.turn()  # the latch node is submitted, and has not run
    held = rig.engine.environment(0).latched["observation"].slot
    channel = rig.engine.core.latches.channel("observation")
    rig.interrupt()
    lent = set()
    for _ in range(2 * channel.spec.num_ring_slots):
        if rig.write("observation", 0.3, 0.3):
            lent.add(channel.pending(0))
        rig.restore("home") if _ == 2 else None
    assert held not in lent
    rig.backend.synchronize()
    for _ in range(2 * channel.spec.num_ring_slots):
        assert rig.write("observation", 0.3, 0.3)
        lent.add(channel.pending(0))
    assert held in lent


def test_goals_are_brought_back_as_often_as_asked(make_slow: Callable[..., SlowRig]) -> None:
    rig = make_slow()
    rig.start("step")
    rig.feed()
    rig.begin_step(1)
    rig.finish()
    rig.snapshot("here")
    for _ in range(6):
        rig.restore("here")
        rig.write("observation", 0.1, 0.2)
        rig.begin_step(1)
        for _ in range(4):
            rig.turn()  # as far as it goes while the device does nothing
    rig.finish()
    rig.check_counters()


def test_draws_of_plans_that_were_left_keep_their_bytes(make_slow: Callable[..., SlowRig]) -> None:
    rig = make_slow()
    rig.start("step")
    for seed in range(8):
        rig.restore("home", reset=True, seed=seed)
        rig.feed()
        answers = rig.begin_step(1)
        for _ in range(4):
            rig.turn()
    rig.finish()
    assert len(answers[0].chunks) == 1
    rig.check_counters()


def test_few_nodes_are_under_way_however_often_plans_are_left(
    make_slow: Callable[..., SlowRig],
) -> None:
    rig = make_slow()
    rig.start("step")
    plan = rig.backend.streams.plan
    rig.feed()
    before = plan.num_marks
    for _ in range(8):
        rig.begin_step(1)
        for _ in range(4):
            rig.turn()
        rig.interrupt()
    assert plan.num_marks - before <= 2
    rig.finish()
    rig.check_counters()


def test_a_spill_holds_no_action_up(make_slow: Callable[..., SlowRig]) -> None:
    rig = make_slow(
        has_own_memory=True,
        capsule_quota_bytes=2 * BLOCK_BYTES,
        num_standby_lanes=0,
        replan_threshold=3,
    )
    rig.start()
    rig.feed()
    rig.tick()
    rig.finish()
    rig.settle()
    rig.write("observation", 0.1, 0.2)
    rig.tick()
    while rig.engine.has_work:
        rig.turn()
    rig.backend.streams.state.wait(rig.backend.streams.state.num_marks)
    rig.engine.advance()
    assert rig.kinds()[-1] == ("action", 1)
    rig.snapshot("first")  # the tier is full
    rig.begin_background()
    rig.assert_actions_come_beside_the_plan()


def test_a_fork_holds_no_action_up(make_slow: Callable[..., SlowRig]) -> None:
    rig = make_slow(replan_threshold=3)
    rig.start()
    rig.feed()
    rig.tick()
    rig.finish()
    rig.snapshot("here")
    rig.write("observation", 0.1, 0.2)
    rig.tick()
    while rig.engine.has_work:
        rig.turn()
    rig.backend.streams.state.wait(rig.backend.streams.state.num_marks)
    rig.engine.advance()
    rig.engine.handle(protocol.Fork(5, 0, "here", 2, ()))
    rig.assert_actions_come_beside_the_plan()


def test_a_file_holds_what_the_device_had_copied(
    make_slow: Callable[..., SlowRig], tmp_path: Path
) -> None:
    rig = make_slow(has_own_memory=True, rollback_tier="host", capsule_folder=str(tmp_path))
    rig.start("step")
    rig.feed()
    rig.begin_step(1)
    rig.finish()
    rig.settle()
    rig.feed()
    rig.begin_step(4)
    rig.backend.driver.laziest = rig.backend.streams.copy.handle
    while len(rig.engine.environment(0).boundaries) < 2:
        if not rig.engine.has_work:
            rig.work(1)
        rig.engine.advance()
    boundary = rig.engine.environment(0).boundaries[-1]
    saved: list[Any] = []
    request = protocol.Save(1, 0, boundary.id, "saved", False)
    rig.engine.begin(request, saved.append)
    # a plan's node, submitted last, may be done long before the copy
    rig.engine.core.environments[0].lane.replay(("step", 0))
    rig.backend.streams.plan.wait(rig.backend.streams.plan.num_marks)
    assert rig.backend.driver.queues[rig.backend.streams.copy.handle]
    while not saved:
        if rig.engine.core.storage.mover.wait(1.0):
            rig.engine._waits.background(1 << 20)
        rig.work(1)
    rig.backend.synchronize()
    expected = rig.backend.read(boundary.block.address, boundary.num_bytes)
    rig.engine.handle(protocol.Load(1, 0, "saved", "loaded", False, False))
    capsule = rig.engine.core.store.get("loaded")
    assert rig.backend.read(capsule.block.address, capsule.num_bytes) == expected


def test_an_engine_closes_with_everything_under_way(
    make_slow: Callable[..., SlowRig], tmp_path: Path
) -> None:
    rig = make_slow(
        has_own_memory=True, capsule_quota_bytes=2 * BLOCK_BYTES, capsule_folder=str(tmp_path)
    )
    rig.start()
    rig.feed()
    rig.tick()
    rig.finish()
    rig.snapshot("kept")
    empty(rig)
    fly(rig, 2)
    rig.begin_background()
    rig.engine.close()
    assert not rig.backend.driver.step()
    rig.engine.close()


def test_what_fails_to_close_keeps_nothing_else_open(
    slow: SlowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = slow.engine.core
    monkeypatch.setattr(core.storage.mover, "_job", LostJob())
    with pytest.raises(DeviceLostError):
        slow.engine.close()
    assert core.latches.channel("goal")._is_closed
    slow.engine.close()


class LostJob:
    """A copy whose device is gone."""

    def wait(self) -> None:
        raise DeviceLostError("the device is lost")


def test_an_engine_that_can_not_begin_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def fail(library: Library) -> None:
        raise DeviceLostError("the device is lost")

    monkeypatch.setattr(Library, "take_in_kept", fail)
    monkeypatch.setattr(SlowBackend, "close", lambda backend: closed.append(backend))
    with pytest.raises(DeviceLostError):
        SlowRig()
    assert len(closed) == 1


_POINTS = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])
_ASKED = st.one_of(
    st.tuples(st.just("work"), st.integers(1, 12)),
    st.tuples(st.just("turn"), st.integers(1, 4)),
    st.tuples(st.just("run"), st.integers(1, 30)),
    st.tuples(st.just("run"), st.integers(1, 30)),
    st.tuples(st.just("tick")),
    st.tuples(st.just("tick")),
    st.tuples(st.just("step"), st.integers(0, 5)),
    st.tuples(st.just("goal"), _POINTS, _POINTS),
    st.tuples(st.just("observe"), _POINTS, _POINTS),
    st.tuples(st.just("interrupt")),
    st.tuples(st.just("resume"), st.booleans()),
    st.tuples(st.just("snapshot"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("restore"), st.sampled_from(["a", "b", "home"])),
    st.tuples(st.just("reset"), st.none() | st.integers(0, 3)),
    st.tuples(st.just("rollback")),
    st.tuples(st.just("fork"), st.integers(1, 2)),
    st.tuples(st.just("branch"), st.integers(0, 3), st.integers(0, 4)),
    st.tuples(st.just("select"), st.integers(0, 3)),
)


def ask(rig: SlowRig, what: str, *arguments: Any) -> None:
    """Do one thing of a history."""
    engine = rig.engine
    branches = sorted(engine.core.branches)
    if what == "work":
        rig.work(*arguments)
    elif what == "turn":
        for _ in range(*arguments):
            rig.turn()
    elif what == "run":
        for _ in range(*arguments):
            rig.work(2)
            rig.turn()
    elif what == "tick":
        rig.tick()
    elif what == "step":
        rig.begin_step(*arguments)
    elif what in ("goal", "observe"):
        rig.write("goal" if what == "goal" else "observation", *arguments)
    elif what == "interrupt":
        rig.interrupt()
    elif what == "resume":
        engine.handle(protocol.Resume(7, 0, *arguments))
    elif what == "snapshot":
        rig.snapshot(*arguments)
    elif what == "restore":
        rig.restore(*arguments)
    elif what == "reset":
        rig.restore("home", reset=True, seed=arguments[0])
    elif what == "rollback":
        engine.handle(protocol.Rollback(1, 0, 1, ""))
    elif what == "fork":
        engine.handle(protocol.Fork(5, 0, "", arguments[0], ()))
    elif branches and what == "branch":
        rig.begin_step(arguments[1], branches[arguments[0] % len(branches)])
    elif branches:
        engine.handle(protocol.Select(1, 0, branches[arguments[0] % len(branches)], False))


@pytest.mark.parametrize("source", ["timer", "step"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replan_threshold": 2, "retarget": True, "rollback_every_ticks": 1},
        {"has_own_memory": True, "capsule_quota_bytes": 2 * BLOCK_BYTES},
        {"staged_channels": ("goal", "observation"), "num_standby_lanes": 0},
    ],
    ids=["plain", "ahead", "tiers", "staged"],
)
@settings(max_examples=60, deadline=None)
@given(order=st.integers(0, 99), asked=st.lists(_ASKED, max_size=60))
def test_histories(
    source: str, options: dict[str, Any], order: int, asked: list[tuple[Any, ...]]
) -> None:
    rig = SlowRig(**options)
    try:
        rig.backend.driver.random.seed(order)
        rig.start(source)
        rig.feed()
        for what in asked:
            with suppress(FlashrtError):
                ask(rig, *what)
        rig.finish()
        rig.check_counters()
    finally:
        rig.engine.close()
