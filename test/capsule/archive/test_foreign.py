"""Files that are something else, and capsules of another engine: refused by name."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from flashrt_ros.capsule.archive_format import MAGIC
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.record import layout_rows
from flashrt_ros.errors import (
    CapsuleArchiveError,
    CapsuleNotFoundError,
    FingerprintMismatchError,
    SpecError,
)
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role

if TYPE_CHECKING:
    from test.capsule.archive.conftest import Samples


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def torch_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"state": 1}))
    return buffer.getvalue()


def numpy_file() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(99))
    return buffer.getvalue()


def safetensors_file() -> bytes:
    header = b'{"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}'
    return struct.pack("<Q", len(header)) + header + bytes(64)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (torch_zip(), "torch.save"),
        (pickle.dumps({"state": 1}, protocol=2), "pickle"),
        (pickle.dumps({"state": 1}, protocol=5), "pickle"),
        (numpy_file(), "NumPy"),
        (safetensors_file(), "safetensors"),
        (b"\x1f\x8b" + bytes(99), "gzip"),
        (b"", "empty"),
        (b"tick: 7\nname: home\n", "74 69 63 6b"),
        (MAGIC.replace(b"\r\n", b"\n") + bytes(99), "89 46 52"),
    ],
)
def test_another_kind_of_file_is_refused_by_name(
    folder: CapsuleFolder, samples: Samples, data: bytes, name: str
) -> None:
    (folder.path / "home.capsule").write_bytes(data)
    with pytest.raises(CapsuleArchiveError, match=name):
        samples.load(folder)
    samples.save(folder, samples.record("other", name=""))
    assert [record.id for record in folder.records()] == ["other"]
    assert [file for file, _ in folder.damaged] == ["home.capsule"]
    assert name in folder.damaged[0][1]


def test_a_file_of_torch_save_is_refused_by_name(folder: CapsuleFolder, samples: Samples) -> None:
    import torch

    for is_zip in (True, False):
        torch.save(
            {"state": torch.zeros(4)},
            folder.path / "home.capsule",
            _use_new_zipfile_serialization=is_zip,
        )
        with pytest.raises(CapsuleArchiveError, match="torch.save" if is_zip else "a pickle"):
            samples.load(folder)


def test_nothing_is_unpickled(folder: CapsuleFolder, samples: Samples, tmp_path: Path) -> None:
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    (folder.path / "home.capsule").write_bytes(trap)
    with pytest.raises(CapsuleArchiveError):
        samples.load(folder)
    folder.scan()
    assert not (tmp_path / "sprung").exists()
    pickle.loads(trap)  # noqa: S301 - that it would have
    assert (tmp_path / "sprung").exists()


def test_what_is_neither_a_file_is_refused(
    folder: CapsuleFolder, samples: Samples, tmp_path: Path
) -> None:
    samples.save(folder, samples.record("real", name="real"))
    (folder.path / "folder.capsule").mkdir()
    os.mkfifo(folder.path / "pipe.capsule")
    (folder.path / "link.capsule").symlink_to("real.capsule")
    (folder.path / "away.capsule").symlink_to(tmp_path / "elsewhere")
    (folder.path / "a space.capsule").write_bytes(b"")
    (folder.path / ".capsule").write_bytes(b"")
    for key in ("folder", "pipe", "link", "away"):
        with pytest.raises(CapsuleArchiveError):
            folder.find(key)
    assert [record.id for record in folder.records()] == ["real"]
    assert len(folder.damaged) == 6


@pytest.mark.parametrize(
    ("field", "value"), [("device", "NVIDIA H100 (sm_90)"), ("torch", "2.12.1"), ("weights", "x")]
)
def test_another_fingerprint_is_refused_by_field(
    folder: CapsuleFolder, samples: Samples, field: str, value: str
) -> None:
    samples.save(folder)
    fields = {**dict(samples.fingerprint.fields), field: value}
    destination = bytearray(samples.layout.capsule_bytes)
    with pytest.raises(FingerprintMismatchError, match=re.escape(f"{field}={value}")):
        folder.read_into("home", samples.rows, Fingerprint.of(fields), memoryview(destination))
    assert not any(destination)
    samples.load(folder)


@pytest.mark.parametrize(
    "spec",
    [
        BufferSpec("other", (3,), "int8", Role.STATE),
        BufferSpec("goal", (64,), "int32", Role.INPUT),
        BufferSpec("goal", (8, 8), "float32", Role.INPUT),
        BufferSpec("goal", (64,), "float32", Role.STATE),
        None,
    ],
)
def test_other_buffers_than_the_engines_are_refused_by_name(
    folder: CapsuleFolder, samples: Samples, spec: BufferSpec | None
) -> None:
    specs = [placement.spec for placement in samples.layout.placements]
    other = [old for old in specs if old.name != (spec.name if spec else "goal")]
    layout = ArenaLayout.of([*other, spec] if spec else other)
    record = samples.record(layout=layout)
    samples.save(folder, record)
    destination = bytearray(samples.layout.capsule_bytes)
    with pytest.raises(FingerprintMismatchError, match=spec.name if spec else "goal"):
        samples.load(folder)
    with pytest.raises(FingerprintMismatchError):
        folder.read_into("home", samples.rows, None, memoryview(destination))
    assert not any(destination)
    own = layout_rows(layout)
    folder.read_into("home", own, record.fingerprint, memoryview(destination))


def test_a_destination_that_is_too_small_is_refused(
    folder: CapsuleFolder, samples: Samples
) -> None:
    record = samples.save(folder)
    destination = bytearray(record.num_bytes - 1)
    with pytest.raises(SpecError, match=str(record.num_bytes)):
        folder.read_into("home", None, None, memoryview(destination))
    assert not any(destination)


def test_a_name_that_is_no_text_can_be_told_of(folder: CapsuleFolder, samples: Samples) -> None:
    samples.save(folder)
    (folder.path / os.fsdecode(b"\xff.capsule")).write_bytes(b"")
    assert [name for name, _ in folder.damaged] == [r"\xff.capsule"]
    with pytest.raises(CapsuleNotFoundError, match="expected home, ") as caught:
        folder.find("none")
    assert str(caught.value).encode()  # as it goes over the wire
