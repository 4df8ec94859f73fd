"""Moves a capsule in one file out of a folder and into one; paths are the caller's own."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path

from flashrt_ros.capsule.archive_format import SUFFIX
from flashrt_ros.capsule.archive_reader import ArchiveReader
from flashrt_ros.capsule.capsule import check_name
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.pending_file import PendingFile
from flashrt_ros.capsule.record import CapsuleRecord
from flashrt_ros.errors import CapsuleFolderError, CapsuleNameTakenError


def export_capsule(
    folder: CapsuleFolder, key: str, path: Path, *, replace: bool = False
) -> CapsuleRecord:
    """Copy a capsule's file out of a folder, checking every byte of it on the way.

    Args:
        folder: Where it is.
        key: As ``CapsuleFolder.find``.
        path: The new file. Nothing appears there unless the copy is whole.
        replace: Overwrite a file or link that is there; never a device, pipe, socket or folder.

    Returns:
        What the file says about its capsule.

    Raises:
        CapsuleNotFoundError: The folder has no such capsule.
        CapsuleNameTakenError: There is a file already; it is untouched.
        CapsuleArchiveError: The capsule's file is damaged; nothing was made.
        CapsuleDiskFullError: There is no room; nothing was made.
        CapsuleFolderError: The kernel refuses, or what is there is no file; nothing was made.
    """
    with folder.open_reader(key) as reader, _parent_of(path) as parent_fd:

        def check() -> None:
            _check_replaceable(path, parent_fd, replace=replace)

        check()
        with PendingFile(
            parent_fd,
            reader.file_bytes,
            lock=contextlib.nullcontext,
            what=f"capsule '{key}' can't be written to {path}",
        ) as file:
            _copy(reader, file)
            file.publish(path.name, check=check)
        return replaced(reader.record, file_bytes=reader.file_bytes)


def import_capsule(
    path: Path, folder: CapsuleFolder, *, file: str = "", replace: bool = False
) -> CapsuleRecord:
    """Copy a capsule's file into a folder, checking every byte of it on the way.

    The file is kept as it is, of whatever version. Whether the capsule fits an engine is
    for that engine to say, when it loads it.

    Args:
        path: The file.
        folder: Where it goes.
        file: Its name there, without the suffix; "" takes the capsule's name, or its id
            where it has none.
        replace: Take the name over from another capsule.

    Returns:
        What the file says about its capsule, with its name in the folder.

    Raises:
        CapsuleNameError: The name could not be a file's in the folder.
        CapsuleNameTakenError: Another capsule has the name; it is untouched.
        CapsuleArchiveError: The file is damaged or no capsule; nothing was made.
        CapsuleVersionError: The file is of a newer format.
        CapsuleDiskFullError: There is no room; nothing was made.
        CapsuleFolderError: The kernel refuses; nothing was made.
    """
    with _open_reader(path) as reader:
        record = reader.record
        stem = file or record.name or record.id
        check_name(stem)

        def check() -> None:
            if not replace:
                folder.require_free(stem, record.id)

        check()
        with folder.new_file(reader.file_bytes, stem) as target:
            _copy(reader, target)
            target.publish(stem + SUFFIX, check=check)
        return replaced(record, file=stem, file_bytes=reader.file_bytes)


def inspect_file(path: Path, *, verify: bool = False) -> CapsuleRecord:
    """Say what a capsule file anywhere holds.

    Args:
        path: The file.
        verify: Check the payload too, not the header alone.

    Raises:
        CapsuleArchiveError: The file is damaged or no capsule.
        CapsuleVersionError: The file is of a newer format.
        CapsuleFolderError: The kernel can't read it.
    """
    with _open_reader(path) as reader:
        if verify:
            reader.verify()
        return replaced(
            reader.record, file=path.name.removesuffix(SUFFIX), file_bytes=reader.file_bytes
        )


def _open_reader(path: Path) -> ArchiveReader:
    try:
        # Without O_NONBLOCK the open of a pipe would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise CapsuleFolderError(f"{path} can't be read", found=error.strerror) from error
    return ArchiveReader(fd, str(path))


@contextlib.contextmanager
def _parent_of(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CapsuleFolderError(f"{path} can't be written", found=error.strerror) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _check_replaceable(path: Path, parent_fd: int, *, replace: bool) -> None:
    """Refuse a path that is taken; not even on request does a file take a device's place."""
    try:
        mode = os.stat(path.name, dir_fd=parent_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not replace:
        raise CapsuleNameTakenError(f"{path} is there already", fix="use replace, or another path")
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise CapsuleFolderError(
            f"{path} can't be replaced",
            expected="a file",
            found=stat.filemode(mode),
            fix="name another path",
        )


def _copy(reader: ArchiveReader, file: PendingFile) -> None:
    offset = 0

    def write(piece: memoryview) -> None:
        nonlocal offset
        while piece:
            count = os.pwrite(file.fd, piece, offset)
            offset += count
            piece = piece[count:]

    with file.refusals():
        reader.verify(sink=write)
