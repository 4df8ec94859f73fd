"""What became of goals, as told by a real engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from flashrt_ros.cli.trace_records import Trace
from flashrt_ros.cli.trace_views import trace_view
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.protocol import (
    Event,
    EventKind,
    GoalSource,
    OutputKind,
    Provenance,
    format_detail,
)

Flashrt = Callable[..., tuple[int, str, str]]
MS = 1_000_000
START = 1_700_000_000_000 * MS


def provenance(goal: int, *, tick: int = 5, epoch: int = 7) -> Provenance:
    return Provenance(epoch, 0, -1, 1, 1, tick, tick - 1, goal, 40 + goal, START, 1, START)


def event(detail: str, *, kind: EventKind = EventKind.GOAL, tick: int = 4, epoch: int = 7) -> Event:
    return Event(kind, epoch, 0, 1, tick, "", 0, detail)


def latched(goal: int, extra: str = "") -> Event:
    return event(f"sequence={goal} source_sequence={40 + goal} stamp_ns={START}{extra}")


class TestRecords:
    def test_a_goal_from_its_stamp_to_its_first_action(self) -> None:
        trace = Trace(START)
        said = "accepted topic=subgoal planner=nav won=first sequence=41 engine_sequence=1"
        trace.event(event(said), START + 2 * MS)
        trace.event(latched(1), START + 5 * MS)
        trace.output(provenance(1), OutputKind.CHUNK, START + 8 * MS)
        for place in range(3):
            made = provenance(1, tick=5 + place)
            trace.output(made, OutputKind.ACTION, START + (9 + place) * MS)
        goal = trace.goals[7, 1]
        assert (goal.planner, goal.source_sequence) == ("nav", 41)
        assert goal.written_ns == START
        assert goal.committed_ns == START + 2 * MS
        assert (goal.latched_ns, goal.latched_tick) == (START + 5 * MS, 4)
        assert goal.chunk_ns == START + 8 * MS
        assert (goal.acted_ns, goal.acted_tick) == (START + 9 * MS, 5)
        assert (goal.last_acted_ns, goal.num_actions) == (START + 11 * MS, 3)

    def test_the_engines_own_times_count_where_its_clock_is_known(self) -> None:
        for offset_ns, committed_ns in ((START, START + 1 * MS), (None, None)):
            trace = Trace(START)
            extra = f" committed_ns={1 * MS} latched_ns={2 * MS}"
            trace.event(latched(1, extra), START + 5 * MS, monotonic_to_wall_ns=offset_ns)
            assert trace.goals[7, 1].committed_ns == committed_ns

    def test_a_goal_that_was_in_force_before_has_no_first_action(self) -> None:
        trace = Trace(START)
        trace.output(provenance(1), OutputKind.ACTION, START + MS)
        assert trace.goals[7, 1].acted_ns is None
        assert trace.goals[7, 1].num_actions == 1

    def test_another_engine_numbers_anew(self) -> None:
        trace = Trace(START)
        trace.output(provenance(1), OutputKind.ACTION, START + MS)
        trace.output(provenance(1, epoch=8), OutputKind.ACTION, START + MS)
        assert len(trace.goals) == 2

    def test_goals_of_a_further_channel_are_others(self) -> None:
        trace = Trace(START)
        trace.event(latched(1), START + 5 * MS)
        trace.event(latched(1, " channel=gripper"), START + 6 * MS)
        made = msgspec.structs.replace(
            provenance(1), other_goals=(GoalSource("gripper", 1, 9, START, 0),)
        )
        trace.output(made, OutputKind.ACTION, START + 9 * MS)
        first, second = trace.goals.values()
        assert (first.channel, first.latched_ns) == ("", START + 5 * MS)
        assert (second.channel, second.latched_ns) == ("gripper", START + 6 * MS)
        assert first.acted_ns == second.acted_ns == START + 9 * MS

    def test_names_with_blanks_are_read_whole(self) -> None:
        trace = Trace(START)
        planner, channel = "left arm stamp_ns=1", "left gripper"
        accepted = format_detail(
            "accepted", planner=planner, channel=channel, sequence=41, engine_sequence=1
        )
        trace.event(event(accepted), START + 2 * MS)
        told = format_detail("", channel=channel, sequence=1, source_sequence=41, stamp_ns=START)
        trace.event(event(told), START + 5 * MS)
        goal = trace.goals[7, 1, channel]
        assert (goal.planner, goal.channel) == (planner, channel)
        assert (goal.stamp_ns, goal.committed_ns) == (START, START + 2 * MS)

    def test_a_stamp_of_another_clock_is_not_placed(self) -> None:
        trace = Trace(START + 10**16)
        trace.event(latched(1), START + 10**16)
        assert trace.goals[7, 1].written_ns is None
        assert trace.goals[7, 1].stamp_ns == START

    def test_only_the_last_seconds(self) -> None:
        trace = Trace(START)
        trace.event(latched(1), START)
        trace.event(event("flip", kind=EventKind.RESET), START)
        trace.event(latched(2), START + 5000 * MS)
        trace.ended_ns = START + 6000 * MS
        last = trace.last(2.0)
        assert [goal.sequence for goal in last.goals.values()] == [2]
        assert last.moves == []
        assert trace.last(60.0) is trace

    def test_the_view_has_a_line_for_each_goal_and_move(self) -> None:
        trace = Trace(START)
        trace.event(latched(3), START + 5 * MS)
        trace.event(event("hold: sent", kind=EventKind.SAFETY), START)
        console = Console(width=200)
        with console.capture() as capture:
            console.print(trace_view(trace))
        assert "+5.00 ms" in capture.get()
        assert "safety" in capture.get()


def test_goals_are_traced_at_an_engine(
    flashrt: Flashrt, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = threading.Condition()

    def tell(method: Callable[..., None]) -> Callable[..., None]:
        def act(trace: Trace, *given: Any, **named: Any) -> None:
            with heard:
                method(trace, *given, **named)
                known[:] = [trace]
                heard.notify_all()

        return act

    def is_complete() -> bool:
        newest = [goal for trace in known for goal in trace.goals.values()][-1:]
        has_acted = [goal for goal in newest if goal.source_sequence == 4 and goal.acted_ns]
        moves = [move.kind for trace in known for move in trace.moves]
        return "restore" in moves and any(goal.chunk_ns for goal in has_acted)

    def drive() -> None:
        try:
            with EngineClient(engine, client="driver") as client:
                while client.status().num_clients < 2:  # the trace has not come yet
                    time.sleep(0.01)
                client.activate(tick_source="step")
                goals, observations = client.open_writer("goal"), client.open_writer("observation")
                for number in range(1, 5):
                    stamp_ns = time.time_ns()
                    goals.write(stamp_ns=stamp_ns, source_sequence=number, values=[0.5, 0.5])
                    observations.write(stamp_ns=stamp_ns, position=[0.0, 0.0])
                    client.step(client.model.execute_horizon)
                client.restore("home")
            with heard:
                heard.wait_for(is_complete, 60)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    known: list[Trace] = []
    for name in ("event", "output"):
        monkeypatch.setattr(Trace, name, tell(getattr(Trace, name)))
    driver = threading.Thread(target=drive)
    driver.start()
    report, picture = tmp_path / "trace.json", tmp_path / "trace.png"
    words = ("trace", "--engine", engine, "--seconds", "0", "--json", str(report))
    code, out, err = flashrt(*words, "--plot", str(picture))
    driver.join(60)
    assert code == 0, err
    plain: dict[str, Any] = json.loads(report.read_bytes())
    goal = plain["goals"][-1]
    assert goal["source_sequence"] == 4
    assert goal["written_ns"] <= goal["chunk_ns"] <= goal["acted_ns"] <= goal["last_acted_ns"]
    assert goal["latched_ns"] >= goal["written_ns"]
    assert goal["acted_tick"] > goal["latched_tick"]
    assert "restore" in [move["kind"] for move in plain["moves"]]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "first acted" in out


def test_without_an_engine_it_says_so(flashrt: Flashrt, runtime_folder: Path) -> None:
    code, _, err = flashrt("trace", "--engine", "nowhere", "--seconds", "0.1")
    assert code == 1
    assert "ENGINE_GONE" in err


@pytest.mark.parametrize("seconds", ["-1", "soon", "inf"])
def test_a_duration_that_is_none_is_refused(flashrt: Flashrt, seconds: str) -> None:
    code, _, err = flashrt("trace", "--seconds", seconds)
    assert code == 2
    assert "seconds of at least 0" in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--json", "/nowhere/at/all.json"), "no folder"),
        (("--json", "/"), "is a folder"),
        (("--ros", "--namespace", "1robot"), "the namespace can't be used"),
    ],
)
def test_what_can_not_be_is_refused_before_listening(
    flashrt: Flashrt, words: tuple[str, ...], complaint: str
) -> None:
    code, _, err = flashrt("trace", "--seconds", "0", *words)
    assert code == 1
    assert complaint in err


def test_it_needs_neither_torch_nor_ros() -> None:
    code = (
        "import sys, flashrt_ros.cli.trace; "
        "print([name for name in ('torch', 'rclpy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
