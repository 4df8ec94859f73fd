"""Out of a folder and into one, one file at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.private_folder import LOCK_FILE
from flashrt_ros.capsule.transfer import export_capsule, import_capsule, inspect_file
from flashrt_ros.errors import (
    CapsuleArchiveError,
    CapsuleFolderError,
    CapsuleNameError,
    CapsuleNameTakenError,
    CapsuleNotFoundError,
)

if TYPE_CHECKING:
    from test.capsule.archive.conftest import Samples


@pytest.fixture
def other(tmp_path: Path) -> CapsuleFolder:
    return CapsuleFolder(tmp_path / "other")


def test_a_capsule_moves_from_folder_to_folder(
    folder: CapsuleFolder, other: CapsuleFolder, samples: Samples, tmp_path: Path
) -> None:
    saved = samples.save(folder)
    path = tmp_path / "moved.bin"
    assert export_capsule(folder, saved.id, path).digest == saved.digest
    assert path.read_bytes() == (folder.path / "home.capsule").read_bytes()
    assert inspect_file(path, verify=True).digest == saved.digest
    assert import_capsule(path, other) == saved
    assert other.find("home") == saved
    assert samples.load(other) == samples.payload(saved)
    assert import_capsule(path, other, file="again").file == "again"


def test_a_file_that_is_there_is_overwritten_only_on_purpose(
    folder: CapsuleFolder, other: CapsuleFolder, samples: Samples, tmp_path: Path
) -> None:
    samples.save(folder)
    path = tmp_path / "moved.capsule"
    path.write_bytes(b"precious")
    with pytest.raises(CapsuleNameTakenError):
        export_capsule(folder, "home", path)
    assert path.read_bytes() == b"precious"
    export_capsule(folder, "home", path, replace=True)
    samples.save(other, samples.record("bbbb"), seed=2)
    with pytest.raises(CapsuleNameTakenError, match="bbbb"):
        import_capsule(path, other)
    assert samples.load(other) == samples.payload(samples.record(), 2)
    import_capsule(path, other, replace=True)
    assert samples.load(other) == samples.payload(samples.record(), 1)
    import_capsule(path, other)


def test_a_damaged_payload_neither_leaves_nor_enters(
    folder: CapsuleFolder, other: CapsuleFolder, samples: Samples, tmp_path: Path
) -> None:
    samples.save(folder)
    path = tmp_path / "moved.capsule"
    export_capsule(folder, "home", path)
    for damaged in (path, folder.path / "home.capsule"):
        data = bytearray(damaged.read_bytes())
        data[-1] ^= 1
        damaged.write_bytes(data)
    samples.save(other, seed=2)
    with pytest.raises(CapsuleArchiveError, match="growing"):
        import_capsule(path, other, replace=True)
    assert samples.load(other) == samples.payload(samples.record(), 2)
    assert samples.names(other.path) == [LOCK_FILE, "home.capsule"]
    with pytest.raises(CapsuleArchiveError, match="growing"):
        export_capsule(folder, "home", tmp_path / "new.capsule")
    assert not (tmp_path / "new.capsule").exists()
    inspect_file(path)
    with pytest.raises(CapsuleArchiveError, match="growing"):
        inspect_file(path, verify=True)


def test_what_is_no_file_is_refused(
    folder: CapsuleFolder, samples: Samples, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, error in (
        (tmp_path / "pipe", CapsuleArchiveError),
        (tmp_path, CapsuleArchiveError),
        (tmp_path / "none", CapsuleFolderError),
    ):
        with pytest.raises(error):
            import_capsule(path, folder)
        with pytest.raises(error):
            inspect_file(path)
    samples.save(folder)
    with pytest.raises(CapsuleFolderError, match="No such file"):
        export_capsule(folder, "home", tmp_path / "none" / "moved")
    with pytest.raises(CapsuleFolderError, match="found drwx"):
        export_capsule(folder, "home", folder.path, replace=True)
    with pytest.raises(CapsuleNotFoundError):
        export_capsule(folder, "none", tmp_path / "moved")
    export_capsule(folder, "home", tmp_path / "moved")
    with pytest.raises(CapsuleNameError):
        import_capsule(tmp_path / "moved", folder, file="../up")


def test_what_is_no_file_is_never_replaced(
    folder: CapsuleFolder, samples: Samples, tmp_path: Path
) -> None:
    """As root one could put a file in the place of ``/dev/null``."""
    samples.save(folder)
    pipe, place, link = tmp_path / "pipe", tmp_path / "place", tmp_path / "link"
    os.mkfifo(pipe)
    place.mkdir()
    link.symlink_to(tmp_path / "nowhere")
    for path in (pipe, place, link):
        with pytest.raises(CapsuleNameTakenError):
            export_capsule(folder, "home", path)
    for path in (pipe, place):
        with pytest.raises(CapsuleFolderError, match="can't be replaced"):
            export_capsule(folder, "home", path, replace=True)
    assert pipe.is_fifo()
    assert place.is_dir()
    assert link.is_symlink()
    export_capsule(folder, "home", link, replace=True)
    assert link.is_file()
    assert not link.is_symlink()
    assert not (tmp_path / "nowhere").exists()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".tmp-")]
