"""An embedded engine over the minimal policy, with a clock that only moves when told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.embedded import EmbeddedWriter
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.protocol import Event, OutputKind, Provenance
from flashrt_ros.models.minimal import MinimalPolicy


@dataclass
class Recorder:
    """Keeps what an engine published."""

    outputs: list[tuple[OutputKind, Provenance, int, bytes]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def output(self, kind: OutputKind, provenance: Provenance, index: int, payload: bytes) -> None:
        self.outputs.append((kind, provenance, index, payload))

    def event(self, event: Event) -> None:
        self.events.append(event)


class Rig:
    """An engine, its two writers and its clock."""

    def __init__(self, **options: object) -> None:
        self.now_ns = 1_000_000_000
        config = EngineConfig(model="minimal", test_hooks=True, **options)  # type: ignore[arg-type]
        self.engine = Engine(MinimalPolicy(), config, clock_ns=lambda: self.now_ns)
        self.recorder = Recorder()
        self.engine.sink = self.recorder
        self.goals = EmbeddedWriter(self.engine, "goal")
        self.observations = EmbeddedWriter(self.engine, "observation")
        self.stamp_ns = 0

    def goal(self, x: float, y: float, **more: int) -> int:
        """Commit a goal."""
        self.stamp_ns += 1
        stamp_ns = more.pop("stamp_ns", self.stamp_ns)
        return self.goals.write(stamp_ns=stamp_ns, values=[x, y], **more)

    def observe(self, x: float, y: float, stamp_ns: int | None = None) -> int:
        """Commit an observation."""
        self.stamp_ns += 1
        stamp_ns = self.stamp_ns if stamp_ns is None else stamp_ns
        return self.observations.write(stamp_ns=stamp_ns, position=[x, y])

    def start(self, tick_source: str = "step", rate_hz: float = 10.0) -> protocol.Moved:
        """Activate environment 0."""
        moved = self.engine.handle(protocol.Activate(1, 0, tick_source, rate_hz))
        assert isinstance(moved, protocol.Moved)
        return moved

    def ready(self) -> None:
        """Activate, with a goal and an observation."""
        self.start()
        self.goal(0.5, -0.5)
        self.observe(0.1, 0.2)

    def step(self, count: int = 1, branch: int = -1, min_stamp_ns: int = 0) -> protocol.Stepped:
        """Run ticks to their end."""
        return self.engine.step(protocol.Step(2, 0, count, branch, min_stamp_ns, 0))

    def snapshot(self, name: str = "", **more: object) -> protocol.CapsuleInfo:
        """Freeze the boundary."""
        options = {"labels": (), "pinned": False, "replace": False, "align_down": False, **more}
        request = protocol.Snapshot(rid=3, env_index=0, name=name, **options)  # type: ignore[arg-type]
        reply = self.engine.handle(request)
        assert isinstance(reply, protocol.CapsuleReply)
        return reply.capsule

    def restore(self, capsule: str, **more: object) -> protocol.Moved:
        """Bring a capsule back."""
        options = {
            "keep_goal": False,
            "seed": None,
            "reset": False,
            "episode_id": "",
            "stamp_ns": 0,
            **more,
        }
        request = protocol.Restore(rid=4, env_index=0, capsule=capsule, **options)  # type: ignore[arg-type]
        reply = self.engine.handle(request)
        assert isinstance(reply, protocol.Moved)
        return reply

    def reset(self, **more: object) -> protocol.Moved:
        """Reset the episode."""
        return self.restore("home", reset=True, **more)

    def fork(
        self, capsule: str = "", count: int = 2, seeds: tuple[int, ...] = ()
    ) -> protocol.Forked:
        """Fork branches."""
        reply = self.engine.handle(protocol.Fork(5, 0, capsule, count, seeds))
        assert isinstance(reply, protocol.Forked)
        return reply

    def interrupt(self, *, hold: bool = False) -> protocol.Interrupted:
        """Interrupt without a goal."""
        return self.engine.interrupt(protocol.Interrupt(6, 0, "test", hold, None))

    def resume(self, *, keep_goal: bool = False) -> protocol.Moved:
        """Resume the top of the stack."""
        reply = self.engine.handle(protocol.Resume(7, 0, keep_goal))
        assert isinstance(reply, protocol.Moved)
        return reply

    def inspect(self) -> protocol.Inspection:
        """Ask for digests and addresses."""
        reply = self.engine.handle(protocol.Inspect(8, 0))
        assert isinstance(reply, protocol.Inspection)
        return reply

    def status(self) -> protocol.Status:
        """Ask for the status."""
        reply = self.engine.handle(protocol.GetStatus(9, 0))
        assert isinstance(reply, protocol.Status)
        return reply

    def state(self) -> bytes:
        """Copy STATE and INPUT out."""
        core = self.engine.core
        return core.read_section(core.environments[0].lane)

    def settle(self) -> None:
        """Refill every standby lane."""
        self.now_ns += 10_000_000
        while self.engine.background(self.now_ns):
            pass

    def run(self, until_ns: int) -> None:
        """Let the clock pass the timer's deadlines, one after the other."""
        while (deadline := self.engine.next_deadline_ns()) is not None and deadline <= until_ns:
            self.now_ns = deadline
            self.engine.on_deadline(self.now_ns)
            self.drain()
        self.now_ns = until_ns

    def finish(self, answers: list[Any]) -> Any:
        """Do background work until a verb is answered; the wait for the disk is real."""
        mover = self.engine.core.storage.mover
        expires = time.monotonic() + 60.0
        while not answers:
            assert mover.next_ns() is not None, "nothing moves and nothing was answered"
            assert time.monotonic() < expires, "no answer"
            self.engine.background(self.now_ns)
            self.now_ns += 1_000_000
            time.sleep(0)  # who reads and writes the files is a thread of this process
        return answers[0]

    def drain(self) -> None:
        """Run all that is due to its end."""
        while self.engine.advance() or self.engine.wait():
            pass

    def take_in(self) -> None:
        """Publish the actions under way; submits nothing."""
        self.engine.core.backend.synchronize()
        self.engine._ticks.plans._land_pops()

    def advance(self) -> None:
        """Submit one node, once it may be."""
        while not self.engine.has_work and self.engine.wait():
            pass
        self.engine.advance()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where the engine runs."""
    name: str = request.param
    return name


@pytest.fixture
def make_rig(device: str) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(**options: object) -> Rig:
        rigs.append(Rig(device=device, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.engine.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """An engine with a goal and an observation, to be stepped."""
    made = make_rig()
    made.ready()
    return made
