from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from flashrt_ros.demo.report import host
from flashrt_ros.demo.trace import EpisodeTrace, MomentKind

pytest.importorskip("matplotlib", reason="the extra 'demo' draws the picture")

FIGURES: dict[str, Any] = {
    "branches": 4,
    "stale_after_reset": 0,
    "ping_us": {"p50": 30.0, "p99": 90.0},
    "reset_service_us": {"p50": 900.0, "p99": 2_500.0},
}


def test_every_kind_of_moment_has_a_colour_and_a_marker() -> None:
    from flashrt_ros.demo.drawing import COLOUR, MARKER

    assert set(COLOUR) == set(MARKER) == set(get_args(MomentKind))


@pytest.mark.parametrize("count", [1, 2, 7, 25])
def test_a_picture_is_drawn_without_a_display(
    count: int,
    trace: EpisodeTrace,
    forked_trace: EpisodeTrace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flashrt_ros.demo import plot

    monkeypatch.delenv("DISPLAY", raising=False)
    traces = [forked_trace if number % 2 else trace for number in range(count)]
    file = tmp_path / "demo.png"
    plot.save(file, traces, FIGURES, host=host(), is_passed=count > 1)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_what_was_said_stands_in_the_picture(
    trace: EpisodeTrace, words_trace: EpisodeTrace, tmp_path: Path
) -> None:
    import matplotlib as mpl

    from flashrt_ros.demo import plot

    file = tmp_path / "demo.svg"
    figures = {**FIGURES, "words_to_goal_ms": [91.2, 130.0]}
    with mpl.rc_context({"svg.fonttype": "none"}):
        plot.save(file, [trace], figures, host=host(), is_passed=True, words=words_trace)
    text = file.read_text()
    for saying in words_trace.sayings:
        assert saying.text in text
    assert "1a (384, 384) mm reached" in text
    assert "2a (140, 150) mm left" in text
    assert "refused" in text
    assert "91 and 130 ms" in text


def test_a_picture_of_a_run_that_broke_off(trace: EpisodeTrace, tmp_path: Path) -> None:
    from flashrt_ros.demo import plot

    trace.block_end = None
    file = tmp_path / "demo.svg"
    plot.save(file, [trace], {}, host=host(), is_passed=False)
    assert "not all checks held" in file.read_text() or file.stat().st_size > 1000
