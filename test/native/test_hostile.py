"""An engine that is none: the C client says what is wrong, and neither crashes nor hangs."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flashrt_ros.engine import protocol, wire
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.slots import SlotMemory

WAIT_S = 60.0
VERSION = protocol.PROTOCOL_VERSION

GOAL = protocol.ChannelInfo(
    *("goal", "goal", "table", 1024, 4, 4096),
    fields=(
        protocol.FieldInfo("values", (2, 3), "float32", 0, -1.0, 1.0, "m"),
        protocol.FieldInfo("mask", (5,), "bool", 256, None, None, ""),
        protocol.FieldInfo("weights", (4,), "float16", 512, 0.0, 1.0, ""),
    ),
)
MODEL = protocol.ModelInfo(
    *("liar", 4, 2, 2, ("left", "right"), 10, (GOAL,), "fingerprint", 1, 0, 4096)
)
MADE = protocol.Provenance(9, 0, -1, 3, 4, 5, 5, 1, 2, 1, 1, 1, "capsule")


def output(kind: int, payload: bytes, *, slot: int = -1) -> protocol.Output:
    return protocol.Output(kind, MADE, 0, slot, payload, 0, 100)


GENUINE = (
    protocol.Welcome(1, VERSION, "liar", 9, MODEL),
    protocol.WriterOpened(2, 0, GOAL, 0, 0, 5, 6),
    protocol.Loaned(3, 1, 70, 2),
    protocol.Committed(4, 1, 2, 2, 71, 0),
    protocol.Subscribed(5, 4096, 4),
    output(0, bytes(8)),
    output(1, b"", slot=3),
    output(1, bytes(32)),
    protocol.Ack(6),
    output(0, bytes(8)),
    protocol.Failure(6, 318, "busy"),
    output(1, b"", slot=0),
)
"""Replies to what ``feed.c`` asks, in turn; some are one too many."""


@pytest.fixture
def serve(runtime_folder: Path) -> Iterator[Callable[..., str]]:
    """Serves one client with a function on its socket; returns the engine's name."""
    threads = []
    listeners: list[EngineSocket] = []

    def start(act: Callable[[socket.socket], None]) -> str:
        name = f"liar/{os.getpid()}/{time.monotonic_ns()}"
        listeners.append(EngineSocket(name))
        listening = listeners[-1].listen()
        listening.settimeout(WAIT_S)

        def run() -> None:
            with listening.accept()[0] as sock:
                sock.settimeout(WAIT_S)
                act(sock)

        threads.append(threading.Thread(target=run, name="liar"))
        threads[-1].start()
        return name

    yield start
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    for listener in listeners:
        listener.close()


def reply(sock: socket.socket, message: object, fds: Sequence[int] = ()) -> None:
    """Answer the next request, whatever it is."""
    assert sock.recv(65536)
    wire.send(sock, message if isinstance(message, bytes) else protocol.encode(message), fds)


def until_closed(sock: socket.socket) -> None:
    """Read what else is sent, to the end."""
    while sock.recv(65536):
        pass


