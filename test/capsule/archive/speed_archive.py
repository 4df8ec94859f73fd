"""Times saving and loading a capsule beside writing and reading the same bytes, interleaved.

python test/capsule/archive/speed_archive.py FOLDER [--mebibytes 256] [--rounds 12]
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from flashrt_ros.capsule.capsule import Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.record import CapsuleRecord, layout_rows, split_payload
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role

PIECE = random.Random(1).randbytes(1 << 20)


def memory(num_bytes: int) -> memoryview:
    """Huge pages where the kernel grants them, as a lane's, all touched."""
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    for start in range(0, num_bytes, len(PIECE)):
        pages[start : start + len(PIECE)] = PIECE
    return memoryview(pages)


class Stand:
    """The four things that are timed, over one payload."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        self.path = path
        self.folder = CapsuleFolder(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        layout = ArenaLayout.of([BufferSpec("state", (num_bytes,), "uint8", Role.STATE)])
        self.record = CapsuleRecord(
            id="c0ffee",
            name="big",
            parent="",
            labels=(),
            created_ns=time.time_ns(),
            position=Position(),
            pinned=False,
            is_automatic=False,
            fingerprint=Fingerprint.of({"device": "none"}),
            layout=layout_rows(layout),
            num_bytes=num_bytes,
        )
        self.source, self.destination = memory(num_bytes), memory(num_bytes)

    def write(self) -> None:
        fd = os.open(self.path / "new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        done = 0
        while done < len(self.source):
            done += os.write(fd, self.source[done:])
        os.fsync(fd)
        os.close(fd)
        (self.path / "new").rename(self.path / "raw")
        os.fsync(self.fd)

    def save(self) -> None:
        self.folder.write(self.record, split_payload(self.record, self.source))

    def read(self) -> None:
        fd = os.open(self.path / "raw", os.O_RDONLY)
        done = 0
        while done < len(self.destination):
            done += os.preadv(fd, [self.destination[done:]], done)
        os.close(fd)

    def load(self) -> None:
        rows, fingerprint = self.record.layout, self.record.fingerprint
        self.folder.read_into("big", rows, fingerprint, self.destination)

    def forget(self, name: str) -> None:
        """Drop a file from memory, so that the next read comes from the disk."""
        fd = os.open(self.path / name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {}

    def measure(name: str, work: Callable[[], None]) -> None:
        start = time.perf_counter()
        work()
        times.setdefault(name, []).append(1e3 * (time.perf_counter() - start))

    with tempfile.TemporaryDirectory(dir=arguments.folder) as path:
        stand = Stand(Path(path) / "capsules", arguments.mebibytes << 20)
        stand.write()
        stand.save()
        for _ in range(arguments.rounds):
            writes = [("write", stand.write), ("save", stand.save)]
            reads = [("read", stand.read, "raw"), ("load", stand.load, "big.capsule")]
            random.shuffle(writes)
            random.shuffle(reads)
            for name, work in writes:
                measure(name, work)
            for name, work, file in reads:
                stand.forget(file)
                measure(f"{name} from disk", work)
                work()
                measure(f"{name} from memory", work)
    for name, values in times.items():
        low, high = min(values), max(values)
        print(f"{name:18} {statistics.median(values):7.1f} ms  ({low:.1f} to {high:.1f})")
    for one, other in (
        ("save", "write"),
        ("load from disk", "read from disk"),
        ("load from memory", "read from memory"),
    ):
        ratio = statistics.median(times[one]) / statistics.median(times[other])
        print(f"{one} / {other}: {ratio:.2f}")


if __name__ == "__main__":
    main()
