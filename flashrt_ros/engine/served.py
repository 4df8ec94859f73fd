"""What the server asks of an engine; imports without torch, so that a test can stand in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from flashrt_ros.engine.channels import WriterRing
from flashrt_ros.engine.protocol import (
    Event,
    Interrupt,
    Interrupted,
    ModelInfo,
    OutputKind,
    Provenance,
    Reply,
    Request,
    Step,
    Stepped,
)
from flashrt_ros.errors import FlashrtError

StepDone = Callable[[Stepped | FlashrtError], None]
"""Takes a step's answer; its ``rid`` does not count."""

Done = Callable[[Reply | FlashrtError], None]
"""Takes a verb's answer, once."""


class Sink(Protocol):
    """Takes what an engine gives away; called between plan nodes, never blocks or raises."""

    def output(self, kind: OutputKind, provenance: Provenance, index: int, payload: bytes) -> None:
        """Take an action or chunk of an environment."""

    def event(self, event: Event) -> None:
        """Take an event."""


class ServedEngine(Protocol):
    """The methods of ``engine.Engine`` that the server calls, on its one thread.

    Every method returns at once. Refusals are ``FlashrtError`` and change nothing.
    """

    @property
    def epoch(self) -> int:
        """Number that no other engine has."""

    @property
    def info(self) -> ModelInfo:
        """What a client is told at the handshake."""

    @property
    def sink(self) -> Sink:
        """Where outputs and events go."""

    @sink.setter
    def sink(self, sink: Sink | None) -> None: ...

    @property
    def has_work(self) -> bool:
        """Whether :meth:`advance` would do something."""

    @property
    def is_waiting(self) -> bool:
        """Whether something is under way on the device: ask :attr:`has_work` again soon."""

    def open_writer(self, channel: str, env_index: int) -> WriterRing:
        """Give a writer a ring of its own."""

    def close_writer(self, ring: WriterRing) -> None:
        """Take a ring back, with its loan."""

    def loan(self, ring: WriterRing) -> tuple[int, int, int]:
        """Loan a slot; returns ``(slot, ticket, generation)``."""

    def commit(
        self,
        ring: WriterRing,
        slot: int,
        ticket: int,
        *,
        stamp_ns: int,
        source_sequence: int,
        lifetime_ns: int = 0,
    ) -> int:
        """Take a loaned slot over; returns its sequence."""

    def return_loan(self, ring: WriterRing, slot: int, ticket: int) -> None:
        """Take a loaned slot back unused."""

    def handle(self, request: Request) -> Reply:
        """Carry out a verb that answers at once."""

    def begin(self, request: Request, done: Done) -> Any:
        """Carry out a verb; ``done`` is called once, maybe at once; returns a handle or None."""

    def cancel(self, wait: Any) -> None:
        """Forget a verb whose caller is gone."""

    def interrupt(self, request: Interrupt, ring: WriterRing | None) -> Interrupted:
        """Interrupt an environment, taking a goal over in the same instant."""

    def begin_step(self, request: Step, done: StepDone) -> Any:
        """Queue a step; returns a handle. ``done`` is called once, maybe at once."""

    def cancel_step(self, job: Any) -> None:
        """Forget a step whose caller is gone."""

    def next_deadline_ns(self) -> int | None:
        """When :meth:`on_deadline` is due next, CLOCK_MONOTONIC; None for never."""

    def on_deadline(self, now_ns: int) -> None:
        """Do what is due; missed ticks are skipped and counted."""

    def advance(self) -> bool:
        """Submit one plan node; True while work remains."""

    def next_background_ns(self) -> int | None:
        """When :meth:`background` has something to do; None for never."""

    def background(self, now_ns: int) -> bool:
        """Do one slice of work that can wait; True while some remains."""


class FillingEngine(ServedEngine, Protocol):
    """An engine without deadlines, whose nodes can run in the slack between those of others."""

    @property
    def next_node(self) -> str:
        """Kind of the node that :meth:`advance` would submit; "" where it takes one in."""

    def note_shortage(self, needs_ns: int, found_ns: int) -> None:
        """Take notice that a kind of node does not fit in the slack; 0 and 0 once all do again.

        Args:
            needs_ns: What the next node needs, reserve included, ns.
            found_ns: Most that it found, ns.
        """
