from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from flashrt_ros.demo import minimap
from flashrt_ros.demo.report import Check, Control
from flashrt_ros.demo.table import Board, LiveView, Status, View, render, short, summary
from flashrt_ros.demo.trace import EpisodeTrace

CHECK = Check("torn_goals", 0, "0", True)
FAILED = Check("reach_rate", 0.25, "0.9 or more", False)
CONTROL = Control("c", "torn_goals", "scribbled", 1, "1", True)


def status() -> Status:
    return SimpleNamespace(
        state="active",
        waiting_for="goal",
        tick_source="timer",
        tick=12,
        generation=4,
        rate_hz=9.96,
        replay_p50_us=4200.0,
        replay_p99_us=9100.0,
        lateness_p99_us=310.0,
        deadline_misses=2,
        goal_age_ns=1_250_000_000,
        observation_age_ns=-1,
        lanes_used=1,
        lanes_total=6,
        interrupt_depth=1,
    )


def board(trace: EpisodeTrace) -> Board:
    found = Board(phase="episode 1 of 2", num_episodes=2, traces=[trace], block=trace.block)
    found.status = status()
    found.entries = [CHECK, CONTROL, FAILED]
    found.said.append((1.0, "reset_episode [home]"))
    return found


def printed(renderable: object, width: int = 120, height: int = 36) -> str:
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(renderable, height=height)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_map_shows_agent_block_and_goals(trace: EpisodeTrace) -> None:
    image = minimap.raster(trace, trace.block, 64)
    assert image.shape == (64, 64, 3)
    found = {tuple(pixel) for pixel in image.reshape(-1, 3).tolist()}
    assert {minimap.FELT, minimap.BLOCK, minimap.AGENT, minimap.TRAIL} <= found
    x, y = np.array(trace.path[-1]) / minimap.TABLE_M * 64
    assert tuple(image[int(y), int(x)].tolist()) == minimap.AGENT


def test_the_map_has_half_as_many_lines_as_columns(trace: EpisodeTrace) -> None:
    lines = minimap.draw(trace, trace.block, 24).plain.split("\n")
    assert [len(line) for line in lines] == [24] * 12


def test_an_episode_that_has_not_begun_can_be_drawn() -> None:
    trace = EpisodeTrace(0, 1, (0.2, 0.2, 0.0), (0.3, 0.3))
    assert minimap.raster(trace, trace.block, 16).shape == (16, 16, 3)


def test_the_table_shows_what_is_asked_of_it(trace: EpisodeTrace) -> None:
    text = printed(render(board(trace), 120, 36))
    for words in (
        "episode 1 of 2",
        "10.0 Hz, timer",
        "p50 4.2 ms, p99 9.1 ms",
        "1.25 s",
        "none yet",
        "waits for goal",
        "reset_episode [home]",
        "torn_goals 0",
        "reach_rate 0.25",
        "1 of 1 controls",
    ):
        assert words in text


def test_what_was_said_is_wrapped_not_cut(trace: EpisodeTrace) -> None:
    shown = board(trace)
    said = "interrupt between plans: first action under the new goal after 1 tick, 23 ms"
    shown.said.append((2.0, said))
    text = printed(render(shown, 120, 36))
    assert "…" not in text.split("checks")[0]
    for word in said.split():
        assert word in text
    assert "1 tick, 23 ms" in text


def test_the_table_can_be_drawn_before_anything_is_known() -> None:
    assert "waiting for the robot" in printed(render(Board(), 100, 30))


def test_the_summary_puts_controls_beside_their_checks() -> None:
    text = printed(summary([CHECK, CONTROL, FAILED]))
    line = next(line for line in text.splitlines() if "torn_goals" in line)
    assert "scribbled: 1" in line


def test_plain_lines_say_what_happens(trace: EpisodeTrace) -> None:
    console = Console(width=120, file=io.StringIO())
    with View(board(trace), console) as view:
        view.phase("the reset as a barrier")
        view.say("subgoal 3: [1, 2]")
        view.entry(FAILED)
        view.entry(CONTROL)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for words in ("the reset as a barrier", "subgoal 3: [1, 2]", "reach_rate 0.25", "scribbled: 1"):
        assert words in text
    assert view.board.said[-1][1] == "subgoal 3: [1, 2]"


def test_the_live_view_gives_the_terminal_back(trace: EpisodeTrace) -> None:
    console = Console(width=100, height=30, file=io.StringIO(), force_terminal=True)
    with LiveView(board(trace), console) as view:
        view.say("hello")
    view.close()
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1


@pytest.mark.parametrize(
    ("value", "words"),
    [(True, "yes"), (False, "no"), (0.123456, "0.123"), ({"p50": 1.0}, "p50 1"), (7, "7")],
)
def test_figures_are_short(value: object, words: str) -> None:
    assert short(value) == words
