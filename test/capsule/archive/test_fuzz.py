"""Files that nobody wrote; longer by hand, see ``fuzz_archive.py``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashrt_ros.capsule import archive_reader

if TYPE_CHECKING:
    from test.capsule.archive.conftest import Samples

SCRIPT = Path(__file__).with_name("fuzz_archive.py")


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz = load(SCRIPT)
TARGET = fuzz.make_target()
SEEDS: dict[str, bytes] = fuzz.seeds()


def test_the_seeds_are_those_that_the_script_makes() -> None:
    assert load(SCRIPT.with_name("conftest.py")).corpus() == SEEDS


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_is_accepted_or_refused_as_its_name_says(name: str) -> None:
    assert TARGET(SEEDS[name]) == name.startswith(fuzz.ACCEPTED)


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=fuzz.files(tuple(SEEDS.values())))
def test_what_is_accepted_is_what_the_writer_writes(data: bytes) -> None:
    TARGET(data)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=5000))
def test_noise_is_refused(data: bytes) -> None:
    assert not TARGET(data)


def test_a_reader_that_overlooks_a_byte_is_found(
    samples: Samples, whole_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = bytearray(whole_file)
    changed[2 * 4096 - 1] = 7  # padding between two sections
    assert not TARGET(bytes(changed))
    monkeypatch.setattr(archive_reader, "check_zero", lambda *_: None)
    with pytest.raises(AssertionError, match="another file"):
        TARGET(bytes(changed))


def test_no_branch_that_coverage_finds_crashes(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed; pip install '.[fuzz]' would run it")
    seconds = os.environ.get("FLASHRT_FUZZ_S", "10")
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--engine", "atheris", "--seconds", seconds],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr[-4000:]
