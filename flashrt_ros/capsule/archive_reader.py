"""Reads a capsule file; nothing of it is believed before it was checked.

The payload is read by ``pread`` straight into the caller's memory and hashed there,
piece by piece while it is warm, and not through a mapping: a file that another process
cuts short would kill the reader of a mapping (SIGBUS), where ``pread`` says so. It is
also the faster of the two (``docs/archive.md``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from types import TracebackType
from typing import Self

import xxhash

from flashrt_ros.capsule.archive_format import (
    PREAMBLE_BYTES,
    USE_A_COPY,
    Section,
    check_size,
    check_zero,
    decode_preamble,
)
from flashrt_ros.capsule.archive_header import decode_head
from flashrt_ros.errors import CapsuleArchiveError, SpecError

CHUNK_BYTES = 1 << 20
"""Read and hashed at a time: small enough to stay in a core's cache in between."""


class ArchiveReader:
    """An open capsule file whose header was checked; the payload is checked as it is read.

    A file replaced by another while this one is open doesn't matter: the old bytes stay
    until the reader is closed.

    Args:
        fd: Of the file, open for reading. The reader owns it, also when it raises.
        label: What the file is called in messages.

    Attributes:
        record: What the file says about its capsule.
        version: Of the format.
        file_bytes: Size of the file.

    Raises:
        CapsuleArchiveError: It is no capsule file, or a damaged one.
        CapsuleVersionError: It was written in a newer format.
        OSError: The kernel can't read it.
    """

    def __init__(self, fd: int, label: str) -> None:
        self._fd = fd
        self._label = label
        self._bounce = bytearray()
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise CapsuleArchiveError(
                    f"{label} is no capsule", reason="foreign", expected="a regular file"
                )
            preamble = decode_preamble(os.pread(fd, PREAMBLE_BYTES, 0), label)
            # The sizes are those of a file that is there, so what follows is bounded by it.
            check_size(preamble, status.st_size, label)
            self._head_bytes = min(preamble.payload_offset, preamble.file_bytes)
            head = os.pread(fd, self._head_bytes, 0)
            if len(head) < preamble.payload_offset:
                raise _cut_short(label)
            self.record, self._sections = decode_head(preamble, head, label)
            self.version = preamble.version
            self.file_bytes = preamble.file_bytes
        except BaseException:
            self.close()
            raise

    def read_into(self, destination: memoryview) -> None:
        """Read the payload, checking every byte that follows the header.

        Args:
            destination: ``uint8[record.num_bytes]`` or longer of host memory, writable. What
                lies behind the payload keeps its bytes. After an error its content is void:
                nothing of it may be used.

        Raises:
            CapsuleArchiveError: A digest is wrong, or the file was cut short meanwhile.
            SpecError: The destination is too small; nothing was read.
            OSError: The kernel can't read it.
        """
        if len(destination) < self.record.num_bytes:
            raise SpecError(
                f"{self._label} does not fit its destination",
                expected=f"{self.record.num_bytes} bytes",
                found=len(destination),
            )
        starts = {}
        end = 0
        for section in self._sections:
            starts[section.name] = end
            end += section.num_bytes

        def target(section: Section, offset: int, length: int) -> memoryview:
            start = starts[section.name] + offset
            return destination[start : start + length]

        self._walk(target, lambda _: None)

    def verify(self, sink: Callable[[memoryview], None] = lambda _: None) -> None:
        """Check every byte without keeping it.

        Args:
            sink: Gets the file's bytes in order, in pieces valid during the call; it must
                not act on them before this method returned.

        Raises:
            CapsuleArchiveError: As :meth:`read_into`.
            OSError: As :meth:`read_into`.
        """
        self._bounce = self._bounce or bytearray(CHUNK_BYTES)
        view = memoryview(self._bounce)
        for offset in range(0, self._head_bytes, CHUNK_BYTES):
            piece = view[: min(CHUNK_BYTES, self._head_bytes - offset)]
            self._read(piece, offset)
            sink(piece)
        self._walk(lambda _section, _offset, length: view[:length], sink)

    def close(self) -> None:
        """Close the file. Idempotent."""
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

    def _walk(
        self,
        target: Callable[[Section, int, int], memoryview],
        sink: Callable[[memoryview], None],
    ) -> None:
        end = self._head_bytes
        for section in self._sections:
            padding = memoryview(bytearray(section.offset - end))
            self._read(padding, end)
            check_zero(padding, end, self._label)
            sink(padding)
            digest = xxhash.xxh3_128()
            for offset in range(0, section.num_bytes, CHUNK_BYTES):
                piece = target(section, offset, min(CHUNK_BYTES, section.num_bytes - offset))
                self._read(piece, section.offset + offset)
                digest.update(piece)
                sink(piece)
            if digest.hexdigest() != section.digest:
                raise CapsuleArchiveError(
                    f"{self._label} is damaged in its section '{section.name}'",
                    reason="payload",
                    expected=f"xxh3-128 {section.digest}",
                    found=digest.hexdigest(),
                    fix=USE_A_COPY,
                )
            end = section.offset + section.num_bytes

    def _read(self, piece: memoryview, offset: int) -> None:
        done = 0
        while done < len(piece):
            count = os.preadv(self._fd, [piece[done:]], offset + done)
            if count == 0:
                raise _cut_short(self._label)
            done += count


def _cut_short(label: str) -> CapsuleArchiveError:
    return CapsuleArchiveError(
        f"{label} was cut short while it was read", reason="truncated", fix="copy it again"
    )