def refused(program: Path, name: str, *lines: str, timeout_ms: int = 60_000) -> str:
    """What a client prints last before it ends, which has to be without a complaint."""
    done = subprocess.run(
        [program, name, str(timeout_ms), "10000"],
        input="".join(line + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()[-1]


# versions ------------------------------------------------------------------------------------


def test_an_engine_of_another_version_is_refused(
    sanitized_talk: Path, serve: Callable[..., str]
) -> None:
    def act(sock: socket.socket) -> None:
        # Another version may say anything of its model.
        reply(sock, msgspec.msgpack.encode([64, 1, VERSION + 1, "liar", 9, "model"]))
        until_closed(sock)

    line = refused(sanitized_talk, serve(act))
    assert line.startswith("PROTOCOL_VERSION engine 'liar/")
    assert f"expected {VERSION}, found {VERSION + 1}" in line


def test_a_client_of_another_version_is_told_so(engine: Any, build: Callable[..., Path]) -> None:
    old = build("talk", f"-DFLASHRT_WIRE_VERSION={VERSION + 1}")
    line = refused(old, engine.name)
    assert line.startswith("PROTOCOL_VERSION ")
    assert f"expected version {VERSION}, found version {VERSION + 1}" in line


# replies that are none -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (b"\xc1", "could not be decoded"),
        (b"\x93", "could not be decoded"),
        (b"\x91\x40", "out of step"),
        (b"\x92\x40\x01", "nothing usable"),
        (b"\xdd\xff\xff\xff\xff\x40\x01", "could not be decoded"),
        (protocol.encode(GENUINE[0]) + b"\x00", "could not be decoded"),
        (protocol.encode(protocol.Ack(1)), "out of step"),
        (protocol.encode(protocol.Welcome(7, VERSION, "", 1, MODEL)), "out of step"),
        (protocol.encode(output(0, bytes(8))), "out of step"),
        (protocol.encode(protocol.Event(1, 1, 0, 1, 1, "", 1, "")), "out of step"),
        (bytes(65537), "did not fit"),
        (b"", "closed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_greeting_that_is_none(
    sanitized_talk: Path, serve: Callable[..., str], message: bytes, what: str
) -> None:
    def act(sock: socket.socket) -> None:
        if len(message) > 65536:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        if message:
            reply(sock, message)
            until_closed(sock)

    line = refused(sanitized_talk, serve(act))
    assert line.startswith(("PROTOCOL ", "ENGINE_GONE " if not message else "PROTOCOL "))
    assert what in line or not message


def test_a_refusal_is_passed_on(sanitized_talk: Path, serve: Callable[..., str]) -> None:
    def act(sock: socket.socket) -> None:
        wire.send(sock, protocol.encode(protocol.Failure(0, 318, "ü" * 2000)))
        until_closed(sock)

    line = refused(sanitized_talk, serve(act))
    assert line == "BUSY " + "ü" * 511  # cut, and between characters


def test_an_engine_that_says_nothing_is_given_up(
    sanitized_talk: Path, serve: Callable[..., str]
) -> None:
    line = refused(sanitized_talk, serve(until_closed), timeout_ms=20)
    assert line.startswith("ENGINE_GONE engine 'liar/")
    assert "within 20 ms" in line


@pytest.mark.parametrize("flaw", ["", "unsealed", "short", "none", "two"])
def test_memory_that_can_not_be_trusted(
    sanitized_talk: Path, serve: Callable[..., str], flaw: str
) -> None:
    def act(sock: socket.socket) -> None:
        with SlotMemory("liar", 4096 if flaw != "short" else 2048) as memory:
            if flaw != "unsealed":
                memory.seal()
            reply(sock, GENUINE[0])
            reply(sock, GENUINE[1], [memory.fd] * {"none": 0, "two": 2}.get(flaw, 1))
            until_closed(sock)

    line = refused(sanitized_talk, serve(act), "open goal 0")
    expected = {"": "OK goal", "none": "PROTOCOL ", "two": "PROTOCOL "}
    assert line.startswith(expected.get(flaw, "SHARED_MEMORY ")), line


@pytest.mark.parametrize(
    "wrong",
    [
        {"slot_bytes": 2048},  # the slots leave the ring
        {"slot_bytes": 1000},  # a float64 would not be aligned
        {"slot_bytes": 2**40},
        {"slot_bytes": -1},
        {"num_ring_slots": 0},
        {"num_ring_slots": 2**32},
        {"ring_bytes": 2**63},
        {"fields": (protocol.FieldInfo("far", (2,), "float32", 1020, None, None, ""),)},
        {"fields": (protocol.FieldInfo("odd", (2,), "float32", 2, None, None, ""),)},
        {"fields": (protocol.FieldInfo("huge", (2**31, 2**31), "int8", 0, None, None, ""),)},
        {"fields": (protocol.FieldInfo("deep", (1,) * 9, "int8", 0, None, None, ""),)},
        {"fields": (protocol.FieldInfo("new", (1,), "float8", 0, None, None, ""),)},
    ],
    ids=str,
)
def test_a_channel_that_can_not_be(
    sanitized_talk: Path, serve: Callable[..., str], wrong: dict[str, Any]
) -> None:
    channel = msgspec.structs.replace(GOAL, **wrong)

    def act(sock: socket.socket) -> None:
        with SlotMemory("liar", 1 << 20) as memory:
            memory.seal()
            reply(sock, GENUINE[0])
            reply(sock, protocol.WriterOpened(2, 0, channel, 0, 0, 5, 6), [memory.fd])
            until_closed(sock)

    line = refused(sanitized_talk, serve(act), "open goal 0")
    assert line.startswith(("PROTOCOL ", "UNSUPPORTED "))


@pytest.mark.parametrize(
    "message",
    [
        output(0, bytes(4)),
        output(0, bytes(12)),
        output(0, b"", slot=4),
        output(0, b"", slot=-2),
        output(2, bytes(8)),
        msgspec.structs.replace(
            output(0, bytes(8)), provenance=msgspec.structs.replace(MADE, env_index=1)
        ),
        msgspec.structs.replace(
            output(0, bytes(8)), provenance=msgspec.structs.replace(MADE, capsule_id="x" * 64)
        ),
    ],
    ids=str,
)
def test_an_output_that_can_not_be(
    sanitized_talk: Path, serve: Callable[..., str], message: protocol.Output
) -> None:
    def act(sock: socket.socket) -> None:
        with SlotMemory("liar", 4 * 4096) as memory:
            memory.seal(readers_only=True)
            reply(sock, GENUINE[0])
            reply(sock, protocol.Subscribed(2, 4096, 4), [memory.fd])
            wire.send(sock, protocol.encode(message))
            until_closed(sock)

    line = refused(sanitized_talk, serve(act), "subscribe 0 1 1", "read 60000")
    assert line.startswith("PROTOCOL ")


def test_a_second_output_before_the_release_is_refused(
    sanitized_talk: Path, serve: Callable[..., str]
) -> None:
    """It would lie where the first still does."""

    def act(sock: socket.socket) -> None:
        reply(sock, GENUINE[0])
        reply(sock, protocol.Subscribed(2, 0, 0))
        for _ in range(2):
            wire.send(sock, protocol.encode(output(0, bytes(8))))
        until_closed(sock)

    lines = ("subscribe 0 1 1", "read 60000", "read 60000")
    assert refused(sanitized_talk, serve(act), *lines).startswith("PROTOCOL ")


def test_a_loan_of_a_slot_that_is_not_there(
    sanitized_talk: Path, serve: Callable[..., str]
) -> None:
    def act(sock: socket.socket) -> None:
        with SlotMemory("liar", 4096) as memory:
            memory.seal()
            reply(sock, GENUINE[0])
            reply(sock, GENUINE[1], [memory.fd])
            reply(sock, protocol.Loaned(3, 4, 1, 1))
            until_closed(sock)

    line = refused(sanitized_talk, serve(act), "open goal 0", "loan")
    assert line.startswith("PROTOCOL engine 'liar/")
    assert "lent a slot that is not there" in line


def test_replies_damaged_at_random(
    build: Callable[..., Path], sanitize: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "replies"
    messages = [protocol.encode(message) for message in GENUINE]
    file.write_bytes(b"".join(struct.pack(">I", len(m)) + m for m in messages))
    program = build("feed", *sanitize, without="flashrt_address.c")
    count = 8000
    done = subprocess.run(
        [program, file, str(count), "1"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *passed, num_leaked = map(int, done.stdout.split())
    assert num_leaked == 0
    # Each call met good replies and bad ones.
    assert all(100 < some < count - 100 for some in passed), passed
