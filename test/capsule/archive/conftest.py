"""Small capsules to save, and what an engine would ask of a file."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import xxhash

from flashrt_ros.capsule.archive_format import (
    MAGIC,
    PREAMBLE_BYTES,
    SIZES,
    SUFFIX,
    VERSION,
)
from flashrt_ros.capsule.archive_reader import ArchiveReader
from flashrt_ros.capsule.capsule import Origin, Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.record import CapsuleRecord, layout_rows, split_payload
from flashrt_ros.runtime.spec import PAGE_BYTES, ArenaLayout, BufferSpec, Role, round_up

LAYOUT = ArenaLayout.of(
    [
        BufferSpec("queue", (16, 7), "float32", Role.STATE),
        BufferSpec("counter", (1,), "int64", Role.STATE),
        BufferSpec("kv", (32, 2, 24), "bfloat16", Role.STATE, grows=True),
        BufferSpec("goal", (64,), "float32", Role.INPUT),
        BufferSpec("actions", (16, 7), "float32", Role.OUTPUT),
    ]
)
FINGERPRINT = Fingerprint.of(
    {"device": "NVIDIA H200 (sm_90)", "torch": "2.13.0", "layout": LAYOUT.digest()}
)
NUM_POSITIONS = 11


class Samples:
    """Makes capsules under one layout, saves them and reads them back."""

    layout = LAYOUT
    rows = layout_rows(LAYOUT)
    fingerprint = FINGERPRINT

    def record(
        self,
        capsule_id: str = "0123456789abcdef",
        *,
        name: str = "home",
        layout: ArenaLayout = LAYOUT,
        fingerprint: Fingerprint = FINGERPRINT,
        num_positions: int = NUM_POSITIONS,
        labels: tuple[str, ...] = ("task=push", "note=café \u2603"),
        created_ns: int = 1_700_000_000_000_000_000,
    ) -> CapsuleRecord:
        return CapsuleRecord(
            id=capsule_id,
            name=name,
            parent="fedcba9876543210",
            labels=labels,
            created_ns=created_ns,
            position=Position(
                tick=1201,
                queue_head=3,
                queue_length=16,
                noise_seed=2**63 - 1,
                noise_counter=77,
                num_positions=num_positions,
                origin=Origin(5, 4, 1_700_000_000, 9, 1_700_000_001, 1198),
            ),
            pinned=True,
            is_automatic=False,
            fingerprint=fingerprint,
            layout=layout_rows(layout, num_positions),
            num_bytes=layout.used_bytes(num_positions),
        )

    def payload(self, record: CapsuleRecord, seed: int = 1) -> bytes:
        """Bytes that differ with the seed, in every section."""
        return random.Random(seed).randbytes(record.num_bytes)

    def save(
        self,
        folder: CapsuleFolder,
        record: CapsuleRecord | None = None,
        *,
        seed: int = 1,
        file: str = "",
        replace: bool = False,
    ) -> CapsuleRecord:
        record = record or self.record()
        sections = split_payload(record, memoryview(self.payload(record, seed)))
        return folder.write(record, sections, file=file, replace=replace)

    def load(self, folder: CapsuleFolder, key: str = "home") -> bytes:
        """The payload of a file, every check passed."""
        destination = bytearray(self.layout.capsule_bytes)
        record = folder.read_into(key, self.rows, self.fingerprint, memoryview(destination))
        return bytes(destination[: record.num_bytes])

    def names(self, path: Path) -> list[str]:
        """What lies in a folder, hidden files too."""
        return sorted(entry.name for entry in path.iterdir())

    def file_bytes(self, folder: CapsuleFolder) -> bytes:
        """The bytes of a file with the sample capsule in it."""
        return (folder.path / (self.save(folder, replace=True).file + SUFFIX)).read_bytes()

    def read(self, data: bytes) -> tuple[CapsuleRecord, bytes]:
        """Read a file of these bytes, every check passed."""
        fd = os.memfd_create("capsule")
        os.write(fd, data)
        with ArchiveReader(fd, "the file") as reader:
            destination = bytearray(min(reader.record.num_bytes, 1 << 20))
            reader.read_into(memoryview(destination))
            return reader.record, bytes(destination)

    def edit(self, data: bytes, change: Callable[[dict[str, object]], object]) -> bytes:
        """Change the header of a file and put the digest right, as an adversary would."""
        header_bytes = SIZES.unpack_from(data)[2]
        header = msgspec.json.decode(data[PREAMBLE_BYTES : PREAMBLE_BYTES + header_bytes])
        change(header)
        payload = data[round_up(PREAMBLE_BYTES + header_bytes, PAGE_BYTES) :]
        return self.seal(msgspec.json.encode(header), payload)

    def seal(self, header: bytes, payload: bytes) -> bytes:
        """Put a file together whose digest fits, whatever the header says."""
        start = round_up(PREAMBLE_BYTES + len(header), PAGE_BYTES)
        sizes = SIZES.pack(MAGIC, VERSION, len(header), start + len(payload))
        head = sizes + xxhash.xxh3_128_digest(sizes + header) + header
        return head + bytes(start - len(head)) + payload


def corpus() -> dict[str, bytes]:
    """Seeds for the fuzzer, by file name: whole files, headers with a payload, other files."""
    samples = Samples()
    plain = ArenaLayout.of([BufferSpec("state", (5,), "uint8", Role.STATE)])
    records = {
        "full": samples.record(),
        "empty": samples.record(num_positions=0, labels=()),
        "plain": samples.record("0", name="", layout=plain, num_positions=0, labels=()),
    }
    seeds = {}
    with tempfile.TemporaryDirectory() as path, CapsuleFolder(Path(path) / "capsules") as folder:
        for name, record in records.items():
            samples.save(folder, record, file=name, replace=True)
            data = (folder.path / (name + SUFFIX)).read_bytes()
            end = PREAMBLE_BYTES + SIZES.unpack_from(data)[2]
            payload = data[round_up(end, PAGE_BYTES) :]
            seeds[f"whole_{name}"] = data
            seeds[f"whole_{name}_header"] = data[PREAMBLE_BYTES:end] + b"\0" + payload
    whole = seeds["whole_plain"]
    seeds["refused_newer"] = SIZES.pack(MAGIC, VERSION + 1, 10, 50) + bytes(26)
    seeds["refused_absurd"] = SIZES.pack(MAGIC, VERSION, 2**32 - 1, 2**64 - 1) + bytes(16)
    seeds["refused_short"] = whole[: PAGE_BYTES // 4]
    seeds["refused_pickle"] = b"\x80\x04N."
    seeds["refused_zip"] = b"PK\x03\x04" + bytes(26)
    return seeds


@pytest.fixture(scope="session")
def samples() -> Samples:
    return Samples()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CapsuleFolder]:
    with CapsuleFolder(tmp_path / "capsules") as made:
        yield made


@pytest.fixture(scope="session")
def whole_file(tmp_path_factory: pytest.TempPathFactory, samples: Samples) -> bytes:
    """The bytes of a file that nothing is wrong with."""
    with CapsuleFolder(tmp_path_factory.mktemp("whole") / "capsules") as made:
        return samples.file_bytes(made)
