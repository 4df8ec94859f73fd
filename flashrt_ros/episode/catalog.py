"""Where manifests are kept: a private folder, or memory where there is none."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from flashrt_ros.capsule import pending_file, private_folder
from flashrt_ros.capsule.disk import refusals
from flashrt_ros.capsule.pending_file import PendingFile
from flashrt_ros.engine.address import socket_file
from flashrt_ros.episode.manifest import (
    MAX_FILE_BYTES,
    Manifest,
    check_episode_name,
    decode_manifest,
    encode_manifest,
)
from flashrt_ros.errors import (
    CapsuleArchiveError,
    CapsuleNameTakenError,
    CapsuleNotFoundError,
    FlashrtError,
)

logger = logging.getLogger(__name__)

SUFFIX = ".episode"

_LOCK_TIMEOUT_S = 10.0

OnDamage = Callable[[str, FlashrtError], None]
"""Gets the name of an episode that can't be read, and the reason."""


def ignore_damage(name: str, error: FlashrtError) -> None:
    """Say nothing of an episode that can't be read."""


class Catalog(Protocol):
    """Manifests by name. Not safe from several threads at once."""

    def has(self, name: str) -> bool:
        """Tell whether there is an episode of this name, readable or not."""

    def read(self, name: str) -> Manifest:
        """Return a manifest.

        Raises:
            CapsuleNotFoundError: There is none of this name.
            CapsuleArchiveError: It is damaged.
        """

    def write(self, manifest: Manifest, *, replace: bool) -> Manifest | None:
        """Keep a manifest; whole or not at all.

        Returns:
            The one whose name it took over, in the same instant; None where there was none, or
            none that could be read.

        Raises:
            CapsuleNameTakenError: There is one of this name, and ``replace`` is false.
            FlashrtError: It can't be kept; the one of before is whole.
        """

    def remove(self, name: str) -> Manifest | None:
        """Forget a manifest.

        Returns:
            What was forgotten; None where it could not be read.

        Raises:
            CapsuleNotFoundError: There is none of this name.
        """

    def manifests(self, on_damage: OnDamage = ignore_damage) -> tuple[Manifest, ...]:
        """Return every manifest that can be read, by name.

        Args:
            on_damage: Told the name and the reason of each that can't be.
        """

    def close(self) -> None:
        """Let go of what is held open. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class MemoryCatalog:
    """Manifests that end with their owner: of an engine without a folder."""

    def __init__(self) -> None:
        self._manifests: dict[str, Manifest] = {}

    def has(self, name: str) -> bool:
        """Tell whether there is an episode of this name."""
        return name in self._manifests

    def read(self, name: str) -> Manifest:
        """Return a manifest; see :class:`Catalog`."""
        if name not in self._manifests:
            raise _not_found(name, self._manifests)
        return self._manifests[name]

    def write(self, manifest: Manifest, *, replace: bool) -> Manifest | None:
        """Keep a manifest; see :class:`Catalog`."""
        check_episode_name(manifest.name)
        old = self._manifests.get(manifest.name)
        if old is not None and not replace:
            raise _taken(manifest.name)
        self._manifests[manifest.name] = manifest
        return old

    def remove(self, name: str) -> Manifest | None:
        """Forget a manifest; see :class:`Catalog`."""
        self.read(name)
        return self._manifests.pop(name)

    def manifests(self, on_damage: OnDamage = ignore_damage) -> tuple[Manifest, ...]:
        """Return every manifest, by name; see :class:`Catalog`."""
        return tuple(self._manifests[name] for name in sorted(self._manifests))

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Keep what is here."""


