"""What an episode consists of, and how that is written; imports without torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec
import xxhash

from flashrt_ros.errors import CapsuleArchiveError, CapsuleNameError, CapsuleVersionError

VERSION = 1
"""Of the format. A higher one is refused, not guessed at."""

MAX_STATE_BYTES = 64 << 20
"""Most bytes that all the states of an episode may have."""

MAX_FILE_BYTES = MAX_STATE_BYTES + (1 << 20)
"""Most bytes that the file of an episode may have."""

_MAGIC = b"FRTEPIS"
_DIGEST_BYTES = 16
_HEAD_BYTES = len(_MAGIC) + 1 + _DIGEST_BYTES
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

# What a ROS time and a ROS index can say: an episode that can't be told of would hide the others.
_END_NS = (1 << 31) * 1_000_000_000
_WallNs = Annotated[int, msgspec.Meta(ge=0, lt=_END_NS)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one participant needs to go on from the episode's boundary.

    Attributes:
        name: The participant's, unique within the episode.
        kind: What can take it back; a participant of another kind refuses it.
        capsule_id: Capsule in the participant's engine; "" for none.
        fingerprint: Digest of what that was taken under; "" for none.
        state: The participant's own bytes, in a format and version of its own.
        facts: For people: where the participant stood, and what it was acting on.
    """

    name: str
    kind: str
    capsule_id: str = ""
    fingerprint: str = ""
    state: bytes = b""
    facts: dict[str, str] = {}


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An episode, without the bytes of its capsules.

    Attributes:
        name: Of the episode.
        created_ns: Wall time, ns.
        env_index: Environment of the policy.
        parts: One for each participant, the policy's last.
        absent: Participants that there could have been, by name.
    """

    name: str
    created_ns: _WallNs
    env_index: _Index
    parts: tuple[Part, ...]
    absent: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the participants."""
        return tuple(part.name for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """Bytes of all states; capsules are counted by their engines."""
        return sum(len(part.state) for part in self.parts)

    @property
    def policy(self) -> Part:
        """The policy's part."""
        return self.parts[-1]

    def part(self, name: str) -> Part:
        """Return a participant's part; there is one."""
        return next(part for part in self.parts if part.name == name)


def check_episode_name(name: str) -> None:
    """Refuse names that could not be a file's.

    Raises:
        CapsuleNameError: The name does not match ``[A-Za-z0-9][A-Za-z0-9_.-]{0,99}``.
    """
    if not _NAME.fullmatch(name):
        raise CapsuleNameError(
            "an episode can't have this name", expected=_NAME.pattern, found=repr(name[:160])
        )


def check_parts(parts: Iterable[Part]) -> None:
    """Refuse parts that can't be kept together.

    Raises:
        CapsuleArchiveError: Two are of one participant, or the states are too large.
    """
    parts = tuple(parts)
    names = [part.name for part in parts]
    if not names or len(set(names)) != len(names) or not all(names):
        raise CapsuleArchiveError(
            "the parts of an episode don't fit together",
            expected="one for each participant, by name",
            found=", ".join(map(repr, names)) or "none",
        )
    num_bytes = sum(len(part.state) for part in parts)
    if num_bytes > MAX_STATE_BYTES:
        raise CapsuleArchiveError(
            "the states of an episode are too large",
            expected=f"{MAX_STATE_BYTES} bytes at most",
            found=num_bytes,
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as the bytes of its file: magic, version, digest, msgpack.

    Raises:
        CapsuleArchiveError: What :func:`decode_manifest` would refuse.
        CapsuleNameError: As :func:`check_episode_name`.
    """
    try:
        body = msgspec.msgpack.encode(manifest)
    except UnicodeEncodeError as error:
        raise CapsuleArchiveError("the episode can't be written", found=error) from error
    data = _MAGIC + bytes([VERSION]) + xxhash.xxh3_128_digest(body) + body
    decode_manifest(data)
    return data


def decode_manifest(data: bytes) -> Manifest:
    """Read the bytes of a manifest's file, every one checked; nothing is unpickled.

    Raises:
        CapsuleVersionError: A newer format.
        CapsuleArchiveError: It is damaged, or no episode.
    """
    if len(data) > MAX_FILE_BYTES:
        raise CapsuleArchiveError(
            "the episode is too large", expected=f"{MAX_FILE_BYTES} bytes at most"
        )
    if len(data) < _HEAD_BYTES or data[: len(_MAGIC)] != _MAGIC:
        raise CapsuleArchiveError("the file is no episode", expected="its first bytes to say so")
    version = data[len(_MAGIC)]
    if version != VERSION:
        raise CapsuleVersionError(
            "the episode has another format",
            expected=f"version {VERSION}",
            found=f"version {version}",
            fix="use the version of the package that wrote it",
        )
    body = data[_HEAD_BYTES:]
    if xxhash.xxh3_128_digest(body) != data[len(_MAGIC) + 1 : _HEAD_BYTES]:
        raise CapsuleArchiveError("the episode is damaged", expected="bytes that fit their digest")
    try:
        manifest = msgspec.msgpack.decode(body, type=Manifest)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CapsuleArchiveError("the episode can't be read", found=error) from error
    check_episode_name(manifest.name)
    check_parts(manifest.parts)
    return manifest
