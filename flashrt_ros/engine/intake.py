"""What writers hand over: rings, loans and commits, and the barriers that those meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flashrt_ros.engine.barriers import Barriers
from flashrt_ros.engine.channels import WriterRing
from flashrt_ros.engine.inbox import Inbox
from flashrt_ros.engine.payload import end_of_life
from flashrt_ros.engine.readable import Readable
from flashrt_ros.engine.shared import SharedRing
from flashrt_ros.engine.timeline import Environment
from flashrt_ros.errors import FlashrtError, LoanError
from flashrt_ros.runtime.spec import ChannelRole


class Intake(Inbox):
    """The channels of a model, seen from its writers.

    Args:
        channels: By name.
        num_environments: Each has barriers of its own.
        clock_ns: The engine's, for the ages of what is shared.

    Attributes:
        on_commit: Called when somebody else's commit to a shared channel has brought
            something new.
    """

    def __init__(
        self,
        channels: Mapping[str, Readable],
        *,
        num_environments: int,
        clock_ns: Callable[[], int],
    ) -> None:
        super().__init__(channels)
        self.on_commit: Callable[[], None] = _do_nothing
        self._clock_ns = clock_ns
        self._barriers = Barriers(tuple(self.specs), num_environments)

    def release_read(self) -> None:
        """Give the slots back that were let go of, as far as the device has read them."""

    def num_dropped(self, env_index: int, role: ChannelRole) -> int:
        """Count the commits of a role's channels that a barrier refused."""
        return sum(self._barriers.num_refused(env_index, name) for name in self.named(role))

    # writers -----------------------------------------------------------------------------

    def open_writer(self, channel: str, env_index: int) -> WriterRing:
        """Give a writer a ring of its own.

        Raises:
            UnknownChannelError: The model has no such channel.
            NoWriterRingError: Every ring is taken.
        """
        self.release_read()
        return self.channel(channel).open_ring(env_index)

    def close_writer(self, ring: WriterRing) -> None:
        """Take a ring back, with its loan; what it committed stays handed over."""
        ring.channel.close_ring(ring)

    def loan(self, ring: WriterRing, generation: int) -> tuple[int, int]:
        """Loan a slot under a generation; returns slot and ticket.

        Raises:
            NoFreeSlotError: None is free.
        """
        self.release_read()
        return ring.loan(generation)

    def commit(
        self,
        ring: WriterRing,
        slot: int,
        ticket: int,
        *,
        stamp_ns: int,
        source_sequence: int,
        now_ns: int,
        lifetime_ns: int = 0,
    ) -> int:
        """Take a loaned slot over as the newest of its channel; returns its sequence.

        Args:
            ring: The writer's.
            slot: From the ring's start.
            ticket: Of the loan.
            stamp_ns: Writer's clock.
            source_sequence: Writer's own number.
            now_ns: Engine's clock.
            lifetime_ns: How long it may be acted on, from its stamp; 0 for ever.

        Raises:
            LoanError: Not this writer's loan.
            PayloadRangeError: The lifetime is negative, or the stamp no 64-bit number. The slot
                goes back.
            StaleGenerationError: Loaned before the barrier. The slot goes back.
            StaleStampError: Stamped before the barrier. The slot goes back.

        Of a shared channel's consumers those get it that do not refuse it; it is an error
        where all of them do.
        """
        loaned = ring.loan_generation(slot, ticket)
        shared = ring if isinstance(ring, SharedRing) else None
        try:
            expires_ns = end_of_life(stamp_ns, lifetime_ns)
            if shared is not None:
                shared.choose(slot, ticket, stamp_ns, via=self)
            else:
                self._barriers.admit(
                    ring.env_index,
                    ring.channel.spec.name,
                    generation=loaned,
                    stamp_ns=stamp_ns,
                )
        except FlashrtError:
            ring.return_loan(slot, ticket)
            raise
        sequence = ring.commit(slot, ticket, stamp_ns, source_sequence, now_ns, expires_ns)
        if shared is not None:
            for consumer in shared.takers:
                if consumer.reader is not self:
                    consumer.reader.wake()
        return sequence

    def check_goal_commit(
        self,
        env: Environment,
        ring: WriterRing,
        slot: int,
        ticket: int,
        *,
        stamp_ns: int,
        lifetime_ns: int,
    ) -> None:
        """Refuse what :meth:`commit` would refuse, and what is no goal of the environment.

        Raises:
            LoanError: Not this writer's loan, or no goal of this environment.
            PayloadRangeError: The lifetime is negative, or the stamp no 64-bit number.
            StaleGenerationError: Loaned before the barrier.
            StaleStampError: Stamped before the barrier.
        """
        spec = ring.channel.spec
        if spec.role is not ChannelRole.GOAL or ring.env_index != env.env_index:
            raise LoanError(
                "an interrupt can't hand this slot over",
                expected=f"one of a goal writer of environment {env.env_index}",
                found=f"one of channel '{spec.name}' of environment {ring.env_index}",
            )
        generation = ring.loan_generation(slot, ticket)
        if isinstance(ring, SharedRing):
            generation = ring.bound(self)
        end_of_life(stamp_ns, lifetime_ns)
        self._barriers.admit(ring.env_index, spec.name, generation=generation, stamp_ns=stamp_ns)

    # shared channels ---------------------------------------------------------------------

    def bound(self, env_index: int, channel: str) -> int:
        """Return the generation before which loans are refused now."""
        return self._barriers.generation(env_index, channel)

    def admit(self, env_index: int, channel: str, *, bound: int, stamp_ns: int) -> None:
        """Refuse what was loaned under an older bound, or is stamped before the barrier.

        Raises:
            StaleGenerationError: A barrier was raised since the loan.
            StaleStampError: Stamped before the barrier.
        """
        self._barriers.admit(env_index, channel, generation=bound, stamp_ns=stamp_ns)

    def now_ns(self) -> int:
        """Read the engine's clock."""
        return self._clock_ns()

    def wake(self) -> None:
        """Start what waited for somebody else's commit."""
        self.on_commit()

    # bounds ------------------------------------------------------------------------------

    def observation_bound_ns(self, env: Environment) -> int:
        """Return the stamp that observations must have reached, 0 where any does."""
        bounds = [self._barriers.stamp_ns(env.env_index, name) for name in self._observations]
        return max(bounds, default=0)

    def goal_bounds(self, env: Environment) -> dict[str, int]:
        """Return the stamp that goals must have reached, by channel, 0 where any does."""
        return {name: self._barriers.stamp_ns(env.env_index, name) for name in self._goals}

    def set_goal_bounds(self, env: Environment, bounds: Mapping[str, int]) -> None:
        """Refuse goals stamped before these from now on, by channel."""
        for name, stamp_ns in bounds.items():
            self._barriers.set_stamp(env.env_index, name, stamp_ns)

    def rewind(self, env: Environment, now_ns: int) -> None:
        """Forget bounds that lie ahead of the writers' clock, which was set back."""
        for name in (*self._observations, *self._goals):
            if self._barriers.stamp_ns(env.env_index, name) > now_ns:
                self._barriers.set_stamp(env.env_index, name, 0)


def _do_nothing() -> None:
    """Wake nobody."""
