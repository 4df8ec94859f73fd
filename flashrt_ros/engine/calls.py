"""The engine's verbs as typed methods; imports without torch."""

from __future__ import annotations

from flashrt_ros.engine import protocol
from flashrt_ros.engine.planner_calls import PlannerCalls
from flashrt_ros.engine.writer import Prepared
from flashrt_ros.errors import ParameterRangeError, StaleGenerationError

_LONGEST_STEP_NS = 86_400_000_000_000


class Calls(PlannerCalls):
    """Every verb that asks and gets one answer.

    Each call sends one message and waits for its reply. Beside what a method names,
    all raise EngineGoneError when the connection has ended or no answer comes in time,
    and UnknownEnvironmentError for an ``env_index`` that is not there. A refused verb
    leaves the engine as it was.
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

    def rewind(self, now_ns: int, *, env_index: int = 0) -> None:
        """Tell that the writers' clock was set back.

        A reset and an interrupt refuse what is stamped before them, which then would be
        everything until the clock gets there again: bounds that lie ahead of it are
        forgotten. Nothing moves.

        Args:
            now_ns: The clock.
            env_index: Environment.
        """
        self.call(protocol.Rewind(0, env_index, now_ns), protocol.Ack)

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

        The plans take what they take: the engine counts as gone once it gives no sign of
        life for a minute.

        Args:
            count: Ticks; 0 makes the chunk that is due and pops nothing.
            env_index: Environment.
            branch: A branch, or -1 for the environment, whose tick source must be "step".
            min_observation_stamp_ns: Wait for an observation not older than this.
            timeout_ns: How long to wait for it; a day at most.

        Raises:
            ParameterRangeError: The timeout is negative or too long; nothing was sent.
            NotActiveError: The environment is not active.
            TickSourceError: A timer ticks it.
            BusyError: A step of it is under way.
            StepTimeoutError: What it waits for did not come in time.
            AbandonedError: A reset, restore or interrupt ended it.
            BranchNotFoundError: No such branch.
        """
        if not 0 <= timeout_ns <= _LONGEST_STEP_NS:
            raise ParameterRangeError(
                "a step can't wait so long",
                expected="0 to 86400 s",
                found=f"{timeout_ns / 1e9:g} s",
            )
        request = protocol.Step(0, env_index, count, branch, min_observation_stamp_ns, timeout_ns)
        return self.call(request, protocol.Stepped)

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
            goal.loan,
            stamp_ns=goal.stamp_ns,
            source_sequence=goal.source_sequence,
            lifetime_ns=goal.lifetime_ns,
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
