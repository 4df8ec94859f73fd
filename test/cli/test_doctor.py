"""Every row of ``flashrt-ros doctor``: the good case, and what it says in the bad one."""

from __future__ import annotations

import json
import os
import resource
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from flashrt_ros.cli import doctor, doctor_engines, doctor_machine, doctor_software
from flashrt_ros.cli.findings import Row, Status
from flashrt_ros.engine import address
from flashrt_ros.errors import SharedMemoryError

Flashrt = Callable[..., tuple[int, str, str]]

NO_ROS = "raise ModuleNotFoundError(\"No module named 'rclpy'\")"


def status_of(row: Row) -> Status:
    """Return a row's status; one that troubles must say what would go wrong, and what to do."""
    assert (row.status is Status.OK) == (row.problem == "") == (row.fix == ""), row
    assert row.found
    return row.status


# the command ---------------------------------------------------------------------------------


def row(status: Status) -> Row:
    troubled = status is not Status.OK
    return Row("topic", "name", status, "[found]", "trouble" * troubled, "cure" * troubled)


@pytest.mark.parametrize(
    ("status", "expected"), [(Status.OK, 0), (Status.WARN, 0), (Status.FAIL, 1)]
)
def test_only_a_failure_exits_with_one(
    flashrt: Flashrt, monkeypatch: pytest.MonkeyPatch, status: Status, expected: int
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda: [row(Status.OK)], lambda: [row(status)]))
    code, out, _ = flashrt("doctor")
    assert code == expected
    assert "[found]" in out  # no markup is read into it
    assert ("trouble" in out) == (status is not Status.OK)
    code, out, _ = flashrt("doctor", "--json")
    assert code == expected
    plain = json.loads(out)
    assert plain["ok"] is (expected == 0)
    assert [entry["status"] for entry in plain["rows"]] == ["ok", status.value]


def test_this_machine_is_looked_at(flashrt: Flashrt, runtime_folder: Path) -> None:
    _, out, err = flashrt("doctor", "--json")
    assert err == ""
    rows = json.loads(out)["rows"]
    names = {entry["name"] for entry in rows}
    assert {"python", "torch", "flashrt_ros", "cores", "rtprio", "nofile", "memfd"} <= names
    assert {"ROS_DOMAIN_ID", "discovery", "socket folder", "/dev/shm", "governor"} <= names
    for entry in rows:
        status_of(Row(**{**entry, "status": Status(entry["status"])}))
    by_name = {entry["name"]: entry["status"] for entry in rows}
    assert by_name["memfd"] == by_name["timerfd"] == by_name["unix sockets"] == "ok"


def test_a_troubled_row_says_what_to_do() -> None:
    console = Console(width=60)
    with console.capture() as capture:
        doctor.show([row(Status.OK), row(Status.WARN)], console)
    shown = capture.get()
    assert "trouble" in shown
    assert "cure" in shown
    assert "1 ok, 1 warnings, 0 failures" in shown


def test_a_row_stays_on_its_line_where_there_is_no_terminal(
    flashrt: Flashrt, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = "word " * 60 + "end"
    long = Row("topic", "name", Status.WARN, found, found, found)
    monkeypatch.setattr(doctor, "CHECKS", (lambda: [long],))
    _, out, _ = flashrt("doctor")
    assert sum(found in line for line in out.splitlines()) == 3
    assert max(map(len, out.splitlines())) < 2 * len(found)  # not padded either


# software ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.11.9", Status.OK),
        ("3.12.0", Status.OK),
        ("3.10.2", Status.FAIL),
        ("3.13.0rc1", Status.WARN),
    ],
)
def test_python(version: str, expected: Status) -> None:
    assert status_of(doctor_software.python_row(version)) is expected


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("numpy", "2.4.6", Status.OK),
        ("numpy", None, Status.FAIL),
        ("torch", "2.13.0+cpu", Status.OK),
        ("torch", "2.8.1", Status.WARN),
        ("torch", "2.14.0", Status.WARN),
        ("torch", "nightly", Status.WARN),
    ],
)
def test_libraries(name: str, version: str | None, expected: Status) -> None:
    assert status_of(doctor_software.library_row(name, version)) is expected


def test_missing_libraries_are_named() -> None:
    rows = {row.name: row for row in doctor_software.check_software(lambda name: None)}
    assert all(rows[name].status is Status.FAIL for name in doctor_software.REQUIRED)
    assert all(rows[name].status is Status.WARN for name in doctor_software.EXTRAS)


