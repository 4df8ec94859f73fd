"""How a goal gets to the graph: whose memory it reads, and whether any read was torn."""

from __future__ import annotations

import json
import os
import subprocess
import time

import numpy as np

from flashrt_ros.demo.census import find_mapping
from flashrt_ros.demo.scene import Scene
from flashrt_ros.demo.trace import Point
from flashrt_ros.demo.waiting import ScenarioError
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.nodes.commands import python_module

TORN_S = 2.5
"""How long the fast writer commits, s."""

_WRITER_S = 30.0


def check_copies(scene: Scene, goal: Point) -> None:
    """Compare the memory that the captured latch node reads with the one a writer wrote.

    Twice: with the planner node, which must have mapped what the graph reads, writable;
    and with a writer of the demo's own, whose slot is known to the byte.
    """
    client = scene.stage.client
    scene.services.send_goal(goal)
    scene.step_on(scene.lab_frames[0], scene.execute_horizon)
    seen = client.inspect()
    is_planners = find_mapping(
        scene.stage.pids["planner_node"],
        lambda mapping: (
            mapping.is_writable
            and (mapping.device, mapping.inode) == (seen.read_device, seen.read_inode)
            and 0 <= seen.read_offset - mapping.offset < mapping.num_bytes
        ),
    )
    with EngineClient(scene.stage.engine, client="demo/transport") as own:
        writer = own.open_writer("goal")
        # One goal before, so that the slot in question is not the first of its ring.
        writer.write(stamp_ns=scene.witness.now_ns(), source_sequence=1, values=list(goal))
        loan = writer.prepare(stamp_ns=scene.witness.now_ns(), values=list(goal)).loan
        written = _locate(int(loan.fields["values"].ctypes.data))
        writer.commit(loan, stamp_ns=scene.witness.now_ns(), source_sequence=2)
        scene.step_on(scene.lab_frames[1], scene.execute_horizon)
        latched = client.inspect()
        del loan
    read = (latched.read_device, latched.read_inode, latched.read_offset)
    copies = seen.goal_transport_copies + latched.goal_transport_copies
    scene.report.check(
        "goal_transport_copies",
        copies,
        expected="0: the graph reads the very slot that was written",
        is_held=copies == 0 and is_planners is not None and read == written,
    )
    names = ("device", "inode", "offset")
    scene.report.note(
        "goal_transport",
        {
            "written": dict(zip(names, written, strict=True)),
            "read": dict(zip(names, read, strict=True)),
            "planner_node_maps_what_is_read": is_planners is not None,
        },
    )


def check_torn(scene: Scene) -> None:
    """Let a process commit goals as fast as it can while the policy latches them.

    The engine compares each latched slot, when it is given back, with what it was.

    Raises:
        ScenarioError: The writer failed, or a process of the demo has ended.
    """
    client, report = scene.stage.client, scene.report
    before = client.inspect()
    command = python_module("flashrt_ros.demo.fast_writer", scene.stage.engine)
    environment = {**os.environ, **scene.stage.marks}
    with subprocess.Popen(
        [*command, str(TORN_S)], stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        try:
            deadline = time.monotonic() + _WRITER_S
            while child.poll() is None and time.monotonic() < deadline:
                scene.stage.require_alive()
                client.step(count=scene.execute_horizon)
            child.kill()
            words = child.communicate()[0]
        finally:
            child.kill()
    if child.returncode != 0 or not words:
        raise ScenarioError(f"the fast writer ended with exit code {child.returncode}")
    result = json.loads(words)
    after = client.inspect()
    torn = after.torn_reads - before.torn_reads
    latches = after.num_latches - before.num_latches
    report.check(
        "torn_goals",
        torn,
        expected=f"0 of {latches} latched, {result['goals']} committed",
        is_held=torn == 0 and latches > 0 and result["goals"] > latches,
    )
    report.note("torn_goals_committed", result["goals"])
    report.note("torn_goals_per_s", round(result["goals"] / result["seconds"]))
    report.note("torn_goals_latched", latches)
    _control_scribble(scene)


def _control_scribble(scene: Scene) -> None:
    """Write into a slot after its commit, against the protocol; the engine must notice."""
    client = scene.stage.client
    before = client.inspect().torn_reads
    with EngineClient(scene.stage.engine, client="demo/scribbler") as own:
        writer = own.open_writer("goal")
        loan = writer.prepare(stamp_ns=scene.witness.now_ns(), values=[0.1, 0.1]).loan
        kept = loan.fields["values"].view(np.float32)
        writer.commit(loan, stamp_ns=scene.witness.now_ns(), source_sequence=1)
        client.step(count=scene.execute_horizon)
        kept[:] = 0.11
        writer.write(stamp_ns=scene.witness.now_ns(), source_sequence=2, values=[0.2, 0.2])
        client.step(count=scene.execute_horizon)
        torn = client.inspect().torn_reads - before
        del kept, loan
    scene.report.control(
        "scribbling_writer",
        "torn_goals",
        "a writer that scribbles after its commit",
        torn,
        expected="1",
        is_held=torn == 1,
    )


def _locate(address: int) -> tuple[int, int, int]:
    """Find the shared memory at an address of this process: device, inode and offset."""
    mapping = find_mapping(
        os.getpid(), lambda one: one.start <= address < one.start + one.num_bytes
    )
    if mapping is None:
        return (0, 0, 0)
    return mapping.device, mapping.inode, mapping.offset + address - mapping.start
