from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flashrt_ros.nodes.folders import run_folder

HOLD = """
from flashrt_ros.nodes.folders import run_folder
with run_folder() as folder:
    (folder / "file").write_text("")
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are, here and in the processes started."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_folder_goes_with_its_context(temporary: Path) -> None:
    with run_folder() as folder:
        assert folder.parent == temporary
        (folder / "file").write_text("")
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_cleared_at_the_next_start(temporary: Path) -> None:
    other = temporary / "flashrt_ros_something"
    other.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    left = Path(holder.stdout.readline().strip())
    assert left.is_dir()
    with run_folder():
        assert left.is_dir(), "its owner lives"
    holder.kill()
    holder.communicate(timeout=60)
    assert left.is_dir()
    with run_folder():
        assert not left.exists()
    assert other.is_dir()
