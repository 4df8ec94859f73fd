"""Where an engine's socket lies, who may reach it, and that there is one engine a name.

The folder is the first of: ``FLASHRT_RUNTIME_DIR``; ``flashrt`` under
``XDG_RUNTIME_DIR``; ``flashrt`` under ``/run/user/UID``; ``flashrt-UID`` under the
temporary folder. Sockets are reached through a descriptor of the folder, so what was
checked is what is used, and a long path does not matter: the kernel allows 108 bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import hashlib
import os
import re
import select
import socket
import stat
import tempfile
import time
from pathlib import Path
from types import TracebackType

from flashrt_ros.engine import linux, wire
from flashrt_ros.errors import (
    ConfigError,
    EngineGoneError,
    EngineRunningError,
    PeerRefusedError,
)

FOLDER_VARIABLE = "FLASHRT_RUNTIME_DIR"
"""Environment variable that names the folder; needed where a group shares an engine."""

_BACKLOG = 128
_MAX_WAIT_S = 0.25
_RETRY_S = 0.01


def socket_folder() -> Path:
    """Return the folder for sockets of this user; it need not exist yet."""
    explicit = os.environ.get(FOLDER_VARIABLE)
    if explicit:
        return Path(explicit)
    user = os.geteuid()
    for candidate in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{user}"):
        # A variable inherited through sudo names another user's folder.
        if candidate and Path(candidate).is_dir() and Path(candidate).stat().st_uid == user:
            return Path(candidate) / "flashrt"
    return Path(tempfile.gettempdir()) / f"flashrt-{user}"


def socket_file(name: str) -> str:
    """Return the file name of an engine's socket, at most 60 bytes whatever the name.

    Slashes at the ends and doubled ones do not count; other names differ.

    Raises:
        ConfigError: The name is empty.
    """
    normal = "/".join(part for part in name.split("/") if part)
    if not normal:
        raise ConfigError("an engine has no name", expected="a non-empty name", found=repr(name))
    readable = re.sub(r"[^A-Za-z0-9_-]+", ".", normal).strip(".")[:32]
    digest = hashlib.blake2s(normal.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{readable}-{digest}.sock" if readable else f"{digest}.sock"


def socket_path(name: str) -> Path:
    """Return the path of an engine's socket, for people."""
    return socket_folder() / socket_file(name)


