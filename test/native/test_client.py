"""A C client and a real engine: goals in place, actions back, and ends of all sorts."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine import address
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import NoWriterRingError

WAIT_S = 60.0
WAIT_MS = int(WAIT_S * 1000)


@pytest.fixture
def stepped(client: EngineClient) -> Any:
    """A Python client that gives the policy its observations, and steps it."""
    writer = client.open_writer("observation")

    class Stepped:
        count = 0

        def step(self, count: int = 1) -> Any:
            self.count += 1
            writer.write(stamp_ns=self.count, position=[0.0, 0.0])
            return client.step(count)

    return Stepped()


def fill_rings(client: EngineClient) -> list[Any]:
    """Open goal rings until none is left."""
    writers = []
    while True:
        try:
            writers.append(client.open_writer("goal"))
        except NoWriterRingError:
            return writers


# what a client is told -----------------------------------------------------------------------


def test_model_and_channel_are_what_the_engine_says(
    start_talker: Any, engine: Any, client: EngineClient
) -> None:
    talker = start_talker(engine.name)
    model = client.model
    assert talker.ask("model") == [
        *(str(client.engine_epoch), model.name, str(model.horizon), str(model.action_dim)),
        *(str(model.execute_horizon), str(model.num_environments), str(model.step_ns)),
        *(*model.joint_names, model.fingerprint),
    ]
    channel = next(channel for channel in model.channels if channel.name == "goal")
    name, role, frame, slot_bytes, num_slots, inode, device, field = talker.ask("open goal 0")
    assert (name, role, frame) == (channel.name, channel.role, channel.frame)
    assert (int(slot_bytes), int(num_slots)) == (channel.slot_bytes, channel.num_ring_slots)
    assert int(inode) > 0
    assert int(device) >= 0
    assert field == "values:1:2:0:-1:1:m"  # float32[2]
    talker.finish()


def test_socket_paths_are_those_of_the_python_side(runtime_folder: Path, talk: Path) -> None:
    names = [
        *("engine", "robot1/engine", "/robot1//engine/", "a.b", "..", ".hidden", "ä", "日本 語"),
        *("a" * 31 + ".b", "a" * 32 + ".b", "a" * 500, "x" * 64, "y" * 65, "z" * 128, "-_-", "!"),
    ]
    done = run(talk, "path", *names)
    assert done == [str(address.socket_path(name)) for name in names]
    assert run(talk, "path", "//")[0].startswith("CONFIG ")
    assert run(talk, "path", "a" * 5000)[0].startswith("CONFIG ")


def run(program: Path, *arguments: str, **environment: str) -> list[str]:
    """Run a program to its end; returns what it printed."""
    done = subprocess.run(
        [program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    return done.stdout.splitlines()


# goals and actions ---------------------------------------------------------------------------


def test_a_goal_is_read_where_it_was_written_and_an_action_comes_back(
    start_talker: Any, engine: Any, client: EngineClient, stepped: Any
) -> None:
    talker = start_talker(engine.name)
    *_, inode, device, _ = talker.ask("open goal 0")
    talker.ask("subscribe 0 1 1")
    talker.ask("set values 0.5 -0.25")
    (sequence,) = talker.ask("commit 123 77 0")
    done = stepped.step(2)
    seen = client.inspect()
    assert seen.goal_transport_copies == 0
    assert (seen.read_inode, seen.read_device) == (int(inode), int(device))
    outputs = {}
    for _ in range(2):  # one of a kind, until its release
        kind, index, slot, goal, source, stamp, generation, tick, epoch, *values = talker.ask(
            f"read {WAIT_MS}"
        )
        outputs[kind] = np.array(values, np.float32)
        assert (goal, source, stamp) == (sequence, "77", "123")
        assert (index, slot, epoch) == ("0", "-1", str(client.engine_epoch))
        made = (done.actions if kind == "0" else done.chunks)[0].provenance
        assert (int(generation), int(tick)) == (made.generation, made.tick)
        talker.ask("release")
    assert outputs["0"].tobytes() == done.actions[0].values
    assert outputs["1"].tobytes() == done.chunks[0].actions
    assert talker.refused("release").startswith("LOAN ")
    kind, index, *_ = talker.ask(f"read {WAIT_MS}")  # the second action, let go by the release
    assert (kind, index) == ("0", "1")
    talker.tell("read 0")
    assert talker.answer() == ["NOTHING"]
    talker.finish()


def test_another_goal_gives_another_action(
    start_talker: Any, engine: Any, client: EngineClient, stepped: Any
) -> None:
    talker = start_talker(engine.name)
    talker.ask("open goal 0")
    chunks = []
    for goal in ("0.5 -0.25", "0.5 -0.25", "-0.5 0.25"):
        client.reset(seed=3)
        talker.ask(f"set values {goal}")
        talker.ask("commit 1 1 0")
        chunks.append(stepped.step().chunks[0].actions)
    assert chunks[0] == chunks[1] != chunks[2]


def test_large_chunks_lie_in_slots(start_engine: Any, start_talker: Any) -> None:
    engine = start_engine(("--model-factory", "wide_policy:make_long_chunks"))
    talker = start_talker(engine.name)
    talker.ask("subscribe 0 0 1")
    assert talker.refused("subscribe 0 1 0").startswith("UNSUPPORTED ")
    with engine.client() as client:
        client.activate(tick_source="step")
        client.open_writer("goal").write(stamp_ns=1, values=[0.5, -0.5])
        observation = client.open_writer("observation")
        for count in range(3):
            observation.write(stamp_ns=1 + count, position=[0.1, 0.2])
            made = client.step(0).chunks[0].actions
            kind, _, slot, *_ = words = talker.ask(f"read {WAIT_MS}")
            assert (kind, int(slot) >= 0) == ("1", True)
            assert np.array(words[9:], np.float32).tobytes() == made
            talker.ask("release")
            client.reset(keep_goal=True)
    talker.finish()


@pytest.mark.parametrize("busy_poll_us", [0, 1, 10_000_000])
def test_answers_come_however_long_they_are_looked_for(
    start_talker: Any, engine: Any, busy_poll_us: int
) -> None:
    talker = start_talker(engine.name)
    talker.ask(f"busy_poll {busy_poll_us}")
    talker.ask("open goal 0")
    for refused_us in (-1, 10_000_001):
        assert talker.refused(f"busy_poll {refused_us}").startswith("CONFIG ")
    talker.ask("set values 0.5 -0.25")
    talker.ask("commit 123 77 0")
    talker.finish()


def test_a_goal_s_lifetime_comes_back_with_what_was_made_from_it(
    start_talker: Any, engine: Any, client: EngineClient, stepped: Any
) -> None:
    talker = start_talker(engine.name)
    talker.ask("open goal 0")
    talker.ask("subscribe 0 1 0")
    for lifetime_ns, expires_ns in (("0", "0"), ("1000", "1123"), ("0", "0")):
        client.reset()
        talker.ask(f"lifetime {lifetime_ns}")
        talker.ask("set values 0.5 -0.25")
        talker.ask("commit 123 77 0")
        made = stepped.step().actions[0].provenance
        talker.ask(f"read {WAIT_MS}")
        assert talker.ask("expires") == [expires_ns]
        assert made.goal_expires_ns == int(expires_ns)
        talker.ask("release")
    assert talker.refused("lifetime -1").startswith("PAYLOAD_RANGE ")
    talker.finish()


# payloads ------------------------------------------------------------------------------------


def test_a_payload_that_its_channel_does_not_allow_is_not_handed_over(
    start_talker: Any, engine: Any, client: EngineClient
) -> None:
    talker = start_talker(engine.name)
    talker.ask("open goal 0")
    for values, name in (
        ("nan 0", "NON_FINITE"),
        ("0 inf", "NON_FINITE"),
        ("0 -inf", "NON_FINITE"),
        ("0 1.5", "PAYLOAD_RANGE"),
        ("-1.0001 0", "PAYLOAD_RANGE"),
    ):
        talker.ask(f"set values {values}")
        assert talker.refused("check").startswith(f"{name} field 'values' of channel 'goal'")
        assert talker.refused("commit 1 1 0").startswith(f"{name} ")
    talker.ask("set values 1 -1")  # on loan still, and the range's ends are in it
    first = int(talker.ask("commit 1 1 0")[0])
    talker.ask("set values nan 0")
    assert int(talker.ask("commit 1 1 1")[0]) == first + 1  # the control: unchecked
    assert talker.refused("field values 0 2").startswith("PAYLOAD_TYPE ")
    assert talker.refused("field values 1 3").startswith("PAYLOAD_SHAPE ")
    assert talker.refused("field value 1 2").startswith("PAYLOAD_SHAPE ")


def test_loans_are_kept_and_given_back(
    start_talker: Any, engine: Any, client: EngineClient
) -> None:
    talker = start_talker(engine.name)
    assert talker.refused("open nothing 0").startswith("UNKNOWN_CHANNEL ")
    assert talker.refused("open goal 9").startswith("UNKNOWN_ENVIRONMENT ")
    talker.ask("open goal 0")
    assert talker.refused("commit 1 1 0").startswith("LOAN ")
    assert talker.refused("return").startswith("LOAN ")
    talker.ask("loan")
    talker.ask("loan")
    talker.ask("return")
    talker.ask("set values 0 0")
    talker.ask("commit 1 1 4")  # takes no next one along
    assert talker.refused("check").startswith("LOAN ")
    talker.ask("loan")
    talker.ask("close")
    assert talker.refused("loan").startswith("LOAN ")
    talker.ask("ping")
    talker.finish()


def test_a_loan_from_before_a_reset_is_renewed_once(
    start_talker: Any, engine: Any, client: EngineClient, stepped: Any
) -> None:
    talker = start_talker(engine.name)
    talker.ask("open goal 0")
    talker.ask("set values 0.5 0.5")
    client.reset(stamp_ns=100)
    assert talker.refused("commit 200 1 2").startswith("STALE_GENERATION ")
    talker.ask("set values 0.25 0.5")
    client.reset(stamp_ns=100, seed=1)
    talker.ask("commit 200 1 0")  # what was written is carried over
    made = stepped_after(client, 300)
    client.reset(stamp_ns=100, seed=1)
    client.open_writer("goal").write(stamp_ns=200, values=[0.25, 0.5])
    assert stepped_after(client, 301) == made
    talker.ask("set values 0 0")
    client.reset(stamp_ns=400)
    assert talker.refused("commit 399 1 0").startswith("STALE_STAMP ")
    talker.ask("set values 0 0")
    talker.ask("commit 400 1 0")


def test_a_loan_that_one_of_two_engines_finds_stale_is_renewed(
    start_talker: Any, start_engine: Any, tmp_path: Path
) -> None:
    file = tmp_path / "second.json"
    other = f"native/{os.getpid()}/{tmp_path.name}"
    shared = {"model": "minimal", "shared_channels": ["goal"], "test_hooks": True}
    file.write_text(json.dumps({**shared, "name": other}))
    engine = start_engine(("--config", str(file)), **shared)
    with engine.client() as one, EngineClient(other, timeout_s=WAIT_S) as two:
        for client in (one, two):
            client.activate(tick_source="step")
        talker = start_talker(engine.name)
        talker.ask("open goal 0")
        talker.ask("set values 0.5 0.5")
        two.reset()
        talker.ask("commit 1 1 2")  # the control: the first has it, and the second does not
        talker.ask("set values 0.25 0.5")
        assert (one.status().waiting_for, two.status().waiting_for) == ("observation", "goal")
        two.reset()
        talker.ask("commit 2 2 0")
        assert [client.status().waiting_for for client in (one, two)] == ["observation"] * 2
        assert stepped_after(one, 3) == stepped_after(two, 3)


def stepped_after(client: EngineClient, stamp_ns: int) -> bytes:
    """The chunk that is made from what was committed, and an observation of this stamp."""
    client.open_writer("observation").write(stamp_ns=stamp_ns, position=[0.0, 0.0])
    return bytes(client.step().chunks[0].actions)


# many writers, and what kills them -----------------------------------------------------------


def test_a_hundred_thousand_commits_while_python_writes_too(
    start_engine: Any, start_talker: Any
) -> None:
    """4 KB each; the engine digests each latched slot, and again when it is given back."""
    engine = start_engine(("--model-factory", "wide_policy:make_4kb"))
    talker = start_talker(engine.name)
    talker.ask("open goal 0")
    with engine.client() as client:
        client.activate(tick_source="timer", rate_hz=200.0)
        client.open_writer("observation").write(stamp_ns=1, position=[0.0, 0.0])
        goal = client.open_writer("goal")
        scene = np.zeros(goal.channel.fields[1].shape, np.float32)
        count = 0
        talker.tell("flood 100000 0")
        while not select.select([talker.process.stdout], [], [], 0.001)[0]:
            count += 1
            scene[:] = count % 64 / 64
            goal.write(stamp_ns=count, values=[0.0, 0.0], scene=scene)
        answer = talker.answer()
        assert answer[0] == "OK", answer
        assert count > 1
        assert int(answer[1]) >= 100_000 + count - 1
        # The last one arrives, whoever committed it.
        talker.ask("set values 0.5 0.5")
        talker.ask("set scene 0.5")
        (last,) = talker.ask("commit 5 5 0")
        talker.ask("subscribe 0 0 1")
        while True:
            words = talker.ask(f"read {WAIT_MS}")
            talker.ask("release")
            if words[3] == last:
                break
        seen = client.inspect()
        assert (seen.torn_reads, seen.goal_transport_copies) == (0, 0)
        assert seen.num_latches > 1
    talker.finish()


def test_a_writer_that_writes_after_its_commit_is_seen(
    start_talker: Any, engine: Any, client: EngineClient, stepped: Any
) -> None:
    """The control of the test above."""
    before = client.inspect().torn_reads
    talker = start_talker(engine.name)
    talker.ask("open goal 0")
    talker.tell("flood 1000000000 1")
    for _ in range(100_000):
        stepped.step(4)
        if client.inspect().torn_reads > before:
            return
    raise AssertionError("no torn read was seen")


def test_a_writer_killed_in_mid_write_gives_its_ring_back(start_talker: Any, engine: Any) -> None:
    with engine.client() as client:
        client.activate(tick_source="step")
        client.reset()
        num_rings = len(fill_rings(client))
    for mid_write in ("loan", "set values 0.5", "flood 1000000000 0"):
        talker = start_talker(engine.name)
        talker.ask("open goal 0")
        if mid_write.startswith("flood"):
            talker.tell(mid_write)
        else:
            talker.ask(mid_write)
        with engine.client() as client:
            assert len(fill_rings(client)) == num_rings - 1
        talker.kill()
        with engine.client() as client:
            client.reset()  # what it had committed waits to be read, until then
            assert len(fill_rings(client)) == num_rings


def test_a_forked_child_may_not_use_the_connection(
    start_talker: Any, engine: Any, client: EngineClient, stepped: Any
) -> None:
    talker = start_talker(engine.name)
    talker.ask("open goal 0")
    talker.ask("subscribe 0 1 1")
    talker.ask("set values 0.5 0.5")
    talker.ask("commit 1 1 0")  # takes the next loan along
    stepped.step()
    talker.ask(f"read {WAIT_MS}")
    assert talker.refused("fork").startswith("ENGINE_GONE ")
    talker.ask("release")
    talker.ask("set values 0.5 0.5")
    talker.ask("commit 1 1 0")
    talker.finish()


def test_a_process_without_a_descriptor_left_is_told_so(
    start_talker: Any, engine: Any, client: EngineClient
) -> None:
    talker = start_talker(engine.name)
    assert "limit of open files" in talker.refused("starve goal")
    assert talker.refused("ping").startswith("ENGINE_GONE ")
    talker.finish()


# engines that are not there --------------------------------------------------------------------


def test_an_engine_that_is_not_there(runtime_folder: Path, talk: Path) -> None:
    runtime_folder.mkdir(mode=0o700, exist_ok=True)
    (line,) = run(talk, "nobody", "1000", "30")
    assert line.startswith("ENGINE_GONE no engine named 'nobody' answers")
    assert str(address.socket_path("nobody")) in line


def test_an_engine_that_ends(start_engine: Any, start_talker: Any) -> None:
    engine = start_engine()
    talker = start_talker(engine.name)
    talker.ask("open goal 0")
    talker.ask("loan")
    engine.stop()
    assert talker.refused("ping").startswith("ENGINE_GONE ")
    assert talker.refused("read 1000").startswith("ENGINE_GONE ")
    for call in ("loan", "field values 1 2", "check", "commit 1 1 0", "return"):
        assert talker.refused(call).startswith("ENGINE_GONE "), call
    talker.finish()


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_folder_open_to_others_is_refused(talk: Path, tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(0o700)
    folder = tmp_path / "flashrt"
    folder.mkdir()
    folder.chmod(mode)
    (line,) = run(talk, "engine", "1000", "0", XDG_RUNTIME_DIR=str(tmp_path))
    assert line.startswith("PEER_REFUSED the socket folder")
    assert f"mode {mode:04o}" in line


def test_a_named_folder_may_be_read_by_others_but_not_written(talk: Path, tmp_path: Path) -> None:
    folder = tmp_path / "named"
    folder.mkdir()
    for mode, name in ((0o755, "ENGINE_GONE"), (0o770, "PEER_REFUSED")):
        folder.chmod(mode)
        (line,) = run(talk, "engine", "1000", "0", FLASHRT_RUNTIME_DIR=str(folder))
        assert line.startswith(f"{name} "), line


def test_a_folder_that_is_a_link_is_refused(talk: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "flashrt").symlink_to(tmp_path / "elsewhere")
    (line,) = run(talk, "engine", "1000", "0", XDG_RUNTIME_DIR=str(tmp_path))
    assert line.startswith("PEER_REFUSED the socket folder")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_folder_of_another_user_is_refused(talk: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "flashrt").mkdir(mode=0o700)
    os.chown(tmp_path / "flashrt", 12345, -1)
    (line,) = run(talk, "engine", "1000", "0", XDG_RUNTIME_DIR=str(tmp_path))
    assert line.startswith("PEER_REFUSED the socket folder")
    assert "owner 12345" in line
