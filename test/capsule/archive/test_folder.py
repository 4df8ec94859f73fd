"""A folder of capsule files: whose it is, what is found in it, and who may take a name."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flashrt_ros.capsule import pending_file
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.private_folder import LOCK_FILE
from flashrt_ros.capsule.record import split_payload
from flashrt_ros.errors import (
    CapsuleArchiveError,
    CapsuleFolderError,
    CapsuleNameError,
    CapsuleNameTakenError,
    CapsuleNotFoundError,
    FlashrtError,
)

if TYPE_CHECKING:
    from test.capsule.archive.conftest import Samples

WAIT_S = 60.0


def test_a_folder_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "some" / "capsules"
    with CapsuleFolder(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with CapsuleFolder(path, create=False) as again:
        assert again.records() == ()


def test_files_are_private(folder: CapsuleFolder, samples: Samples) -> None:
    samples.save(folder)
    for name in samples.names(folder.path):
        assert stat.S_IMODE((folder.path / name).stat().st_mode) == 0o600, name


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CapsuleFolderError, match="No such file"):
        CapsuleFolder(tmp_path / "capsules", create=False)
    assert not (tmp_path / "capsules").exists()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_reach_into_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "capsules"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(CapsuleFolderError, match=f"{mode:04o}"):
        CapsuleFolder(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_anothers_folder_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away; runs as root")
    path = tmp_path / "capsules"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(CapsuleFolderError, match="owner 12345"):
        CapsuleFolder(path)


def test_a_link_or_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").write_bytes(b"")
    for name in ("link", "file"):
        with pytest.raises(CapsuleFolderError, match="a link or a file"):
            CapsuleFolder(tmp_path / name)


def test_what_is_closed_says_so(folder: CapsuleFolder, samples: Samples) -> None:
    folder.close()
    folder.close()
    for use in (folder.records, folder.sweep, lambda: folder.used_bytes):
        with pytest.raises(CapsuleFolderError, match="closed"):
            use()
    with pytest.raises(CapsuleFolderError, match="closed"):
        samples.save(folder)


def test_a_file_is_found_by_its_name_and_its_capsules(
    folder: CapsuleFolder, samples: Samples
) -> None:
    named = samples.save(folder, samples.record("aaaa", name="home"))
    nameless = samples.save(folder, samples.record("bbbb", name=""))
    elsewhere = samples.save(folder, samples.record("cccc", name="third"), file="backup-3")
    assert [record.file for record in folder.records()] == ["backup-3", "bbbb", "home"]
    for key, record in (
        ("home", named),
        ("aaaa", named),
        ("bbbb", nameless),
        ("backup-3", elsewhere),
        ("third", elsewhere),
        ("cccc", elsewhere),
    ):
        assert folder.find(key) == record
    with pytest.raises(CapsuleNotFoundError, match="backup-3, bbbb, home"):
        folder.find("fourth")


def test_a_capsule_in_several_files_is_found_by_file(
    folder: CapsuleFolder, samples: Samples
) -> None:
    for file in ("one", "two"):
        samples.save(folder, file=file)
    with pytest.raises(CapsuleNotFoundError, match="one, two"):
        folder.find("home")
    assert folder.find("one").id == folder.find("two").id


@pytest.mark.parametrize("key", ["", "..", ".lock", "a/b", "/etc/passwd", "a" * 129, "home\n"])
def test_what_could_not_be_a_name_is_refused(
    folder: CapsuleFolder, samples: Samples, key: str
) -> None:
    for use in (folder.find, folder.remove, folder.open_reader):
        with pytest.raises(CapsuleNameError):
            use(key)
    if key:
        with pytest.raises(CapsuleNameError):
            samples.save(folder, file=key)


def test_the_longest_name_fits(folder: CapsuleFolder, samples: Samples) -> None:
    name = "n" * 128
    samples.save(folder, samples.record(name=name))
    assert folder.find(name).name == name


def test_another_capsules_name_is_taken_only_on_purpose(
    folder: CapsuleFolder, samples: Samples
) -> None:
    samples.save(folder, samples.record("aaaa"), seed=1)
    with pytest.raises(CapsuleNameTakenError, match="aaaa"):
        samples.save(folder, samples.record("bbbb"), seed=2)
    assert samples.load(folder) == samples.payload(samples.record(), 1)
    samples.save(folder, samples.record("bbbb"), seed=2, replace=True)
    assert samples.load(folder) == samples.payload(samples.record(), 2)
    assert [record.id for record in folder.records()] == ["bbbb"]


def test_the_same_capsule_is_saved_again(folder: CapsuleFolder, samples: Samples) -> None:
    first = samples.save(folder)
    again = samples.save(folder, dataclasses.replace(samples.record(), pinned=False))
    assert folder.records() == (again,)
    assert first.pinned
    assert not again.pinned


def test_a_damaged_file_is_replaced_only_on_purpose(
    folder: CapsuleFolder, samples: Samples
) -> None:
    (folder.path / "home.capsule").write_bytes(b"")
    with pytest.raises(CapsuleNameTakenError, match="empty"):
        samples.save(folder)
    samples.save(folder, replace=True)
    samples.load(folder)


def test_a_name_taken_while_it_is_written_is_refused_at_the_end(
    folder: CapsuleFolder, samples: Samples
) -> None:
    late = samples.record("late")
    writer = folder.begin_write(late, split_payload(late, memoryview(samples.payload(late, 1))))
    writer.write_some(10)
    samples.save(folder, samples.record("soon"), seed=2)
    with pytest.raises(CapsuleNameTakenError, match="soon"):
        writer.finish()
    assert samples.load(folder) == samples.payload(late, 2)
    assert samples.names(folder.path) == [LOCK_FILE, "home.capsule"]


def test_an_unfinished_writer_leaves_the_old_file(folder: CapsuleFolder, samples: Samples) -> None:
    samples.save(folder, seed=1)
    record = samples.record()
    sections = split_payload(record, memoryview(samples.payload(record, 2)))
    with folder.begin_write(record, sections) as writer:
        assert not writer.write_some(500)
    assert samples.load(folder) == samples.payload(record, 1)
    assert samples.names(folder.path) == [LOCK_FILE, "home.capsule"]


def test_a_folder_in_a_files_place_is_not_replaced(folder: CapsuleFolder, samples: Samples) -> None:
    (folder.path / "home.capsule").mkdir()
    with pytest.raises(CapsuleNameTakenError):
        samples.save(folder)
    with pytest.raises(CapsuleFolderError, match="directory"):
        samples.save(folder, replace=True)
    assert samples.names(folder.path) == [LOCK_FILE, "home.capsule"]


def test_a_link_in_a_files_place_is_replaced_and_not_followed(
    folder: CapsuleFolder, samples: Samples, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (folder.path / "home.capsule").symlink_to(tmp_path / "precious")
    samples.save(folder, replace=True)
    samples.load(folder)
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_removing_takes_damaged_files_too(folder: CapsuleFolder, samples: Samples) -> None:
    samples.save(folder)
    samples.save(folder, samples.record("bbbb", name="other"))
    (folder.path / "bad.capsule").write_bytes(b"bad")
    with folder.open_reader("home") as reader:
        folder.remove("home")
        reader.verify()
    folder.remove("bad")
    with pytest.raises(CapsuleNotFoundError):
        folder.remove("bbbb")  # the capsule's id, not the file's name
    folder.remove("other")
    assert samples.names(folder.path) == [LOCK_FILE]
    with pytest.raises(CapsuleNotFoundError):
        folder.remove("home")


def test_used_bytes_are_those_of_the_files(folder: CapsuleFolder, samples: Samples) -> None:
    assert folder.used_bytes == 0
    saved = samples.save(folder)
    (folder.path / "bad.capsule").write_bytes(b"bad")
    (folder.path / "notes.txt").write_bytes(b"not ours")
    assert folder.used_bytes == saved.file_bytes + 3


def test_a_clock_that_jumps_back_changes_nothing(folder: CapsuleFolder, samples: Samples) -> None:
    samples.save(folder, samples.record("aaaa", created_ns=2_000), seed=1)
    samples.save(folder, samples.record("bbbb", created_ns=1_000), seed=2, replace=True)
    assert samples.load(folder) == samples.payload(samples.record(), 2)
    samples.save(folder, samples.record("bbbb", created_ns=-5), seed=3)
    assert folder.find("home").created_ns == -5
    os.utime(folder.path / "home.capsule", (0, 0))
    assert samples.load(folder) == samples.payload(samples.record(), 3)


def test_a_lock_that_is_held_is_waited_for_and_then_given_up(
    folder: CapsuleFolder, samples: Samples
) -> None:
    samples.save(folder)
    with (
        (folder.path / LOCK_FILE).open("rb") as held,
        CapsuleFolder(folder.path, lock_timeout_s=0.05) as impatient,
    ):
        fcntl.flock(held, fcntl.LOCK_EX)
        for change in (
            impatient.sweep,
            lambda: impatient.remove("home"),
            lambda: samples.save(impatient),
        ):
            with pytest.raises(CapsuleFolderError, match="lock"):
                change()
        samples.load(impatient)
        fcntl.flock(held, fcntl.LOCK_UN)
        samples.save(impatient)


def test_where_files_need_names_they_are_swept_once_their_writer_is_gone(
    folder: CapsuleFolder, samples: Samples, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    samples.save(folder, seed=1)
    monkeypatch.setattr(pending_file, "_SELF_FDS", tmp_path / "no-such-folder")
    record = samples.record()
    payload = samples.payload(record, 2)
    writer = folder.begin_write(record, split_payload(record, memoryview(payload)))
    writer.write_some(10)
    (temporary,) = {*samples.names(folder.path)} - {LOCK_FILE, "home.capsule"}
    left = folder.path / ".tmp-left"
    left.write_bytes(b"half")
    (folder.path / ".tmp-folder").mkdir()
    (folder.path / ".tmp-link").symlink_to("home.capsule")
    with CapsuleFolder(folder.path) as other:
        assert not left.exists()
        assert other.sweep() == ()
        assert samples.load(other) == samples.payload(record, 1)
    assert (folder.path / temporary).exists()
    writer.finish()
    assert samples.load(folder) == payload
    assert not (folder.path / temporary).exists()


RACER = """
import sys
from pathlib import Path
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.record import split_payload
from flashrt_ros.errors import CapsuleNameTakenError
from test_samples import Samples

