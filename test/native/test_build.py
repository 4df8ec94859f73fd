"""How a user gets the library: by CMake, from what the package installs; and that it agrees."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

import flashrt_ros
from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.wire import BUSY_POLL_US
from flashrt_ros.errors import ERRORS
from flashrt_ros.native import source_folder
from flashrt_ros.runtime.spec import ITEM_BYTES

WAIT_S = 60.0
HEADER = (source_folder() / "include" / "flashrt_slots.h").read_text(encoding="utf-8")
INTERNAL = (source_folder() / "flashrt_internal.h").read_text(encoding="utf-8")
STRICT = "-Wall -Wextra -Werror -pedantic"


def defined(text: str, name: str) -> int:
    """The number that a macro stands for."""
    found = re.search(rf"^#define {name} (\d+)$", text, re.MULTILINE)
    assert found, name
    return int(found[1])


def members(text: str, pattern: str) -> dict[str, int]:
    """Names and numbers of an enumeration."""
    return {name: int(number) for name, number in re.findall(pattern, text)}


# agreement -----------------------------------------------------------------------------------


def test_codes_are_those_of_the_package() -> None:
    enumeration = re.search(r"enum flashrt_code \{(.*?)\}", HEADER, re.DOTALL)
    assert enumeration is not None
    codes = members(enumeration[1], r"FLASHRT_([A-Z_]+) = (\d+)")
    assert codes.pop("OK") == 0
    assert len(codes) > 20
    assert codes == {ERRORS[number].name: number for number in codes.values()}


def test_messages_are_those_of_the_protocol() -> None:
    tags = members(INTERNAL, r"(?m)^  FR_([A-Z_]+) = (\d+),?$")
    assert len(tags) == 17
    kinds = {kind.__struct_config__.tag: kind.__name__ for kind in get_args(protocol.Message)}
    assert {tag: name.replace("_", "").lower() for name, tag in tags.items()} == {
        tag: kinds[tag].lower() for tag in tags.values()
    }
    assert defined(HEADER, "FLASHRT_WIRE_VERSION") == protocol.PROTOCOL_VERSION
    assert defined(HEADER, "FLASHRT_BUSY_POLL_US") == BUSY_POLL_US
    assert defined(INTERNAL, "FR_MAX_MESSAGE_BYTES") == protocol.MAX_MESSAGE_BYTES
    assert defined(INTERNAL, "FR_MAX_INLINE_BYTES") == protocol.MAX_INLINE_BYTES
    kinds_of_output = {kind.name: int(kind) for kind in protocol.OutputKind}
    assert members(HEADER, r"FLASHRT_(ACTION|CHUNK) = (\d)") == kinds_of_output


def test_dtypes_are_those_of_the_package() -> None:
    source = (source_folder() / "flashrt_slots.c").read_text(encoding="utf-8")
    table = re.search(r"dtype_names\[\] = \{(.*?)\}", source, re.DOTALL)
    enumeration = re.search(r"enum flashrt_dtype \{(.*?)\}", HEADER, re.DOTALL)
    assert table is not None
    assert enumeration is not None
    names = re.findall(r"\"(\w+)\"", table[1])
    assert names == list(ITEM_BYTES)
    assert names == [name.lower() for name in re.findall(r"FLASHRT_(\w+)", enumeration[1])]


def test_version_is_that_of_the_package() -> None:
    cmake = (source_folder() / "CMakeLists.txt").read_text(encoding="utf-8")
    assert f"VERSION {flashrt_ros.__version__} " in cmake


def test_folder_is_printed_for_cmake() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flashrt_ros.native"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert Path(done.stdout.strip()).samefile(source_folder())


# CMake ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix with the library, and a consumer that found it by ``find_package``, in it."""
    for tool, what in (("cmake", "CMake"), ("c++", "a C++ compiler")):
        if not shutil.which(tool):
            pytest.skip(f"no {what}; a machine with it would run this")
    work = tmp_path_factory.mktemp("cmake")
    prefix = work / "prefix"
    options = (f"-DCMAKE_C_FLAGS={STRICT}", f"-DCMAKE_CXX_FLAGS={STRICT}")
    build(source_folder(), work / "library", f"-DCMAKE_INSTALL_PREFIX={prefix}", *options)
    run("cmake", "--install", str(work / "library"))
    consumer = work / "consumer"
    consumer.mkdir()
    shutil.copy(source_folder() / "examples" / "planner.cpp", consumer)
    (consumer / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        "project(consumer LANGUAGES CXX)\n"
        f"find_package(flashrt_slots {flashrt_ros.__version__} REQUIRED)\n"
        "add_executable(planner planner.cpp)\n"
        "target_compile_features(planner PRIVATE cxx_std_17)\n"
        "target_link_libraries(planner PRIVATE flashrt::slots)\n"
        "install(TARGETS planner)\n"
    )
    build(consumer, work / "consumer-build", f"-DCMAKE_INSTALL_PREFIX={prefix}", *options)
    run("cmake", "--install", str(work / "consumer-build"))
    return prefix


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build(source: Path, target: Path, prefix: str, *options: str) -> None:
    found = prefix.replace("CMAKE_INSTALL_PREFIX", "CMAKE_PREFIX_PATH")
    run("cmake", "-S", str(source), "-B", str(target), prefix, found, *options)
    run("cmake", "--build", str(target))


def test_the_example_planner_moves_a_policy(
    installed: Path, engine: Any, client: EngineClient
) -> None:
    client.activate(tick_source="timer", rate_hz=100.0)
    client.open_writer("observation").write(stamp_ns=1, position=[0.0, 0.0])
    done = subprocess.run(
        [installed / "bin" / "planner", engine.name, "0.5", "-0.5"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"goal \d+, tick \d+, action -?[\d.e-]+ -?[\d.e-]+\n", done.stdout)
    refused = subprocess.run(
        [installed / "bin" / "planner", engine.name, "0.5", "nan"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("NON_FINITE: field 'values' of channel 'goal'")


def test_the_library_exports_its_functions_alone(shared_library: Path) -> None:
    if not shutil.which("nm"):
        pytest.skip("no nm; a machine with binutils would run it")
    library = shared_library
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    declared = set(re.findall(r"FLASHRT_API [^;(]*?(flashrt_\w+)\(", HEADER))
    assert names == declared
    assert len(declared) > 15
