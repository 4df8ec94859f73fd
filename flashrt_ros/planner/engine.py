"""The planner engine: texts, their turns, and what may be asked of them.

It is served like any engine, by ``engine.server``, or runs embedded. One thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from flashrt_ros.capsule.room import NotYet
from flashrt_ros.engine import protocol
from flashrt_ros.engine.channels import WriterRing
from flashrt_ros.engine.core import NullSink
from flashrt_ros.engine.library import Library
from flashrt_ros.engine.served import Sink, StepDone
from flashrt_ros.engine.timeline import environment_of
from flashrt_ros.engine.waits import EMBEDDED_WAIT_S, Done, Wait, Waits
from flashrt_ros.errors import (
    BusyError,
    FlashrtError,
    LoanError,
    UnknownChannelError,
    UnsupportedError,
)
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.planner.assembly import assemble
from flashrt_ros.planner.boundaries import Boundaries
from flashrt_ros.planner.config import NO_HABITS, Habits, PlannerConfig
from flashrt_ros.planner.core import TextEnvironment
from flashrt_ros.planner.describe import planner_info, planner_status
from flashrt_ros.planner.plan_nodes import PlanNodes
from flashrt_ros.planner.prefixes import PrefixLibrary
from flashrt_ros.planner.turns import Turns
from flashrt_ros.planner.verbs import TextVerbs
from flashrt_ros.planner.vocabulary import Tokenizer

_ROOM_S = 0.02
"""Longest wait at a time for room or bytes, where there is no loop to delay."""

_DEFERRED = (protocol.Instruct, protocol.ResumeTurn, protocol.SetPrefix)


class PlannerEngine:
    """Owner of lanes, graphs, capsules and prefixes of one language model.

    Construction captures every graph and builds every prefix that no capsule of before
    holds. The loop runs one plan node at a time, which is a prefill chunk or a token, so
    that a message is served between any two.

    Args:
        model: Read-only from here on; shared by all lanes.
        tokenizer: Of the model.
        config: Validated by itself; checked against the model here.
        habits: What holds for the model where the configuration says nothing.
        is_background: Whether its work on a device gives way to that of others.
        clock_ns: Monotonic clock, ns.

    Raises:
        ConfigError: The configuration does not fit model or tokenizer.
        PayloadShapeError: The prefixes don't fit in the arena.
        PayloadRangeError: The tokenizer lacks a part of a prefix.
        CaptureError: A program can't be captured.
        CapsuleFolderError: The folder for capsule files can't be used.
    """

    def __init__(
        self,
        model: HybridLm,
        tokenizer: Tokenizer,
        config: PlannerConfig,
        *,
        habits: Habits = NO_HABITS,
        is_background: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._is_closed = False
        self.core, self._undo = assemble(
            model, tokenizer, config, clock_ns, habits=habits, is_background=is_background
        )
        try:
            boundaries = Boundaries(self.core)
            self._library = Library(self.core, boundaries)
            self._library.take_in_kept()
            self.prefixes = PrefixLibrary(self.core, boundaries, self.core.habits.prefixes)
            self._turns = Turns(self.core, boundaries, self.prefixes)
            self._verbs = TextVerbs(self.core, boundaries, self._turns)
            self._waits = Waits(self._carry_out, self.core.storage.mover, self._generation)
            self._nodes = PlanNodes(self.core, self.prefixes, self._turns)
            self._build_prefixes()
        except BaseException:
            self._undo.close()
            raise
        handlers: dict[type, Callable[..., protocol.Reply]] = {
            protocol.Activate: self._where,
            protocol.Deactivate: self._deactivate,
            protocol.ListCapsules: self._library.find,
            protocol.Collect: self._library.collect,
            protocol.GetFingerprint: self._library.fingerprint,
            protocol.GetStatus: self._status,
        }
        self._handlers = handlers

    def __enter__(self) -> PlannerEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # facts ---------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Number that no other engine has."""
        return self.core.epoch

    @property
    def sink(self) -> Sink:
        """Where events go."""
        return self.core.sink

    @sink.setter
    def sink(self, sink: Sink | None) -> None:
        self.core.sink = sink if sink is not None else NullSink()

    @property
    def info(self) -> protocol.ModelInfo:
        """What a client is told at the handshake."""
        return planner_info(self.core)

    def environment(self, env_index: int) -> TextEnvironment:
        """Return an environment.

        Raises:
            UnknownEnvironmentError: There is none of this index.
        """
        return environment_of(self.core.environments, env_index)

    # loop ----------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether :meth:`advance` would do something."""
        return self._nodes.has_work

    @property
    def is_waiting(self) -> bool:
        """Whether a node is under way on the device: ask :attr:`has_work` again soon."""
        return self._nodes.is_waiting

    @property
    def next_node(self) -> str:
        """Kind of the node that :meth:`advance` would submit; "" where it takes one in."""
        return self._nodes.next_kind

    def advance(self) -> bool:
        """Submit one plan node, or take in the one that is done; returns whether work remains.

        It is one of the prefix library, or of each text in turn.

        Raises:
            DeviceLostError: Nothing can run any more.
        """
        if self._nodes.is_held_up:
            # the loop has no time for it while other texts have work
            self.background(self.core.clock_ns())
        self._nodes.advance()
        return self._nodes.has_work

    def wait(self) -> bool:
        """Return when the device has come further; False when nothing is under way on it.

        For embedded use: ``while engine.advance() or engine.wait()`` runs all that is due.
        """
        return self._nodes.wait()

    def rehearse(self) -> dict[str, int]:
        """Run a few plan nodes alone and return what each kind took, ns; before it is served."""
        return self._nodes.rehearse()

    def note_shortage(self, needs_ns: int, found_ns: int) -> None:
        """Publish that a kind of node does not fit between others' deadlines, or that all do again.

        Args:
            needs_ns: What the next node needs, ns; 0 where all fit again.
            found_ns: Most that it found, ns.
        """
        self._turns.tell_shortage(needs_ns, found_ns)

    def next_deadline_ns(self) -> int | None:
        """Return None: nothing is scheduled."""
        return None

    def on_deadline(self, now_ns: int) -> None:
        """Do nothing."""

    def next_background_ns(self) -> int | None:
        """Return when :meth:`background` has something to do, None for never."""
        return self.core.storage.mover.next_ns()

    def background(self, now_ns: int) -> bool:
        """Move a slice between tiers; True while work remains."""
        has_more = self._waits.background(self.core.config.move_slice_bytes)
        self._nodes.try_again()
        return has_more

    def _build_prefixes(self) -> None:
        """Build every prefix, before there is a loop to delay.

        Raises:
            FlashrtError: One can't be built.
        """
        while self.prefixes.is_building:
            try:
                self.prefixes.advance()
            except NotYet:
                self.core.storage.mover.wait(_ROOM_S)

    # verbs ---------------------------------------------------------------------------------

    def handle(self, request: protocol.Request) -> protocol.Reply:
        """Carry out a request to its end, turns included; for embedded use.

        Raises:
            FlashrtError: It was refused, and nothing changed; or its turn failed.
        """
        if not isinstance(request, _DEFERRED):
            return self._waits.finish(request)
        answers: list[protocol.Reply | FlashrtError] = []
        wait = self.begin(request, answers.append)
        expires_ns = time.monotonic_ns() + round(EMBEDDED_WAIT_S * 1e9)
        while not answers:
            if self.has_work:
                self.advance()
                continue
            if self.wait():
                continue
            self.background(self.core.clock_ns())
            if time.monotonic_ns() > expires_ns:
                self.cancel(wait)
                raise BusyError(
                    f"{type(request).__name__} waits for a capsule that does not come",
                    expected=f"its bytes within {EMBEDDED_WAIT_S} s",
                )
        if isinstance(answers[0], FlashrtError):
            raise answers[0]
        return answers[0]

    def begin(self, request: protocol.Request, done: Done) -> Wait | Done | None:
        """Carry out a request; ``done`` gets its answer, at once or when its turn has ended.

        Returns:
            What :meth:`cancel` takes.

        Raises:
            FlashrtError: The request was refused; nothing changed.
        """
        return self._waits.begin(request, done) or done

    def cancel(self, wait: Wait | Done | None) -> None:
        """Forget a request whose caller is gone; a turn that it waited for is cancelled."""
        done = wait
        if isinstance(wait, Wait):
            self._waits.cancel(wait)
            done = wait.done
        for env in self.core.environments:
            if env.turn is not None and env.turn.done is not None and env.turn.done is done:
                env.turn.done = None  # nobody is there to be told
                self._turns.abandon(env, "its caller is gone")

    def interrupt(
        self, request: protocol.Interrupt, ring: WriterRing | None = None
    ) -> protocol.Interrupted:
        """Interrupt the turn under way; it can be resumed.

        Raises:
            NotActiveError: No turn is under way.
            InterruptDepthError: The stack is full.
            UnsupportedError: The request has a goal.
        """
        reply = self._verbs.interrupt(self.environment(request.env_index), request)
        self._waits.overtake(request.env_index)
        return reply

    def close(self) -> None:
        """Free everything. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._nodes.close()
        for env in self.core.environments:
            for turn in (env.turn, *(unfinished.turn for unfinished in env.unfinished)):
                if turn is not None:
                    turn.close()
        self._undo.close()

    def _carry_out(self, request: protocol.Request, done: Done) -> None:
        if isinstance(request, protocol.SetPrefix):
            self.prefixes.replace(request.name, request.text, request.rid, done)
            return
        if type(request) in self._handlers:
            done(self._handlers[type(request)](request))
            return
        env = self.environment(getattr(request, "env_index", 0))
        if isinstance(request, protocol.Instruct):
            self._turns.instruct(env, request, done)
        elif isinstance(request, protocol.ResumeTurn):
            self._turns.resume(env, done, rid=request.rid, is_waited=request.wait)
        elif isinstance(request, protocol.Save):
            self._library.save(env, request, done)
        elif isinstance(request, protocol.Load):
            self._library.load(env, request, done)
        else:
            done(self._verbs.carry_out(env, request))

    def _generation(self, env_index: int) -> int:
        environments = self.core.environments
        return environments[env_index].generation if 0 <= env_index < len(environments) else 0

    def _where(self, request: protocol.Activate) -> protocol.Moved:
        return self._verbs.where(self.environment(request.env_index), request.rid)

    def _deactivate(self, request: protocol.Deactivate) -> protocol.Moved:
        env = self.environment(request.env_index)
        self._turns.abandon(env, "deactivated")
        return self._verbs.where(env, request.rid)

    def _status(self, request: protocol.GetStatus) -> protocol.Status:
        env = self.environment(request.env_index)
        return planner_status(self.core, env, request.rid)

    # what a policy's engine has --------------------------------------------------------------

    def open_writer(self, channel: str, env_index: int) -> WriterRing:
        """Refuse: instructions are no slots.

        Raises:
            UnknownChannelError: Always.
        """
        raise UnknownChannelError(
            f"a planner engine takes nothing on channel '{channel}'",
            fix="send an instruction; write goals to the policy's engine",
        )

    def close_writer(self, ring: WriterRing) -> None:
        """Do nothing: there are none."""

    def loan(self, ring: WriterRing) -> tuple[int, int, int]:
        """Refuse; see :meth:`open_writer`."""
        raise LoanError("a planner engine has no writers")

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
        """Refuse; see :meth:`open_writer`."""
        raise LoanError("a planner engine has no writers")

    def return_loan(self, ring: WriterRing, slot: int, ticket: int) -> None:
        """Refuse; see :meth:`open_writer`."""
        raise LoanError("a planner engine has no writers")

    def begin_step(self, request: protocol.Step, done: StepDone) -> None:
        """Refuse: a planner has no ticks.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError("a planner engine can't step", fix="send an instruction")

    def cancel_step(self, job: None) -> None:
        """Do nothing: there are none."""
