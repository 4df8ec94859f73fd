"""Whatever is wrong with a file is found before a byte of it is used, and said."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.capsule.archive_format import MAGIC, PREAMBLE_BYTES, SIZES, VERSION
from flashrt_ros.capsule.archive_reader import ArchiveReader
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.errors import (
    CapsuleArchiveError,
    CapsuleVersionError,
)
from flashrt_ros.runtime.spec import PAGE_BYTES

if TYPE_CHECKING:
    from test.capsule.archive.conftest import Samples

Header = dict[str, Any]


def refusal(samples: Samples, data: bytes) -> str:
    """The reason for which a file is refused; the test fails where it is not."""
    with pytest.raises((CapsuleArchiveError, CapsuleVersionError)) as caught:
        samples.read(data)
    return getattr(caught.value, "reason", "version")


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_nothing_is_wrong_with_the_whole_file(samples: Samples, whole_file: bytes) -> None:
    record, payload = samples.read(whole_file)
    assert payload == samples.payload(record)


def borders(data: bytes) -> set[int]:
    """Where something ends: preamble, header, padding, sections."""
    header = PREAMBLE_BYTES + SIZES.unpack_from(data)[2]
    ends = {0, len(MAGIC), SIZES.size, PREAMBLE_BYTES, header}
    ends |= {PAGE_BYTES, PAGE_BYTES + 768, 2 * PAGE_BYTES, 2 * PAGE_BYTES + 256, 3 * PAGE_BYTES}
    return ends


def test_a_file_cut_at_any_border_is_refused(samples: Samples, whole_file: bytes) -> None:
    assert whole_file[PAGE_BYTES + 768 : 2 * PAGE_BYTES] == bytes(PAGE_BYTES - 768)
    for border in borders(whole_file):
        for length in {max(0, border - 1), border, border + 1}:
            assert refusal(samples, whole_file[:length]) == "truncated", length


def test_a_file_cut_anywhere_is_refused(samples: Samples, whole_file: bytes) -> None:
    offsets = random.Random(5).sample(range(len(whole_file)), 200)
    for length in (*offsets, len(whole_file) - 1):
        assert refusal(samples, whole_file[:length]) == "truncated", length


def test_something_behind_the_end_is_refused(samples: Samples, whole_file: bytes) -> None:
    for extra in (b"\0", b"x", bytes(PAGE_BYTES), whole_file):
        assert refusal(samples, whole_file + extra) == "header"


def test_any_flipped_bit_of_the_header_is_found(samples: Samples, whole_file: bytes) -> None:
    end = PREAMBLE_BYTES + SIZES.unpack_from(whole_file)[2]
    for bit in range(8 * end):
        assert refusal(samples, flipped(whole_file, bit)), bit


def test_a_flipped_bit_in_any_byte_is_found(samples: Samples, whole_file: bytes) -> None:
    draw = random.Random(6)
    for byte in range(len(whole_file)):
        assert refusal(samples, flipped(whole_file, 8 * byte + draw.randrange(8))), byte


@settings(deadline=None)
@given(data=st.data())
def test_any_few_flipped_bits_are_found(
    samples: Samples, whole_file: bytes, data: st.DataObject
) -> None:
    bits = st.integers(0, 8 * len(whole_file) - 1)
    changed = whole_file
    for bit in data.draw(st.lists(bits, min_size=1, max_size=8, unique=True)):
        changed = flipped(changed, bit)
    assert refusal(samples, changed)


def test_a_newer_version_is_refused_by_name(samples: Samples, whole_file: bytes) -> None:
    for version in (VERSION + 1, 2**32 - 1):
        changed = bytearray(whole_file)
        struct.pack_into("<I", changed, len(MAGIC), version)
        with pytest.raises(CapsuleVersionError, match=f"version {version}"):
            samples.read(bytes(changed))
    struct.pack_into("<I", changed, len(MAGIC), 0)
    assert refusal(samples, bytes(changed)) == "header"


@pytest.mark.parametrize(
    ("header_bytes", "file_bytes"),
    [
        (2**32 - 1, 2**63),
        (2**32 - 1, 10_000),
        (1 << 20, 2**64 - 1),
        (1 << 20, 2**45),
        (1 << 20, 100),
        (0, 40),
        (0, 0),
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(
    samples: Samples, header_bytes: int, file_bytes: int
) -> None:
    data = SIZES.pack(MAGIC, VERSION, header_bytes, file_bytes).ljust(100, b"\0")
    tracemalloc.start()
    try:
        assert refusal(samples, data) in ("header", "truncated")
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()


def test_an_absurd_buffer_is_refused_before_anything_is_allocated(
    samples: Samples, whole_file: bytes
) -> None:
    def grow(header: Header) -> None:
        header["layout"][0]["shape"] = [2**40, 7]
        header["layout"][0]["used_bytes"] = 2**40 * 28
        header["sections"][0]["num_bytes"] = 2**40 * 28

    data = samples.edit(whole_file, grow)
    tracemalloc.start()
    try:
        assert refusal(samples, data) == "header"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def duplicate(header: Header) -> None:
    header["layout"][1]["name"] = header["layout"][0]["name"]


def set_row(index: int, **values: object) -> Callable[[Header], None]:
    return lambda header: header["layout"][index].update(values)


def set_section(index: int, **values: object) -> Callable[[Header], None]:
    return lambda header: header["sections"][index].update(values)


def set_position(**values: object) -> Callable[[Header], None]:
    return lambda header: header["position"].update(values)


def set_top(**values: object) -> Callable[[Header], None]:
    return lambda header: header.update(values)


@pytest.mark.parametrize(
    "change",
    [
        duplicate,
        set_row(0, name=""),
        set_row(0, dtype="complex64"),
        set_row(0, role="scratch"),
        set_row(0, role="growing"),
        set_row(0, shape=[]),
        set_row(0, shape=[0, 7]),
        set_row(0, shape=[-16, -7]),
        set_row(0, shape=[2**63] * 30),
        set_row(0, shape=[16, 8]),
        set_row(0, offset=256),
        set_row(1, offset=0),
        set_row(1, offset=-256),
        set_row(1, used_bytes=4),
        set_row(2, grows=True),
        set_row(3, grows=False),
        set_row(3, used_bytes=0),
        set_section(0, num_bytes=512),
        set_section(0, num_bytes=-1),
        set_section(1, offset=0),
        set_section(1, offset=4097),
        set_section(2, offset=2**62),
        set_section(1, name="state"),
        set_section(1, xxh3_128="0" * 31),
        set_section(1, xxh3_128="G" * 32),
        set_position(num_positions=12),
        set_position(num_positions=-1),
        set_position(tick=2**64),
        set_position(tick=10**400),
        set_position(tick=1.5),
        set_position(extra=1),
        set_position(queue_head=17),
        set_top(id="../../etc/passwd"),
        set_top(id=""),
        set_top(name="a/b"),
        set_top(parent=".."),
        set_top(labels=["no value"]),
        set_top(labels="task=push"),
        set_top(created_ns=2**63),
        set_top(pinned="yes"),
        set_top(pinned=None),
        set_top(unknown=1),
        set_top(sections=[]),
        set_top(layout=[]),
        lambda header: header.pop("parent"),
        lambda header: header["sections"].reverse(),
        lambda header: header["layout"].reverse(),
        lambda header: header["layout"].pop(),
        lambda header: header["fingerprint"].update(digest="0" * 32),
        lambda header: header["fingerprint"]["fields"].reverse(),
        lambda header: header["fingerprint"]["fields"].append(["zz", "1"]),
    ],
)
def test_an_impossible_header_is_refused_although_its_digest_fits(
    samples: Samples, whole_file: bytes, change: Callable[[Header], object]
) -> None:
    changed = samples.edit(whole_file, change)
    assert changed != whole_file
    assert refusal(samples, changed) == "header"


def test_an_untouched_header_is_not_refused(samples: Samples, whole_file: bytes) -> None:
    assert samples.edit(whole_file, lambda _: None) == whole_file


def test_json_that_is_not_canonical_is_refused(samples: Samples, whole_file: bytes) -> None:
    end = PREAMBLE_BYTES + SIZES.unpack_from(whole_file)[2]
    header, payload = whole_file[PREAMBLE_BYTES:end], whole_file[PAGE_BYTES:]
    assert samples.seal(header, payload) == whole_file
    for changed in (
        b"",
        b"null",
        b"[" * 10_000,
        b'{"id":' * 10_000,
        header + b" ",
        header[:-1],
        header.replace(b'"pinned":true', b'"pinned": true'),
        header.replace(b'"pinned":true', b'"pinned":false,"pinned":true'),
        header.replace(b'"tick":1201', b'"tick":1201.0'),
        header.replace(b'"tick":1201', b'"tick":' + b"9" * 5000),
        header.replace(b'"name":"home"', b'"name":"\\u0068ome"'),
        header.replace(b'"name":"home"', b'"name":"\xff\xff"'),
        header.replace(b'"name":"home"', b'"name":"\\ud800"'),
        header.replace(b'"name":"home"', b'"name":NaN'),
    ):
        assert changed != header
        assert refusal(samples, samples.seal(changed, payload)) == "header", changed[:40]


def test_a_file_cut_short_while_it_is_read_is_refused(
    folder: CapsuleFolder, samples: Samples
) -> None:
    samples.save(folder)
    path = folder.path / "home.capsule"
    for length in (0, PAGE_BYTES + 100, 2 * PAGE_BYTES, path.stat().st_size - 1):
        samples.save(folder, replace=True)
        with folder.open_reader("home") as reader:
            os.truncate(path, length)
            with pytest.raises(CapsuleArchiveError, match="cut short while"):
                reader.read_into(memoryview(bytearray(reader.record.num_bytes)))


def test_a_file_changed_while_it_is_read_is_refused(
    folder: CapsuleFolder, samples: Samples
) -> None:
    samples.save(folder)
    with folder.open_reader("home") as reader, (folder.path / "home.capsule").open("r+b") as file:
        file.seek(PAGE_BYTES)
        file.write(b"\0\0\0\0")
        file.flush()
        with pytest.raises(CapsuleArchiveError, match="'state'"):
            reader.read_into(memoryview(bytearray(reader.record.num_bytes)))
        with pytest.raises(CapsuleArchiveError, match="'state'"):
            reader.verify()


def test_a_reader_closes_its_file_when_it_refuses(samples: Samples) -> None:
    fd = os.memfd_create("capsule")
    with pytest.raises(CapsuleArchiveError):
        ArchiveReader(fd, "the file")
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)
