"""What is written is what was saved, byte for byte, and stays readable."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashrt_ros.capsule.archive_format import PREAMBLE_BYTES, SIZES, SUFFIX, VERSION
from flashrt_ros.capsule.capsule import GoalOrigin, Origin, Position
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.record import (
    CapsuleRecord,
    LayoutRow,
    layout_rows,
    section_bytes,
    split_payload,
)
from flashrt_ros.errors import CapsuleArchiveError, CapsuleNameError, SpecError
from flashrt_ros.runtime.spec import ITEM_BYTES, PAGE_BYTES, ArenaLayout, BufferSpec, Role

if TYPE_CHECKING:
    from test.capsule.archive.conftest import Samples

GOLDEN = Path(__file__).parent / "golden" / "version_1.capsule"

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}", fullmatch=True)
TEXT = st.text(max_size=12)  # without surrogates, which are no text
COUNTS = st.integers(0, 2**64 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)


@st.composite
def layouts(draw: st.DrawFn) -> ArenaLayout:
    names = draw(st.lists(TEXT.filter(bool), min_size=1, max_size=5, unique=True))
    shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)
    specs = [
        BufferSpec(
            name,
            draw(shapes),
            draw(st.sampled_from(sorted(ITEM_BYTES))),
            draw(st.sampled_from([Role.STATE, Role.INPUT])),
        )
        for name in names
    ]
    if draw(st.booleans()):
        growing = BufferSpec("grows", draw(shapes), "float16", Role.STATE, grows=True)
        specs.insert(draw(st.integers(0, len(specs))), growing)
    return ArenaLayout.of(specs)


@st.composite
def records(draw: st.DrawFn) -> CapsuleRecord:
    layout = draw(layouts())
    most = layout.growing.spec.shape[0] if layout.growing else 0
    num_positions = draw(st.integers(0, most))
    head, length = sorted((draw(COUNTS), draw(COUNTS)))
    return CapsuleRecord(
        id=draw(NAMES),
        name=draw(st.one_of(st.just(""), NAMES)),
        parent=draw(st.one_of(st.just(""), NAMES)),
        labels=tuple(f"k{index}={draw(TEXT)}" for index in range(draw(st.integers(0, 3)))),
        created_ns=draw(TIMES),
        position=Position(
            draw(COUNTS),
            head,
            length,
            draw(COUNTS),
            draw(COUNTS),
            Origin(
                draw(COUNTS), draw(COUNTS), draw(TIMES), draw(COUNTS), draw(TIMES), draw(COUNTS)
            ),
            num_positions,
        ),
        pinned=draw(st.booleans()),
        is_automatic=draw(st.booleans()),
        fingerprint=Fingerprint.of(draw(st.dictionaries(TEXT, TEXT, max_size=3))),
        layout=layout_rows(layout, num_positions),
        num_bytes=layout.used_bytes(num_positions),
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(record=records(), seed=st.integers(0, 9), step=st.integers(1, 600))
def test_what_is_read_is_what_was_saved(
    folder: CapsuleFolder, samples: Samples, record: CapsuleRecord, seed: int, step: int
) -> None:
    payload = samples.payload(record, seed)
    sections = split_payload(record, memoryview(payload))
    saved = folder.write(record, sections, file="one", replace=True)
    whole = (folder.path / "one.capsule").read_bytes()
    with folder.begin_write(record, sections, file="one", replace=True) as writer:
        while not writer.write_some(step):
            pass
        assert writer.remaining_bytes == 0
        assert writer.finish() == saved
    assert (folder.path / "one.capsule").read_bytes() == whole
    destination = bytearray(b"\x5a" * (record.num_bytes + 10))
    found = folder.read_into("one", record.layout, record.fingerprint, memoryview(destination))
    assert destination == payload + b"\x5a" * 10
    assert found == saved
    assert dataclasses.replace(found, digest="", file="", file_bytes=0) == record
    assert folder.records() == (saved,)


def test_every_field_of_a_position_survives(folder: CapsuleFolder, samples: Samples) -> None:
    counters = [f.name for f in dataclasses.fields(Position) if f.name != "origin"]
    position = Position(
        **{name: 10 + index for index, name in enumerate(counters)},
        origin=Origin(
            **{f.name: 30 + n for n, f in enumerate(dataclasses.fields(Origin)[:-1])},
            other_goals=(GoalOrigin("gripper", 50, 51, 52, 53), GoalOrigin("hand", 54, 55, 56)),
        ),
    )
    record = samples.record(num_positions=position.num_positions)
    record = dataclasses.replace(record, position=position)
    samples.save(folder, record)
    assert folder.find("home").position == position


def test_sections_start_on_pages_and_only_used_rows_are_kept(
    folder: CapsuleFolder, samples: Samples
) -> None:
    sizes = []
    for used in (0, 1, 32):
        record = samples.record(num_positions=used)
        saved = samples.save(folder, record, replace=True)
        payload, data = samples.payload(record), (folder.path / "home.capsule").read_bytes()
        state, inputs, growing = section_bytes(record.layout)
        assert data[PAGE_BYTES : PAGE_BYTES + state] == payload[:state]
        assert data[2 * PAGE_BYTES :][:inputs] == payload[state : state + inputs]
        assert data[3 * PAGE_BYTES :] == payload[state + inputs :]
        assert growing == used * 2 * 24 * 2
        sizes.append(saved.file_bytes)
        assert len(data) == saved.file_bytes
    assert sizes[2] - sizes[0] == 32 * 96


def test_the_digest_is_the_payloads_alone(folder: CapsuleFolder, samples: Samples) -> None:
    one = samples.save(folder)
    renamed = samples.save(folder, samples.record("1234", name="other"))
    changed = samples.save(folder, samples.record("5678", name="third"), seed=2)
    assert one.digest == renamed.digest != changed.digest


def test_a_file_of_version_1_is_read_for_ever(folder: CapsuleFolder, samples: Samples) -> None:
    record, payload = samples.read(GOLDEN.read_bytes())
    assert dataclasses.replace(record, digest="") == samples.record()
    assert payload == samples.payload(samples.record())
    assert record.digest == "2066775ec908a3a7ecf3831d0df043d0"


def test_the_bytes_of_the_current_version_don_t_change(whole_file: bytes) -> None:
    assert VERSION == 1, "keep version_1.capsule and compare with a file of the new version"
    assert whole_file == GOLDEN.read_bytes(), "another format needs another version"


def test_the_docs_name_every_key_of_the_header(whole_file: bytes) -> None:
    text = (Path(__file__).parents[3] / "docs" / "archive.md").read_text(encoding="utf-8")
    end = PREAMBLE_BYTES + SIZES.unpack_from(whole_file)[2]
    header = json.loads(whole_file[PREAMBLE_BYTES:end])
    keys = [*header, *header["position"], *header["layout"][0], *header["sections"][0]]
    assert not [key for key in keys if f"`{key}`" not in text]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_bytes": 5},
        {"layout": ()},
        {"layout": layout_rows(ArenaLayout.of([BufferSpec("a", (4,), "int8", Role.STATE)]))},
        {"layout": (LayoutRow("a", (4,), "int8", "state", 256, 4),)},
        {"layout": (LayoutRow("a", (4,), "int8", "state", 0, 5),)},
        {"layout": (LayoutRow("a", (1,) * 33, "int8", "state", 0, 1),)},
        {"position": Position(tick=-1, num_positions=11)},
        {"position": Position(queue_head=3, queue_length=2, num_positions=11)},
        {"position": Position(num_positions=33)},
        {"created_ns": 2**63},
    ],
)
def test_a_record_that_contradicts_itself_is_not_saved(
    folder: CapsuleFolder, samples: Samples, changes: dict[str, object]
) -> None:
    record = dataclasses.replace(samples.record(), **changes)  # type: ignore[arg-type]
    with pytest.raises(SpecError):
        folder.write(record, split_payload(samples.record(), memoryview(bytes(5000))))
    assert not folder.scan().records


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": "../home"}, CapsuleNameError),
        ({"id": ""}, CapsuleNameError),
        ({"parent": "a/b"}, CapsuleNameError),
        ({"labels": ("none",)}, CapsuleNameError),
        ({"labels": ("lone=\ud800",)}, CapsuleArchiveError),
        ({"labels": tuple(f"{i}={'x' * 200}" for i in range(6000))}, CapsuleArchiveError),
    ],
)
def test_a_record_that_could_not_be_read_is_not_saved(
    folder: CapsuleFolder, samples: Samples, changes: dict[str, object], error: type[Exception]
) -> None:
    record = dataclasses.replace(samples.record(), **changes)  # type: ignore[arg-type]
    with pytest.raises(error):
        folder.write(record, split_payload(record, memoryview(bytes(5000))), file="one")
    assert samples.names(folder.path) == [".lock"]


def test_sections_of_another_length_are_refused(folder: CapsuleFolder, samples: Samples) -> None:
    record = samples.record()
    state, inputs, growing = split_payload(record, memoryview(samples.payload(record)))
    for sections in ((state, inputs), (state, inputs, growing[:-1]), (inputs, state, growing)):
        with pytest.raises(SpecError):
            folder.begin_write(record, sections)
    with pytest.raises(SpecError):
        split_payload(record, memoryview(samples.payload(record))[:-1])


def test_a_closed_writer_says_so(folder: CapsuleFolder, samples: Samples) -> None:
    record = samples.record()
    writer = folder.begin_write(record, split_payload(record, memoryview(samples.payload(record))))
    writer.write_some(100)
    writer.abort()
    writer.abort()
    for step in (writer.write_some, writer.finish):
        with pytest.raises(SpecError, match="closed"):
            step()
    assert samples.names(folder.path) == [".lock"]


def test_suffix_is_not_part_of_a_key(folder: CapsuleFolder, samples: Samples) -> None:
    assert samples.save(folder).file + SUFFIX == "home.capsule"
