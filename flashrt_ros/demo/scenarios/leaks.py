"""Clients that come and go: engine and nodes must hold as much afterwards as before."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from std_srvs.srv import Trigger

from flashrt_ros.demo.census import Holdings, holdings
from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.stage import Stage
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.nodes.commands import python_module

NUM_CLIENTS = 200
"""Clients of the engine and of the nodes together."""

NUM_KILLED = 6
"""How many of them are killed with a slot on loan."""

WATCHED = ("engine", "policy_node", "planner_node")
"""Processes whose descriptors and mappings are counted."""

_NUM_ROS = 20
_WARM_UP = 8
_AT_ONCE = 2  # a channel has few rings, and the planner node has one
_READY_S = 20.0
_SETTLE_S = 5.0
_LOOK_S = 0.05
_END_S = 5.0


def check_leaks(scene: Scene) -> None:
    """Count descriptors and mappings before and after clients have come and gone.

    Some are processes that are killed with a slot on loan and a subscription, some
    close their connection with a slot on loan, and some are ROS clients that call the
    policy node.
    """
    stage = scene.stage
    for number in range(_WARM_UP):
        _come_and_go(scene, number)
    before = _settled(stage, None)
    _die(scene, NUM_KILLED)
    for number in range(NUM_CLIENTS - NUM_KILLED):
        stage.require_alive()
        _come_and_go(scene, number)
    after = _settled(stage, before)
    leaked = _more(after, before)
    scene.report.note(
        "holdings",
        {
            name: {"fds": after[name].num_fds, "mappings": after[name].num_mappings}
            for name in WATCHED
        },
    )
    scene.report.note("clients_killed_with_a_loan", NUM_KILLED)
    scene.view.say(f"{NUM_CLIENTS} clients have come and gone, {NUM_KILLED} of them by SIGKILL")
    with EngineClient(stage.engine, client="demo/stayed") as client:
        client.open_writer("goal")
        kept = _more(_census(stage), before)
    for name, found, held in (
        ("leaked_fds", leaked.num_fds, kept.num_fds),
        ("leaked_mappings", leaked.num_mappings, kept.num_mappings),
    ):
        scene.report.check(
            name, found, expected=f"0 after {NUM_CLIENTS} clients", is_held=found <= 0
        )
        scene.report.control(
            f"{name}_client_stayed",
            name,
            "a client that has not gone",
            held,
            expected="more than 0",
            is_held=held > 0,
        )


def check_processes(scene: Scene) -> None:
    """Count what is left of the demo's processes; call it once the stage is closed."""
    stage = scene.stage
    left = _left(stage)
    killed = f", as {', '.join(stage.killed)} had" if stage.killed else ""
    scene.report.check(
        "leaked_processes",
        len(left),
        expected=f"0 at the end, and none that had to be killed{killed}",
        is_held=has_ended_well(left, stage.killed),
    )
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(command, env={**os.environ, **stage.marks}) as child:
        try:
            still = _appeared(stage, child.pid)
        finally:
            child.kill()
    scene.report.control(
        "process_stayed",
        "leaked_processes",
        "a process of the demo that was not stopped",
        len(still),
        expected="1",
        is_held=len(still) == len(left) + 1 and not has_ended_well(still, ()),
    )
    scene.report.note("killed_processes", list(stage.killed))


def has_ended_well(left: Sequence[int], killed: Sequence[str]) -> bool:
    """Tell whether every process ended, and ended when it was asked to.

    Args:
        left: Process ids still there.
        killed: Names of those that did not end by themselves.
    """
    return not left and not killed


def _die(scene: Scene, count: int) -> None:
    """Start clients as processes, and kill each while it holds a loan; a ring for each."""
    stage = scene.stage
    command = python_module("flashrt_ros.demo.doomed_client", stage.engine)
    environment = {**os.environ, **stage.marks}
    for first in range(0, count, _AT_ONCE):
        children = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(min(_AT_ONCE, count - first))
        ]
        try:
            words = [_first_line(child) for child in children]
        finally:
            for child in children:
                child.kill()
                child.communicate()
        if any(word != "ready" for word in words):
            raise ScenarioError(f"a client that should hold a loan said {words}")


def _first_line(child: subprocess.Popen[str]) -> str:
    """Return what a child says first, "" if it says nothing in time."""
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], _READY_S)
    return child.stdout.readline().strip() if ready else ""


def _come_and_go(scene: Scene, number: int) -> None:
    if number % (NUM_CLIENTS // _NUM_ROS) == 0:
        scene.services.call_once(Trigger, "policy_node/ping", Trigger.Request())
        return
    client = EngineClient(scene.stage.engine, client=f"demo/client{number}")
    try:
        if number % 2:
            client.open_writer("goal").loan()
        if number % 3 == 0:
            client.subscribe(actions=True, chunks=True, events=True)
        client.ping()
    finally:
        client.close()


def _census(stage: Stage) -> dict[str, Holdings]:
    pids = stage.pids
    return {name: holdings(pids[name]) for name in WATCHED}


def _settled(stage: Stage, before: Mapping[str, Holdings] | None) -> dict[str, Holdings]:
    """Count once nothing changes any more, or nothing is left of what there was not before."""
    deadline = time.monotonic() + _SETTLE_S
    last = _census(stage)
    while time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        now = _census(stage)
        if (now == last) if before is None else _is_clean(_more(now, before)):
            return now
        last = now
    return last


def _more(now: Mapping[str, Holdings], before: Mapping[str, Holdings]) -> Holdings:
    """Add up what each process holds more than before."""
    return Holdings(
        sum(max(0, now[name].num_fds - before[name].num_fds) for name in before),
        sum(max(0, now[name].num_mappings - before[name].num_mappings) for name in before),
    )


def _is_clean(more: Holdings) -> bool:
    return more.num_fds == 0 and more.num_mappings == 0


def _appeared(stage: Stage, pid: int) -> list[int]:
    """Return the demo's processes once one of them shows.

    A child's environment can be read only a moment after ``Popen`` has returned.
    """
    deadline = time.monotonic() + _END_S
    while pid not in (left := stage.processes) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return left


def _left(stage: Stage, timeout_s: float = _END_S) -> list[int]:
    """Return the demo's processes that are still there after a while."""
    deadline = time.monotonic() + timeout_s
    while (left := stage.processes) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return left
