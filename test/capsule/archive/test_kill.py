"""Writers that die: the capsule of before is whole, and nothing they left survives a start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.private_folder import LOCK_FILE

if TYPE_CHECKING:
    from test.capsule.archive.conftest import Samples

WAIT_S = 120.0
NUM_KILLS = 50

HEAD = """
import os, random, signal, sys, time
from pathlib import Path
from flashrt_ros.capsule import pending_file
from flashrt_ros.capsule.capsule import Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.record import CapsuleRecord, layout_rows, split_payload
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role

path, has_nameless, argument = Path(sys.argv[1]), sys.argv[2] == "nameless", sys.argv[3]
if not has_nameless:
    pending_file._SELF_FDS = path / "no-such-folder"
layout = ArenaLayout.of([BufferSpec("state", (2_000_000,), "uint8", Role.STATE),
                         BufferSpec("goal", (100,), "uint8", Role.INPUT)])

def save(folder, value):
    record = CapsuleRecord(f"id{value}", "home", "", (), value, Position(), False, False,
                           Fingerprint.of({}), layout_rows(layout), layout.capsule_bytes)
    payload = memoryview(bytes([value]) * record.num_bytes)
    with folder.begin_write(record, split_payload(record, payload), replace=True) as writer:
        while not writer.write_some(100_000):
            pass
        return writer.finish()

def value(folder):
    record = folder.find("home")
    destination = bytearray(record.num_bytes)
    folder.read_into("home", None, None, memoryview(destination))
    assert set(destination) == {int(record.id[2:])}, "neither the old nor the new capsule"
    return destination[0]
"""

KILLER = """
draw = random.Random(7)
with CapsuleFolder(path) as folder:
    save(folder, 0)
    began = time.perf_counter()
    for _ in range(5):
        save(folder, 0)
    longest = (time.perf_counter() - began) / 5
num_old = num_new = num_left = before = 0
for turn in range(1, int(argument) + 1):
    begins, has_begun = os.pipe()
    child = os.fork()
    if not child:
        with CapsuleFolder(path) as folder:
            os.write(has_begun, b".")
            save(folder, turn)
        signal.pause()
    os.read(begins, 1)
    time.sleep(draw.uniform(0, 1.1 * longest))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(begins), os.close(has_begun)
    num_left += any(name.startswith(".tmp-") for name in os.listdir(path))
    with CapsuleFolder(path) as folder:
        found = value(folder)
        assert found in (turn, before), (turn, found)
        assert folder.damaged == ()
    assert sorted(os.listdir(path)) == [".lock", "home.capsule"], os.listdir(path)
    num_new += found == turn
    num_old += found != turn
    before = found
print(num_old, num_new, num_left)
"""

DIER = """
def die(*arguments, **more):
    os._exit(9)

with CapsuleFolder(path) as folder:
    save(folder, 1)
    module, name = argument.split(":")
    setattr(sys.modules[module], name, die)
    save(folder, 2)
"""


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HEAD + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.mark.parametrize("files", ["nameless", "named"])
def test_a_save_killed_at_any_moment_leaves_the_old_capsule_or_the_new(
    tmp_path: Path, files: str
) -> None:
    result = run_python(KILLER, tmp_path / "capsules", files, NUM_KILLS)
    assert result.returncode == 0, result.stderr
    num_old, num_new, num_left = map(int, result.stdout.split())
    assert num_old + num_new == NUM_KILLS
    # Otherwise no kill struck within a save.
    assert num_old
    if files == "named":
        assert num_left, "no kill left anything to sweep"


@pytest.mark.parametrize(
    ("files", "step", "leaves"),
    [
        ("nameless", "os:fsync", False),
        ("nameless", "os:link", False),
        ("nameless", "os:rename", True),
        ("named", "os:pwrite", True),
        ("named", "os:fsync", True),
        ("named", "os:rename", True),
    ],
)
def test_a_save_that_ends_before_a_step_leaves_the_old_capsule(
    tmp_path: Path, samples: Samples, files: str, step: str, leaves: bool
) -> None:
    path = tmp_path / "capsules"
    result = run_python(DIER, path, files, step)
    assert result.returncode == 9, result.stderr
    assert any(name.startswith(".tmp-") for name in samples.names(path)) == leaves
    with CapsuleFolder(path) as folder:
        assert folder.find("home").id == "id1"
        with folder.open_reader("home") as reader:
            reader.verify()
    assert samples.names(path) == [LOCK_FILE, "home.capsule"]
