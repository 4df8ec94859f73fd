"""The script for a machine with a GPU: what it keeps of benches and tests that have ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from test.gpu import summarize

SCRIPT = Path(__file__).with_name("run_all.sh")

TESTS = """<testsuites><testsuite>
<testcase classname="test.a" name="fine"/>
<testcase classname="test.a" name="noted">
  <properties><property name="same" value="True"/></properties>
</testcase>
<testcase classname="test.b" name="broken"><failure message="no"/></testcase>
<testcase classname="test.b" name="left"><skipped message="no"/></testcase>
</testsuite></testsuites>"""


def row(name: str, **more: object) -> dict[str, object]:
    figures = {"median": 31.25, "p99": 33.0, "ratio": 1.0, "target": None, "met": None}
    return {"name": name, "unit": "us", **figures, **more}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Where benches leave their results, and where they are gathered."""
    made = tmp_path / "json", tmp_path / "out"
    for folder in made:
        folder.mkdir()
    return made


def leave(folder: Path, name: str, *rows: dict[str, object]) -> None:
    result = {"bench": name, "device": "one GPU", "versions": {}, "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(result))


def test_what_has_ended_is_gathered(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    benches, out = folders
    leave(
        benches,
        "restore",
        row("raw copy"),
        row("restore", target="ratio <= 1.05", met=True),
        row("flip", target="median <= 10", met=False),
        row("compiled (absent: no triton)", median=None, p99=None, ratio=None),
    )
    (benches / "fork.failed").write_text("124\n")
    (benches / "goal.json").write_text('{"bench": "goal", "rows": [')
    (out / "tests-all.xml").write_text(TESTS)
    (out / "tests-cut.xml").write_text(TESTS[:90])
    summarize.main(benches, out)
    shown = capsys.readouterr().out
    assert "tests-all: 2 passed, 1 failed, 1 skipped" in shown
    assert "FAILED test.b::broken" in shown
    assert "noted: same = True" in shown
    assert "tests-cut: not written to its end" in shown
    assert "ratio <= 1.05 met" in shown
    assert "median <= 10 MISSED" in shown
    assert "compiled (absent: no triton)" in shown
    assert "FAILED: bench fork" in shown
    assert "FAILED: bench goal" in shown
    assert "raw copy" not in shown
    assert "raw copy" in (out / "summary.txt").read_text()
    assert [one["bench"] for one in json.loads((out / "benches.json").read_text())] == ["restore"]


def test_what_comes_later_is_added(folders: tuple[Path, Path]) -> None:
    benches, out = folders
    for number, name in enumerate(("snapshot", "fork"), start=1):
        leave(benches, name, row("raw copy"))
        summarize.main(benches, out)
        assert len(json.loads((out / "benches.json").read_text())) == number
    assert not list(out.glob("*.new"))


def test_what_is_shown_is_bounded(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    benches, out = folders
    rows = [row(f"row {number}", target="median <= 99", met=True) for number in range(400)]
    leave(benches, "restore", *rows)
    summarize.main(benches, out)
    shown = capsys.readouterr().out
    assert len(shown) < summarize.MAX_SHOWN + 10
    assert "row 399" in shown
    assert "row 0 " in (out / "summary.txt").read_text()


def test_a_part_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPT, tmp_path / "out", "bench-z"],
        env={**os.environ, "PYTHON": sys.executable, "DEVICE": "cpu"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "no part or bench 'bench-z'" in done.stderr
    assert "snapshot" in done.stderr


def test_every_room_with_tests_for_a_device_is_run() -> None:
    found = re.search(r"^\s*rooms=\((.*)\)$", SCRIPT.read_text(), re.MULTILINE)
    assert found is not None
    folder = SCRIPT.parent.parent
    marked = {
        path.relative_to(folder).parts[0]
        for path in folder.glob("*/**/*.py")
        if "pytest.mark.gpu" in path.read_text()
    }
    assert marked - {"gpu"} == set(found[1].split())
