"""Every bench on the CPU with a budget for a look: its rows, its panels, what it leaves behind."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flashrt_ros.bench.context import Context
from flashrt_ros.bench.registry import BENCHES
from flashrt_ros.bench.result import Result

needs_ros = pytest.mark.skipif(
    importlib.util.find_spec("rclpy") is None, reason="needs ROS; pip install -e '.[ros,test]'"
)

ROWS = {
    "replay": ("eager plan", "captured plan", "torch.compile"),
    "restore": (
        "raw copy",
        "restore, runtime",
        "restore, runtime, host time added",
        "restore, engine",
        "restore, engine, host time added",
        "loop over 50 buffers",
        "copy.deepcopy",
        "replay",
        "flip and replay, runtime, added to a replay",
        "reset and replay, engine, added to a replay",
        "refill of the lane left",
        "resets that copy, one every 0.5 ms",
        "shortest interval that always flips",
    ),
    "snapshot": (
        "tick alone",
        "tick with a snapshot of 1 MB beside it; ratio of p99",
        "largest snapshot up to which p99 keeps within 1.1",
    ),
    "pinned": (
        "pinned capsule, set of 1 x the quota",
        "pinned capsule, set of 2 x the quota",
        "other capsules",
        "cache without pins, those pinned in the engine",
        "cache without pins, the others",
    ),
    "archive": (
        "write, fsync and rename",
        "save, ",
        "read from disk",
        "load from disk",
        "read from memory",
        "load from memory",
        "lateness of ticks alone",
        "lateness of ticks with saves beside",
        "save beside ticks",
        "lateness of ticks with loads beside",
        "load beside ticks",
    ),
    "fork": ("raw copies", "copies, runtime", "fork, engine", "fork, engine, host time"),
    "tick": (
        "lateness in the engine's process",
        "ticks missed in the engine's process",
        "lateness in the engine's process, asleep until the tick",
        "lateness in a thread of the node's process",
        "lateness in a thread, switch interval 50 us",
    ),
    "interrupt": (
        "interrupt to first action of its goal",
        "goal to its first action, the chunk is finished first",
        "goal by topic to a policy node, to its first action",
        "one tick and one plan node",
    ),
    "goal": (
        "goal by slot, write and commit",
        "goal by slot, write to the end of its plan",
        "goal by topic, write to consumed",
        "commit",
        "copies between write and read",
    ),
    "service": (
        "empty Trigger, ~/ping",
        "~/reset",
        "~/reset, added to an empty Trigger beyond the verb",
        "ping, client",
        "reset by flip, client",
        "reset by flip, added to a ping",
        "reset by copy, client",
        "reset by copy, added to a ping and the copy",
        "reset by flip, busy engine",
        "reset by flip, busy engine, added to an idle one",
    ),
    "cohost": (
        "tick lateness, alone",
        "plan, alone",
        "sum of lateness and plan, alone",
        "ticks missed, alone",
        "sum of lateness and plan, planner in the slack",
        "ticks missed, planner in the slack",
        "tokens, planner in the slack",
        "sum of lateness and plan, planner in a process of its own",
        "ticks missed, planner in a process of its own",
        "tokens, planner in a process of its own",
        "planner without ticks",
    ),
    "steady": ("allocations of torch's allocator", "growth of host memory"),
    "ttft": (
        "capsule, 128 tokens",
        "own cold, captured, 128 tokens",
        "own cold, eager, 256 tokens",
        "transformers, copied cache, 128 tokens",
        "transformers cold, with fla, 128 tokens",
        "transformers cold, without fla, 256 tokens",
        "capsule, 256 over 128 tokens",
        "own cold, captured over capsule, 256 tokens",
        "transformers cold, without fla over own cold, captured, 256 tokens",
        "raw copy, 128 tokens",
        "restore alone, 256 tokens",
        "decode a token, captured, at 128",
        "decode a token, captured, awaited, at 128",
        "decode a token, eager, at 128",
        "decode, eager over captured, at 128",
        "first token, pinned prefixes, set of 3",
        "first token, pinned prefixes, set of 6",
        "first token, other prefixes, set of 6",
        "logits that differ, the end of 256 tokens taken in by 64s",
    ),
    "barge_in": (
        "barge-in in prefill, first token, chunks of 64",
        "barge-in in prefill, first token, as the engine says, chunks of 64",
        "barge-in in decode, first subgoal, chunks of 64",
        "barge-in in decode, whole plan, chunks of 64",
        "the turn ends first, first token, chunks of 64",
        "barge-in, prefix computed, first token, chunks of 64",
        "a node of prefill alone, chunks of 64",
        "barge-in in prefill, first token, chunks of 128",
        "a node of decode alone, chunks of 128",
    ),
}
"""What the rows of each bench begin with; the sizes come after."""


def test_every_bench_is_named_here() -> None:
    assert set(ROWS) == set(BENCHES)


@pytest.mark.parametrize(
    "name",
    [
        "replay",
        "restore",
        "snapshot",
        "pinned",
        "archive",
        "fork",
        "steady",
        "ttft",
        "barge_in",
    ],
)
def test_a_bench_in_this_process(name: str, make_context: Callable[..., Context]) -> None:
    check(name, BENCHES[name].run(make_context()))


def test_a_bench_with_engines_alone(make_context: Callable[..., Context], tmp_path: Path) -> None:
    check("cohost", BENCHES["cohost"].run(make_context()))
    assert not list((tmp_path / "flashrt").glob("*.sock"))


@needs_ros
@pytest.mark.parametrize("name", ["goal", "interrupt", "service", "tick"])
def test_a_bench_with_processes(
    name: str, make_context: Callable[..., Context], tmp_path: Path
) -> None:
    domain = os.environ["ROS_DOMAIN_ID"]
    check(name, BENCHES[name].run(make_context()))
    assert os.environ["ROS_DOMAIN_ID"] == domain
    assert not list((tmp_path / "flashrt").glob("*.sock"))


@pytest.mark.parametrize("name", ["goal", "interrupt", "service"])
def test_a_bench_without_ros_says_so(
    name: str, make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("engines", name):
        monkeypatch.setattr(f"flashrt_ros.bench.{module}.why_no_ros", lambda: "no ROS")
    result = BENCHES[name].run(make_context())
    missing = [row for row in result.rows if row.median is None]
    assert missing
    assert all("absent: no ROS" in row.title for row in missing)
    assert [row for row in result.rows if row.median is not None]


def test_ticks_without_ros_are_absent(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashrt_ros.bench.tick.why_no_ros", lambda: "no ROS")
    result = BENCHES["tick"].run(make_context())
    assert all(row.met is None and row.median is None for row in result.rows)


def check(name: str, result: Result) -> None:
    assert result.bench == name
    titles = [row.title for row in result.rows]
    for begin in ROWS[name]:
        assert any(title.startswith(begin) for title in titles), (begin, titles)
    for row in result.rows:
        assert (row.median is None) == row.note.startswith("absent"), row
        assert row.met is None or row.target is not None
    assert result.panels
    assert result.summary
