"""One verb over episodes at a time: a claim on an engine's environment, whoever makes it."""

from __future__ import annotations

import fcntl
import os

from flashrt_ros.engine import address, linux
from flashrt_ros.errors import BusyError


class EnvironmentLock:
    """Keeps every other verb over episodes off one environment until :meth:`close`.

    A lock on an empty file beside the engine's socket, so that whoever reaches the engine finds
    it, in this process or another; the kernel frees it with its holder. Where a group reaches
    the engine, the folder's owner alone can make the file: until then there is no lock.

    Args:
        engine: The engine's name.
        env_index: Environment.

    Raises:
        BusyError: Somebody else has it; nothing is waited for.
    """

    def __init__(self, engine: str, env_index: int) -> None:
        self._fd = -1
        stem = address.socket_file(engine).removesuffix(".sock")
        path = address.socket_folder() / f"{stem}-{env_index}.episode"
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            # To be read by all who may enter the folder: that is what a lock takes.
            self._fd = os.open(path, flags, 0o644)
        except PermissionError:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise BusyError(
                    "another verb over episodes is under way",
                    found=f"somebody holds environment {env_index} of engine '{engine}'",
                    fix="ask again when it is over",
                ) from error
            raise
        linux.close_after_fork(self)

    def close(self) -> None:
        """Let others have it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close_in_child(self) -> None:
        """Close the descriptor in a forked child; the claim stays the parent's."""
        self.close()
