"""The engine's verbs as typed methods; imports without torch."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from flashrt_ros.engine import protocol
from flashrt_ros.engine.writer import Prepared
from flashrt_ros.errors import StaleGenerationError

_Reply = TypeVar("_Reply", bound=msgspec.Struct)

_PAGE = 64


class Calls(abc.ABC):
    """Every verb that asks and gets one answer.

    Each call sends one message and waits for its reply. Beside what a method names,
    all raise EngineGoneError when the connection has ended or no answer comes in time,
    and UnknownEnvironmentError for an ``env_index`` that is not there. A refused verb
    leaves the engine as it was.
    """

    @abc.abstractmethod
    def call(
        self, request: protocol.Request, kind: type[_Reply], *, timeout_s: float | None = None
    ) -> _Reply:
        """Send a request, with a ``rid`` of the client's choice, and wait for its answer.

        Args:
            request: Its ``rid`` is replaced.
            kind: The reply to expect.
            timeout_s: How long to wait; None for the client's own.

        Raises:
            FlashrtError: The engine refused, as the class that its code names.
            ProtocolError: Another kind of reply came.
        """

    # ticking ---------------------------------------------------------------------------------

    def ping(self) -> None:
        """Ask for an empty answer."""
        self.call(protocol.Ping(0), protocol.Ack)

    def activate(
        self, *, env_index: int = 0, tick_source: str = "timer", rate_hz: float = 10.0
    ) -> protocol.Moved:
        """Start ticking; takes the capsule ``home`` when there is none.

        Args:
            env_index: Environment.
            tick_source: "timer" or "step".
            rate_hz: Control ticks a second, for "timer".
        """
        return self.call(protocol.Activate(0, env_index, tick_source, rate_hz), protocol.Moved)

    def deactivate(self, *, env_index: int = 0) -> protocol.Moved:
        """Stop ticking at the next boundary."""
        return self.call(protocol.Deactivate(0, env_index), protocol.Moved)

    def step(
        self,
        count: int = 1,
        *,
        env_index: int = 0,
        branch: int = -1,
        min_observation_stamp_ns: int = 0,
        timeout_ns: int = 5_000_000_000,
    ) -> protocol.Stepped:
        """Run ticks of the environment, or of a branch, and return what they made.

        Args:
            count: Ticks; 0 makes the chunk that is due and pops nothing.
            env_index: Environment.
            branch: A branch, or -1 for the environment, whose tick source must be "step".
            min_observation_stamp_ns: Wait for an observation not older than this.
            timeout_ns: How long to wait for it.

        Raises:
            NotActiveError: The environment is not active.
            TickSourceError: A timer ticks it.
            BusyError: A step of it is under way.
            StepTimeoutError: What it waits for did not come in time.
            AbandonedError: A reset, restore or interrupt ended it.
            BranchNotFoundError: No such branch.
        """
        request = protocol.Step(0, env_index, count, branch, min_observation_stamp_ns, timeout_ns)
        # The engine answers in time by itself; the plans it runs come on top.
        return self.call(request, protocol.Stepped, timeout_s=timeout_ns / 1e9 + 60.0)

    def interrupt(
        self,
        *,
        env_index: int = 0,
        reason: str = "",
        hold: bool = False,
        goal: Prepared | None = None,
    ) -> protocol.Interrupted:
        """Abandon the plan in flight and stack its boundary.

        Args:
            env_index: Environment.
            reason: For people; part of the event.
            hold: Stop ticking until a resume, or until a goal comes.
            goal: Handed over in the same instant, from ``Writer.prepare`` of this
                client's writer. Its slot is not on loan afterwards, whatever happens. A
                loan that a reset, restore or interrupt made stale is replaced once.

        Raises:
            InterruptDepthError: The stack is full.
            LoanError: The goal's slot is not on loan, or is no goal's of this environment.
            StaleGenerationError: A second reset came between.
            StaleStampError: The goal is older than the last reset.
        """
        if goal is None:
            request = protocol.Interrupt(0, env_index, reason, hold, None)
            return self.call(request, protocol.Interrupted)
        try:
            return self._interrupt(env_index, reason, hold, goal)
        except StaleGenerationError:
            return self._interrupt(env_index, reason, hold, goal.writer.renew(goal))

    def _interrupt(
        self, env_index: int, reason: str, hold: bool, goal: Prepared
    ) -> protocol.Interrupted:
        commit = goal.writer.hand_over(
            goal.loan, stamp_ns=goal.stamp_ns, source_sequence=goal.source_sequence
        )
        request = protocol.Interrupt(0, env_index, reason, hold, commit)
        return self.call(request, protocol.Interrupted)

    def resume(self, *, env_index: int = 0, keep_goal: bool = False) -> protocol.Moved:
        """Restore the boundary on top of the interrupt stack, and the goal it had.

        Args:
            env_index: Environment.
            keep_goal: Go on under the goal in force now instead.

        Raises:
            NothingToResumeError: The stack is empty.
        """
        return self.call(protocol.Resume(0, env_index, keep_goal), protocol.Moved)

    # capsules --------------------------------------------------------------------------------

    def snapshot(
        self,
        name: str = "",
        *,
        env_index: int = 0,
        labels: tuple[str, ...] = (),
        pinned: bool = False,
        replace: bool = False,
        align_down: bool = False,
    ) -> protocol.CapsuleReply:
        """Freeze the last boundary.

        Args:
            name: "" stays nameless.
            env_index: Environment.
            labels: Each "key=value".
            pinned: Never evict it.
            replace: Take the name from a capsule that has it.
            align_down: Take the nearest legal border before the boundary.

        Raises:
            CapsuleNameTakenError: Without ``replace``.
            CapsuleNameError: Not a name.
            CapsuleQuotaError: No room that may be made free.
            BoundaryError: Not at a legal border, without ``align_down``.
        """
        request = protocol.Snapshot(0, env_index, name, labels, pinned, replace, align_down)
        return self.call(request, protocol.CapsuleReply)

    def restore(
        self,
        capsule: str,
        *,
        env_index: int = 0,
        keep_goal: bool = False,
        seed: int | None = None,
        reset: bool = False,
        episode_id: str = "",
        stamp_ns: int = 0,
    ) -> protocol.Moved:
        """Bring a capsule back.

        Args:
            capsule: Id or name.
            env_index: Environment.
            keep_goal: Keep the goal in force instead of the capsule's.
            seed: Draw noise from this seed on.
            reset: Begin an episode: goals are dropped unless kept, and nothing stamped
                before ``stamp_ns`` acts any more.
            episode_id: A repeated reset of one id answers as the first did; "" never does.
            stamp_ns: The barrier, on the writers' clock.

        Raises:
            CapsuleNotFoundError: No capsule has this id or name.
            FingerprintMismatchError: It was taken under another model or engine.
        """
        request = protocol.Restore(
            0, env_index, capsule, keep_goal, seed, reset, episode_id, stamp_ns
        )
        return self.call(request, protocol.Moved)

    def reset(
        self,
        capsule: str = "home",
        *,
        env_index: int = 0,
        seed: int | None = None,
        keep_goal: bool = False,
        episode_id: str = "",
        stamp_ns: int = 0,
    ) -> protocol.Moved:
        """Begin an episode; :meth:`restore` with ``reset``."""
        return self.restore(
            capsule,
            env_index=env_index,
            keep_goal=keep_goal,
            seed=seed,
            reset=True,
            episode_id=episode_id,
            stamp_ns=stamp_ns,
        )

    def rollback(
        self, *, env_index: int = 0, boundaries: int = 1, capsule: str = ""
    ) -> protocol.Moved:
        """Go back.

        Args:
            env_index: Environment.
            boundaries: How many of those kept by themselves.
            capsule: An ancestor's id or name instead.

        Raises:
            NoBoundaryError: The ring does not reach so far, or it is no ancestor.
        """
        return self.call(protocol.Rollback(0, env_index, boundaries, capsule), protocol.Moved)

    def fork(
        self, count: int, *, env_index: int = 0, capsule: str = "", seeds: tuple[int, ...] = ()
    ) -> protocol.Forked:
        """Fill lanes of their own from a capsule, all or none.

        Args:
            count: Branches.
            env_index: Environment.
            capsule: Id or name; "" forks the last boundary.
            seeds: One for each branch, or none to derive them.

        Raises:
            NoFreeLaneError: Fewer lanes are free.
            CapsuleNotFoundError: No capsule has this id or name.
        """
        return self.call(protocol.Fork(0, env_index, capsule, count, seeds), protocol.Forked)

    def select(
        self, branch: int, *, env_index: int = 0, release_others: bool = True
    ) -> protocol.Moved:
        """Make a branch's state the environment's.

        Args:
            branch: Index, as :meth:`fork` gave it.
            env_index: Environment.
            release_others: End the environment's other branches.

        Raises:
            BranchNotFoundError: No such branch.
        """
        return self.call(protocol.Select(0, env_index, branch, release_others), protocol.Moved)

    def list_capsules(
        self, *, offset: int = 0, limit: int = _PAGE, label: str = ""
    ) -> protocol.CapsulePage:
        """Return a page of capsules; it may be shorter than asked for, see ``total``.

        Args:
            offset: First capsule of the page.
            limit: Most capsules to return.
            label: Only those with this "key=value"; "" for all.
        """
        return self.call(protocol.ListCapsules(0, offset, limit, label), protocol.CapsulePage)

    def capsules(self, *, label: str = "") -> Iterator[protocol.CapsuleInfo]:
        """Iterate over all capsules, page by page."""
        offset = 0
        while True:
            page = self.list_capsules(offset=offset, label=label)
            yield from page.capsules
            offset += len(page.capsules)
            if not page.capsules or offset >= page.total:
                return

    def drop(self, capsule: str, *, env_index: int = 0) -> None:
        """Forget a capsule; its children stay.

        Args:
            capsule: Id or name; ``home`` means the environment's.
            env_index: Environment.

        Raises:
            CapsuleNotFoundError: No capsule has this id or name.
            CapsulePinnedError: It is pinned, or in use.
        """
        self.call(protocol.Drop(0, capsule, env_index), protocol.Ack)

    def pin(
        self, capsule: str, *, pinned: bool = True, env_index: int = 0
    ) -> protocol.CapsuleReply:
        """Pin or unpin a capsule.

        Args:
            capsule: Id or name; ``home`` means the environment's.
            pinned: Pin it, or let it go.
            env_index: Environment.

        Raises:
            CapsuleNotFoundError: No capsule has this id or name.
        """
        return self.call(protocol.Pin(0, capsule, pinned, env_index), protocol.CapsuleReply)

    # the engine ------------------------------------------------------------------------------

    def status(self, *, env_index: int = 0) -> protocol.Status:
        """Return figures of the engine and one environment."""
        return self.call(protocol.GetStatus(0, env_index), protocol.Status)

    def reseed(self, seed: int, *, env_index: int = 0, counter: int = 0) -> protocol.Moved:
        """Set the noise seed and counter, state kept.

        Raises:
            UnsupportedError: The engine runs without test hooks.
        """
        return self.call(protocol.Reseed(0, env_index, seed, counter), protocol.Moved)

    def inspect(self, *, env_index: int = 0) -> protocol.Inspection:
        """Return digests and what the captured graph really read.

        Raises:
            UnsupportedError: The engine runs without test hooks.
        """
        return self.call(protocol.Inspect(0, env_index), protocol.Inspection)

    def stop(self) -> None:
        """End the engine; every client's connection ends with it."""
        self.call(protocol.Stop(0), protocol.Ack)
