"""Disks that are full or read-only, and limits: said with the figures, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flashrt_ros.capsule import pending_file
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.errors import CapsuleFolderError

if TYPE_CHECKING:
    from test.capsule.archive.conftest import Samples

WAIT_S = 60.0

HEAD = """
import errno, json, os, resource, signal, sys
from pathlib import Path
from flashrt_ros.capsule import pending_file
from flashrt_ros.capsule.capsule import Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.record import CapsuleRecord, layout_rows, split_payload
from flashrt_ros.errors import FlashrtError
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role

def save(folder, num_bytes, value, name="home"):
    layout = ArenaLayout.of([BufferSpec("state", (num_bytes,), "uint8", Role.STATE)])
    record = CapsuleRecord("c0ffee", name, "", (), 0, Position(), False, False,
                           Fingerprint.of({}), layout_rows(layout), layout.capsule_bytes)
    payload = memoryview(bytes([value]) * record.num_bytes)
    return folder.write(record, split_payload(record, payload))

def refused(work):
    try:
        work()
    except FlashrtError as error:
        return {"name": error.name, "message": str(error)}
    return None

def value(folder):
    record = folder.find("home")
    destination = bytearray(record.num_bytes)
    folder.read_into("home", None, None, memoryview(destination))
    assert len(set(destination)) == 1
    return destination[0]

def report(folder, **more):
    print(json.dumps({"value": value(folder), "names": sorted(os.listdir(folder.path)), **more}))
"""


def can_mount() -> bool:
    trial = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return (
            subprocess.run(trial, capture_output=True, timeout=WAIT_S, check=False).returncode == 0
        )
    except FileNotFoundError:
        return False


@pytest.fixture
def mount_point(tmp_path: Path) -> Path:
    """Where a child in a namespace of its own may mount a disk."""
    if not can_mount():
        pytest.skip(
            "unprivileged user namespaces are off; sysctl user.max_user_namespaces turns on"
        )
    path = tmp_path / "disk"
    path.mkdir()
    return path


def run_python(code: str, *arguments: object) -> Any:
    """Run code in a process and return what it reports."""
    command = [sys.executable, "-c", HEAD + code, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def run_mounted(mount_point: Path, options: str, code: str) -> Any:
    """Run code with a small disk of its own; gone with the process."""
    python = [sys.executable, "-c", HEAD + code, str(mount_point)]
    script = f'mount -t tmpfs -o {options} none "$0" && exec "$@"'
    result = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script, str(mount_point), *python],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("reserves", [True, False])
def test_a_full_disk_is_said_with_the_figures(mount_point: Path, reserves: bool) -> None:
    told = run_mounted(
        mount_point,
        "size=1m",
        f"""
if not {reserves}:  # as on a file system that can't: the room is missed in mid-write
    pending_file.reserve = os.ftruncate
folder = CapsuleFolder(Path(sys.argv[1]) / "capsules")
save(folder, 300_000, 1)
free = os.statvfs(folder.path).f_bavail * os.statvfs(folder.path).f_frsize
error = refused(lambda: save(folder, 900_000, 2))
left = os.statvfs(folder.path).f_bavail * os.statvfs(folder.path).f_frsize
save(folder, 300_000, 3)
report(folder, error=error, free=free, left=left)
""",
    )
    assert told["error"]["name"] == "CAPSULE_DISK_FULL"
    assert "room for 905216 bytes" in told["error"]["message"]
    assert f"{told['free']} bytes free" in told["error"]["message"]
    assert told["left"] == told["free"], "the refused file gave its room back"
    assert told["value"] == 3
    assert told["names"] == [".lock", "home.capsule"]


def test_a_replacement_needs_its_own_room_beside_the_old_file(mount_point: Path) -> None:
    told = run_mounted(
        mount_point,
        "size=1m",
        """
folder = CapsuleFolder(Path(sys.argv[1]) / "capsules")
save(folder, 600_000, 1)
error = refused(lambda: save(folder, 600_000, 2))
report(folder, error=error)
""",
    )
    assert told["error"]["name"] == "CAPSULE_DISK_FULL"
    assert told["value"] == 1


def test_a_disk_without_a_free_name_is_full(mount_point: Path) -> None:
    told = run_mounted(
        mount_point,
        "size=1m,nr_inodes=4",  # the disk's folder, ours, its lock, one file
        """
folder = CapsuleFolder(Path(sys.argv[1]) / "capsules")
save(folder, 1000, 1)
error = refused(lambda: save(folder, 1000, 2))
report(folder, error=error)
""",
    )
    assert told["error"]["name"] == "CAPSULE_DISK_FULL"
    assert told["value"] == 1


def test_a_limit_on_files_is_said(tmp_path: Path) -> None:
    told = run_python(
        """
folder = CapsuleFolder(Path(sys.argv[1]) / "capsules")
save(folder, 1000, 1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
error = refused(lambda: save(folder, 200_000, 2))
save(folder, 50_000, 3)
report(folder, error=error)
""",
        tmp_path,
    )
    assert told["error"]["name"] == "CAPSULE_DISK_FULL"
    assert "limit" in told["error"]["message"]
    assert told["value"] == 3
    assert told["names"] == [".lock", "home.capsule"]


def test_a_read_only_folder_is_read_and_not_written(mount_point: Path) -> None:
    told = run_mounted(
        mount_point,
        "size=1m",
        """
path = Path(sys.argv[1]) / "capsules"
with CapsuleFolder(path) as folder:
    save(folder, 1000, 1)
(path / ".tmp-left").write_bytes(b"")
import subprocess
subprocess.run(["mount", "-o", "remount,ro", sys.argv[1]], check=True)
folder = CapsuleFolder(path)
report(
    folder,
    save=refused(lambda: save(folder, 1000, 2)),
    remove=refused(lambda: folder.remove("home")),
    make=refused(lambda: CapsuleFolder(Path(sys.argv[1]) / "new")),
)
""",
    )
    for verb in ("save", "remove", "make"):
        assert told[verb]["name"] == "CAPSULE_FOLDER", verb
        assert "Read-only" in told[verb]["message"], verb
    assert told["value"] == 1


def test_a_folder_without_permission_to_write_is_read(
    folder: CapsuleFolder, samples: Samples
) -> None:
    samples.save(folder)
    folder.path.chmod(0o500)
    try:
        if os.access(folder.path, os.W_OK):
            pytest.skip("root may write anywhere; runs as another user")
        with CapsuleFolder(folder.path) as again:
            samples.load(again)
            with pytest.raises(CapsuleFolderError, match="writable"):
                samples.save(again)
    finally:
        folder.path.chmod(0o700)


def test_without_names_for_open_files_it_writes_as_well(
    folder: CapsuleFolder,
    samples: Samples,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(pending_file, "_SELF_FDS", tmp_path / "no-such-folder")
    samples.save(folder, seed=1)
    samples.save(folder, seed=2)
    assert samples.load(folder) == samples.payload(samples.record(), 2)
    assert samples.names(folder.path) == [".lock", "home.capsule"]
