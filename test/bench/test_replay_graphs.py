"""The peer with CUDA graphs: whatever becomes of its process, the bench goes on and says it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from flashrt_ros.bench import replay_graphs
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.replay_graphs import measure_apart
from flashrt_ros.bench.result import Row

ANSWER = '{"note": "but 1 of 9 programs: no", "median_us": 50.0, "p99_us": 60.0, "eager_us": 200.0}'


@pytest.fixture
def row_of(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Row]:
    """Makes the row of a process that runs a script."""
    monkeypatch.setattr(replay_graphs, "_START_S", 0.0)
    monkeypatch.setattr(replay_graphs, "COMPILE_S", {"cpu": 0.0})

    def row(script: str, seconds: float = 20.0) -> Row:
        command = (sys.executable, "-c", script)
        monkeypatch.setattr(replay_graphs, "python_module", lambda *words: command)
        return measure_apart(make_context(seconds), 0, "4 M parameters")

    return row


def test_its_ratio_is_to_eager_runs_of_its_own_process(row_of: Callable[..., Row]) -> None:
    row = row_of(f"print('a compiler talks'); print({ANSWER!r})")
    assert (row.median, row.p99, row.ratio) == (50.0, 60.0, 4.0)
    assert "mode reduce-overhead" in row.name
    assert "process of its own" in row.note
    assert row.note.endswith("but 1 of 9 programs: no")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('print(\'{"note": "no triton"}\')', "absent: no triton"),
        ("import os; os.abort()", "absent: its process ended with -6: nothing said"),
        ("raise ValueError('lost')", "absent: its process ended with 1: ValueError: lost"),
        ("print('{}')", "absent: its process ended with 0"),
    ],
)
def test_what_gives_no_figures_is_absent(script: str, why: str, row_of: Callable[..., Row]) -> None:
    row = row_of(script)
    assert row.median is None
    assert row.note.startswith(why)


def test_it_is_ended_with_the_budget(row_of: Callable[..., Row]) -> None:
    row = row_of("import threading; threading.Event().wait()", 0.5)
    assert row.note.startswith("absent: not done within")


def test_without_time_nothing_is_started(make_context: Callable[..., Context]) -> None:
    row = measure_apart(make_context(), 0, "4 M parameters")
    assert row.note == "absent: less than 80 s for it"
