"""Writes a capsule file in steps, beside whatever else the process does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import xxhash

from flashrt_ros.capsule.archive_format import SUFFIX, payload_digest
from flashrt_ros.capsule.archive_header import encode_head
from flashrt_ros.capsule.disk import start_writing_back
from flashrt_ros.capsule.pending_file import PendingFile
from flashrt_ros.capsule.record import SECTIONS, CapsuleRecord, check_record
from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.spec import PAGE_BYTES, round_up

CHUNK_BYTES = 4 << 20
"""Hashed and written at a time, with the interpreter's lock released."""


class ArchiveWriter:
    """One capsule on its way to disk: ``write_some`` until true, then ``finish``.

    The sections' memory must keep its bytes until then. Not finished, for whatever
    reason, it leaves nothing behind and the file of that name as it was.

    May be used by another thread than the one that made it, by one at a time.

    Args:
        record: What is saved.
        sections: The payload's, as ``record.split_payload`` cuts them: host memory.
        file: Name of the file, without the suffix.
        open_file: Makes the file, of the size it is given.
        check: Raises where the name must not be taken; called when it is about to be.

    Raises:
        SpecError: A section has another length than the record says.
        CapsuleNameError: A name or label in the record is malformed.
        CapsuleArchiveError: The header would be too long.
        CapsuleDiskFullError: There is no room; nothing is left behind.
        CapsuleFolderError: The kernel refuses.
    """

    def __init__(
        self,
        record: CapsuleRecord,
        sections: Sequence[memoryview],
        *,
        file: str,
        open_file: Callable[[int], PendingFile],
        check: Callable[[], None],
    ) -> None:
        check_record(record)
        views = tuple(memoryview(section).cast("B") for section in sections)
        lengths = tuple(len(view) for view in views)
        if lengths != record.section_bytes:
            raise SpecError(
                f"the sections of capsule '{record.name or record.id}' have other lengths",
                expected=dict(zip(SECTIONS, record.section_bytes, strict=True)),
                found=lengths,
            )
        head = encode_head(record, ["0" * 32] * len(SECTIONS))
        self._record = record
        self._name = file
        self._check = check
        self._views = views
        self._starts = _starts(len(head), lengths)
        self._digests = [xxhash.xxh3_128() for _ in views]
        self._index = 0
        self._done = 0
        self._file = open_file(self._starts[-1] + lengths[-1])

    @property
    def remaining_bytes(self) -> int:
        """Bytes of payload that :meth:`write_some` has yet to write."""
        return sum(len(view) for view in self._views[self._index :]) - self._done

    def write_some(self, max_bytes: int = 1 << 62) -> bool:
        """Hash and write the next part of the payload.

        Args:
            max_bytes: Most bytes to write in this call; positive.

        Returns:
            Whether all of it is written.

        Raises:
            CapsuleDiskFullError: The disk is full; the writer is aborted.
            CapsuleFolderError: The kernel refuses; the writer is aborted.
        """
        self._require_open()
        try:
            with self._file.refusals():
                while self._index < len(self._views) and max_bytes > 0:
                    max_bytes -= self._write_piece(min(max_bytes, CHUNK_BYTES))
        except BaseException:
            self.abort()
            raise
        return self._index == len(self._views)

    def finish(self) -> CapsuleRecord:
        """Write what is left and the header, wait for the disk, and publish the file.

        Returns:
            The record with its digest, file and size.

        Raises:
            CapsuleNameTakenError: Another capsule took the name meanwhile.
            CapsuleDiskFullError: The disk is full; the writer is aborted.
            CapsuleFolderError: The kernel refuses; the writer is aborted.
        """
        self.write_some()
        try:
            digests = [digest.hexdigest() for digest in self._digests]
            with self._file.refusals():
                self._write(memoryview(encode_head(self._record, digests)), 0)
            self._file.publish(self._name + SUFFIX, check=self._check)
        finally:
            self.abort()
        return replace(
            self._record,
            digest=payload_digest(digests),
            file=self._name,
            file_bytes=self._file.num_bytes,
        )

    def abort(self) -> None:
        """Leave nothing behind; the file of that name stays as it was. Idempotent."""
        self._file.close()
        self._views = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def _require_open(self) -> None:
        if self._file.fd < 0:
            raise SpecError(
                f"the writer of capsule '{self._record.name or self._record.id}' was closed",
                fix="begin another one",
            )

    def _write_piece(self, max_bytes: int) -> int:
        view = self._views[self._index]
        piece = view[self._done : self._done + max_bytes]
        offset = self._starts[self._index] + self._done
        self._digests[self._index].update(piece)
        self._write(piece, offset)
        start_writing_back(self._file.fd, offset, len(piece))
        self._done += len(piece)
        if self._done == len(view):
            self._index += 1
            self._done = 0
        return len(piece)

    def _write(self, piece: memoryview, offset: int) -> None:
        done = 0
        while done < len(piece):
            done += os.pwrite(self._file.fd, piece[done:], offset + done)


def _starts(head_bytes: int, lengths: Sequence[int]) -> tuple[int, ...]:
    """Where the sections lie in the file: each on the first page behind the one before."""
    starts, end = [], head_bytes
    for length in lengths:
        starts.append(round_up(end, PAGE_BYTES))
        end = starts[-1] + length
    return tuple(starts)
