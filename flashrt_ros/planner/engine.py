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
from flashrt_ros.engine.waits import EMBEDDED_WAIT_S, Done, Wait, Waits
from flashrt_ros.errors import (
    BusyError,
    DeviceLostError,
    FlashrtError,
    LoanError,
    UnknownChannelError,
    UnknownEnvironmentError,
    UnsupportedError,
)
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.planner.assembly import assemble
from flashrt_ros.planner.boundaries import Boundaries
from flashrt_ros.planner.config import PlannerConfig, PrefixText, parse_prefixes
from flashrt_ros.planner.core import TextEnvironment
from flashrt_ros.planner.describe import planner_info, planner_status
from flashrt_ros.planner.prefixes import PrefixLibrary
from flashrt_ros.planner.turns import Turns
from flashrt_ros.planner.verbs import TextVerbs
from flashrt_ros.planner.vocabulary import Tokenizer

_ROOM_S = 0.02
"""Longest that a node waits for room at a time; messages are served after it."""

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
        prefixes: What every text begins with, where the configuration names nothing.
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
        prefixes: tuple[PrefixText, ...] = (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._is_closed = False
        self.core, self._undo = assemble(model, tokenizer, config, clock_ns)
        try:
            boundaries = Boundaries(self.core)
            self._library = Library(self.core, boundaries)
            self._library.take_in_kept()
            parts = parse_prefixes(config.prefixes) or prefixes
            self.prefixes = PrefixLibrary(self.core, boundaries, parts)
            self._turns = Turns(self.core, boundaries, self.prefixes)
            self._verbs = TextVerbs(self.core, boundaries, self._turns)
            self._waits = Waits(self._carry_out, self.core.storage.mover, self._generation)
            self._is_prefix_due = False
            while self.prefixes.is_building:
                self._build()
        except BaseException:
            self._undo.close()
            raise
        self._next_env = 0
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
        environments = self.core.environments
        if not 0 <= env_index < len(environments):
            raise UnknownEnvironmentError(
                f"there is no environment {env_index}", expected=f"0 to {len(environments) - 1}"
            )
        return environments[env_index]

    # loop ----------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether :meth:`advance` would do something."""
        return self.prefixes.is_building or self._turns.next_env(self._next_env) is not None

    @property
    def is_waiting(self) -> bool:
        """Never: a node is complete when :meth:`advance` returns."""
        return False

    def advance(self) -> bool:
        """Run one plan node: of the prefix library and of each text in turn.

        Raises:
            DeviceLostError: Nothing can run any more.
        """
        env = self._turns.next_env(self._next_env)
        if self.prefixes.is_building and (env is None or self._is_prefix_due):
            self._is_prefix_due = False
            try:
                self._build()
            except DeviceLostError:
                raise
            except FlashrtError as error:
                self.prefixes.fail(error)
        elif env is not None:
            self._is_prefix_due = True
            self._next_env = env.env_index + 1
            self._turns.advance(env)
        return self.has_work

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
        return self._waits.background(self.core.config.move_slice_bytes)

    def _build(self) -> None:
        """Build on; where room has to be made first, make some."""
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
