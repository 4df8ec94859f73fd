"""``flashrt-ros bench``: exit codes, files, refusals; with benches that take no time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from flashrt_ros.bench.context import Context
from flashrt_ros.bench.failures import BenchError, WrongResultError
from flashrt_ros.bench.registry import BENCHES, Bench
from flashrt_ros.bench.result import Bar, BarPanel, Line, LinePanel, Result, Row, at_most
from flashrt_ros.cli.bench import shown
from flashrt_ros.errors import ConfigError

Flashrt = Callable[..., tuple[int, str, str]]

KEYS = {"bench", "device", "versions", "rows"}
ROW_KEYS = {"name", "unit", "median", "p99", "ratio", "target", "met"}


class Fake:
    """A bench whose row takes a given time."""

    weight = 1.0
    summary = "a fake"

    def __init__(self, name: str, value: float, error: Exception | None = None) -> None:
        self.name, self.value, self.error = name, value, error
        self.budgets: list[float] = []

    def run(self, context: Context) -> Result:
        self.budgets.append(context.budget.seconds)
        if self.error is not None:
            raise self.error
        rows = [
            Row("base", "us", 1.0, 2.0, 1.0),
            Row("held", "us", self.value, 2.0, None, at_most("median", 10)),
        ]
        panels: list[BarPanel | LinePanel] = [
            BarPanel("bars", [Bar("one", 1.0, 2.0), Bar("other", 500.0, None, is_ours=True)], 7.0),
            LinePanel("lines", "x", [Line("a", (1, 2, 64), (1.0, 2.0, 3.0), (2.0, 3.0, 4.0))], 2.0),
        ]
        return context.result(self.name, rows, panels, "fake")


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fake]:
    """Two benches in place of the real ones: one that meets its target, one that misses it."""
    fakes = {"good": Fake("good", 5.0), "bad": Fake("bad", 50.0)}
    monkeypatch.setattr("flashrt_ros.cli.bench.BENCHES", fakes)
    return fakes


def test_the_json_of_one_bench(benches: dict[str, Fake], flashrt: Flashrt, tmp_path: Path) -> None:
    file = tmp_path / "good.json"
    code, out, _ = flashrt("bench", "good", "--json", str(file), "--check")
    assert code == 0
    assert "median <= 10" in out
    plain = json.loads(file.read_text())
    assert set(plain) == KEYS
    assert plain["bench"] == "good"
    assert {"torch", "python", "flashrt_ros"} <= set(plain["versions"])
    assert all(set(row) == ROW_KEYS for row in plain["rows"])
    assert [row["met"] for row in plain["rows"]] == [None, True]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("good", "--check"), 0),
        (("bad",), 0),
        (("bad", "--check"), 1),
        (("all", "--check"), 1),
        (("all",), 0),
    ],
)
def test_check_decides_the_exit_code(
    benches: dict[str, Fake], flashrt: Flashrt, words: tuple[str, ...], expected: int
) -> None:
    code, out, _ = flashrt("bench", *words)
    assert code == expected
    assert ("MISSED" in out) == ("good" not in words)


def test_all_writes_one_list_and_a_picture_each(
    benches: dict[str, Fake], flashrt: Flashrt, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    code, _, _ = flashrt("bench", "all", "--json", str(tmp_path), "--plot", str(tmp_path))
    assert code == 0
    assert [one["bench"] for one in json.loads((tmp_path / "all.json").read_text())] == [
        "good",
        "bad",
    ]
    for name in benches:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_budget_of_all_is_shared_out(benches: dict[str, Fake], flashrt: Flashrt) -> None:
    assert flashrt("bench", "all", "--budget", "100")[0] == 0
    assert benches["good"].budgets == [pytest.approx(50.0, abs=1.0)]
    # What the first has left over is the second's.
    assert benches["bad"].budgets == [pytest.approx(100.0, abs=20.0)]
    assert flashrt("bench", "good", "--budget", "3")[0] == 0
    assert benches["good"].budgets[-1] == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize(
    "error",
    [
        WrongResultError("wrong bytes"),
        BenchError("no engine"),
        ConfigError("no room"),
        RuntimeError("out of memory"),
    ],
)
def test_a_bench_that_fails_leaves_the_others(
    benches: dict[str, Fake],
    flashrt: Flashrt,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    benches["good"].error = error
    file = tmp_path / "all.json"
    code, out, _ = flashrt("bench", "all", "--json", str(file))
    assert code == 1
    assert str(error) in out
    assert [one["bench"] for one in json.loads(file.read_text())] == ["bad"]
    has_trace = any(record.exc_info for record in caplog.records)
    assert has_trace == isinstance(error, RuntimeError)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "much"])
def test_a_budget_that_is_none(benches: dict[str, Fake], flashrt: Flashrt, seconds: str) -> None:
    code, _, err = flashrt("bench", "good", "--budget", seconds)
    assert code == 2
    assert f"--budget: expected seconds, more than 0 and at most 36000, found '{seconds}'" in err


def test_two_benches_at_once(benches: dict[str, Fake], flashrt: Flashrt) -> None:
    code, _, err = flashrt("bench", "good", "bad")
    assert code == 2
    assert err.startswith("usage: flashrt-ros bench ")
    assert "flashrt-ros bench: error: unrecognized arguments: bad" in err
    _, _, err = flashrt("--better", "bench", "good")
    assert "flashrt-ros: error: unrecognized arguments: --better" in err
    assert not benches["good"].budgets


@pytest.mark.parametrize("name", ["good", "all"])
def test_an_ablation_of_another_bench(
    benches: dict[str, Fake], flashrt: Flashrt, name: str
) -> None:
    code, _, err = flashrt("bench", name, "--ablation")
    assert code == 1
    assert f"expected ttft, found {name}" in err
    assert not benches["good"].budgets


def test_an_ablation_is_asked_for_in_the_context(
    benches: dict[str, Fake], flashrt: Flashrt, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    fake = Fake("ttft", 5.0)
    whole = fake.run

    def run(context: Context) -> Result:
        asked.append(context.is_ablation)
        return whole(context)

    monkeypatch.setattr(fake, "run", run)
    benches["ttft"] = fake
    assert flashrt("bench", "ttft", "--ablation")[0] == 0
    assert flashrt("bench", "ttft")[0] == 0
    assert asked == [True, False]


def test_an_unknown_bench(benches: dict[str, Fake], flashrt: Flashrt) -> None:
    assert flashrt("bench", "better")[0] == 2


def test_a_folder_that_is_missing(
    benches: dict[str, Fake], flashrt: Flashrt, tmp_path: Path
) -> None:
    code, _, err = flashrt("bench", "good", "--json", str(tmp_path / "none" / "a.json"))
    assert code == 1
    assert "CONFIG (500)" in err
    code, _, err = flashrt("bench", "all", "--plot", str(tmp_path / "a.png"))
    assert code == 1
    assert "folder" in err
    assert not benches["good"].budgets


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("name", ["", "-"])
def test_a_name_that_is_none(
    benches: dict[str, Fake],
    flashrt: Flashrt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = flashrt("bench", "good", option, name)
    assert code == 2
    assert f"{option}: expected the name of a file, found '{name}'" in err
    assert not benches["good"].budgets
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("name", ["good", "all"])
def test_a_folder_that_may_not_be_written(
    benches: dict[str, Fake],
    flashrt: Flashrt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    name: str,
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may everything
    code, _, err = flashrt("bench", name, option, str(tmp_path))
    assert code == 1
    assert "may not be written" in err
    assert not benches["good"].budgets


@pytest.mark.parametrize(("name", "tables"), [("good", 1), ("all", 2)])
def test_a_disk_that_is_full_costs_the_file_alone(
    benches: dict[str, Fake], flashrt: Flashrt, name: str, tables: int
) -> None:
    code, out, err = flashrt("bench", name, "--json", "/dev/full")
    assert code == 1
    assert out.count("median <= 10") == tables
    assert err.count("\n") == 1
    assert "CONFIG (500): '/dev/full' can't be written: found No space left on device" in err


def test_a_picture_that_can_t_be_written_leaves_the_others(
    benches: dict[str, Fake], flashrt: Flashrt, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "good.png").symlink_to("/dev/full")
    code, out, err = flashrt("bench", "all", "--json", str(tmp_path), "--plot", str(tmp_path))
    assert code == 1
    assert out.count("median <= 10") == 2
    assert "good.png' can't be written" in err
    assert len(json.loads((tmp_path / "all.json").read_text())) == 2
    assert (tmp_path / "bad.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [24, 40, 60, 80, 200])
def test_a_figure_is_never_cut(width: int) -> None:
    name = "a reset by copy, added to a ping and to the copy"
    rows = (
        Row(name, "us", 123456.0, 2345.6, 0.123456, at_most("p99", 1234.5)),
        Row("other", "tokens/s", 98765.0),
    )
    console = Console(width=width)
    with console.capture() as capture:
        console.print(shown(Result("fake", "device", {}, rows, (), "words"), width))
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    words = [word.rstrip(",") for line in lines for word in line.split()]
    assert {"123456", "2346", "0.1235", "1234.5", "MISSED", "98765", "tokens/s"} <= set(words)
    assert not any("…" in word for word in words)
    assert set(name.replace(",", "").split()) <= set(words)


def test_a_terminal_of_few_columns_wraps_names_first() -> None:
    rows = (Row("a name of many words, which takes up much room", "us", 123.4, 234.5, 1.5),)
    console = Console(width=60)
    with console.capture() as capture:
        console.print(shown(Result("fake", "device", {}, rows, (), "words"), 60))
    assert re.search(r"^ +unit +median +p99 +ratio", capture.get(), re.MULTILINE)
    assert re.search(r"us +123.4 +234.5 +1.5", capture.get())


def test_a_device_that_is_missing(benches: dict[str, Fake], flashrt: Flashrt) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    code, _, err = flashrt("bench", "good", "--device", "cuda")
    assert code == 1
    assert "no CUDA device" in err


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from flashrt_ros.cli.main import main\n"
        "try:\n    main(['bench', '--help'])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "assert 'matplotlib' not in sys.modules, 'matplotlib'\n"
        "assert 'rclpy' not in sys.modules, 'rclpy'\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in BENCHES)


def test_the_real_registry_is_shown() -> None:
    assert all(isinstance(bench, Bench) and bench.weight > 0 for bench in BENCHES.values())
