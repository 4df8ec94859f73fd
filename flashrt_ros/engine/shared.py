"""One channel that several engines of a process read; imports without torch.

A writer's commit is offered to every consumer. Each has a newest slot of its own, takes it at
its own boundaries, and may refuse it by itself. All of them read the same bytes in place, so
that the slot goes back to its writer once the last of them has let go of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from flashrt_ros.engine.channels import Channel, Locker
from flashrt_ros.engine.consumer import Consumer, Reader
from flashrt_ros.engine.fed import FedConsumer
from flashrt_ros.engine.ring import WriterRing
from flashrt_ros.engine.slots import SlotMemory
from flashrt_ros.errors import (
    BusyError,
    ConfigError,
    FlashrtError,
    StaleGenerationError,
    UnknownEnvironmentError,
)
from flashrt_ros.runtime.spec import ChannelSpec

if TYPE_CHECKING:
    from flashrt_ros.engine.outlet import Outlet

SLOTS_PER_CONSUMER = 2
"""Slots that each consumer beyond the first may keep: its newest, and the one it reads.

A ring needs as many more, where they are of one writer. The channel needs as many more rings, where
each is of a writer that has gone: an engine that rests must not keep new writers from the others.
"""


class SharedRing(WriterRing):
    """The slots of one writer of a shared channel; made by ``SharedChannel.open_ring`` alone.

    A loan remembers what each consumer refused when it was made.
    """

    channel: SharedChannel

    def __init__(
        self,
        channel: SharedChannel,
        env_index: int,
        index: int,
        memory: SlotMemory,
        tickets: Iterator[int],
    ) -> None:
        super().__init__(channel, env_index, index, memory, tickets)
        self.takers: tuple[Consumer, ...] = ()
        """Consumers that the next commit is offered to."""
        self._bounds: dict[Reader, int] = {}

    def loan(self, generation: int) -> tuple[int, int]:
        """Lend a slot, once the consumers have let go of what they no longer read."""
        self.channel.release_read()
        loan = super().loan(generation)
        self._bounds = self.channel.bounds(self.env_index)
        return loan

    def bound(self, reader: Reader) -> int:
        """Return the generation before which an engine refused loans when this one was made."""
        return self._bounds.get(reader, 0)

    def choose(self, slot: int, ticket: int, stamp_ns: int, *, via: Reader) -> None:
        """Keep the consumers that admit a loaned slot; the others count it as refused.

        Args:
            slot: The loaned one.
            ticket: That of the loan.
            stamp_ns: On the writer's clock.
            via: Engine that the writer talks to, whose reason is told where all refuse.

        Raises:
            LoanError: Slot and ticket are not this writer's loan.
            StaleGenerationError: Every consumer has raised a barrier since the loan.
            StaleStampError: Every consumer refuses it, and ``via`` for its stamp.
        """
        self.loan_generation(slot, ticket)
        found: list[Consumer] = []
        refusals: dict[Reader, FlashrtError] = {}
        for consumer in self.channel.consumers_of(self.env_index):
            try:
                consumer.admit(self.env_index, self.bound(consumer.reader), stamp_ns)
            except FlashrtError as error:
                refusals[consumer.reader] = error
            else:
                found.append(consumer)
        if refusals and not found:
            raise refusals.get(via) or next(iter(refusals.values()))
        self.takers = tuple(found)
        self.num_stale = sum(isinstance(one, StaleGenerationError) for one in refusals.values())


class SharedChannel(Channel):
    """A channel that is read by several engines, each at its own pace; see the module.

    Give it to every engine as ``Engine(..., shared={"goal": channel})``; a writer may be opened
    through any of them. Environment ``i`` of the channel is environment ``i`` of each; an engine
    may have fewer. It outlives the engines, and is read by one thread, as each of them is.

    A slot that is offered is held until every consumer has replaced, refused or read it, so
    that there are more rings than the model's own, and larger ones, by
    :data:`SLOTS_PER_CONSUMER` for each consumer beyond the first.

    Args:
        spec: What a slot holds; that of each model, but for the number of rings and slots.
        num_environments: Each gets rings of its own.
        num_consumers: Engines that may read it at once.
        num_branches: Branches of each, as their ``num_branch_lanes``.
        locker: Locks the memory for a device that reads it in place, or None.
        on_close: Called once the memory is given back.

    Raises:
        SharedMemoryError: The range can't be reserved.
        BackendError: The memory can't be locked.
    """

    def __init__(
        self,
        spec: ChannelSpec,
        *,
        num_environments: int = 1,
        num_consumers: int = 2,
        num_branches: int = 4,
        locker: Locker | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.num_environments = num_environments
        self.num_consumers = num_consumers
        self.num_consumer_slots = num_environments + num_branches + 2
        self._declared = spec
        self._consumers: list[Consumer] = []
        self._on_close = on_close
        num_more = SLOTS_PER_CONSUMER * (num_consumers - 1)
        super().__init__(
            replace(
                spec,
                num_rings=spec.num_rings + num_more,
                num_ring_slots=spec.num_ring_slots + num_more,
            ),
            num_environments=num_environments,
            num_engine_slots=self.num_consumer_slots * num_consumers,
            locker=locker,
        )

    # consumers -------------------------------------------------------------------------------

    def attach(
        self,
        reader: Reader,
        spec: ChannelSpec,
        *,
        num_environments: int,
        num_engine_slots: int,
        outlet: Outlet | None = None,
    ) -> Consumer:
        """Let an engine read the channel, from the next commit on.

        Args:
            reader: The engine's.
            spec: What its model expects of the channel.
            num_environments: Its environments.
            num_engine_slots: Goals that it may bring back at once.
            outlet: Feeds this engine's end of the channel too, None for none.

        Raises:
            ConfigError: The model expects another channel, there are more environments or
                branches than the channel was made for, or it has no place left.
        """
        self._check(spec, num_environments, num_engine_slots)
        consumer = (
            Consumer(self, reader, num_environments)
            if outlet is None
            else FedConsumer(self, reader, num_environments, outlet)
        )
        self._consumers.append(consumer)
        return consumer

    def detach(self, consumer: Consumer) -> None:
        """Forget a consumer; ``Consumer.close`` calls it. Idempotent."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)

    def next_sequence(self, env_index: int) -> int:
        """Count a commit that came by another way than a ring."""
        self._sequences[env_index] += 1
        return self._sequences[env_index]

    def consumers_of(self, env_index: int) -> Iterator[Consumer]:
        """Yield the consumers that have an environment."""
        return (one for one in self._consumers if env_index < one.num_environments)

    def bounds(self, env_index: int) -> dict[Reader, int]:
        """Return the generation before which each engine refuses loans now."""
        return {one.reader: one.bound(env_index) for one in self.consumers_of(env_index)}

    def release_read(self) -> None:
        """Have every consumer give the slots back that it no longer reads."""
        for consumer in self._consumers:
            consumer.reader.release_read()

    # slots -----------------------------------------------------------------------------------

    def open_ring(self, env_index: int) -> WriterRing:
        """Make a ring of fresh sealed memory and map it into its place.

        Raises:
            UnknownEnvironmentError: The channel has no such environment.
            NoWriterRingError: Every ring has a writer, or one whose last slot is in use.
            SharedMemoryError: The kernel has no memory or descriptor left.
        """
        if not 0 <= env_index < self.num_environments:
            raise UnknownEnvironmentError(
                f"channel '{self.spec.name}' has no environment {env_index}",
                expected=f"0 to {self.num_environments - 1}",
            )
        return super().open_ring(env_index)

    def accept(
        self,
        ring: WriterRing,
        slot: int,
        *,
        stamp_ns: int,
        source_sequence: int,
        now_ns: int,
        generation: int,
        expires_ns: int,
    ) -> int:
        """Offer a ring's slot to the consumers that admit it; nothing stays pending here."""
        assert isinstance(ring, SharedRing)
        sequence = super().accept(
            ring,
            slot,
            stamp_ns=stamp_ns,
            source_sequence=source_sequence,
            now_ns=now_ns,
            generation=generation,
            expires_ns=expires_ns,
        )
        index = super().latch(ring.env_index)
        for consumer in ring.takers:
            self.acquire(index)
            consumer.offer(ring.env_index, index, self.meta(index))
        self.release(index)
        return sequence

    def close(self) -> None:
        """Close every ring and unmap the range. Idempotent.

        Raises:
            BusyError: An engine still reads it. Nothing changes.
        """
        if self._consumers:
            raise BusyError(
                f"shared channel '{self.spec.name}' can't be closed",
                expected="every engine that reads it closed before",
                found=f"{len(self._consumers)} open",
            )
        super().close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; an error on its way out is not replaced by that of engines left open."""
        if error is None or not self._consumers:
            self.close()

    # inside ----------------------------------------------------------------------------------

    def _check(self, spec: ChannelSpec, num_environments: int, num_engine_slots: int) -> None:
        name = self.spec.name
        mine = (self._declared.name, self._declared.role, self._declared.fields, self.spec.frame)
        if (spec.name, spec.role, spec.fields, spec.frame) != mine:
            raise ConfigError(
                f"shared channel '{name}' is another one than the model's '{spec.name}'",
                expected=f"{spec.role.value} {spec.fields} in frame '{spec.frame}'",
                found=f"{mine[1].value} {mine[2]} in frame '{mine[3]}'",
            )
        for what, wanted, there_are in (
            ("environments", num_environments, self.num_environments),
            ("slots for goals brought back", num_engine_slots, self.num_consumer_slots),
            ("consumers", len(self._consumers) + 1, self.num_consumers),
        ):
            if wanted > there_are:
                raise ConfigError(
                    f"shared channel '{name}' has too few {what} for one more engine",
                    expected=f"{wanted} at least",
                    found=there_are,
                    fix="make it with more num_environments, num_branches or num_consumers",
                )

    def _new_ring(self, env_index: int, index: int) -> WriterRing:
        memory = self._spare.pop(index, None) or self._make_ring(index)
        return SharedRing(self, env_index, index, memory, self._tickets)
