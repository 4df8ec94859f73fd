"""How nodes, trainers and the command line talk to an engine; imports without torch."""

from __future__ import annotations

import contextlib
import mmap
import os
from types import TracebackType
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from flashrt_ros.engine import protocol, wire
from flashrt_ros.engine.calls import Calls
from flashrt_ros.engine.protocol import PROTOCOL_VERSION
from flashrt_ros.engine.slots import map_received
from flashrt_ros.engine.transport import Transport
from flashrt_ros.engine.wire import BUSY_POLL_US
from flashrt_ros.engine.writer import Loan, Prepared, Writer
from flashrt_ros.errors import ProtocolError, ProtocolVersionError

__all__ = ["EngineClient", "Loan", "Prepared", "Writer"]

_Reply = TypeVar("_Reply", bound=msgspec.Struct)


class EngineClient(Calls):
    """One connection to an engine, for one thread.

    Calls are synchronous: one message out, its reply back. Outputs and events that come
    meanwhile are kept for :meth:`receive`. Only :meth:`interrupt_wait` may be called
    from another thread. In a forked child the connection is closed; the parent's goes on.

    Args:
        name: The engine's; a namespace and slashes are fine.
        client: What the engine calls this connection in its log.
        timeout_s: How long to wait for an answer.
        wait_s: How long to wait for the engine to come up; None for ``timeout_s``.
        busy_poll_us: How long a call looks for its answer without a pause before it sleeps, us.
            Answers come sooner, for so much of a core at each call, at most. For the first 100
            no other thread of the process runs, unless the engine is one; so again after each
            message that comes before the answer.

    Raises:
        EngineGoneError: No engine of this name answers in time.
        ProtocolVersionError: It speaks another version of the protocol.
        PeerRefusedError: It does not admit this user, or is not to be trusted.
        BusyError: It takes no more clients.
    """

    def __init__(
        self,
        name: str,
        *,
        client: str = "",
        timeout_s: float = 10.0,
        wait_s: float | None = None,
        busy_poll_us: int = BUSY_POLL_US,
    ) -> None:
        self.name = name
        self._writers: list[Writer] = []
        self._rings: dict[int, tuple[mmap.mmap, int]] = {}
        self._transport = Transport(
            name,
            timeout_s=timeout_s,
            wait_s=timeout_s if wait_s is None else wait_s,
            busy_poll_us=busy_poll_us,
        )
        try:
            hello = protocol.Hello(0, PROTOCOL_VERSION, client, os.getpid())
            self._welcome = self.call(hello, protocol.Welcome)
            if self._welcome.version != PROTOCOL_VERSION:
                raise ProtocolVersionError(
                    f"engine '{name}' speaks another version of the protocol",
                    expected=PROTOCOL_VERSION,
                    found=self._welcome.version,
                )
        except BaseException:
            self.close()
            raise

    @property
    def engine_epoch(self) -> int:
        """Number that is new for every engine process."""
        return self._welcome.engine_epoch

    @property
    def model(self) -> protocol.ModelInfo:
        """What the engine says of its model."""
        return self._welcome.model

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended, on either side, as far as is known here."""
        return self._transport.is_gone

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for messages with others."""
        return self._transport.fileno()

    # writing ---------------------------------------------------------------------------------

    def open_writer(self, channel: str, env_index: int = 0) -> Writer:
        """Ask for a ring of a channel and map it.

        Returns:
            A writer of this connection; it ends with it.

        Raises:
            UnknownChannelError: The model has no such channel.
            UnknownEnvironmentError: No environment has this index.
            NoWriterRingError: Every ring of the channel is taken.
            SharedMemoryError: The ring can't be mapped.
        """
        request = protocol.OpenWriter(0, channel, env_index)
        opened, fds = self._transport.exchange(request, protocol.WriterOpened, max_fds=1)
        if len(fds) != 1:
            wire.close_descriptors(fds)
            raise self._transport.end(ProtocolError("no memory came with a ring"))
        memory = map_received(fds[0], opened.channel.ring_bytes, writable=True)
        writer = Writer(_Port(self._transport), opened, memory)
        self._writers.append(writer)
        return writer

    # outputs ---------------------------------------------------------------------------------

    def subscribe(
        self,
        *,
        env_index: int = 0,
        actions: bool = False,
        chunks: bool = False,
        events: bool = False,
    ) -> None:
        """Choose what :meth:`receive` gets of an environment from here on.

        Args:
            env_index: Environment.
            actions: The action of each control tick.
            chunks: Every chunk.
            events: Every event.

        Raises:
            UnknownEnvironmentError: No environment has this index.
            BusyError: The environment takes no more subscribers.
        """
        request = protocol.Subscribe(0, env_index, actions, chunks, events)
        answer, fds = self._transport.exchange(request, protocol.Subscribed, max_fds=1)
        if len(fds) != (answer.slot_bytes > 0):
            wire.close_descriptors(fds)
            raise self._transport.end(ProtocolError("no memory came with a subscription"))
        if fds:
            memory = map_received(fds[0], answer.slot_bytes * answer.num_slots, writable=False)
            self._unmap_ring(env_index)
            self._rings[env_index] = (memory, answer.slot_bytes)

    def receive(self, timeout_s: float | None = None) -> protocol.Output | protocol.Event | None:
        """Wait for the next output or event.

        The engine sends one output of a kind and then waits for its :meth:`release`;
        what it makes meanwhile replaces what waits, and is counted in ``missed``.

        Args:
            timeout_s: How long to wait; None for ever, 0 not at all.

        Returns:
            The message; None when the time is up or :meth:`interrupt_wait` was called.

        Raises:
            EngineGoneError: The connection has ended.
        """
        return self._transport.receive(timeout_s)

    def interrupt_wait(self) -> None:
        """Make the :meth:`receive` in progress, or the next one, return None; from any thread."""
        self._transport.wake()

    def payload(self, output: protocol.Output) -> bytes | memoryview:
        """Return an output's bytes; a view of an output slot is good until its release."""
        if output.slot < 0:
            return output.payload
        memory, slot_bytes = self._rings[output.provenance.env_index]
        model = self.model
        length = 4 * model.action_dim
        if output.kind == protocol.OutputKind.CHUNK:
            length *= model.horizon
        start = output.slot * slot_bytes
        return memoryview(memory)[start : start + length]

    def values(self, output: protocol.Output) -> npt.NDArray[np.float32]:
        """Copy an output's numbers: ``float32[A]`` of an action, ``[H, A]`` of a chunk."""
        flat = np.frombuffer(self.payload(output), np.float32).copy()
        if output.kind == protocol.OutputKind.CHUNK:
            return flat.reshape(self.model.horizon, self.model.action_dim)
        return flat

    def release(self, output: protocol.Output) -> None:
        """Let the engine send the next output of this kind; call it once for each.

        Raises:
            EngineGoneError: The connection has ended.
        """
        message = protocol.Release(output.provenance.env_index, output.kind, output.slot)
        self._transport.send(protocol.encode(message))

    # end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection; the engine takes back what it lent. Idempotent."""
        for writer in self._writers:
            writer.unmap()
        for env_index in list(self._rings):
            self._unmap_ring(env_index)
        self._transport.close()

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def call(
        self, request: protocol.Request, kind: type[_Reply], *, timeout_s: float | None = None
    ) -> _Reply:
        """Send a request and wait for its answer; see :meth:`Calls.call`.

        A step is waited for as long as the engine gives signs of life.
        """
        is_long = isinstance(request, protocol.Step)
        return self._transport.exchange(request, kind, timeout_s=timeout_s, is_long=is_long)[0]

    def _unmap_ring(self, env_index: int) -> None:
        ring = self._rings.pop(env_index, None)
        if ring is not None:
            # Refused while views live; then the mapping ends with the last of them.
            with contextlib.suppress(BufferError):
                ring[0].close()


class _Port:
    """A writer's way to the engine."""

    def __init__(self, transport: Transport) -> None:
        self._exchange = transport.exchange

    def loan(self, writer: int) -> protocol.Loaned:
        return self._exchange(protocol.Loan(0, writer), protocol.Loaned)[0]

    def commit(self, commit: protocol.Commit) -> protocol.Committed:
        return self._exchange(commit, protocol.Committed)[0]

    def return_loan(self, writer: int, slot: int, ticket: int) -> None:
        self._exchange(protocol.Return(0, writer, slot, ticket), protocol.Ack)
