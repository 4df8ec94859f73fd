from __future__ import annotations

import grp
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.engine import address
from flashrt_ros.engine.address import EngineSocket, connect, socket_file, socket_path
from flashrt_ros.errors import (
    ConfigError,
    EngineGoneError,
    EngineRunningError,
    PeerRefusedError,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.delenv(address.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "flashrt"


@given(st.text(min_size=1).filter(lambda name: name.strip("/")))
def test_a_file_name_fits_whatever_the_name(name: str) -> None:
    file = socket_file(name)
    assert len(os.fsencode(file)) <= 60
    assert "/" not in file
    assert not file.startswith(".")


def test_names_that_differ_have_files_that_differ() -> None:
    names = ["a/b", "a.b", "a_b", "ab", "a" * 500, "a" * 501, "ä", "b/a"]
    assert len({socket_file(name) for name in names}) == len(names)
    assert socket_file("/robot//engine/") == socket_file("robot/engine")


@pytest.mark.parametrize("name", ["", "/", "//"])
def test_an_engine_needs_a_name(name: str) -> None:
    with pytest.raises(ConfigError):
        socket_file(name)


def test_folder_and_socket_are_the_users_alone(folder: Path) -> None:
    with EngineSocket("modes") as engine:
        engine.listen()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(socket_path("modes").stat().st_mode) == 0o600
    assert list(folder.iterdir()) == []


def test_a_path_longer_than_the_kernel_allows_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 150)
    long.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with EngineSocket("far") as engine:
        engine.listen()
        connect("far", timeout_s=0).close()


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o777])
def test_a_folder_open_to_others_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PeerRefusedError, match="can't be trusted"):
        EngineSocket("open")
    with pytest.raises(PeerRefusedError, match="can't be trusted"):
        connect("open", timeout_s=0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)
    with pytest.raises(PeerRefusedError, match="owner 12345"):
        EngineSocket("foreign")


def test_a_link_in_the_folders_place_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PeerRefusedError, match="symbolic link"):
        EngineSocket("linked")
    with pytest.raises(PeerRefusedError, match="symbolic link"):
        connect("linked", timeout_s=0)


def test_a_named_folder_may_be_shared_but_not_written_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    monkeypatch.setenv(address.FOLDER_VARIABLE, str(shared))
    with EngineSocket("shared") as engine:
        engine.listen()
        connect("shared", timeout_s=0).close()
    shared.chmod(0o775)
    with pytest.raises(PeerRefusedError):
        connect("shared", timeout_s=0)


def test_a_group_needs_a_folder_that_it_can_reach(folder: Path) -> None:
    with pytest.raises(ConfigError, match=address.FOLDER_VARIABLE):
        EngineSocket("grouped", group="root")
    with pytest.raises(ConfigError, match="names no group"):
        EngineSocket("grouped", group="no-such-group")


def test_a_group_is_let_to_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(address.FOLDER_VARIABLE, str(tmp_path / "new"))
    group = os.getgid()
    with EngineSocket("grouped", group=grp.getgrgid(group).gr_name) as engine:
        engine.listen()
        status = socket_path("grouped").stat()
        assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o660, group)
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o750


def test_one_engine_a_name(folder: Path) -> None:
    with EngineSocket("one") as engine:
        with pytest.raises(EngineRunningError, match=str(os.getpid())):
            EngineSocket("one")
        engine.listen()
        with pytest.raises(EngineRunningError):
            EngineSocket("one")
        EngineSocket("two").close()
    EngineSocket("one").close()


def test_a_socket_that_answers_counts_even_without_its_lock(folder: Path) -> None:
    with EngineSocket("one") as engine:
        engine.listen()
        (folder / f"{socket_file('one')}.lock").unlink()
        with pytest.raises(EngineRunningError, match="answers"):
            EngineSocket("one")
        # And the refused claim took nothing away.
        connect("one", timeout_s=0).close()


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    code = (
        "import os\nfrom flashrt_ros.engine.address import EngineSocket\n"
        "EngineSocket('stale').listen()\nos._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert socket_path("stale").is_socket()
    with pytest.raises(EngineGoneError, match="refused"):
        connect("stale", timeout_s=0)
    with EngineSocket("stale") as engine:
        engine.listen()
        connect("stale", timeout_s=0).close()


def test_close_takes_nothing_that_is_another_engines(folder: Path) -> None:
    engine = EngineSocket("moved")
    engine.listen()
    path = socket_path("moved")
    path.unlink()
    other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.bind(str(path))
    engine.close()
    engine.close()
    assert path.is_socket()
    other.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_keeps_neither_name_nor_socket(folder: Path) -> None:
    engine = EngineSocket("forked")
    engine.listen()
    gate, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.read(gate, 1)
        os._exit(0)
    engine.close()
    # The child is alive; had it the descriptors, both would be refused.
    EngineSocket("forked").close()
    os.close(told)
    os.waitpid(child, 0)
    os.close(gate)


def test_no_engine_is_an_answer(folder: Path) -> None:
    with pytest.raises(EngineGoneError, match="no engine named 'nobody' answers"):
        connect("nobody", timeout_s=0)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_client_waits_for_the_engine(folder: Path, is_there: bool) -> None:
    """With the folder there it sleeps on a watch, without it looks again."""
    if is_there:
        EngineSocket("late").close()
    sockets: list[socket.socket] = []
    client = threading.Thread(target=lambda: sockets.append(connect("late", timeout_s=60)))
    client.start()
    with EngineSocket("late") as engine:
        listener = engine.listen()
        client.join(60)
        assert len(sockets) == 1
        listener.accept()[0].close()
    sockets[0].close()


@pytest.mark.parametrize("place", ["a/b/c", "/proc/nope"])
def test_a_folder_that_can_t_be_made_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = tmp_path / place
    monkeypatch.setenv("FLASHRT_RUNTIME_DIR", str(folder))
    with pytest.raises(ConfigError, match=str(folder)):
        EngineSocket("engine")