class FolderCatalog:
    """Files of manifests in a folder of mode 0700; each appears whole or not at all.

    Args:
        path: The folder; made if it is not there.

    Attributes:
        path: As given.

    Raises:
        CapsuleFolderError: It belongs to another user, or others may reach into it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = private_folder.open_folder(path, create=True)
        try:
            # What lies in a folder that is not writable was not left by us.
            if os.access(".", os.W_OK, dir_fd=self._fd):
                with self._refusals("an episode folder can't be cleared"), self._lock():
                    pending_file.sweep(self._fd)
        except BaseException:
            self.close()
            raise

    def has(self, name: str) -> bool:
        """Tell whether there is a file of this name, readable or not."""
        check_episode_name(name)
        return name + SUFFIX in private_folder.names_in(self._fd)

    def read(self, name: str) -> Manifest:
        """Return a manifest, every byte checked; see :class:`Catalog`."""
        check_episode_name(name)
        what = f"episode '{name}' can't be read"
        with self._refusals(what):
            try:
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                fd = os.open(name + SUFFIX, flags, dir_fd=self._fd)
            except FileNotFoundError as error:
                raise _not_found(name, self._names()) from error
            try:
                data = _read_all(fd)
            finally:
                os.close(fd)
        manifest = decode_manifest(data)
        if manifest.name != name:
            raise CapsuleArchiveError(
                what, expected=f"the episode '{name}'", found=f"'{manifest.name}'"
            )
        return manifest

    def write(self, manifest: Manifest, *, replace: bool) -> Manifest | None:
        """Keep a manifest; on disk when this returns. See :class:`Catalog`."""
        data = encode_manifest(manifest)
        what = f"episode '{manifest.name}' can't be written"
        old: Manifest | None = None

        def check() -> None:
            nonlocal old
            if self.has(manifest.name):
                if not replace:
                    raise _taken(manifest.name)
                old = self._read_last(manifest.name)

        with PendingFile(self._fd, len(data), lock=self._lock, what=what) as file:
            with file.refusals():
                _write_all(file.fd, data)
            file.publish(manifest.name + SUFFIX, check=check)
        return old

    def remove(self, name: str) -> Manifest | None:
        """Forget a manifest, also one that can't be read; see :class:`Catalog`."""
        check_episode_name(name)
        with self._refusals(f"episode '{name}' can't be removed"), self._lock():
            old = self._read_last(name) if self.has(name) else None
            try:
                os.unlink(name + SUFFIX, dir_fd=self._fd)
            except FileNotFoundError as error:
                raise _not_found(name, self._names()) from error
            os.fsync(self._fd)
        return old

    def manifests(self, on_damage: OnDamage = ignore_damage) -> tuple[Manifest, ...]:
        """Return every manifest that can be read, by name; see :class:`Catalog`."""
        found = []
        for name in self._names():
            try:
                found.append(self.read(name))
            except CapsuleNotFoundError:
                continue  # removed meanwhile
            except FlashrtError as error:
                on_damage(private_folder.printable(name), error)
        return tuple(found)

    def close(self) -> None:
        """Close the folder. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _names(self) -> list[str]:
        names = private_folder.names_in(self._fd)
        return [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]

    def _read_last(self, name: str) -> Manifest | None:
        """Return a manifest that is about to go, None where it can't be read."""
        try:
            return self.read(name)
        except FlashrtError as error:
            logger.warning("episode '%s' goes unread, its capsules stay: %s", name, error)
            return None

    def _lock(self) -> AbstractContextManager[None]:
        return private_folder.locked(self._fd, self.path, timeout_s=_LOCK_TIMEOUT_S)

    def _refusals(self, what: str) -> AbstractContextManager[None]:
        return refusals(what, folder_fd=self._fd)


def open_catalog(capsule_folder: str, engine: str) -> Catalog:
    """Open the catalog of an engine's episodes: beside its capsules, or in memory.

    Args:
        capsule_folder: The policy engine's, as its status names it; "" for none.
        engine: Its name, so that engines that share a folder don't share episodes.

    Raises:
        CapsuleFolderError: The folder is gone or not to be trusted, or nothing can be made in it.
    """
    if not capsule_folder:
        return MemoryCatalog()
    folder = Path(capsule_folder)
    os.close(private_folder.open_folder(folder, create=False))  # the engine makes it, and private
    stem = socket_file(engine).removesuffix(".sock")
    return FolderCatalog(folder / f"episodes-{stem}")


def _read_all(fd: int) -> bytes:
    """Return what is in a file of an episode; its size is compared before anything is allocated."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
        raise CapsuleArchiveError(
            "the file is no episode",
            expected=f"a file of {MAX_FILE_BYTES} bytes at most",
            found=f"{status.st_size} bytes, mode {stat.filemode(status.st_mode)}",
        )
    pieces = []
    while piece := os.read(fd, status.st_size + 1):
        pieces.append(piece)
    return b"".join(pieces)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _not_found(name: str, known: Iterable[str]) -> CapsuleNotFoundError:
    names = ", ".join(private_folder.printable(one) for one in sorted(known))
    return CapsuleNotFoundError(
        f"there is no episode '{name}'",
        expected=f"one of {names}" if names else "one that was taken; none was",
    )


def _taken(name: str) -> CapsuleNameTakenError:
    return CapsuleNameTakenError(
        f"the episode name '{name}' is taken", fix="use replace, or another name"
    )
