"""The bytes of a capsule file, and what is refused before one of them is used.

A file is a preamble, a header of canonical JSON, zeros up to the next page, and the
payload's sections, each on a page of its own with zeros before it. Every byte is under a
digest or must be zero, so that one flipped bit anywhere is found. ``docs/archive.md`` has
the table.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from flashrt_ros.errors import CapsuleArchiveError, CapsuleVersionError
from flashrt_ros.runtime.spec import PAGE_BYTES, round_up

MAGIC = b"\x89FRCAP\r\n"
"""First bytes of a capsule file. No text has the first one, and a transfer that changes
line ends breaks the last two."""

SUFFIX = ".capsule"
"""Ends the name of every capsule file."""

USE_A_COPY = "use an earlier copy of the file"
"""What to do about damage."""

VERSION = 1
"""What is written; every version up to it is read."""

MAX_HEADER_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 46

SIZES = struct.Struct("<8sIIQ")
"""Magic, version, bytes of header, bytes of file; the digest of these and the header follows."""

PREAMBLE_BYTES = SIZES.size + 16

_FOREIGN = (
    (re.compile(rb"\x80[\x02-\x08]"), "a pickle, which is never loaded"),
    (re.compile(rb"PK\x03\x04"), "a zip archive (torch.save makes these), which is never loaded"),
    (re.compile(rb"\x93NUMPY"), "a NumPy array"),
    (re.compile(rb".{6}\0\0\{", re.DOTALL), "a safetensors file"),
    (re.compile(rb"\x1f\x8b"), "a gzip archive"),
)


@dataclass(frozen=True, slots=True)
class Preamble:
    """The first bytes of a file, believed once the header's digest was right.

    Attributes:
        version: Of the format.
        header_bytes: Length of the header behind the preamble.
        file_bytes: Length of the whole file.
        digest: Of what comes before it and the header.
    """

    version: int
    header_bytes: int
    file_bytes: int
    digest: bytes

    @property
    def payload_offset(self) -> int:
        """Where the first section starts: the first page behind the header."""
        return round_up(PREAMBLE_BYTES + self.header_bytes, PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the payload in a file.

    Attributes:
        name: One of ``record.SECTIONS``.
        offset: Bytes from the file's start; a multiple of the page.
        num_bytes: Length.
        digest: xxh3-128, 32 hex digits.
    """

    name: str
    offset: int
    num_bytes: int
    digest: str


def payload_digest(digests: Sequence[str]) -> str:
    """Combine the digests of the sections to the payload's."""
    return xxhash.xxh3_128_hexdigest(bytes.fromhex("".join(digests)))


def decode_preamble(data: bytes, label: str) -> Preamble:
    """Read a file's first bytes.

    Args:
        data: Up to :data:`PREAMBLE_BYTES` of them.
        label: What the file is called in messages.

    Raises:
        CapsuleArchiveError: The file is something else, too short, or of an absurd size.
        CapsuleVersionError: The format is newer than :data:`VERSION`.
    """
    if not data.startswith(MAGIC):
        raise CapsuleArchiveError(
            f"{label} is no capsule",
            reason="foreign" if len(data) >= len(MAGIC) else "truncated",
            expected="the first bytes of a capsule file",
            found=_name_foreign(data),
            fix="name a file that was saved or exported",
        )
    if len(data) < PREAMBLE_BYTES:
        raise _truncated(label, PREAMBLE_BYTES, len(data))
    _, version, header_bytes, file_bytes = SIZES.unpack_from(data)
    if version > VERSION:
        raise CapsuleVersionError(
            f"{label} is of a newer format",
            expected=f"version {VERSION} or older",
            found=f"version {version}",
            fix="read it with the flashrt_ros that wrote it, or update this one",
        )
    if version < 1 or header_bytes > MAX_HEADER_BYTES or file_bytes > MAX_FILE_BYTES:
        raise CapsuleArchiveError(
            f"{label} is damaged in its first bytes",
            reason="header",
            expected=f"a header of {MAX_HEADER_BYTES} bytes at most",
            found=f"version {version}, header {header_bytes}, file {file_bytes} bytes",
            fix=USE_A_COPY,
        )
    return Preamble(version, header_bytes, file_bytes, data[SIZES.size : PREAMBLE_BYTES])


def check_size(preamble: Preamble, found_bytes: int, label: str) -> None:
    """Refuse a file that has another size than it says.

    Raises:
        CapsuleArchiveError: Something was cut off or added.
    """
    if found_bytes < preamble.file_bytes:
        raise _truncated(label, preamble.file_bytes, found_bytes)
    if found_bytes > preamble.file_bytes:
        raise CapsuleArchiveError(
            f"{label} is damaged: something follows its end",
            reason="header",
            expected=f"{preamble.file_bytes} bytes",
            found=found_bytes,
            fix=USE_A_COPY,
        )


def check_zero(padding: bytes | memoryview, offset: int, label: str) -> None:
    """Refuse padding that holds something.

    Args:
        padding: Bytes that must be zero.
        offset: Where in the file they lie.
        label: What the file is called in messages.

    Raises:
        CapsuleArchiveError: A byte is not zero.
    """
    if any(padding):
        raise CapsuleArchiveError(
            f"{label} is damaged: padding holds something",
            reason="header",
            expected=f"{len(padding)} zeros from byte {offset}",
            fix=USE_A_COPY,
        )


def _truncated(label: str, expected: int, found: int) -> CapsuleArchiveError:
    return CapsuleArchiveError(
        f"{label} was cut short",
        reason="truncated",
        expected=f"{expected} bytes",
        found=found,
        fix="copy it again",
    )


def _name_foreign(data: bytes) -> str:
    if not data:
        return "an empty file"
    for pattern, name in _FOREIGN:
        if pattern.match(data):
            return name
    return data[: len(MAGIC)].hex(" ")
