"""A file that the engine refuses leaves the folder, and whatever is in it, as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import CapsuleNameTakenError, FingerprintMismatchError
from test.capsule.archive.conftest import Samples

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(engine: str, flashrt: Call) -> Call:
    return lambda *words: flashrt("capsule", *words, "--engine", engine)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.capsule")}


def test_a_name_that_is_taken_leaves_no_file(
    call: Call, stepped: EngineClient, capsule_folder: Path, tmp_path: Path
) -> None:
    stepped.snapshot("one")
    path = tmp_path / "one.capsule"
    assert call("export", "one", str(path))[0] == 0
    code, _, err = call("import", str(path))
    assert (code, CapsuleNameTakenError.name in err) == (1, True)
    assert files(capsule_folder) == {}
    assert call("import", str(path), "--name", "two")[0] == 0
    assert files(capsule_folder) == {"one.capsule": path.read_bytes()}


def test_a_capsule_that_does_not_fit_replaces_no_file(
    call: Call, stepped: EngineClient, capsule_folder: Path, tmp_path: Path
) -> None:
    stepped.snapshot("home", replace=True)
    assert call("save", "home")[0] == 0
    before = files(capsule_folder)
    with CapsuleFolder(tmp_path / "elsewhere") as folder:
        foreign = folder.path / f"{Samples().save(folder).file}.capsule"
        code, _, err = call("import", str(foreign), "--file", "home", "--replace")
    assert (code, FingerprintMismatchError.name in err) == (1, True)
    assert files(capsule_folder) == before
    code, _, err = call("import", str(foreign), "--file", "home")
    assert (code, CapsuleNameTakenError.name in err) == (1, True)
