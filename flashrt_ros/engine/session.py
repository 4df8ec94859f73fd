"""What one connected client may ask, and what it holds: rings, steps, subscriptions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from flashrt_ros.engine import protocol
from flashrt_ros.engine.channels import WriterRing
from flashrt_ros.engine.connection import Connection
from flashrt_ros.engine.outputs import Outputs
from flashrt_ros.engine.protocol import MAX_MESSAGE_BYTES, PROTOCOL_VERSION
from flashrt_ros.engine.served import ServedEngine
from flashrt_ros.errors import (
    DeviceLostError,
    FlashrtError,
    LoanError,
    NoFreeSlotError,
    PeerRefusedError,
    ProtocolError,
    ProtocolVersionError,
)

logger = logging.getLogger(__name__)

_FATAL = (ProtocolError, ProtocolVersionError, PeerRefusedError)
"""Refusals after which a client can't be talked to."""


class Session:
    """Handles one client's messages, in order, one at a time.

    A refused verb costs nothing but a failure; a message that can't be understood, or
    that raises what nobody foresaw, costs its sender the connection.

    Args:
        connection: The client's.
        engine: Served; everything the session opened in it is closed by :meth:`close`.
        outputs: Subscriptions.
        name: The engine's, for the handshake.
        num_clients: Counts the connections there are.
        on_stop: Called when the client asks the engine to stop.
    """

    def __init__(
        self,
        connection: Connection,
        engine: ServedEngine,
        outputs: Outputs,
        *,
        name: str,
        num_clients: Callable[[], int],
        on_stop: Callable[[], None],
    ) -> None:
        self.connection = connection
        self._engine = engine
        self._outputs = outputs
        self._name = name
        self._num_clients = num_clients
        self._on_stop = on_stop
        self._is_welcome = False
        self._rid = 0
        self._is_answered = False
        self._rings: dict[int, WriterRing] = {}
        self._steps: dict[int, Any] = {}
        self._verbs: dict[int, Any] = {}
        self._is_closed = False
        self._handlers: dict[type, Callable[[Any], object]] = {
            protocol.Hello: self._hello,
            protocol.Ping: lambda request: protocol.Ack(request.rid),
            protocol.OpenWriter: self._open_writer,
            protocol.Loan: self._loan,
            protocol.Commit: self._commit,
            protocol.Return: self._return,
            protocol.Subscribe: self._subscribe,
            protocol.Release: self._release,
            protocol.Step: self._step,
            protocol.Interrupt: self._interrupt,
            protocol.GetStatus: self._status,
            protocol.Stop: self._stop,
        }

    def serve(self) -> bool:
        """Take one message and answer it; False when none is there.

        Whatever goes wrong is logged and ends this connection.

        Raises:
            DeviceLostError: Nothing can be served any more.
            Exception: What the engine raised after it had answered a verb. Its state can't
                be relied on then.
        """
        self._rid = 0
        self._is_answered = False
        try:
            data = self.connection.receive()
            if data is None:
                return False
            if not data:
                self.connection.condemn("closed")
                return True
            request = self._decode(data)
            handler = self._handlers.get(type(request), self._verb)
            reply = handler(request)
            if reply is not None:
                self._reply(self._rid, reply)
        except Exception as error:
            if isinstance(error, DeviceLostError):
                self.connection.fail(0 if self._is_answered else self._rid, error)
                raise
            if self._is_answered:
                # What an engine does once it has answered is not this client's message.
                raise
            self._refuse(error)
        return True

    def _refuse(self, error: Exception) -> None:
        """Say why a message was not carried out; end the connection where it can't go on."""
        if not isinstance(error, FlashrtError):
            # One client's message must not end the loop for the others.
            logger.error("a message of %s failed", self.connection, exc_info=error)
            failure = FlashrtError(f"the engine failed on this request: {error!r}")
            self.connection.fail(self._rid, failure)
            self.connection.condemn("sent a message that failed unexpectedly")
            return
        self.connection.fail(self._rid, error)
        if isinstance(error, _FATAL):
            self.connection.condemn(str(error))

    def close(self) -> None:
        """End what the client held: steps are forgotten, loans come back. Idempotent."""
        self._is_closed = True
        self._outputs.unsubscribe(self.connection)
        for wait in self._verbs.values():
            if wait is not None:
                self._engine.cancel(wait)
        self._verbs.clear()
        for job in list(self._steps.values()):
            self._engine.cancel_step(job)
        self._steps.clear()
        for ring in self._rings.values():
            self._engine.close_writer(ring)
        self._rings.clear()

    # handshake -------------------------------------------------------------------------------

    def _decode(self, data: memoryview) -> protocol.Request:
        try:
            request = protocol.decode_request(data)
        except msgspec.MsgspecError as error:
            if not self._is_welcome:
                self._check_foreign_hello(data)
            raise ProtocolError("a message could not be decoded", found=error) from error
        self._rid = getattr(request, "rid", 0)
        if self._is_welcome == isinstance(request, protocol.Hello):
            raise ProtocolError(
                "a message came out of order",
                expected="no second Hello" if self._is_welcome else "Hello first",
                found=type(request).__name__,
            )
        return request

    def _hello(self, request: protocol.Hello) -> protocol.Welcome:
        self.connection.client = request.client
        _check_version(request.version)
        self._is_welcome = True
        engine = self._engine
        return protocol.Welcome(
            request.rid, PROTOCOL_VERSION, self._name, engine.epoch, engine.info
        )

    def _check_foreign_hello(self, data: memoryview) -> None:
        """Refuse a Hello whose form is not known by the version it names, if it names one."""
        try:
            parts = msgspec.msgpack.decode(data)
        except msgspec.MsgspecError:
            return
        if isinstance(parts, list) and len(parts) >= 3 and parts[0] == 1:
            _, rid, version = parts[:3]
            if isinstance(rid, int) and isinstance(version, int):
                self._rid = rid
                _check_version(version)

    # slots -----------------------------------------------------------------------------------

    def _ring(self, writer: int) -> WriterRing:
        try:
            return self._rings[writer]
        except KeyError:
            raise LoanError(
                f"this client has no writer {writer}", expected=sorted(self._rings) or "none"
            ) from None

    def _open_writer(self, request: protocol.OpenWriter) -> None:
        engine = self._engine
        ring = engine.open_writer(request.channel, request.env_index)
        writer = len(self._rings)
        self._rings[writer] = ring
        channel = next(c for c in engine.info.channels if c.name == request.channel)
        opened = protocol.WriterOpened(
            request.rid,
            writer,
            channel,
            request.env_index,
            ring.first_slot,
            ring.memory.inode,
            ring.memory.device,
        )
        self.connection.reply(protocol.encode(opened), [ring.memory.fd])
        ring.memory.close()

    def _loan(self, request: protocol.Loan) -> protocol.Loaned:
        return protocol.Loaned(request.rid, *self._engine.loan(self._ring(request.writer)))

    def _commit(self, request: protocol.Commit) -> protocol.Committed:
        engine = self._engine
        ring = self._ring(request.writer)
        sequence = engine.commit(
            ring,
            request.slot,
            request.ticket,
            stamp_ns=request.stamp_ns,
            source_sequence=request.source_sequence,
            lifetime_ns=request.lifetime_ns,
        )
        generation, num_stale, next_slot, next_ticket = ring.generation, ring.num_stale, -1, 0
        if request.loan_next:
            try:
                next_slot, next_ticket, generation = engine.loan(ring)
            except NoFreeSlotError:
                logger.debug("%s finds no free slot after its commit", self.connection)
        return protocol.Committed(
            request.rid, sequence, generation, next_slot, next_ticket, num_stale
        )

    def _return(self, request: protocol.Return) -> protocol.Ack:
        self._engine.return_loan(self._ring(request.writer), request.slot, request.ticket)
        return protocol.Ack(request.rid)

    # outputs ---------------------------------------------------------------------------------

    def _subscribe(self, request: protocol.Subscribe) -> None:
        self._outputs.subscribe(self.connection, request)

    def _release(self, request: protocol.Release) -> None:
        self._outputs.release(self.connection, request.env_index, request.kind, request.slot)

    # verbs -----------------------------------------------------------------------------------

    def _verb(self, request: Any) -> None:
        """Carry out what may wait for bytes; others are served meanwhile."""
        rid = request.rid
        if self._steps or self._verbs:
            self._check_new(rid)
        wait = self._engine.begin(request, partial(self._answer, rid))
        if not self._is_answered:
            self._verbs[rid] = wait

    def _answer(self, rid: int, answer: protocol.Reply | FlashrtError) -> None:
        """Send a verb's answer; what the engine does for it after that is its own."""
        if self._verbs:
            self._verbs.pop(rid, None)
        if not self._is_closed:
            if isinstance(answer, FlashrtError):
                self.connection.fail(rid, answer)
            else:
                self._reply(rid, answer)
        self._is_answered = self._is_answered or rid == self._rid

    def _check_new(self, rid: int) -> None:
        if rid in self._steps or rid in self._verbs:
            raise ProtocolError(f"request {rid} is under way already")

    def _step(self, request: protocol.Step) -> None:
        self._check_new(request.rid)

        def done(answer: protocol.Stepped | FlashrtError) -> None:
            is_answered.append(True)
            self._steps.pop(request.rid, None)
            if isinstance(answer, FlashrtError):
                self.connection.fail(request.rid, answer)
            else:
                self._reply(request.rid, msgspec.structs.replace(answer, rid=request.rid))

        is_answered: list[bool] = []
        job = self._engine.begin_step(request, done)
        if not is_answered:
            self._steps[request.rid] = job

    def _interrupt(self, request: protocol.Interrupt) -> protocol.Interrupted:
        commit = request.commit
        if commit is None:
            return self._engine.interrupt(request, None)
        ring = self._ring(commit.writer)
        ring.loan_generation(commit.slot, commit.ticket)
        try:
            return self._engine.interrupt(request, ring)
        except FlashrtError:
            # As with a commit: whatever is answered, the loan has ended.
            if ring.loaned_slot == commit.slot:
                self._engine.return_loan(ring, commit.slot, commit.ticket)
            raise

    def _status(self, request: protocol.GetStatus) -> protocol.Status:
        status = self._engine.handle(request)
        assert isinstance(status, protocol.Status)
        return msgspec.structs.replace(
            status,
            num_clients=self._num_clients(),
            missed_outputs=self._outputs.missed(request.env_index),
        )

    def _stop(self, request: protocol.Stop) -> protocol.Ack:
        logger.info("%s asks the engine to stop", self.connection)
        self._on_stop()
        return protocol.Ack(request.rid)

    # answers ---------------------------------------------------------------------------------

    def _reply(self, rid: int, reply: object) -> None:
        message = protocol.encode(reply)
        while len(message) > MAX_MESSAGE_BYTES and isinstance(reply, protocol.CapsulePage):
            # Names and labels may be long; the client asks on from where the page ends.
            half = reply.capsules[: max(1, len(reply.capsules) // 2)]
            if len(half) == len(reply.capsules):
                break
            reply = msgspec.structs.replace(reply, capsules=half)
            message = protocol.encode(reply)
        if len(message) > MAX_MESSAGE_BYTES:
            self.connection.fail(
                rid,
                ProtocolError(
                    f"the reply {type(reply).__name__} does not fit a message",
                    expected=f"at most {MAX_MESSAGE_BYTES} bytes",
                    found=len(message),
                    fix="ask for less at a time; what was asked has been done",
                ),
            )
        else:
            self.connection.reply(message)


def _check_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"the engine does not speak protocol version {version}",
            expected=f"version {PROTOCOL_VERSION}",
            found=f"version {version}",
            fix="install the same version of flashrt_ros on both sides",
        )
