"""Feeds the reader files that nobody wrote.

Whatever it is given, the reader may only refuse with an error of ours, or accept; and what it
accepts must be, byte for byte, the file that our writer makes of what was read. So no byte is
overlooked and no two files mean the same.

    python test/capsule/archive/fuzz_archive.py --seconds 600

Coverage-guided where ``atheris`` is installed (``pip install '.[fuzz]'``), by hypothesis otherwise.
A finding is written down by either; ``--engine atheris FILE`` tries one again.
``--write-corpus`` makes the committed seeds anew.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CORPUS = Path(__file__).with_name("corpus")
MAX_BYTES = 1 << 16
ACCEPTED, REFUSED = "whole_", "refused_"
"""How a seed's name starts."""

Target = Callable[[bytes], bool]


def make_target() -> Target:
    """Return the function to be fuzzed; True where a file was accepted.

    It imports what it tests when it is called, so that atheris can instrument that.
    """
    xxhash = importlib.import_module("xxhash")
    form = importlib.import_module("flashrt_ros.capsule.archive_format")
    header = importlib.import_module("flashrt_ros.capsule.archive_header")
    reading = importlib.import_module("flashrt_ros.capsule.archive_reader")
    record_of = importlib.import_module("flashrt_ros.capsule.record")
    errors = importlib.import_module("flashrt_ros.errors")
    refusals = (errors.CapsuleArchiveError, errors.CapsuleVersionError)

    def written(record: Any, payload: bytes) -> bytes:
        parts = record_of.split_payload(record, memoryview(payload))
        digests = [xxhash.xxh3_128_hexdigest(part) for part in parts]
        data = bytearray(header.encode_head(record, digests))
        for part in parts:
            data.extend(bytes(-len(data) % 4096))
            data.extend(part)
        return bytes(data)

    def accepts(data: bytes) -> bool:
        fd = os.memfd_create("capsule")
        os.write(fd, data)
        try:
            with reading.ArchiveReader(fd, "the file") as reader:
                assert reader.record.num_bytes <= len(data), "more payload than file"
                payload = bytearray(reader.record.num_bytes)
                reader.read_into(memoryview(payload))
                reader.verify()
        except refusals:
            return False
        assert written(reader.record, bytes(payload)) == data, "another file than was written"
        return True

    def sealed(data: bytes) -> bytes:
        """Put the digests right, so that what is checked behind them is reached.

        A seed that starts with "{" is a header, a zero byte and the payload.
        """
        if data.startswith(b"{"):
            text, _, payload = data.partition(b"\0")
        else:
            length = int.from_bytes(data[12:16], "little")
            text = data[form.PREAMBLE_BYTES :][:length]
            payload = data[form.PREAMBLE_BYTES + length :]
            payload = payload[-(form.PREAMBLE_BYTES + length) % 4096 :]
        text = with_digests(text, payload)
        start = -(-(form.PREAMBLE_BYTES + len(text)) // 4096) * 4096
        sizes = form.SIZES.pack(form.MAGIC, form.VERSION, len(text), start + len(payload))
        head = sizes + xxhash.xxh3_128_digest(sizes + text) + text
        return bytes(head + bytes(start - len(head)) + payload)

    def with_digests(text: bytes, payload: bytes) -> bytes:
        try:
            said = json.loads(text)
            for part in said["sections"]:
                piece = payload[part["offset"] :][: part["num_bytes"]]
                part["xxh3_128"] = xxhash.xxh3_128_hexdigest(piece)
            return json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
        except (ValueError, LookupError, TypeError, RecursionError):
            return text

    def target(data: bytes) -> bool:
        if len(data) > MAX_BYTES:
            return False
        is_accepted = accepts(data)
        return accepts(sealed(data)) or is_accepted

    return target


def seeds() -> dict[str, bytes]:
    """Read the committed seeds."""
    return {path.name: path.read_bytes() for path in sorted(CORPUS.iterdir())}


@st.composite
def files(draw: st.DrawFn, corpus: tuple[bytes, ...]) -> bytes:
    """Seeds with a few bytes, or a few values in their header, changed."""
    data = draw(st.sampled_from(corpus))
    if data.startswith(b"{") and draw(st.booleans()):
        text, _, payload = data.partition(b"\0")
        said = json.loads(text)
        for _ in range(draw(st.integers(1, 3))):
            _change_value(draw, said)
        return (
            json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode() + b"\0" + payload
        )
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(changed)))
        length = draw(st.sampled_from((0, 1, 1, 2, 4, 8, 300)))
        changed[start : start + length] = draw(st.binary(max_size=9))
    return bytes(changed)


ODD = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from((0, 1, -1, 255, 256, 4096, 2**31, 2**32, 2**63 - 1, 2**63, 2**64)),
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.sampled_from(("state", "input", "growing", "..", "0" * 32, "uint8", "float32")),
    st.lists(st.integers(-1, 300), max_size=3),
    st.just({}),
)


def _change_value(draw: st.DrawFn, said: Any) -> None:
    """Replace, drop or double one value somewhere in the header."""
    place: Any = said
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and place[key] and draw(st.integers(0, 5)):
            place = place[key]
            continue
        how = draw(st.sampled_from(("replace", "replace", "near", "drop", "double")))
        if how == "near" and isinstance(place[key], int):
            place[key] += draw(st.sampled_from((-256, -1, 1, 256)))
        elif how == "drop":
            del place[key]
        elif how == "double" and isinstance(place, list):
            place.insert(key, place[key])
        else:
            place[key] = draw(ODD)
        return


def write_corpus() -> None:
    """Make the seeds anew, from the sample capsules of the tests."""
    spec = importlib.util.spec_from_file_location(
        "samples", Path(__file__).with_name("conftest.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    CORPUS.mkdir(exist_ok=True)
    for path in CORPUS.iterdir():
        path.unlink()
    for name, data in module.corpus().items():
        (CORPUS / name).write_bytes(data)


def run_hypothesis(seconds: float) -> None:
    """Try changed seeds until the time is over."""
    target = make_target()
    corpus = tuple(seeds().values())

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(files(corpus))
    def check(data: bytes) -> None:
        target(data)

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        check()


def run_atheris(seconds: float, flags: list[str]) -> None:
    """Let libFuzzer look for new branches until the time is over; does not return."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["flashrt_ros.capsule"]):
        target = make_target()

    def test_one_input(data: bytes) -> None:
        target(data)

    with tempfile.TemporaryDirectory(prefix="fuzz_archive_") as found:
        # New inputs go to the first folder; findings to the current one, as libFuzzer does.
        limits = [f"-max_total_time={int(seconds)}", f"-max_len={MAX_BYTES}", "-timeout=10"]
        # Files that are named are tried, and nothing else.
        names_files = any(not flag.startswith("-") for flag in flags)
        folders = [] if names_files else [found, str(CORPUS)]
        atheris.Setup([sys.argv[0], *limits, *flags, *folders], test_one_input)
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--engine", choices=("atheris", "hypothesis"))
    parser.add_argument("--write-corpus", action="store_true")
    arguments, flags = parser.parse_known_args()
    if arguments.write_corpus:
        write_corpus()
        return
    has_atheris = importlib.util.find_spec("atheris") is not None
    engine = arguments.engine or ("atheris" if has_atheris else "hypothesis")
    print(f"fuzzing with {engine} for {arguments.seconds:g} s", flush=True)
    if engine == "atheris":
        run_atheris(arguments.seconds, flags)
    else:
        run_hypothesis(arguments.seconds)


if __name__ == "__main__":
    main()