def test_weights(tmp_path: Path) -> None:
    assert status_of(doctor_software.weights_row(tmp_path)) is Status.FAIL
    (tmp_path / "flow_policy.safetensors").touch()
    assert status_of(doctor_software.weights_row(tmp_path)) is Status.OK


# ROS -----------------------------------------------------------------------------------------


def ros_rows(probe: str, **environment: str) -> dict[str, Row]:
    rows = doctor_software.check_ros(lambda name: "7.1.6", {**os.environ, **environment}, probe)
    return {row.name: row for row in rows}


def test_ros_is_not_needed() -> None:
    row = ros_rows(NO_ROS)["rclpy"]
    assert status_of(row) is Status.WARN
    assert "not installed" in row.found
    assert "flashrt_ros[ros]" in row.fix


def test_a_broken_ros_is_a_failure() -> None:
    row = ros_rows("raise ImportError('librcl.so is gone')")["rclpy"]
    assert status_of(row) is Status.FAIL
    assert "librcl.so is gone" in row.found
    row = ros_rows("raise ImportError('gone')", RMW_IMPLEMENTATION="rmw_other_cpp")["rclpy"]
    assert "rmw_other_cpp" in row.fix


@pytest.mark.parametrize(
    ("error", "expected"), [("", Status.OK), ("ImportError: no type support", Status.FAIL)]
)
def test_interfaces(error: str, expected: Status) -> None:
    facts = json.dumps({"distro": "", "rmw": "rmw_fastrtps_cpp", "interfaces": error})
    rows = ros_rows(f"print('noise'); print('facts=' + {facts!r})")
    assert status_of(rows["interfaces"]) is expected
    assert rows["distribution"].found == "jazzy"
    assert rows["middleware"].found == "rmw_fastrtps_cpp"


def test_the_real_probe_finds_this_ros() -> None:
    pytest.importorskip("rclpy")
    row = {row.name: row for row in doctor_software.check_ros()}["rclpy"]
    assert row.status is Status.OK


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ("", Status.OK),
        ("0", Status.OK),
        ("101", Status.OK),
        ("102", Status.WARN),
        ("233", Status.FAIL),
        ("-1", Status.FAIL),
        ("one", Status.FAIL),
    ],
)
def test_domain(domain: str, expected: Status) -> None:
    assert status_of(doctor_software.domain_row({"ROS_DOMAIN_ID": domain})) is expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Status.WARN),
        ({"ROS_LOCALHOST_ONLY": "1"}, Status.OK),
        ({"ROS_LOCALHOST_ONLY": "0"}, Status.WARN),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}, Status.OK),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF"}, Status.OK),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"}, Status.WARN),
    ],
)
def test_discovery(environment: dict[str, str], expected: Status) -> None:
    assert status_of(doctor_software.discovery_row(environment)) is expected


# machine -------------------------------------------------------------------------------------


def test_cores_and_load() -> None:
    assert status_of(doctor_machine.cores_row(2)) is Status.OK
    assert status_of(doctor_machine.cores_row(1)) is Status.WARN
    assert status_of(doctor_machine.load_row(1.5, 2)) is Status.OK
    assert status_of(doctor_machine.load_row(2.5, 2)) is Status.WARN


@pytest.mark.parametrize(
    ("governors", "expected"),
    [
        ((), Status.OK),
        (("performance", "performance"), Status.OK),
        (("performance", "powersave"), Status.WARN),
    ],
)
def test_governor(tmp_path: Path, governors: tuple[str, ...], expected: Status) -> None:
    for index, governor in enumerate(governors):
        folder = tmp_path / f"cpu{index}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    assert status_of(doctor_machine.governor_row(tmp_path)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MemTotal: 100 kB\nMemAvailable: 4000000 kB\n", Status.OK),
        ("MemAvailable: 400000 kB\n", Status.WARN),
        ("MemTotal: 100 kB\n", Status.OK),
    ],
)
def test_memory(tmp_path: Path, text: str, expected: Status) -> None:
    file = tmp_path / "meminfo"
    file.write_text(text)
    assert status_of(doctor_machine.memory_row(file)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("always [madvise] never", Status.OK),
        ("[always] madvise never", Status.OK),
        ("always madvise [never]", Status.WARN),
        (None, Status.WARN),
    ],
)
def test_huge_pages(tmp_path: Path, text: str | None, expected: Status) -> None:
    file = tmp_path / "enabled"
    if text is not None:
        file.write_text(text)
    assert status_of(doctor_machine.huge_pages_row(file)) is expected


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status_of(doctor_machine.shared_memory_row(tmp_path)) is Status.OK
    assert status_of(doctor_machine.shared_memory_row(tmp_path / "none")) is Status.WARN
    monkeypatch.setattr(doctor_machine, "MIN_SHM_BYTES", 1 << 60)
    assert status_of(doctor_machine.shared_memory_row(tmp_path)) is Status.WARN


