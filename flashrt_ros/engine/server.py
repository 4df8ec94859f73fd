"""The engine's one loop: deadlines, then messages, then one plan node, then the slack."""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections.abc import Callable
from types import TracebackType

from flashrt_ros.engine import linux, wire
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.connection import Connection
from flashrt_ros.engine.outputs import Outputs
from flashrt_ros.engine.protocol import MAX_MESSAGE_BYTES
from flashrt_ros.engine.served import ServedEngine
from flashrt_ros.engine.session import Session
from flashrt_ros.errors import BusyError, FlashrtError, PeerRefusedError

MAX_CLIENTS = 256

SPIN_NS = 150_000
"""How long the device is asked without a pause whether it is done."""

ASK_NS = 50_000
"""How long the loop sleeps after that before it asks again; sockets wake it at once."""

_MAX_LAST_MESSAGES = 1024
"""Messages taken from a client that is dead, before its connection is dropped."""

logger = logging.getLogger(__name__)


class EngineServer:
    """Serves one engine to the clients of one socket, on the thread that calls :meth:`run`.

    Each turn of the loop runs the deadline if one is due, takes at most one message from
    each client that sent some (the deadline is looked at again before each), submits one
    plan node, and, when there is nothing else and no tick is near, does one slice of
    background work. It sleeps in ``poll`` until a timer, a message, or :meth:`stop`; while
    the device is at work the timer has it asked at short intervals whether it is done.

    Args:
        engine: Served; its sink is set. Not owned: close it after the server.
        address: The claim on the name; starts to listen here, is closed with the server.
        poll_reserve_us: No background slice starts nearer than this to a deadline, us.
        busy_poll_us: How long to go on looking for messages without a pause after one, us.
        clock_ns: CLOCK_MONOTONIC, and the engine's clock.
    """

    def __init__(
        self,
        engine: ServedEngine,
        address: EngineSocket,
        *,
        poll_reserve_us: int = 600,
        busy_poll_us: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._engine = engine
        self._address = address
        self._reserve_ns = poll_reserve_us * 1000
        self._clock_ns = clock_ns
        self._outputs = Outputs(engine.info, clock_ns=clock_ns)
        self._buffer = bytearray(MAX_MESSAGE_BYTES)
        self._sessions: dict[int, Session] = {}
        self._peer_fds: dict[int, Session] = {}
        self._writing: set[int] = set()
        self._is_stopping = False
        self._is_closed = False
        self._is_accepting = True
        self._armed_ns: int | None = None
        self._waiting_ns = 0
        self._busy_poll_ns = busy_poll_us * 1000
        self._served_ns = 0
        self._timer_fd = linux.create_timer()
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._listener = address.listen()
        self._poll = select.poll()
        for fd in (self._listener.fileno(), self._timer_fd, self._stop_fd):
            self._poll.register(fd, select.POLLIN)
        engine.sink = self._outputs
        linux.close_after_fork(self)

    @property
    def num_clients(self) -> int:
        """Connections there are."""
        return len(self._sessions)

    def stop(self) -> None:
        """Have :meth:`run` return after the turn it is in; from any thread or signal handler."""
        self._is_stopping = True
        if not self._is_closed:
            os.eventfd_write(self._stop_fd, 1)

    def run(self) -> None:
        """Serve until :meth:`stop`, or until a client asks for it.

        Raises:
            Exception: What the engine itself raised outside any client's message. The
                engine's state can't be relied on then.
        """
        while not self._is_stopping:
            self._turn()

    def close(self) -> None:
        """Take the socket away, end every connection, close all descriptors. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_stopping = True
        self._address.close()
        for session in list(self._sessions.values()):
            self._drop(session, "closed")
        self._engine.sink = None
        self._outputs.close()
        os.close(self._timer_fd)
        os.close(self._stop_fd)

    def close_in_child(self) -> None:
        """Close descriptors in a forked child; clients and timer stay the parent's."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_stopping = True
        for session in self._sessions.values():
            session.connection.close_in_child()
        os.close(self._timer_fd)
        os.close(self._stop_fd)

    def __enter__(self) -> EngineServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # the loop --------------------------------------------------------------------------------

    def _turn(self) -> None:
        engine = self._engine
        has_background = self._has_background()
        is_busy = engine.has_work or has_background or self._is_spinning()
        events = self._poll.poll(0 if is_busy else self._sleep_ms())
        if events:
            self._served_ns = self._clock_ns()
        self._run_deadline()
        is_calling = False
        for fd, mask in events:
            if fd == self._listener.fileno():
                is_calling = True
            elif fd in self._sessions:
                self._serve(self._sessions[fd], mask)
            elif fd in self._peer_fds:
                self._serve_last(self._peer_fds[fd])
        self._reap()
        # After the others, so that no new connection takes the number of one in ``events``.
        if is_calling:
            self._accept()
        if engine.has_work:
            engine.advance()
        elif self._has_background():
            engine.background(self._clock_ns())
        self._outputs.deliver_events()

    def _is_spinning(self) -> bool:
        """Whether to look again at once: for the next message, or for the end of a pop."""
        now_ns = self._clock_ns()
        if now_ns - self._served_ns < self._busy_poll_ns:
            return True
        if not self._engine.is_waiting:
            self._waiting_ns = 0
            return False
        if not self._waiting_ns:
            self._waiting_ns = now_ns
        return now_ns - self._waiting_ns < SPIN_NS

    def _run_deadline(self) -> None:
        deadline = self._engine.next_deadline_ns()
        if deadline is not None:
            now_ns = self._clock_ns()
            if now_ns >= deadline:
                self._engine.on_deadline(now_ns)

    def _has_background(self) -> bool:
        due_ns = self._engine.next_background_ns()
        if due_ns is None:
            return False
        now_ns = self._clock_ns()
        deadline = self._engine.next_deadline_ns()
        return due_ns <= now_ns and (deadline is None or deadline - now_ns > self._reserve_ns)

    def _sleep_ms(self) -> int | None:
        """Arm the timer for what comes first; how long ``poll`` may sleep."""
        deadline = self._engine.next_deadline_ns()
        due_ns = self._engine.next_background_ns()
        now_ns = self._clock_ns()
        if deadline is not None and deadline <= now_ns:
            return 0
        wake_ns = deadline
        if self._engine.is_waiting:
            ask_ns = now_ns + ASK_NS
            wake_ns = ask_ns if deadline is None else min(deadline, ask_ns)
        # What is due already waits for slack, that is for the deadline to pass.
        if due_ns is not None and due_ns > now_ns and (wake_ns is None or due_ns < wake_ns):
            wake_ns = due_ns
        # Setting it also takes back an expiry: what was due then has moved since.
        if wake_ns != self._armed_ns:
            linux.set_timer(self._timer_fd, wake_ns)
            self._armed_ns = wake_ns
        return None

    # clients ---------------------------------------------------------------------------------

    def _serve(self, session: Session, mask: int) -> None:
        connection = session.connection
        if mask & select.POLLOUT:
            connection.flush()
            self._outputs.retry(connection)
        if mask & ~select.POLLOUT and connection.doom is None:
            self._run_deadline()
            session.serve()
            self._outputs.deliver_events()

    def _serve_last(self, session: Session) -> None:
        """Take what a dead client still said, then let go of what it held.

        Its socket may stay open in a child that it forked, so the end would not come.
        """
        connection = session.connection
        for _ in range(_MAX_LAST_MESSAGES):
            self._run_deadline()
            if connection.doom is not None or not session.serve():
                break
        self._outputs.deliver_events()
        connection.condemn("died")

    def _reap(self) -> None:
        for fd, session in list(self._sessions.items()):
            connection = session.connection
            if connection.doom is not None:
                self._drop(session, connection.doom)
            elif connection.wants_write != (fd in self._writing):
                self._watch_writing(fd, connection.wants_write)

    def _watch_writing(self, fd: int, is_wanted: bool) -> None:
        self._poll.modify(fd, select.POLLIN | (select.POLLOUT if is_wanted else 0))
        if is_wanted:
            self._writing.add(fd)
        else:
            self._writing.discard(fd)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # Out of descriptors: the caller stays in the backlog until one is free.
            logger.error("no connection can be accepted: %s; raise ulimit -n", error)
            self._watch_listener(False)
            return
        sock.setblocking(False)
        peer = wire.peer_credentials(sock)
        refusal = self._refusal(sock, peer)
        connection = Connection(sock, peer, wire.peer_descriptor(sock, peer), self._buffer)
        if refusal is not None:
            logger.warning("%s is refused: %s", connection, refusal)
            connection.fail(0, refusal)
            connection.close()
            return
        session = Session(
            connection,
            self._engine,
            self._outputs,
            name=self._address.name,
            num_clients=lambda: self.num_clients,
            on_stop=self.stop,
        )
        self._sessions[connection.fd] = session
        self._poll.register(connection.fd, select.POLLIN)
        if connection.peer_fd is not None:
            self._peer_fds[connection.peer_fd] = session
            self._poll.register(connection.peer_fd, select.POLLIN)

    def _refusal(self, sock: socket.socket, peer: wire.Peer) -> FlashrtError | None:
        if len(self._sessions) >= MAX_CLIENTS:
            return BusyError(
                f"engine '{self._address.name}' takes no more clients",
                expected=f"at most {MAX_CLIENTS}",
            )
        if peer.user_id in (0, os.geteuid()):
            return None
        group_id = self._address.group_id
        if group_id is not None and (
            peer.group_id == group_id or group_id in wire.peer_groups(sock)
        ):
            return None
        return PeerRefusedError(
            f"user {peer.user_id} may not connect to engine '{self._address.name}'",
            expected=f"user {os.geteuid()}"
            + ("" if group_id is None else f", or a member of group {group_id}"),
            fix="set the engine parameter 'socket_group' to a group that both are in",
        )

    def _drop(self, session: Session, reason: str) -> None:
        connection = session.connection
        level = logging.DEBUG if reason in ("closed", "died") else logging.WARNING
        logger.log(level, "%s is dropped: %s", connection, reason)
        del self._sessions[connection.fd]
        self._writing.discard(connection.fd)
        self._poll.unregister(connection.fd)
        if connection.peer_fd is not None:
            del self._peer_fds[connection.peer_fd]
            self._poll.unregister(connection.peer_fd)
        session.close()
        connection.close()
        self._watch_listener(True)

    def _watch_listener(self, is_accepting: bool) -> None:
        if is_accepting == self._is_accepting or self._is_closed:
            return
        self._is_accepting = is_accepting
        if is_accepting:
            self._poll.register(self._listener.fileno(), select.POLLIN)
        else:
            self._poll.unregister(self._listener.fileno())