def _open_folder(folder: Path, *, create: bool, group_id: int | None = None) -> int:
    is_explicit = bool(os.environ.get(FOLDER_VARIABLE))
    is_new = False
    if create:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            is_new = True
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise PeerRefusedError(
            f"the socket folder {folder} can't be trusted",
            expected="a folder",
            found="a symbolic link or a file",
            fix="remove it",
        ) from error
    try:
        if is_new:
            os.fchmod(fd, 0o700 if group_id is None else 0o750)
            if group_id is not None:
                os.fchown(fd, -1, group_id)
        status = os.fstat(fd)
        mode = stat.S_IMODE(status.st_mode)
        # A folder that was named on purpose may be shared, but by nobody who could
        # put a socket of his own in the engine's place.
        is_safe = (
            not mode & 0o022 if is_explicit else not mode & 0o077 and status.st_uid == os.geteuid()
        )
        if not is_safe:
            raise PeerRefusedError(
                f"the socket folder {folder} can't be trusted",
                expected="writable by its owner alone"
                if is_explicit
                else f"mode 0700 and owner {os.geteuid()}",
                found=f"mode {mode:04o} and owner {status.st_uid}",
                fix="correct it or remove it",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def _dial(folder_fd: int, file: str) -> socket.socket:
    """Connect without waiting; raises what the kernel says."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        sock.connect(f"/proc/self/fd/{folder_fd}/{file}")
    except BaseException:
        sock.close()
        raise
    return sock


def connect(name: str, *, timeout_s: float) -> socket.socket:
    """Connect to an engine, waiting for it to come up.

    Sleeps on an inotify watch of the socket's folder, and looks again four times a
    second besides. Where the folder is not there yet it looks every 10 ms.

    Args:
        name: The engine's.
        timeout_s: How long to wait for it; 0 tries once.

    Returns:
        A connected non-blocking SEQPACKET socket; the caller owns it.

    Raises:
        EngineGoneError: No engine of this name answers in time.
        PeerRefusedError: The folder or the process behind the socket is not to be trusted.
    """
    folder, file = socket_folder(), socket_file(name)
    expires = time.monotonic() + timeout_s
    watch = -1
    try:
        while True:
            try:
                return _connect_once(folder, file)
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
                reason = error
            except PermissionError as error:
                raise PeerRefusedError(
                    f"engine '{name}' may not be reached", expected=f"access to {folder / file}"
                ) from error
            remaining = expires - time.monotonic()
            if remaining <= 0:
                raise EngineGoneError(
                    f"no engine named '{name}' answers",
                    expected=f"a socket at {folder / file}",
                    found=reason.strerror,
                    fix="start the engine, or check its name",
                ) from reason
            if watch < 0:
                try:
                    watch = linux.watch_folder(str(folder))
                    continue  # it may have come up before the watch was set
                except OSError:
                    time.sleep(min(remaining, _RETRY_S))
                    continue
            # A full backlog makes no sound when it empties.
            is_full = isinstance(reason, BlockingIOError)
            poll = select.poll()
            poll.register(watch, select.POLLIN)
            poll.poll(1000 * min(remaining, _RETRY_S if is_full else _MAX_WAIT_S))
            with contextlib.suppress(BlockingIOError):
                os.read(watch, 65536)
    finally:
        if watch >= 0:
            os.close(watch)


def _connect_once(folder: Path, file: str) -> socket.socket:
    fd = _open_folder(folder, create=False)
    try:
        owner = os.fstat(fd).st_uid
        sock = _dial(fd, file)
    finally:
        os.close(fd)
    peer = wire.peer_credentials(sock)
    if peer.user_id not in (0, owner, os.geteuid()):
        sock.close()
        raise PeerRefusedError(
            f"the process behind {folder / file} is not to be trusted",
            expected=f"user {owner}",
            found=f"user {peer.user_id}",
        )
    return sock


class EngineSocket:
    """An engine's claim on its name, and then its listening socket.

    The constructor takes the name: a lock that the kernel frees when the process ends.
    :meth:`listen` makes the socket appear under its final name only once it listens.

    Args:
        name: The engine's.
        group: Group that may connect besides the user, "" for none.

    Raises:
        EngineRunningError: An engine of this name runs.
        PeerRefusedError: The folder is not to be trusted.
        ConfigError: The name is empty, the group is unknown or can't reach the folder, or
            the folder can't be made or written.
    """

    def __init__(self, name: str, *, group: str = "") -> None:
        self.name = name
        self.file = socket_file(name)
        self.folder = socket_folder()
        self.group_id = _group_id(group) if group else None
        if group and not os.environ.get(FOLDER_VARIABLE):
            raise ConfigError(
                f"group '{group}' can't reach the socket folder {self.folder}",
                expected="a folder that the group may enter",
                fix=f"set {FOLDER_VARIABLE} to one, for the engine and its clients",
            )
        self._is_closed = False
        self._socket: socket.socket | None = None
        self._inode = 0
        self._lock_fd = -1
        self._folder_fd = -1
        try:
            self._folder_fd = _open_folder(self.folder, create=True, group_id=self.group_id)
            self._lock()
            self._probe()
        except OSError as error:
            self.close()
            raise ConfigError(
                f"the socket folder {self.folder} can't be used",
                found=error.strerror,
                fix=f"make it, or set {FOLDER_VARIABLE} to a folder of this user",
            ) from error
        except BaseException:
            self.close()
            raise
        linux.close_after_fork(self)

    def listen(self) -> socket.socket:
        """Start listening; a stale socket of a crashed engine is replaced.

        Returns:
            The listening socket, non-blocking; owned by this object.
        """
        new = f"{self.file}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=self._folder_fd)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            sock.setblocking(False)
            sock.bind(f"/proc/self/fd/{self._folder_fd}/{new}")
            os.chmod(new, 0o600 if self.group_id is None else 0o660, dir_fd=self._folder_fd)
            if self.group_id is not None:
                os.chown(new, -1, self.group_id, dir_fd=self._folder_fd)
            sock.listen(_BACKLOG)
            self._inode = os.stat(new, dir_fd=self._folder_fd).st_ino
            os.rename(new, self.file, src_dir_fd=self._folder_fd, dst_dir_fd=self._folder_fd)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        return sock

    def close(self) -> None:
        """Take the socket out of the folder, close it, free the name. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                if os.stat(self.file, dir_fd=self._folder_fd).st_ino == self._inode:
                    os.unlink(self.file, dir_fd=self._folder_fd)
            self._socket.close()
        if self._lock_fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.file}.lock", dir_fd=self._folder_fd)
            os.close(self._lock_fd)
        if self._folder_fd >= 0:
            os.close(self._folder_fd)

    def close_in_child(self) -> None:
        """Close descriptors in a forked child; the name stays the parent's."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._socket is not None:
            self._socket.close()
        os.close(self._lock_fd)
        os.close(self._folder_fd)

    def __enter__(self) -> EngineSocket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _lock(self) -> None:
        file = f"{self.file}.lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while self._lock_fd < 0:
            fd = os.open(file, flags, 0o600, dir_fd=self._folder_fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # An engine that ended just now may have removed the file we locked.
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(file, dir_fd=self._folder_fd).st_ino == os.fstat(fd).st_ino:
                        os.ftruncate(fd, 0)
                        os.write(fd, str(os.getpid()).encode())
                        self._lock_fd = fd
            except BlockingIOError:
                owner = os.pread(fd, 32, 0).decode("ascii", "replace")
                raise self._running(f"process {owner}") from None
            finally:
                if self._lock_fd != fd:
                    os.close(fd)

    def _probe(self) -> None:
        try:
            _dial(self._folder_fd, self.file).close()
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except BlockingIOError:
            pass
        raise self._running("a socket that answers")

    def _running(self, found: str) -> EngineRunningError:
        return EngineRunningError(
            f"an engine named '{self.name}' runs already",
            found=f"{found} at {self.folder / self.file}",
            fix="stop it, or give this one another name",
        )


def _group_id(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"engine parameter 'socket_group' names no group: '{group}'") from None
