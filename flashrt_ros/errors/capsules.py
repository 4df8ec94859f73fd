"""Of capsules and episodes: names, fingerprints, boundaries and files. Codes from 200."""

from __future__ import annotations

from typing import Unpack

from flashrt_ros.errors.base import FlashrtError, Parts


class CapsuleNotFoundError(FlashrtError):
    """No capsule has this id or name."""

    code = 200
    name = "CAPSULE_NOT_FOUND"


class CapsuleNameTakenError(FlashrtError):
    """A capsule of this name exists and ``replace`` was not asked for."""

    code = 201
    name = "CAPSULE_NAME_TAKEN"


class CapsuleNameError(FlashrtError):
    """The name is not ``[A-Za-z0-9][A-Za-z0-9_.-]{0,127}``."""

    code = 202
    name = "CAPSULE_NAME"


class FingerprintMismatchError(FlashrtError):
    """The capsule was taken under another fingerprint; names the fields that differ."""

    code = 203
    name = "FINGERPRINT_MISMATCH"


class BoundaryError(FlashrtError):
    """The position is no legal border; says which are."""

    code = 204
    name = "BOUNDARY"


class NoFreeLaneError(FlashrtError):
    """Every lane is in use; release branches or configure more lanes."""

    code = 205
    name = "NO_FREE_LANE"


class CapsulePinnedError(FlashrtError):
    """The capsule is pinned, or in use as ``home``, and can't be dropped."""

    code = 206
    name = "CAPSULE_PINNED"


class NoBoundaryError(FlashrtError):
    """Rollback reaches further back than the ring holds, or to no ancestor."""

    code = 207
    name = "NO_BOUNDARY"


class BranchNotFoundError(FlashrtError):
    """No branch has this index, or it was released."""

    code = 208
    name = "BRANCH_NOT_FOUND"


class CapsuleQuotaError(FlashrtError):
    """The capsules' quota is used up by capsules that may not be evicted."""

    code = 209
    name = "CAPSULE_QUOTA"


class CapsuleArchiveError(FlashrtError):
    """A file is no capsule, or it is damaged; names what was checked and where.

    Args:
        what: What was refused, the file included.
        reason: One word for programs: "foreign", "truncated", "header" or "payload".
        **parts: As in the base class.
    """

    code = 210
    name = "CAPSULE_ARCHIVE"

    def __init__(
        self,
        what: str,
        *,
        reason: str = "",
        **parts: Unpack[Parts],
    ) -> None:
        self.reason = reason
        super().__init__(what, **parts)


class CapsuleVersionError(FlashrtError):
    """A capsule file was written in a format newer than this package reads."""

    code = 211
    name = "CAPSULE_VERSION"


class CapsuleFolderError(FlashrtError):
    """The capsule folder can't be trusted, read, written or locked."""

    code = 212
    name = "CAPSULE_FOLDER"


class CapsuleDiskFullError(FlashrtError):
    """The disk has no room for a capsule; says how much it needs and how much is left."""

    code = 213
    name = "CAPSULE_DISK_FULL"


class EpisodeError(FlashrtError):
    """An episode verb failed at a participant, which the message names with its reason.

    Args:
        what: What failed, the participant and its error included.
        participant: Its name; "" where none is to blame.
        **parts: As in the base class.
    """

    code = 214
    name = "EPISODE"

    def __init__(
        self,
        what: str,
        *,
        participant: str = "",
        **parts: Unpack[Parts],
    ) -> None:
        self.participant = participant
        super().__init__(what, **parts)
