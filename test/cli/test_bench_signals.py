"""A bench that is told to stop leaves nothing behind; in processes of their own."""

from __future__ import annotations

import importlib.util
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flashrt_ros.bench.context import FOLDER_PREFIX

WAIT_S = 60.0
"""Longest wait for anything here; nothing that passes comes near."""

STAND_IN = """
import os, signal, sys, threading
from flashrt_ros.bench.context import FOLDER_PREFIX
from flashrt_ros.bench.ros_link import RosLink
from flashrt_ros.cli import bench
from flashrt_ros.cli.main import main
from flashrt_ros.demo.domain import ros_domain
from flashrt_ros.nodes.folders import run_folder

class StandIn:
    weight, summary = 1.0, "holds what benches hold"

    def run(self, context):
        with run_folder(FOLDER_PREFIX) as folder:
            (folder / "file").write_bytes(bytes(4096))
            {body}

def wait():
    print("up", flush=True)
    while True:
        signal.pause()

bench.BENCHES = {{"first": StandIn(), "second": StandIn()}}
sys.exit(main(["bench", *sys.argv[1:]]))
"""
PLAIN = STAND_IN.replace("from flashrt_ros.bench.ros_link import RosLink\n", "")

needs_ros = pytest.mark.skipif(
    importlib.util.find_spec("rclpy") is None, reason="needs the extra 'ros'"
)

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the temporary folders of the processes are."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def start(temporary: Path) -> Iterator[Start]:
    """Starts a bench that holds a folder, and waits until it waits; ends it with the test."""
    started: list[subprocess.Popen[str]] = []

    def call(
        body: str = "wait()", *, code: str = PLAIN, name: str = "first", ignore: int = 0
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code.format(body=body), name],
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=(lambda: signal.signal(ignore, signal.SIG_IGN)) if ignore else None,
        )
        started.append(process)
        assert line_of(process) == "up"
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate(timeout=WAIT_S)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], WAIT_S)[0], "it says nothing"
    return process.stdout.readline().strip()


def folders(temporary: Path) -> list[Path]:
    return sorted(temporary.glob(f"{FOLDER_PREFIX}*"))


@pytest.mark.parametrize("name", ["first", "all"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_unwinds_a_bench(
    start: Start, temporary: Path, number: signal.Signals, name: str
) -> None:
    process = start(name=name)
    assert len(folders(temporary)) == 1
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + number
    assert (out, err) == ("", "flashrt-ros: interrupted\n")
    assert folders(temporary) == []


def test_a_hang_up_stays_ignored_under_nohup(start: Start, temporary: Path) -> None:
    process = start(ignore=signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert folders(temporary) == []


def test_a_second_signal_does_not_disturb_the_unwinding(start: Start, temporary: Path) -> None:
    process = start(
        "try: wait()\n"
        "            finally:\n"
        "                signal.raise_signal(signal.SIGINT)\n"
        "                print('unwound', flush=True)"
    )
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=WAIT_S)
    assert out == "unwound\n"
    assert process.returncode == 128 + signal.SIGTERM
    assert folders(temporary) == []


@pytest.mark.parametrize(
    "after",
    [
        "while True: context.say('going on')",
        "raise RuntimeError('by the unwinding')",
        "return context.result('first', [], [], '')",
    ],
)
def test_a_signal_that_was_swallowed_comes_back(start: Start, temporary: Path, after: str) -> None:
    process = start(
        f"try: wait()\n            except KeyboardInterrupt: pass\n            {after}", name="all"
    )
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    assert err == "flashrt-ros: interrupted\n"
    assert folders(temporary) == []


def test_what_a_killed_bench_left_goes_with_the_next_one(start: Start, temporary: Path) -> None:
    (temporary / "flashrt_bench_of_another").mkdir()
    living, killed = start(), start()
    assert len(folders(temporary)) == 2
    killed.kill()
    killed.communicate(timeout=WAIT_S)
    (temporary / f"{FOLDER_PREFIX}file").touch()
    assert len(folders(temporary)) == 3  # so that the next line means something
    start()
    assert len([path for path in folders(temporary) if path.is_dir()]) == 2
    assert living.poll() is None
    assert (temporary / "flashrt_bench_of_another").is_dir()


@needs_ros
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_node_s_shared_memory_goes_too(start: Start, number: signal.Signals) -> None:
    process = start(
        "with ros_domain(), RosLink('bench_stand_in'):\n                wait()",
        code=STAND_IN,
    )
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    segments = {Path(path) for path in re.findall(r"/dev/shm/fastrtps_[0-9a-f]{16}\b", maps)}
    if not segments:
        pytest.skip("the middleware uses no shared memory")
    process.send_signal(number)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + number
    assert not any(path.exists() for path in segments)


@contextmanager
def on_a_terminal(*words: str, temporary: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command as the leader of a terminal of its own; yields it and the other end."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "flashrt_ros.cli.main", *words],
            env={**os.environ, "TMPDIR": str(temporary), "TERM": "xterm", "COLUMNS": "80"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait(WAIT_S)
        os.close(ours)


def read_until(terminal: int, wanted: bytes) -> bytes:
    """Read a terminal up to some words, or to its end."""
    text = b""
    while wanted not in text:
        assert select.select([terminal], [], [], WAIT_S)[0], text
        try:
            text += os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
    return text


def test_a_real_bench_leaves_neither_files_nor_a_hidden_cursor(temporary: Path) -> None:
    with on_a_terminal("bench", "archive", temporary=temporary) as (process, terminal):
        before = read_until(terminal, b"comparing bytes")
        assert b"comparing bytes" in before
        assert b"\x1b[?25l" in before  # so that the cursor was hidden
        assert len(folders(temporary)) == 1
        process.send_signal(signal.SIGTERM)
        after = read_until(terminal, b"flashrt-ros: interrupted")
        assert b"\x1b[?25h" in after
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM
    assert folders(temporary) == []
