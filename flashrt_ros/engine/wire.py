"""Datagrams with descriptors over a SEQPACKET socket, and who is at its other end."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from flashrt_ros.engine import linux
from flashrt_ros.engine.protocol import MAX_MESSAGE_BYTES
from flashrt_ros.errors import ProtocolError

BUSY_POLL_US = 50
"""How long either side looks for a message before it sleeps, by default: longer than the other
takes for one, where it is not busy, and much shorter than a tick.
"""

_FD_BYTES = array.array("i").itemsize
_CREDENTIALS = struct.Struct("iII")
_MAX_GROUPS = 65536
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)

# Plain numbers: an operator of the enumeration is six calls, and every message asks.
WHOLE_LENGTH = int(socket.MSG_TRUNC)
"""Has a receive tell a message's length even where it did not fit."""

AT_ONCE = int(socket.MSG_DONTWAIT) | WHOLE_LENGTH
"""Besides, has a receive fail at once where there is nothing."""

CUT_OFF = int(socket.MSG_TRUNC) | int(socket.MSG_CTRUNC)
"""What a receive says of a message that did not fit, or whose descriptors did not."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who connected, as the kernel says; 0 is a process that can't be seen from here."""

    process_id: int
    user_id: int
    group_id: int


def peer_credentials(sock: socket.socket) -> Peer:
    """Return process, user and group of the other end, as of its connect."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


def peer_groups(sock: socket.socket) -> frozenset[int]:
    """Return the supplementary groups of the other end, as of its connect."""
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, linux.SO_PEERGROUPS, _MAX_GROUPS * 4)
    except OSError:
        return frozenset()  # the kernel does not tell: then nobody is let in by group
    return frozenset(array.array("I", raw))


def peer_descriptor(sock: socket.socket, peer: Peer) -> int | None:
    """Return a pidfd of the other end, readable once that process is dead.

    A child that it forked may keep the socket open after it: only this descriptor
    tells. None where the process can't be seen or is gone.
    """
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, linux.SO_PEERPIDFD, _FD_BYTES)
        return int.from_bytes(raw, "little")
    except OSError:
        pass  # kernel before 6.5
    try:
        return os.pidfd_open(peer.process_id)
    except OSError:
        return None


def send(sock: socket.socket, message: bytes, fds: Sequence[int] = ()) -> None:
    """Send one message whole, or raise what the socket raises."""
    if fds:
        rights = array.array("i", fds)
        sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    else:
        sock.send(message)


def misfit(expected: str, *, found: int | None = None, fix: str | None = None) -> ProtocolError:
    """Return what to raise over a message that did not fit, or whose descriptors did not."""
    return ProtocolError("a message did not fit", expected=expected, found=found, fix=fix)


def receive(
    sock: socket.socket, buffer: bytearray, *, max_fds: int
) -> tuple[memoryview, list[int]]:
    """Receive one message into ``buffer``, with the descriptors that ride on it.

    Where none may, receive from the socket itself: the layers of this function cost more in cold
    caches than the rest of a message.

    Args:
        sock: Blocks or not, as it is set.
        buffer: ``MAX_MESSAGE_BYTES`` long; what was there is overwritten.
        max_fds: How many descriptors the caller is ready for.

    Returns:
        The message, a view of ``buffer``, empty at the end of the connection, and the
        descriptors, which the caller owns.

    Raises:
        ProtocolError: The message or its descriptors did not fit. Nothing is leaked.
    """
    room = socket.CMSG_SPACE(max_fds * _FD_BYTES)
    length, extras, flags, _ = sock.recvmsg_into([buffer], room, _CLOSE_ON_EXEC)
    fds = array.array("i")
    for level, kind, data in extras:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    if flags & CUT_OFF:
        close_descriptors(fds)
        is_short = not fds and flags & socket.MSG_CTRUNC
        fix = "raise the limit of open files: no descriptor is left" if is_short else None
        expected = f"at most {MAX_MESSAGE_BYTES} bytes and {max_fds} descriptors"
        raise misfit(expected, fix=fix)
    return memoryview(buffer)[:length], list(fds)


def close_descriptors(fds: Sequence[int]) -> None:
    """Close what was received and is not wanted."""
    for fd in fds:
        os.close(fd)