samples, me, replace = Samples(), sys.argv[2], sys.argv[3] == "replace"
folder = CapsuleFolder(Path(sys.argv[1]))
record = samples.record(me)
payload = memoryview(samples.payload(record, int(me)))
print("ready", flush=True)
sys.stdin.readline()
won = 0
for turn in range(40):
    try:
        file = "shared" if replace else f"turn-{turn}"
        folder.write(record, split_payload(record, payload), file=file, replace=replace)
        won += 1
    except CapsuleNameTakenError:
        pass
print(won, flush=True)
"""


class Racer:
    """A process that saves a capsule of its own again and again."""

    def __init__(self, folder: Path, number: int, how: str) -> None:
        helpers = Path(__file__).with_name("conftest.py")
        code = (
            "import importlib.util, sys\n"
            f"spec = importlib.util.spec_from_file_location('test_samples', {str(helpers)!r})\n"
            "module = importlib.util.module_from_spec(spec)\n"
            "sys.modules['test_samples'] = module\n"
            "spec.loader.exec_module(module)\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code + RACER, str(folder), str(number), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> int:
        out, _ = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0
        return int(out)


@pytest.mark.parametrize("how", ["replace", "refuse"])
def test_two_engines_on_one_folder(folder: CapsuleFolder, samples: Samples, how: str) -> None:
    racers = [Racer(folder.path, number, how) for number in (1, 2)]
    try:
        for racer in racers:
            racer.wait_ready()
        for racer in racers:
            racer.go()
        payloads = {str(n): samples.payload(samples.record(), n) for n in (1, 2)}
        num_reads = 0
        while any(racer.process.poll() is None for racer in racers):
            for record in folder.records():
                destination = bytearray(samples.layout.capsule_bytes)
                found = folder.read_into(record.file, None, None, memoryview(destination))
                assert destination[: found.num_bytes] == payloads[found.id]
                num_reads += 1
            with CapsuleFolder(folder.path) as another:  # a start sweeps
                assert another.damaged == ()
        won = [racer.result() for racer in racers]
    finally:
        for racer in racers:
            racer.process.kill()
            racer.process.communicate(timeout=WAIT_S)
    assert num_reads
    assert won == [40, 40] if how == "replace" else sum(won) == 40
    assert not [name for name in samples.names(folder.path) if name.startswith(".tmp-")]


def test_one_damaged_file_costs_the_others_nothing(folder: CapsuleFolder, samples: Samples) -> None:
    for index in range(4):
        samples.save(folder, samples.record(f"id{index}", name=f"n{index}"), seed=index)
    path = folder.path / "n2.capsule"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in the payload: the header is whole
    path.write_bytes(data)
    assert len(folder.records()) == 4
    for index in range(4):
        key = f"n{index}"
        if index == 2:
            with pytest.raises(CapsuleArchiveError):
                samples.load(folder, key)
        else:
            assert samples.load(folder, key) == samples.payload(samples.record(), index)
    with pytest.raises(FlashrtError):
        folder.find("id9")
