"""An engine to talk to, on a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flashrt_ros.cli.main import main
from flashrt_ros.engine import address
from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.server import EngineServer
from flashrt_ros.models.minimal import MinimalPolicy

WAIT_S = 60.0
"""Longest wait for anything here; nothing that passes comes near."""

ENGINE = "tests/cli"


@pytest.fixture
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's sockets."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(address.FOLDER_VARIABLE, raising=False)
    return tmp_path / "flashrt"


@pytest.fixture
def capsule_folder(tmp_path: Path) -> Path:
    """The folder of the engine's capsule files."""
    return tmp_path / "capsules"


@pytest.fixture
def engine(runtime_folder: Path, capsule_folder: Path) -> Iterator[str]:
    """The name of an engine of the minimal policy that serves."""
    config = EngineConfig(
        name=ENGINE, model="minimal", test_hooks=True, capsule_folder=str(capsule_folder)
    )
    with (
        EngineSocket(config.name) as socket,
        Engine(MinimalPolicy(), config) as engine,
        EngineServer(engine, socket) as server,
    ):
        thread = threading.Thread(target=server.run, name="engine")
        thread.start()
        try:
            yield config.name
        finally:
            server.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture
def stepped(engine: str) -> Iterator[EngineClient]:
    """A client of an engine whose environment has run three chunks in lockstep."""
    with EngineClient(engine, client="test", timeout_s=WAIT_S) as client:
        client.activate(tick_source="step")
        client.open_writer("goal").write(stamp_ns=1, values=[0.5, -0.5])
        client.open_writer("observation").write(stamp_ns=1, position=[0.0, 0.0])
        client.step(3 * client.model.execute_horizon)
        yield client


@pytest.fixture
def flashrt(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line; returns exit code, standard output and standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