@pytest.mark.parametrize(
    ("limit", "is_capable", "expected"),
    [(0, False, Status.WARN), (0, True, Status.OK), (80, False, Status.OK)],
)
def test_priority(limit: int, is_capable: bool, expected: Status) -> None:
    assert status_of(doctor_machine.priority_row(limit, is_capable)) is expected


def test_capabilities(tmp_path: Path) -> None:
    file = tmp_path / "status"
    file.write_text("Name:\tpython\nCapEff:\t0000000000800000\n")
    assert doctor_machine.has_capability(file, 23)
    assert not doctor_machine.has_capability(file, 22)


def test_locked_memory() -> None:
    assert doctor_machine.locked_memory_row(8 << 20).found == "8 MiB"
    assert doctor_machine.locked_memory_row(resource.RLIM_INFINITY).found == "unlimited"
    assert status_of(doctor_machine.locked_memory_row(8 << 20)) is Status.OK


def test_files() -> None:
    assert status_of(doctor_machine.files_row(1024, 4096, 7)) is Status.OK
    assert status_of(doctor_machine.files_row(256, 4096, 7)) is Status.WARN
    unlimited = resource.RLIM_INFINITY
    assert "unlimited" in doctor_machine.files_row(unlimited, unlimited, 7).found


@pytest.mark.parametrize(
    "error", [OSError(38, "Function not implemented"), SharedMemoryError("no"), AttributeError("x")]
)
def test_a_refused_call_is_reported(error: Exception) -> None:
    def refuse() -> str:
        raise error

    row = doctor_machine.attempt("call", refuse, Status.FAIL, "nothing works")
    assert status_of(row) is Status.FAIL
    assert str(error) in row.found


def test_trying_leaves_nothing_open() -> None:
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone, once
    doctor_machine.check_kernel()
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# engines -------------------------------------------------------------------------------------


def test_an_engine_that_serves_is_alive(engine: str, runtime_folder: Path) -> None:
    rows = doctor_engines.check_engines()
    assert [status_of(row) for row in rows] == [Status.OK, Status.OK]
    assert rows[1].name == address.socket_file(engine)
    assert f"process {os.getpid()}" in rows[1].found


def test_no_engine(runtime_folder: Path) -> None:
    assert [status_of(row) for row in doctor_engines.check_engines()] == [Status.OK]
    runtime_folder.mkdir(mode=0o700)
    rows = doctor_engines.check_engines()
    assert [row.found for row in rows[1:]] == ["none"]


def test_a_stale_socket_is_reported_and_stays(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "crashed.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(path))
    row = doctor_engines.engine_row(path)
    assert status_of(row) is Status.WARN
    assert "stale" in row.found
    assert path.exists()


def test_an_engine_that_hangs_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "hung.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            client.setblocking(False)
            waiting.append(client)
            try:
                client.connect(str(path))
            except BlockingIOError:
                break
        row = doctor_engines.engine_row(path)
        for client in waiting:
            client.close()
    assert status_of(row) is Status.WARN
    assert "queue" in row.found


def test_a_name_longer_than_a_socket_may_have_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir(mode=0o700)
    row = doctor_engines.engine_row(folder / "none.sock")
    assert "stale" in row.found


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o710])
def test_a_folder_that_others_may_enter_is_a_failure(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "flashrt"
    folder.mkdir()
    folder.chmod(mode)
    row = doctor_engines.folder_row(folder)
    assert status_of(row) is Status.FAIL
    assert "chmod 700" in row.fix


def test_a_shared_folder_may_be_entered_but_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(address.FOLDER_VARIABLE, str(tmp_path))
    tmp_path.chmod(0o750)
    assert status_of(doctor_engines.folder_row(tmp_path)) is Status.OK
    tmp_path.chmod(0o770)
    assert status_of(doctor_engines.folder_row(tmp_path)) is Status.FAIL


def test_a_link_or_file_in_the_folders_place_is_a_failure(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    file = tmp_path / "file"
    file.touch()
    for path in (link, file, file / "below", tmp_path / "none" / "below"):
        assert status_of(doctor_engines.folder_row(path)) is Status.FAIL
        assert len(doctor_engines.check_engines(path)) == 1


def test_a_folder_under_the_temporary_one_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(address.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / "flashrt-0"
    assert status_of(doctor_engines.folder_row(folder)) is Status.WARN
    folder.mkdir(mode=0o700)
    assert status_of(doctor_engines.folder_row(folder)) is Status.WARN
