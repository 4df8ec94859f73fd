"""Where engines are reached, and which ones answer."""

from __future__ import annotations

import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

from flashrt_ros.cli.findings import Row, Status
from flashrt_ros.engine.address import FOLDER_VARIABLE, socket_folder

ENGINES = "engines"


def check_engines(folder: Path | None = None) -> list[Row]:
    """Report the socket folder and every socket in it; makes and removes nothing.

    Args:
        folder: None takes the one that engines of this user use.
    """
    folder = socket_folder() if folder is None else folder
    rows = [folder_row(folder)]
    if rows[0].status is Status.FAIL or not folder.is_dir():
        return rows
    sockets = sorted(folder.glob("*.sock"))
    if not sockets:
        rows.append(Row(ENGINES, "running", Status.OK, "none"))
    return rows + [engine_row(path) for path in sockets]


def folder_row(folder: Path) -> Row:
    """Judge who owns the folder of the sockets and who may enter it."""
    name = "socket folder"
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return _missing_folder(folder)
    except OSError as error:
        return Row(
            ENGINES, name, Status.FAIL, f"{folder}: {error.strerror}", "no engine starts", _FIX
        )
    mode = stat.S_IMODE(status.st_mode)
    found = f"{folder}, mode {mode:04o}, owner {status.st_uid}"
    is_shared = bool(os.environ.get(FOLDER_VARIABLE))
    is_mine = status.st_uid == os.geteuid()
    if not stat.S_ISDIR(status.st_mode):
        return Row(ENGINES, name, Status.FAIL, f"{folder} is no folder", "no engine starts", _FIX)
    if mode & 0o022 or (not is_shared and (mode & 0o077 or not is_mine)):
        return Row(
            ENGINES,
            name,
            Status.FAIL,
            found,
            "engines and clients refuse it: others could answer in an engine's place",
            f"chmod 700 {folder}" if is_mine else _FIX,
        )
    return _trusted_folder(folder, found)


def _trusted_folder(folder: Path, found: str) -> Row:
    name = "socket folder"
    is_shared = bool(os.environ.get(FOLDER_VARIABLE))
    if not is_shared and folder.parent == Path(tempfile.gettempdir()):
        return Row(
            ENGINES,
            name,
            Status.WARN,
            found,
            f"what cleans {folder.parent} may take the socket from under a running engine",
            f"use a login session, which has XDG_RUNTIME_DIR, or set {FOLDER_VARIABLE}",
        )
    return Row(ENGINES, name, Status.OK, found)


_FIX = f"remove it, or set {FOLDER_VARIABLE} to a folder of your own"


def _missing_folder(folder: Path) -> Row:
    if os.access(folder.parent, os.W_OK | os.X_OK):
        return _trusted_folder(folder, f"{folder}, made when the first engine starts")
    return Row(
        ENGINES,
        "socket folder",
        Status.FAIL,
        f"{folder}, and {folder.parent} is not writable or not there",
        "no engine starts",
        f"set {FOLDER_VARIABLE} to a folder of your own",
    )


def engine_row(path: Path) -> Row:
    """Judge whether something answers at a socket."""
    name = path.name
    # by a descriptor of the folder: a path may be longer than a socket's name may be
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        sock.connect(f"/proc/self/fd/{fd}/{name}")
        pid = _peer_pid(sock)
    except (ConnectionRefusedError, FileNotFoundError):
        return Row(
            ENGINES,
            name,
            Status.WARN,
            "stale: nothing listens",
            "an engine ended without stopping; the next of its name replaces the socket",
            f"look for the reason in its log; rm {path}",
        )
    except BlockingIOError:
        return Row(
            ENGINES,
            name,
            Status.WARN,
            "its queue of connections is full",
            "the engine does not serve: it hangs, or is stopped",
            "look at its process; stop it with SIGTERM",
        )
    except OSError as error:
        return Row(
            ENGINES,
            name,
            Status.WARN,
            f"{error.strerror}",
            "this user can't reach the engine",
            "ask its owner for socket_group",
        )
    finally:
        sock.close()
        os.close(fd)
    return Row(ENGINES, name, Status.OK, f"alive, process {pid}{_command(pid)}")


def _peer_pid(sock: socket.socket) -> int:
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    text = b" ".join(words).decode("utf-8", "replace").strip()
    return f": {text}" if text else ""
