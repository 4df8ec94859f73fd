"""A replay reads the latched slot where it lies, and no byte of any other slot."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Every slot is whole pages. After capture the pages of every other slot are made unreadable, so
# that a replay which gathers or copies more than the latched slot is killed. Each case runs in a
# fork of one process that has torch loaded.
CHILD = """
import ctypes, json, mmap, os, sys
import torch
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.spec import *

torch.set_num_threads(1)
libc = ctypes.CDLL(None, use_errno=True)

def check(shape, dtype, latched, way, readable):
    channel = ChannelSpec("g", ChannelRole.GOAL, (FieldSpec("v", shape, dtype),), num_rings=1)
    assert channel.slot_bytes % PAGE_BYTES == 0
    num_bytes = channel.slot_bytes * channel.num_slots
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    backend = CpuBackend()
    slots = backend.import_slots(address, channel.num_slots, channel)
    for row in range(channel.num_slots):
        slots["g.v"][row].fill_(row == latched)
    specs = [
        BufferSpec("x", shape, dtype, Role.SCRATCH),
        BufferSpec("g_slot", (1,), "int64", Role.BINDING),
    ]
    arena = backend.create_arena(ArenaLayout.of(specs), num_lanes=1)
    arena.seal()
    views = arena.views(0)

    def program(b, s):
        if way == "out":
            torch.index_select(s["g.v"], 0, b["g_slot"], out=b["x"].unsqueeze(0))
        else:
            b["x"].copy_(s["g.v"].index_select(0, b["g_slot"])[0])

    graph = backend.capture(program, ("latch",), arena, 0, slots)
    (read,) = graph.slot_reads()
    assert read.row_address(latched) == address + latched * channel.slot_bytes
    for row in range(channel.num_slots):
        if row != readable:
            at = ctypes.c_void_p(address + row * channel.slot_bytes)
            assert libc.mprotect(at, ctypes.c_size_t(channel.slot_bytes), 0) == 0
    views["g_slot"].fill_(latched)
    graph.replay()
    assert views["x"].eq(1).all()

statuses = []
for case in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        check(tuple(case["shape"]), case["dtype"], case["latched"], case["way"], case["readable"])
        os._exit(0)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(statuses))
"""

FIELDS: list[tuple[tuple[int, ...], str]] = [
    ((1024,), "float32"),
    ((513, 3), "float32"),
    ((96, 96, 3), "uint8"),
    ((2, 3, 512), "float64"),
    ((4000,), "bool"),
    ((3000,), "bfloat16"),
]


def statuses(tmp_path: Path, cases: list[dict[str, object]]) -> list[int]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    done = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: list[int] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("way", ["default", "out"])
def test_replay_reads_the_latched_slot_alone(tmp_path: Path, way: str) -> None:
    cases: list[dict[str, object]] = [
        {"shape": shape, "dtype": dtype, "latched": latched, "way": way, "readable": latched}
        for shape, dtype in FIELDS
        for latched in (0, 5)
    ]
    assert statuses(tmp_path, cases) == [0] * len(cases)


def test_a_read_of_another_slot_is_noticed(tmp_path: Path) -> None:
    control: dict[str, object] = {
        "shape": (1024,),
        "dtype": "float32",
        "latched": 3,
        "way": "default",
        "readable": 2,
    }
    assert statuses(tmp_path, [control]) == [-signal.SIGSEGV]
