"""An engine over a device that lags behind, and what must be true of it at every moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_ros.engine import assembly, protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.protocol import Event, OutputKind, Provenance
from flashrt_ros.errors import FlashrtError
from flashrt_ros.models.base import Buffers, Program, Slots
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.noise import draw_normal
from flashrt_ros.runtime.spec import ArenaLayout, ShapeKey

BLOCK_BYTES = ArenaLayout.of(MinimalPolicy().buffers()).capsule_bytes
PERIOD_NS = 100_000_000


class Memoryless(MinimalPolicy):
    """Chunks that follow from goal, observation and noise alone, so that they can be foretold."""

    name = "memoryless"

    def programs(self) -> dict[ShapeKey, Program]:
        return {**super().programs(), **dict.fromkeys(self.plan().steps, _step)}


def _step(buffers: Buffers, slots: Slots) -> None:
    pull = buffers["goal_latched"] - buffers["path"]
    buffers["path"].add_(0.3 * pull)


def foretell(
    goals: list[tuple[float, ...]], position: tuple[float, ...], draw: tuple[int, int]
) -> bytes:
    """Compute a chunk as the graphs do, each of its steps under a goal."""
    noise = torch.from_numpy(draw_normal(*draw, (8, 2)))
    path = torch.tensor(position) + 0.05 * noise
    for goal in goals:
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

    def __init__(
        self,
        create: Callable[..., Any],
        *,
        has_own_memory: bool = False,
        model: type[Memoryless] = Memoryless,
        links: Mapping[str, Any] | None = None,
        **options: object,
    ) -> None:
        self.now_ns = 1_000_000_000
        self.stamp_ns = 0
        self.backend = create(has_own_memory=has_own_memory)
        config = EngineConfig(model="minimal", **options)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(assembly, "make_backend", lambda device: self.backend)
            self.engine = Engine(model(), config, clock_ns=lambda: self.now_ns, **links or {})
        self.written: dict[tuple[str, int], tuple[float, ...]] = {}
        self._rings = {name: self.engine.open_writer(name, 0) for name in ("goal", "observation")}
        self._goals: list[int] = []
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

    def advance(self) -> bool:
        """Advance the engine, and note under which goal each step is made: a plan may bend."""
        plans = self.engine._ticks.plans
        before = plans._flight
        remains = self.engine.advance()
        flight = plans._flight
        if flight is not None and flight is not before:
            self._goals.clear()
        elif flight is not None and len(self._goals) < min(flight.run.index - 1, 3):
            self._goals.append(flight.origin.goal_sequence)
        return remains

    def turn(self) -> None:
        """Do what the server's loop does once."""
        if self.engine.has_work:
            self.advance()
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
        while self.advance() or self.engine.wait():
            pass
        self.backend.synchronize()

    def fly(self, nodes: int) -> None:
        """Have a chunk made as far as ``nodes`` nodes submitted, all but the last of them done."""
        self.write("observation", 0.1, 0.2)
        run = None
        while run is None or run.index < nodes:
            self.turn()
            flight = self.engine._ticks.plans._flight
            run = flight.run if flight else run
            if run is None or run.index < nodes:
                self.work(1)

    def empty(self) -> None:
        """Pop what is queued, and let the tick come that finds nothing."""
        while self.engine.environment(0).position.queue_remaining:
            self.tick()
            self.finish()
        self.tick()

    # what is true ------------------------------------------------------------------------

    def expected(self, made: Provenance) -> bytes:
        """Foretell the chunk that is published now."""
        position = self.engine.environment(0).position
        return foretell(
            [self.written["goal", sequence] for sequence in self._goals],
            self.written["observation", made.observation_sequence],
            (position.noise_seed, position.noise_counter - 1),
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
        driver, plan = self.backend.driver, self.backend.streams.plan.handle
        assert not driver.is_idle(plan)
        before = len(self.watcher.outputs)
        self.tick()
        while len(self.watcher.outputs) == before:
            driver.do_beside(plan)
            self.advance()
        assert self.kinds()[-1] == ("action", 2)

    def kinds(self) -> list[tuple[str, int]]:
        return [(kind.name.lower(), index) for kind, _, index in self.watcher.outputs]


@pytest.fixture(scope="session")
def memoryless() -> type[Memoryless]:
    """The model that rigs are over unless told otherwise."""
    return Memoryless


@pytest.fixture(scope="session")
def slow_rig(slow_backend: Callable[..., Any]) -> Callable[..., SlowRig]:
    """Makes rigs that the caller closes."""
    return lambda **options: SlowRig(slow_backend, **options)


@pytest.fixture
def make_slow(slow_rig: Callable[..., SlowRig]) -> Iterator[Callable[..., SlowRig]]:
    rigs: list[SlowRig] = []

    def make(**options: Any) -> SlowRig:
        rigs.append(slow_rig(**options))
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
