"""One client's socket on the server's side: it never blocks and never waits."""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Sequence

from flashrt_ros.engine import wire
from flashrt_ros.engine.protocol import MAX_MESSAGE_BYTES, Failure, encode
from flashrt_ros.errors import FlashrtError

MAX_UNSENT_EVENTS = 256
"""Events kept for a client that does not read; the next one costs it the connection."""

MAX_UNSENT_REPLIES = 8
"""Replies kept for a client that asks without reading; likewise."""

_MAX_FAILURE_CHARACTERS = 2000

logger = logging.getLogger(__name__)


class Connection:
    """A client's socket, with what could not be sent yet.

    Nothing here closes the socket on its own: a connection that has to end is *doomed*,
    with a reason, and the server drops it between two messages. So a send from within
    the engine can't take rings away under it.

    Args:
        sock: Connected and non-blocking; owned from here on.
        peer: Who connected.
        peer_fd: pidfd of the peer, or None; owned from here on.
        buffer: Receive buffer, shared by all connections of the one thread.
        unsettled: Where it puts itself once it is doomed, or may want to write or no longer.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: wire.Peer,
        peer_fd: int | None,
        buffer: bytearray,
        unsettled: set[Connection],
    ) -> None:
        self.peer = peer
        self.peer_fd = peer_fd
        self.fd = sock.fileno()
        self.client = ""
        self.doom: str | None = None
        self.is_blocked = False
        """An output found the socket full since the last :meth:`flush`."""
        self._socket = sock
        self._buffers = [buffer]
        self._view = memoryview(buffer)
        self._unsettled = unsettled
        self._unsent: deque[tuple[bytes, bool]] = deque()
        self._num_unsent_events = 0
        self._is_closed = False

    def __str__(self) -> str:
        return f"client '{self.client}' (process {self.peer.process_id})"

    @property
    def wants_write(self) -> bool:
        """Whether the server should call :meth:`flush` once the socket takes more."""
        return self.is_blocked or bool(self._unsent)

    def condemn(self, reason: str) -> None:
        """Have the connection dropped by the server; the first reason counts."""
        if self.doom is None:
            self.doom = reason
            self._unsettled.add(self)

    def receive(self) -> memoryview | None:
        """Return the next message, empty at its end; None when there is none yet.

        The view is good until the next receive of any connection.

        Raises:
            ProtocolError: The message was too long, or carried descriptors.
        """
        try:
            length, _, flags, _ = self._socket.recvmsg_into(self._buffers)
        except BlockingIOError:
            return None
        except OSError:
            return self._view[:0]
        if flags & wire.CUT_OFF:  # with no room for descriptors there is none to close
            raise wire.misfit(f"at most {MAX_MESSAGE_BYTES} bytes and no descriptors")
        return self._view[:length]

    def reply(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send an encoded reply, after any events that wait; dooms a client that does not read."""
        self._send(message, is_event=False, fds=fds)

    def fail(self, rid: int, error: FlashrtError) -> None:
        """Send a failure."""
        text = str(error)
        if len(text) > _MAX_FAILURE_CHARACTERS:
            text = text[:_MAX_FAILURE_CHARACTERS] + "…"
        self.reply(encode(Failure(rid, error.code, text)))

    def event(self, message: bytes) -> None:
        """Send an encoded event, or keep it until the socket takes more."""
        self._send(message, is_event=True)

    def try_output(self, message: bytes) -> bool:
        """Send an encoded output if the socket takes it now; outputs are never queued."""
        if self._unsent or self.doom is not None:
            return self._block()
        try:
            wire.send(self._socket, message)
        except BlockingIOError:
            return self._block()
        except OSError as error:
            self.condemn(f"could not be sent to: {error.strerror}")
            return False
        return True

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        self.is_blocked = False
        self._unsettled.add(self)
        while self._unsent and self.doom is None:
            message, is_event = self._unsent[0]
            try:
                wire.send(self._socket, message)
            except BlockingIOError:
                return
            except OSError as error:
                self.condemn(f"could not be sent to: {error.strerror}")
                return
            self._unsent.popleft()
            self._num_unsent_events -= is_event

    def close(self) -> None:
        """Close the socket and the pidfd; the client sees the end. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        # The peer's forked children may share its end, and are told too.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("%s was gone already", self)
        self._socket.close()
        if self.peer_fd is not None:
            os.close(self.peer_fd)

    def close_in_child(self) -> None:
        """Close descriptors in a forked child, without a word to the client."""
        if self._is_closed:
            return
        self._is_closed = True
        self._socket.close()
        if self.peer_fd is not None:
            os.close(self.peer_fd)

    def _block(self) -> bool:
        self.is_blocked = True
        self._unsettled.add(self)
        return False

    def _send(self, message: bytes, *, is_event: bool, fds: Sequence[int] = ()) -> None:
        if self.doom is not None:
            return
        assert len(message) <= MAX_MESSAGE_BYTES
        if not self._unsent:
            try:
                if fds:
                    wire.send(self._socket, message, fds)
                else:
                    self._socket.send(message)
                return
            except BlockingIOError:
                pass
            except OSError as error:
                self.condemn(f"could not be sent to: {error.strerror}")
                return
        # Descriptors are not kept: the ring may be gone by the time they could be sent.
        if fds:
            self.condemn("does not read its messages")
            return
        num_replies = len(self._unsent) - self._num_unsent_events
        if is_event and self._num_unsent_events >= MAX_UNSENT_EVENTS:
            self.condemn(f"left {MAX_UNSENT_EVENTS} events unread")
        elif not is_event and num_replies >= MAX_UNSENT_REPLIES:
            self.condemn(f"left {MAX_UNSENT_REPLIES} replies unread")
        else:
            self._unsettled.add(self)
            self._unsent.append((message, is_event))
            self._num_unsent_events += is_event
