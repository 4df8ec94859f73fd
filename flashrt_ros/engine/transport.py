"""A client's socket: requests and their replies in step, what comes unasked kept aside."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import time
from collections import deque
from typing import TypeVar

import msgspec

from flashrt_ros.engine import address, linux, protocol, wire
from flashrt_ros.engine.protocol import MAX_MESSAGE_BYTES
from flashrt_ros.engine.wire import BUSY_POLL_US
from flashrt_ros.errors import EngineGoneError, FlashrtError, ProtocolError, from_wire

_Reply = TypeVar("_Reply", bound=msgspec.Struct)
_Unasked = protocol.Output | protocol.Event
_Message = protocol.Reply | _Unasked

_PATIENCE_S = 60.0
"""How long an engine may keep silent over what may take any time, such as one node of a plan."""

_HELD_NS = 100_000
"""How long an answer is looked for with the interpreter's lock held: longer than an engine that is
awake takes, and too short for another thread to notice."""


class Transport:
    """One connection, for one thread; once anything goes wrong on it, it has ended.

    Args:
        name: The engine's.
        timeout_s: How long to wait for an answer.
        wait_s: How long to wait for the engine to come up.
        busy_poll_us: How long to go on looking for an answer without a pause, before sleeping
            until it comes, us. For the first 100 no other thread of the process runs, unless the
            engine is one.

    Raises:
        EngineGoneError: No engine of this name answers in time.
        PeerRefusedError: The folder or the process behind the socket is not to be trusted.
    """

    def __init__(
        self, name: str, *, timeout_s: float, wait_s: float, busy_poll_us: int = BUSY_POLL_US
    ) -> None:
        self.name = name
        self._busy_poll_ns = busy_poll_us * 1000
        self._timeout_s = timeout_s
        self._gone: str | None = None
        self._rid = 0
        self._late: set[int] = set()
        self._buffer = bytearray(MAX_MESSAGE_BYTES)
        self._view = memoryview(self._buffer)
        # Stays: what has a view can't be resized.
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._inbox: deque[_Unasked] = deque()
        self._socket = address.connect(name, timeout_s=wait_s)
        is_inside = wire.peer_credentials(self._socket).process_id == os.getpid()
        self._held_ns = 0 if is_inside else min(self._busy_poll_ns, _HELD_NS)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._replies = select.poll()
        self._replies.register(self._socket, select.POLLIN)
        self._messages = select.poll()
        self._messages.register(self._socket, select.POLLIN)
        self._messages.register(self._wake_fd, select.POLLIN)
        linux.close_after_fork(self)

    @property
    def is_gone(self) -> bool:
        """Whether the connection has ended, on either side, as far as is known here."""
        return self._gone is not None

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def exchange(
        self,
        request: protocol.Request,
        kind: type[_Reply],
        *,
        max_fds: int = 0,
        timeout_s: float | None = None,
        is_long: bool = False,
    ) -> tuple[_Reply, list[int]]:
        """Send a request under a ``rid`` of its own and wait for the reply to it.

        A long one is waited for as long as the engine lives: each time the time is up it is
        asked for a sign of life, which it gives between two nodes of a plan.

        Args:
            request: Its ``rid`` is replaced.
            kind: The reply to expect.
            max_fds: Descriptors that may ride on it; the caller owns them.
            timeout_s: How long to wait; None for the connection's own.
            is_long: Whether the answer may take any time.

        Raises:
            FlashrtError: The engine refused, as the class that its code names.
            EngineGoneError: The connection ended, or no answer came in time; of a long one,
                no sign of life for a minute.
            ProtocolError: Another kind of reply came, or the request is too long.
        """
        if self._gone is not None:
            raise self._ended(self._gone)
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        expires = time.monotonic() + wait_s
        self._rid = rid = self._rid + 1
        message = protocol.encode(msgspec.structs.replace(request, rid=rid))
        if len(message) > MAX_MESSAGE_BYTES:
            raise ProtocolError(
                f"the request {type(request).__name__} does not fit a message",
                expected=f"at most {MAX_MESSAGE_BYTES} bytes",
                found=len(message),
            )
        try:
            try:
                self._socket.send(message)
            except BlockingIOError:
                self._send(message, expires)  # waits until there is room
            except OSError as error:  # may be a signal's: nothing is sent twice
                raise self._hung_up(error) from error
            return self._await(request, kind, max_fds, wait_s, expires, is_long)
        except FlashrtError:
            raise
        except BaseException:  # a signal's: the answer is still to come, and nobody's then
            self._late.add(rid)
            raise

    def _await(
        self,
        request: protocol.Request,
        kind: type[_Reply],
        max_fds: int,
        wait_s: float,
        expires: float,
        is_long: bool,
    ) -> tuple[_Reply, list[int]]:
        """Wait for the reply to the request sent last."""
        rid, ping = self._rid, 0
        while True:
            seen = self._look() if self._held_ns and not max_fds else None
            look_ns = self._busy_poll_ns - (0 if max_fds else self._held_ns)
            if seen is None and not self._wait(expires, look_ns):
                silence_s = max(wait_s, _PATIENCE_S)
                if is_long and not ping:
                    self._rid += 1
                    ping = self._rid
                    self._late.add(ping)
                    expires = time.monotonic() + silence_s
                    self._send(protocol.encode(protocol.Ping(ping)), expires)
                    continue
                raise self.end(
                    EngineGoneError(
                        f"engine '{self.name}' did not answer {type(request).__name__}",
                        expected=f"a sign of life within {silence_s:g} s"
                        if ping
                        else f"an answer within {wait_s:g} s",
                        fix="see its log; the connection is given up",
                    )
                )
            answer, fds = self._take(max_fds) if seen is None else (seen, [])
            if isinstance(answer, kind) and getattr(answer, "rid", 0) == rid:
                return answer, fds
            if answer is None:
                continue
            wire.close_descriptors(fds)
            if isinstance(answer, _Unasked):
                self._inbox.append(answer)
            elif answer.rid in self._late:
                self._late.discard(answer.rid)
                if answer.rid == ping:
                    ping, expires = 0, time.monotonic() + wait_s
            elif answer.rid == rid and isinstance(answer, protocol.Failure):
                raise from_wire(answer.code, answer.message)
            else:
                raise self._unexpected(answer)

    def _look(self) -> _Message | None:
        """Look for a message for a moment, and return it if there is one.

        The call that sees it has it. No other thread comes in between, unless the switch interval
        is shorter: one that waits for the interpreter's lock, as threads of a node do, may keep it
        for longer than an answer takes.

        Raises:
            EngineGoneError: The connection has ended.
            ProtocolError: The message can't be read.
        """
        until_ns = time.monotonic_ns() + self._held_ns
        while True:
            # Asked for the descriptor each time: the handler of a signal may close it.
            length = linux.receive_held(
                self._socket.fileno(), self._address, MAX_MESSAGE_BYTES, wire.AT_ONCE
            )
            if length > 0:
                return self._decode(length)
            if length == 0:
                raise self.end(self._ended("the engine closed it"))
            if time.monotonic_ns() >= until_ns:
                return None

    def _wait(self, expires: float, look_ns: int) -> bool:
        """Wait until there is something to take; tell whether there is.

        It is looked for without a pause first, while other threads run: one that sleeps wakes up
        slowly, on a core that slept too and in cold caches.
        """
        if look_ns:
            until_ns = time.monotonic_ns() + look_ns
            while time.monotonic_ns() < until_ns:
                if self._replies.poll(0):
                    return True
        return bool(self._replies.poll(max(0.0, expires - time.monotonic()) * 1000))

    def send(self, message: bytes) -> None:
        """Send a message that has no reply.

        Raises:
            EngineGoneError: The connection has ended, or takes nothing in time.
        """
        self._require()
        self._send(message, time.monotonic() + self._timeout_s)

    def receive(self, timeout_s: float | None) -> _Unasked | None:
        """Wait for what comes unasked; None when the time is up or :meth:`wake` was called.

        Raises:
            EngineGoneError: The connection has ended.
        """
        if self._inbox:
            return self._inbox.popleft()
        self._require()
        for fd, _ in self._messages.poll(None if timeout_s is None else timeout_s * 1000):
            if fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
                return None
        message = self._take()[0]
        if message is None or isinstance(message, _Unasked):
            return message
        if message.rid in self._late:  # a sign of life that came after what it was asked for
            self._late.discard(message.rid)
            return None
        raise self._unexpected(message)

    def wake(self) -> None:
        """End the :meth:`receive` in progress, or the next one; from any thread."""
        if self._gone is None:
            os.eventfd_write(self._wake_fd, 1)

    def end(self, error: FlashrtError) -> FlashrtError:
        """End the connection because of ``error``, and return it to be raised."""
        self._gone = self._gone or str(error)
        # So that what was lent goes back now, not when the caller gets to close().
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        return error

    def close(self) -> None:
        """End the connection. Idempotent."""
        if self._socket.fileno() < 0:
            return
        self._gone = self._gone or "it was closed"
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        os.close(self._wake_fd)

    def close_in_child(self) -> None:
        """Close the descriptors in a forked child, without a word to the engine."""
        if self._socket.fileno() >= 0:
            self._gone = "it belongs to the parent process"
            self._socket.close()
            os.close(self._wake_fd)

    # inside ----------------------------------------------------------------------------------

    def _send(self, message: bytes, expires: float) -> None:
        while True:
            try:
                self._socket.send(message)
                return
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._socket, select.POLLOUT)
                if not poll.poll(max(0.0, expires - time.monotonic()) * 1000):
                    raise self.end(
                        EngineGoneError(
                            f"engine '{self.name}' takes no messages", fix="see its log"
                        )
                    ) from None
            except OSError as error:
                raise self._hung_up(error) from error

    def _take(self, max_fds: int = 0) -> tuple[_Message | None, list[int]]:
        """Receive what is there: a message, or None; EngineGoneError at the end."""
        fds: list[int] = []
        try:
            if max_fds:
                data, fds = wire.receive(self._socket, self._buffer, max_fds=max_fds)
                length = len(data)
            else:
                # The kernel closes descriptors that nobody asked for; only an engine refuses them.
                length = self._socket.recv_into(self._view, 0, wire.WHOLE_LENGTH)
        except BlockingIOError:
            return None, []
        except ProtocolError as error:
            raise self.end(error) from None
        except OSError as error:
            raise self.end(self._ended(error.strerror)) from error
        try:
            if not length:
                raise self.end(self._ended("the engine closed it"))
            return self._decode(length), fds
        except FlashrtError:
            wire.close_descriptors(fds)
            raise

    def _decode(self, length: int) -> _Message:
        """Return the message that was received last; ProtocolError where it is none."""
        if length > MAX_MESSAGE_BYTES:
            raise self.end(wire.misfit(f"at most {MAX_MESSAGE_BYTES} bytes", found=length))
        try:
            message: _Message = protocol.decode_from_engine(self._view[:length])
        except msgspec.MsgspecError as error:
            raise self.end(
                ProtocolError(
                    f"a message of engine '{self.name}' could not be decoded", found=error
                )
            ) from error
        return message

    def _hung_up(self, error: OSError) -> FlashrtError:
        # What the engine said before it hung up explains more than the hanging up.
        return self.end(self._last_failure() or self._ended(error.strerror))

    def _last_failure(self) -> FlashrtError | None:
        while True:
            try:
                message = self._take()[0]
            except FlashrtError:
                return None
            if message is None:
                return None
            if isinstance(message, protocol.Failure):
                return from_wire(message.code, message.message)

    def _require(self) -> None:
        if self._gone is not None:
            raise self._ended(self._gone)

    def _ended(self, reason: str | None) -> EngineGoneError:
        return EngineGoneError(
            f"the connection to engine '{self.name}' has ended",
            found=reason or "the connection closed",
        )

    def _unexpected(self, message: protocol.Reply) -> FlashrtError:
        if isinstance(message, protocol.Failure):
            return self.end(from_wire(message.code, message.message))
        return self.end(
            ProtocolError(
                f"engine '{self.name}' answered out of step",
                expected=f"the reply to request {self._rid}",
                found=f"{type(message).__name__} to request {message.rid}",
            )
        )
