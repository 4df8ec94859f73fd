"""The folder that an engine keeps capsule files in; imports without torch.

Files are reached through a descriptor of the folder, so what was checked is what is used,
and no link is followed in it. Readers take no lock: a file is replaced as a whole, so they
see the old one or the new one. Names change under a lock, so several engines may share a
folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from flashrt_ros.capsule import pending_file, private_folder
from flashrt_ros.capsule.archive_format import SUFFIX
from flashrt_ros.capsule.archive_reader import ArchiveReader
from flashrt_ros.capsule.archive_writer import ArchiveWriter
from flashrt_ros.capsule.capsule import check_name
from flashrt_ros.capsule.disk import refusals
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.pending_file import PendingFile
from flashrt_ros.capsule.record import CapsuleRecord, LayoutRow, require_layout
from flashrt_ros.errors import (
    CapsuleArchiveError,
    CapsuleFolderError,
    CapsuleNameTakenError,
    CapsuleNotFoundError,
    CapsuleVersionError,
    FlashrtError,
)


@dataclass(frozen=True, slots=True)
class FolderListing:
    """What a folder holds.

    Attributes:
        records: Of every capsule file whose header is whole, by file name.
        damaged: ``(file name, reason)`` of every other file that is called a capsule.
    """

    records: tuple[CapsuleRecord, ...]
    damaged: tuple[tuple[str, str], ...]


class CapsuleFolder:
    """Capsule files in one folder, private to its owner.

    A file is found by its name without ``.capsule``, else by the name or the id of the
    capsule in it. Methods may be called from several threads; what they return is what
    was there at that moment, for another process may change it.

    Args:
        path: The folder. Its last part may not be a link.
        create: Make it, with mode 0700, if it is not there.
        lock_timeout_s: How long to wait for another process that changes names.

    Raises:
        CapsuleFolderError: It is not there, is no folder, belongs to another user, or
            others may reach into it.
    """

    def __init__(self, path: Path, *, create: bool = True, lock_timeout_s: float = 10.0) -> None:
        self.path = path
        self.lock_timeout_s = lock_timeout_s
        self._fd = private_folder.open_folder(path, create=create)
        try:
            # What lies in a folder that is not writable was not left by us.
            if os.access(".", os.W_OK, dir_fd=self._fd):
                self.sweep()
        except BaseException:
            self.close()
            raise

    @property
    def used_bytes(self) -> int:
        """Bytes of all capsule files, damaged ones too."""
        total = 0
        for name in self._files():
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_size
        return total

    @property
    def damaged(self) -> tuple[tuple[str, str], ...]:
        """``(file name, reason)`` of every file that is called a capsule and can't be read."""
        return self.scan().damaged

    def records(self) -> tuple[CapsuleRecord, ...]:
        """Return what every readable file says; payloads are neither read nor checked."""
        return self.scan().records

    def scan(self) -> FolderListing:
        """Read the header of every capsule file."""
        records, damaged = [], []
        for name in self._files():
            stem = name.removesuffix(SUFFIX)
            try:
                check_name(stem)
                with self._open(stem) as reader:
                    records.append(_record_of(reader, stem))
            except CapsuleNotFoundError:
                continue  # removed meanwhile
            except FlashrtError as error:
                damaged.append((private_folder.printable(name), str(error)))
        return FolderListing(tuple(records), tuple(damaged))

    def find(self, key: str) -> CapsuleRecord:
        """Return what a file says about its capsule, without its payload.

        Args:
            key: Name of the file, or name or id of the capsule in it.

        Raises:
            CapsuleNameError: It could not be a file's name.
            CapsuleNotFoundError: There is no such file, or several.
            CapsuleArchiveError: The file is damaged or no capsule.
            CapsuleVersionError: The file is of a newer format.
        """
        stem = self._resolve(key)
        with self._open(stem) as reader:
            return _record_of(reader, stem)

    def open_reader(self, key: str) -> ArchiveReader:
        """Open a file; the caller closes it.

        Raises:
            CapsuleNameError: As :meth:`find`.
            CapsuleNotFoundError: As :meth:`find`.
            CapsuleArchiveError: As :meth:`find`.
            CapsuleVersionError: As :meth:`find`.
        """
        return self._open(self._resolve(key))

    def read_into(
        self,
        key: str,
        layout: Sequence[LayoutRow] | None,
        fingerprint: Fingerprint | None,
        destination: memoryview,
    ) -> CapsuleRecord:
        """Read a payload into host memory and check every byte of it.

        Args:
            key: As :meth:`find`.
            layout: ``record.layout_rows`` of the engine; None to read whatever fits.
            fingerprint: Of the engine; None to read what was taken elsewhere.
            destination: ``uint8[record.num_bytes]`` or longer; the payload is laid out in it
                as in a lane. No lane itself: when this raises, its content is void.

        Returns:
            What the file says about the capsule.

        Raises:
            CapsuleNameError: As :meth:`find`.
            CapsuleNotFoundError: As :meth:`find`.
            CapsuleArchiveError: The file is damaged or no capsule.
            CapsuleVersionError: The file is of a newer format.
            FingerprintMismatchError: The capsule does not fit; nothing was read.
            SpecError: The destination is too small; nothing was read.
            CapsuleFolderError: The kernel can't read it.
        """
        stem = self._resolve(key)
        with self._open(stem) as reader:
            if fingerprint is not None:
                fingerprint.require(reader.record.fingerprint, stem)
            if layout is not None:
                require_layout(reader.record, layout)
            with self._refusals(f"capsule file '{stem}{SUFFIX}' can't be read"):
                reader.read_into(destination)
            return _record_of(reader, stem)

    def begin_write(
        self,
        record: CapsuleRecord,
        sections: Sequence[memoryview],
        *,
        file: str = "",
        replace: bool = False,
    ) -> ArchiveWriter:
        """Begin to save a capsule; the caller finishes or aborts the writer.

        Until it is finished, nothing can be seen of it.

        Args:
            record: What is saved.
            sections: Its payload, as ``record.split_payload`` cuts it: host memory that
                keeps its bytes until the writer is finished.
            file: Name of the file, without the suffix; "" takes the capsule's name, or its
                id where it has none.
            replace: Take the name over from another capsule. A file with the same capsule
                is replaced in any case.

        Raises:
            CapsuleNameError: The name could not be a file's.
            CapsuleNameTakenError: Another capsule's file has the name.
            SpecError: Record and sections contradict each other.
            CapsuleArchiveError: The record is too long for a header.
            CapsuleDiskFullError: There is no room; nothing is left behind.
            CapsuleFolderError: The folder can't be written.
        """
        stem = file or record.name or record.id
        check_name(stem)

        def check() -> None:
            if not replace:
                self.require_free(stem, record.id)

        check()
        return ArchiveWriter(
            record,
            sections,
            file=stem,
            open_file=lambda num_bytes: self.new_file(num_bytes, stem),
            check=check,
        )

    def write(
        self,
        record: CapsuleRecord,
        sections: Sequence[memoryview],
        *,
        file: str = "",
        replace: bool = False,
    ) -> CapsuleRecord:
        """Save a capsule and wait until it is on disk.

        Returns:
            The record with its digest, file and size.

        Raises:
            CapsuleNameError: As :meth:`begin_write`.
            CapsuleNameTakenError: As :meth:`begin_write`.
            SpecError: As :meth:`begin_write`.
            CapsuleArchiveError: As :meth:`begin_write`.
            CapsuleDiskFullError: As :meth:`begin_write`; the file of that name is whole.
            CapsuleFolderError: As :meth:`begin_write`; the file of that name is whole.
        """
        with self.begin_write(record, sections, file=file, replace=replace) as writer:
            return writer.finish()

    def new_file(self, num_bytes: int, stem: str) -> PendingFile:
        """Make a file that can be published in this folder; the caller closes it.

        Args:
            num_bytes: Its size.
            stem: What it will be called, for messages.

        Raises:
            CapsuleDiskFullError: There is no room.
            CapsuleFolderError: The folder can't be written.
        """
        what = f"capsule file '{stem}{SUFFIX}' can't be written to {self.path}"
        return PendingFile(self._folder, num_bytes, lock=self._locked, what=what)

    def require_free(self, stem: str, capsule_id: str) -> None:
        """Refuse a file name that another capsule has.

        Raises:
            CapsuleNameTakenError: A file of that name holds another capsule, or none.
            CapsuleFolderError: The kernel refuses.
        """
        try:
            with self._open(stem) as reader:
                found = reader.record.id
        except CapsuleNotFoundError:
            return
        except (CapsuleArchiveError, CapsuleVersionError) as error:
            found = str(error)
        if found != capsule_id:
            raise CapsuleNameTakenError(
                f"the capsule file '{stem}{SUFFIX}' is there already",
                found=found,
                fix="use replace, or another name",
            )

    def remove(self, file: str) -> None:
        """Remove a file, damaged or not. One who reads it at the time reads it to its end.

        Args:
            file: Its name without the suffix, and nothing else: what a name or an id means
                may have changed since it was looked up.

        Raises:
            CapsuleNameError: It could not be a file's name.
            CapsuleNotFoundError: There is no such file.
            CapsuleFolderError: The folder can't be written.
        """
        check_name(file)
        with self._refusals(f"capsule file '{file}{SUFFIX}' can't be removed from {self.path}"):
            with self._locked():
                try:
                    os.unlink(file + SUFFIX, dir_fd=self._folder)
                except FileNotFoundError as error:
                    raise CapsuleNotFoundError(
                        f"{self.path} has no file '{file}{SUFFIX}'"
                    ) from error
            os.fsync(self._folder)

    def sweep(self) -> tuple[str, ...]:
        """Remove temporary files whose writers were killed; also done at construction.

        Returns:
            Their names.

        Raises:
            CapsuleFolderError: The folder can't be written.
        """
        with self._refusals(f"{self.path} can't be tidied"), self._locked():
            return pending_file.sweep(self._folder)

    def close(self) -> None:
        """Close the folder's descriptor. Idempotent."""
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

    @property
    def _folder(self) -> int:
        if self._fd < 0:
            raise CapsuleFolderError(f"the capsule folder {self.path} was closed")
        return self._fd

    def _refusals(self, what: str) -> AbstractContextManager[None]:
        return refusals(what, folder_fd=self._folder)

    def _locked(self) -> AbstractContextManager[None]:
        return private_folder.locked(self._folder, self.path, timeout_s=self.lock_timeout_s)

    def _files(self) -> tuple[str, ...]:
        with self._refusals(f"{self.path} can't be listed"):
            names = private_folder.names_in(self._folder)
        return tuple(name for name in names if name.endswith(SUFFIX))

    def _open(self, stem: str) -> ArchiveReader:
        name = stem + SUFFIX
        # Without O_NONBLOCK the open of a pipe would wait for a writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        with self._refusals(f"capsule file '{name}' can't be read"):
            try:
                fd = os.open(name, flags, dir_fd=self._folder)
            except FileNotFoundError as error:
                raise CapsuleNotFoundError(f"{self.path} has no file '{name}'") from error
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise CapsuleArchiveError(
                    f"capsule file '{name}' is a link, which is not followed",
                    reason="foreign",
                    fix="put the file itself there",
                ) from error
            return ArchiveReader(fd, f"capsule file '{name}'")

    def _resolve(self, key: str) -> str:
        """Find the file that a key means, by its name first."""
        check_name(key)
        files = self._files()
        if key + SUFFIX in files:
            return key
        records = [record for record in self.records() if key in (record.id, record.name)]
        if len(records) != 1:
            names = ", ".join(record.file for record in records)
            raise CapsuleNotFoundError(
                f"no file in {self.path} has the name '{key}', nor the capsule in one",
                expected=", ".join(
                    private_folder.printable(name.removesuffix(SUFFIX)) for name in files
                )
                or "none",
                found=f"several with that capsule: {names}" if records else None,
                fix="name the file" if records else None,
            )
        return records[0].file


def _record_of(reader: ArchiveReader, stem: str) -> CapsuleRecord:
    return dataclasses.replace(reader.record, file=stem, file_bytes=reader.file_bytes)
