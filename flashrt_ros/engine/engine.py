"""The engine: a model's captured graphs, its environments, and what may be asked of them.

It knows no process and no socket: tests, notebooks and trainers run it embedded,
``server`` runs it behind a socket. One thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType

from flashrt_ros.engine import protocol
from flashrt_ros.engine.assembly import assemble
from flashrt_ros.engine.branches import Branches
from flashrt_ros.engine.channels import WriterRing
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.core import Core, NullSink
from flashrt_ros.engine.describe import model_info
from flashrt_ros.engine.jobs import StepDone, StepJob, max_step_count
from flashrt_ros.engine.library import Library
from flashrt_ros.engine.moves import Moves
from flashrt_ros.engine.outlet import Outlet
from flashrt_ros.engine.requests import Requests
from flashrt_ros.engine.served import Sink
from flashrt_ros.engine.shared import SharedChannel
from flashrt_ros.engine.ticks import Ticks
from flashrt_ros.engine.timeline import ENVIRONMENT, Environment, Timeline, environment_of
from flashrt_ros.engine.verbs import Verbs
from flashrt_ros.engine.waits import Done, Wait, Waits
from flashrt_ros.errors import (
    AbandonedError,
    FlashrtError,
    PayloadRangeError,
    UnknownChannelError,
)
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.graph import GraphSet


class Engine:
    """Owner of lanes, graphs, channels and capsules of one model.

    Construction captures every graph, which takes the time of a few eager runs.
    Every method returns at once, or raises and leaves the state as it was. The intra-op
    thread count of the whole process is set to ``config.num_threads``: it decides the
    bytes, so a plan is refused while another one is in force.

    Args:
        model: Read-only from here on; shared by all lanes.
        config: Validated by itself; checked against the model here.
        clock_ns: Monotonic clock, ns.
        shared: Channels that other engines of the process read too, by the model's name of
            them; they outlive the engine. See ``SharedChannel``.
        feeds: Outlets of other models that feed goal channels too, by the model's name of
            them, each of an engine on the same device; see :meth:`outlet`.

    Raises:
        ConfigError: The configuration, or a shared channel, does not fit the model.
        CaptureError: A program can't be captured.
        SpecError: The model's declarations are inconsistent.
    """

    def __init__(
        self,
        model: PolicyModel,
        config: EngineConfig,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        shared: Mapping[str, SharedChannel] | None = None,
        feeds: Mapping[str, Outlet] | None = None,
    ) -> None:
        self.core, graphs, arena = assemble(model, config, clock_ns, shared or {}, feeds or {})
        self._owned = _closed_in_order(self.core, graphs, arena)
        self.core.latches.on_goal = self.core.announce_goal
        self._ticks = Ticks(
            self.core,
            lambda env: self._verbs.note_chunk(env),
            lambda env: self._verbs.note_tick(env),
        )
        self.core.latches.on_commit = self._ticks.wake
        moves = Moves(self.core, self._ticks)
        self._branches = Branches(self.core, self._ticks, moves)
        self._verbs = Verbs(self.core, self._ticks, moves)
        library = Library(self.core, moves)
        requests = Requests(
            self.core, graphs, self._ticks, moves, self._branches, self._verbs, library
        )
        self._waits = Waits(requests.carry_out, self.core.storage.mover, self._generation)
        try:
            library.take_in_kept()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # facts -------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Number that no other engine has."""
        return self.core.epoch

    @property
    def sink(self) -> Sink:
        """Where outputs and events go."""
        return self.core.sink

    @sink.setter
    def sink(self, sink: Sink | None) -> None:
        self.core.sink = sink if sink is not None else NullSink()

    @property
    def info(self) -> protocol.ModelInfo:
        """What a client is told at the handshake."""
        return model_info(self.core)

    def environment(self, env_index: int) -> Environment:
        """Return an environment.

        Raises:
            UnknownEnvironmentError: There is none of this index.
        """
        return environment_of(self.core.environments, env_index)

    def outlet(self, name: str) -> Outlet:
        """Return what the model's plans leave for other models, for their ``feeds``.

        A plan of environment ``i`` offers it to environment ``i`` of each, once the device is
        done with it. Engines that are fed may outlive this one.

        Raises:
            UnknownChannelError: The model has no such outlet.
        """
        try:
            return self.core.outlets[name]
        except KeyError:
            raise UnknownChannelError(
                f"the model has no outlet '{name}'",
                expected=", ".join(self.core.outlets) or "none",
            ) from None

    # slots -------------------------------------------------------------------------------

    def open_writer(self, channel: str, env_index: int) -> WriterRing:
        """Give a writer a ring of its own; see ``Latches.open_writer``."""
        self.environment(env_index)
        return self.core.latches.open_writer(channel, env_index)

    def close_writer(self, ring: WriterRing) -> None:
        """Take a ring back, with its loan; what it committed stays handed over."""
        self.core.latches.close_writer(ring)

    def loan(self, ring: WriterRing) -> tuple[int, int, int]:
        """Loan a slot; returns ``(slot, ticket, generation)``; see ``Latches.loan``."""
        generation = self.core.environments[ring.env_index].generation
        slot, ticket = self.core.latches.loan(ring, generation)
        return slot, ticket, generation

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
        """Take a slot over as its channel's newest and return its sequence; see ``Latches.commit``.

        Steps that waited for it become ready.
        """
        sequence = self.core.latches.commit(
            ring,
            slot,
            ticket,
            stamp_ns=stamp_ns,
            source_sequence=source_sequence,
            lifetime_ns=lifetime_ns,
            now_ns=self.core.clock_ns(),
        )
        self._ticks.wake()
        return sequence

    def return_loan(self, ring: WriterRing, slot: int, ticket: int) -> None:
        """Take a slot back unused.

        Raises:
            LoanError: It is not on loan to this writer.
        """
        ring.return_loan(slot, ticket)

    # loop --------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """Return when :meth:`on_deadline` is due next, None when nothing is scheduled."""
        return self._ticks.next_deadline_ns()

    def on_deadline(self, now_ns: int) -> None:
        """Start the ticks that are due; expire steps that waited too long."""
        self._ticks.on_deadline(now_ns)

    @property
    def has_work(self) -> bool:
        """Tell whether :meth:`advance` would do something."""
        return self._ticks.plans.has_work

    @property
    def is_waiting(self) -> bool:
        """Tell whether something is under way on the device: ask :attr:`has_work` again soon."""
        return self._ticks.plans.is_waiting

    def advance(self) -> bool:
        """Submit one plan node, or take in what is done; returns whether work remains."""
        return self._ticks.plans.advance()

    def wait(self) -> bool:
        """Return when the device has come further; False when nothing is under way on it.

        For embedded use: ``while engine.advance() or engine.wait()`` runs all that is due.
        """
        return self._ticks.plans.wait()

    def next_background_ns(self) -> int | None:
        """Return when :meth:`background` has something to do, None for never."""
        refill_ns, move_ns = self.core.pool.next_refill_ns(), self.core.storage.mover.next_ns()
        if refill_ns is None or (move_ns is not None and move_ns < refill_ns):
            return move_ns
        return refill_ns

    def background(self, now_ns: int) -> bool:
        """Move a slice between lanes or tiers, unless a tick is near; True while work remains."""
        deadline = self.next_deadline_ns()
        reserve_ns = self.core.config.poll_reserve_us * 1000
        if deadline is not None and deadline - now_ns < reserve_ns:
            return True
        slice_bytes = self.core.config.refill_slice_bytes
        if self.core.pool.refill(now_ns, slice_bytes):
            return True
        return self._waits.background(slice_bytes)

    # verbs -------------------------------------------------------------------------------

    def handle(self, request: protocol.Request) -> protocol.Reply:
        """Carry out a verb to its end, however long it waits for bytes; for embedded use.

        Raises:
            FlashrtError: The verb was refused; nothing changed.
        """
        return self._waits.finish(request)

    def begin(self, request: protocol.Request, done: Done) -> Wait | None:
        """Carry out a verb; ``done`` gets its answer, at once where no bytes are waited for.

        Returns:
            What :meth:`cancel` takes while it waits, or None.

        Raises:
            FlashrtError: The verb was refused; nothing changed.
        """
        return self._waits.begin(request, done)

    def cancel(self, wait: Wait) -> None:
        """Forget a verb whose caller is gone."""
        self._waits.cancel(wait)

    def interrupt(
        self, request: protocol.Interrupt, ring: WriterRing | None = None
    ) -> protocol.Interrupted:
        """Interrupt an environment, taking a goal over from ``ring`` in the same instant.

        The chunk under that goal is begun at once, not with the next tick.
        """
        env = self.environment(request.env_index)
        reply = self._verbs.interrupt(env, request, ring)
        self._waits.overtake(request.env_index)
        if request.commit is not None:
            # without one, a goal that is on its way would come too late for this chunk
            self._ticks.hasten(env)
        self._ticks.wake()
        return reply

    def begin_step(self, request: protocol.Step, done: StepDone) -> StepJob:
        """Queue a step; ``done`` gets its answer from a later advance or deadline.

        Raises:
            FlashrtError: The step was refused; see ``Ticks.begin_step``.
        """
        env = self.environment(request.env_index)
        timeline: Timeline = env
        if request.branch != ENVIRONMENT:
            timeline = self._branches.get(request.branch, env.env_index)
        model, config = self.core.model, self.core.config
        threshold = model.execute_horizon if config.replan_on_goal else config.replan_threshold
        most = max_step_count(model, threshold)
        if not 0 <= request.count <= most:
            raise PayloadRangeError(
                "a step can't run this many ticks",
                expected=f"0 to {most}, so that the answer fits a message",
                found=request.count,
            )
        return self._ticks.begin_step(timeline, request, self.core.clock_ns(), done)

    def cancel_step(self, job: StepJob) -> None:
        """Forget a step whose caller is gone."""
        self._ticks.cancel(job)

    def step(self, request: protocol.Step) -> protocol.Stepped:
        """Run a step to its end; for embedded use.

        Raises:
            FlashrtError: The step was refused, or what it waits for is not there.
        """
        answers: list[protocol.Stepped | FlashrtError] = []
        job = self.begin_step(request, answers.append)
        while not answers and (self.advance() or self.wait()):
            pass
        if not answers:
            self.cancel_step(job)
            raise AbandonedError(
                "an embedded step can't wait",
                expected="goal and observation committed before",
                found=f"waiting for {self._ticks.lacks(job) or 'a newer observation'}",
            )
        answer = answers[0]
        if isinstance(answer, FlashrtError):
            raise answer
        return answer

    def close(self) -> None:
        """Free everything, whatever is under way; idempotent.

        Files that were asked for are written first. What fails keeps nothing else open.
        """
        self.core.environments.clear()
        self.core.branches.clear()
        self._owned.close()

    def _generation(self, env_index: int) -> int:
        environments = self.core.environments
        return environments[env_index].generation if 0 <= env_index < len(environments) else 0


def _closed_in_order(core: Core, graphs: GraphSet, arena: Arena) -> ExitStack:
    """Gather what an engine owns; memory goes after the graphs that read it."""
    owned = ExitStack()
    owned.callback(core.backend.close)
    owned.callback(core.latches.close)
    for outlet in core.outlets.values():
        owned.callback(outlet.close)
    owned.callback(arena.close)
    owned.callback(core.seams.close)
    owned.callback(core.storage.close)
    if core.noise is not None:
        owned.callback(core.noise.close)
    owned.callback(graphs.close)
    return owned
