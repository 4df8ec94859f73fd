"""The clients of one engine: its socket, who is connected, what they are owed."""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Callable
from contextlib import ExitStack

from flashrt_ros.engine import wire
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.connection import Connection
from flashrt_ros.engine.outputs import Outputs
from flashrt_ros.engine.polling import Poll
from flashrt_ros.engine.served import ServedEngine
from flashrt_ros.engine.session import Session
from flashrt_ros.errors import BusyError, FlashrtError, PeerRefusedError

MAX_CLIENTS = 256

_MAX_LAST_MESSAGES = 1024
"""Messages taken from a client that is dead, before its connection is dropped."""

logger = logging.getLogger(__name__)


class Clients:
    """Serves the connections of one engine's socket, where the loop says.

    Args:
        engine: Served; its sink is set. Not owned.
        address: The claim on the name; starts to listen here, is closed with this.
        poll: Every descriptor is registered there.
        owners: Who serves which descriptor; every one of these is added.
        buffer: Receive buffer, shared by all connections of the one thread.
        clock_ns: CLOCK_MONOTONIC.
        run_deadlines: Called before each of the last messages of a client that is dead.
        on_stop: Called when a client asks to stop.

    Attributes:
        unsettled: Connections that are to be dropped, or may have to be watched otherwise;
            :meth:`settle` does so.
    """

    def __init__(
        self,
        engine: ServedEngine,
        address: EngineSocket,
        *,
        poll: Poll,
        owners: dict[int, Clients],
        buffer: bytearray,
        clock_ns: Callable[[], int],
        run_deadlines: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._address = address
        self._poll = poll
        self._owners = owners
        self._buffer = buffer
        self._run_deadlines = run_deadlines
        self._on_stop = on_stop
        self._outputs = Outputs(engine.info, clock_ns=clock_ns)
        self._sessions: dict[int, Session] = {}
        self._peer_fds: dict[int, Session] = {}
        self._writing: set[int] = set()
        self.unsettled: set[Connection] = set()
        self._is_closed = False
        self._is_accepting = True
        self._is_calling = False
        self._listener = address.listen()
        self._listener_fd = self._listener.fileno()
        self._watch(self._listener_fd)
        engine.sink = self._outputs

    @property
    def num_clients(self) -> int:
        """Connections there are."""
        return len(self._sessions)

    # what the loop calls ---------------------------------------------------------------------

    def serve(self, fd: int, mask: int) -> None:
        """Do what a descriptor is ready for; one message at most."""
        session = self._sessions.get(fd)
        if session is not None:
            connection = session.connection
            if mask & select.POLLOUT:
                connection.flush()
                self._outputs.retry(connection)
            if mask & ~select.POLLOUT and connection.doom is None:
                session.serve()
                self._outputs.deliver_events()
        elif fd == self._listener_fd:
            self._is_calling = True
        elif fd in self._peer_fds:
            self._serve_last(self._peer_fds[fd])

    def settle(self) -> bool:
        """Drop who is to be dropped, take in who calls; after every descriptor was served.

        So no new connection takes the number of one that was ready and is gone.

        Returns:
            Whether a connection ended, and its descriptors are free.
        """
        has_dropped = bool(self.unsettled) and self._reap()
        if self._is_calling:
            self._is_calling = False
            self._accept()
        return has_dropped

    def accept_again(self) -> None:
        """Take in who calls once more, where descriptors had run out."""
        self._watch_listener(True)

    def deliver(self) -> None:
        """Send what events there are to who subscribed."""
        self._outputs.deliver_events()

    def close(self) -> None:
        """Take the socket away, end every connection. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as undo:
            undo.callback(self._outputs.close)
            undo.callback(setattr, self._engine, "sink", None)
            for session in reversed(self._sessions.values()):
                undo.callback(self._drop, session, "closed")
            undo.callback(self._address.close)

    def close_in_child(self) -> None:
        """Close descriptors in a forked child; clients stay the parent's."""
        if self._is_closed:
            return
        self._is_closed = True
        for session in self._sessions.values():
            session.connection.close_in_child()

    # messages --------------------------------------------------------------------------------

    def _serve_last(self, session: Session) -> None:
        """Take what a dead client still said, then let go of what it held.

        Its socket may stay open in a child that it forked, so the end would not come.
        """
        connection = session.connection
        for _ in range(_MAX_LAST_MESSAGES):
            self._run_deadlines()
            if connection.doom is not None or not session.serve():
                break
        self._outputs.deliver_events()
        connection.condemn("died")

    # coming and going ------------------------------------------------------------------------

    def _reap(self) -> bool:
        num_before = len(self._sessions)
        while self.unsettled:
            connection = self.unsettled.pop()
            session = self._sessions.get(connection.fd)
            if session is None or session.connection is not connection:
                continue  # it was refused, or has been dropped
            if connection.doom is not None:
                self._drop(session, connection.doom)
            elif connection.wants_write != (connection.fd in self._writing):
                self._watch_writing(connection.fd, connection.wants_write)
        return len(self._sessions) < num_before

    def _watch(self, fd: int) -> None:
        self._poll.register(fd, select.POLLIN)
        self._owners[fd] = self

    def _unwatch(self, fd: int) -> None:
        del self._owners[fd]
        self._poll.unregister(fd)

    def _watch_writing(self, fd: int, is_wanted: bool) -> None:
        self._poll.register(fd, select.POLLIN | (select.POLLOUT if is_wanted else 0))
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
        peer_fd = wire.peer_descriptor(sock, peer)
        connection = Connection(sock, peer, peer_fd, self._buffer, self.unsettled)
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
            on_stop=self._on_stop,
        )
        self._sessions[connection.fd] = session
        self._watch(connection.fd)
        if connection.peer_fd is not None:
            self._peer_fds[connection.peer_fd] = session
            self._watch(connection.peer_fd)

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
        self._unwatch(connection.fd)
        if connection.peer_fd is not None:
            del self._peer_fds[connection.peer_fd]
            self._unwatch(connection.peer_fd)
        try:
            session.close()
        finally:
            connection.close()

    def _watch_listener(self, is_accepting: bool) -> None:
        if is_accepting == self._is_accepting or self._is_closed:
            return
        self._is_accepting = is_accepting
        if is_accepting:
            self._watch(self._listener_fd)
        else:
            self._unwatch(self._listener_fd)
