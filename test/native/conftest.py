"""C programs to run, built as a user builds them and once more with sanitizers; real engines."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flashrt_ros.engine import address
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.native import source_folder

HERE = Path(__file__).parent
WAIT_S = 60.0
"""Longest wait for anything here; nothing that passes comes near."""

STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread")
PLAIN = ("-O3",)
SANITIZED = (
    *("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"),
    "-fno-sanitize-recover=all",
)


def compiler() -> str:
    """The C compiler of this machine; the test is skipped where there is none."""
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not found:
        pytest.skip("no C compiler; a machine with cc or gcc would run it")
    return found


def run_tool(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a build tool; its complaints are the test's."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done


def build_program(target: Path, name: str, *options: str, without: str = "") -> Path:
    """Compile a program of this folder with the library's sources, all but one, into ``target``."""
    sources = [path for path in sorted(source_folder().glob("*.c")) if path.name != without]
    assert sources
    include = f"-I{source_folder() / 'include'}", f"-I{source_folder()}"
    program = target / name
    run_tool(compiler(), *STRICT, *options, *include, HERE / f"{name}.c", *sources, "-o", program)
    return program


def build_library(target: Path, *options: str) -> Path:
    """Compile the library as a shared object into ``target``."""
    library = target / "libflashrt_slots.so"
    include = f"-I{source_folder() / 'include'}"
    sources = sorted(source_folder().glob("*.c"))
    run_tool(compiler(), *STRICT, "-shared", "-fPIC", *options, include, *sources, "-o", library)
    return library


@pytest.fixture(scope="session")
def shared_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as a shared object, with its own names hidden as CMakeLists.txt hides them."""
    return build_library(tmp_path_factory.mktemp("shared"), "-fvisibility=hidden")


@pytest.fixture(scope="session")
def open_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as a shared object, optimised, with every name to be seen."""
    return build_library(tmp_path_factory.mktemp("open"), *PLAIN)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """Compiles a program of this folder, with options of its own."""
    return lambda name, *options, **more: build_program(tmp_path, name, *options, **more)


@pytest.fixture(scope="session")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that obeys its standard input."""
    return build_program(tmp_path_factory.mktemp("plain"), "talk", *PLAIN)


@pytest.fixture(scope="session")
def sanitize() -> tuple[str, ...]:
    """Options of a build that finds bad memory and undefined behaviour."""
    probe = subprocess.run(
        [compiler(), *SANITIZED, "-x", "c", "-", "-o", os.devnull],
        input="int main(void) { return 0; }",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if probe.returncode:
        pytest.skip("the compiler has no sanitizers; one with libasan and libubsan would run it")
    return SANITIZED


@pytest.fixture(scope="session")
def sanitized_talk(tmp_path_factory: pytest.TempPathFactory, sanitize: tuple[str, ...]) -> Path:
    """The same program, built with sanitizers: what is wrong in it ends it with another code."""
    return build_program(tmp_path_factory.mktemp("sanitized"), "talk", *sanitize)


class Talker:
    """A C client in a process of its own."""

    def __init__(
        self, program: Path, engine: str, *, timeout_ms: int = 60_000, wait_ms: int = 60_000
    ) -> None:
        self.process = subprocess.Popen(
            [program, engine, str(timeout_ms), str(wait_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def tell(self, line: str) -> None:
        """Say what to do, and wait for nothing."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> list[str]:
        """Wait for the next answer, in words."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], WAIT_S)[0]:
            raise TimeoutError("the C client says nothing")
        return self.process.stdout.readline().split()

    def ask(self, line: str) -> list[str]:
        """Say what to do; returns what follows the OK of the answer."""
        self.tell(line)
        words = self.answer()
        assert words[:1] == ["OK"], words
        return words[1:]

    def refused(self, line: str) -> str:
        """Say what to do; returns name and message of the refusal."""
        self.tell(line)
        words = self.answer()
        assert words[:1] not in ([], ["OK"]), words
        return " ".join(words)

    def kill(self) -> None:
        """End it as it stands, and wait until it has."""
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)

    def finish(self) -> None:
        """Let it close its connection; it must have nothing to complain of."""
        _, complaints = self.process.communicate(timeout=WAIT_S)
        assert (self.process.returncode, complaints) == (0, "")


StartTalker = Callable[..., Talker]


@pytest.fixture
def start_talker(talk: Path) -> Iterator[StartTalker]:
    """Starts C clients that are connected; those still there at the end are killed."""
    talkers: list[Talker] = []

    def start(engine: str, program: Path = talk, **options: int) -> Talker:
        talkers.append(Talker(program, engine, **options))
        assert talkers[-1].answer() == ["OK"]
        return talkers[-1]

    yield start
    for talker in talkers:
        talker.kill()


@pytest.fixture(scope="session")
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of this session's sockets, for this process and those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("run")
        folder.chmod(0o700)
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.delenv(address.FOLDER_VARIABLE, raising=False)
        yield folder / "flashrt"


def python_path() -> list[str]:
    """What PYTHONPATH names already."""
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


class EngineProcess:
    """A real engine in a process of its own, ready for clients."""

    def __init__(self, arguments: tuple[str, ...] = (), **config: object) -> None:
        self.name = f"native/{os.getpid()}/{time.monotonic_ns()}"
        ready, told = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "flashrt_ros.engine"),
                *("--config", "-", "--name", self.name, "--ready-fd", str(told), *arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[told],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *python_path()])},
            text=True,
        )
        os.close(told)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"model": "minimal", "test_hooks": True, **config}))
        self.process.stdin.close()
        try:
            is_heard = select.select([ready], [], [], WAIT_S)[0]
            assert is_heard, "the engine did not start"
            assert os.read(ready, 16) == b"ready\n", "the engine ended"
        except BaseException:
            self.process.kill()
            self.process.wait(WAIT_S)
            raise
        finally:
            os.close(ready)

    def client(self) -> EngineClient:
        """Connect."""
        return EngineClient(self.name, timeout_s=WAIT_S)

    def stop(self) -> int:
        """End it; returns its exit code."""
        self.process.terminate()
        return self.process.wait(WAIT_S)


StartEngine = Callable[..., EngineProcess]


@pytest.fixture(scope="session")
def start_engine(runtime_folder: Path) -> Iterator[StartEngine]:
    """Starts real engines; those still there at the end are stopped."""
    engines: list[EngineProcess] = []

    def start(arguments: tuple[str, ...] = (), **config: object) -> EngineProcess:
        engines.append(EngineProcess(arguments, **config))
        return engines[-1]

    yield start
    codes = [engine.stop() for engine in engines]
    assert codes == [0] * len(engines)


@pytest.fixture(scope="session")
def engine(start_engine: StartEngine) -> EngineProcess:
    """One real engine of the minimal policy for all tests here; they leave it as they found it."""
    return start_engine()


@pytest.fixture
def client(engine: EngineProcess) -> Iterator[EngineClient]:
    """A Python client of that engine, whose environment is stepped and just reset."""
    with engine.client() as client:
        client.activate(tick_source="step")
        client.reset()
        yield client
        client.deactivate()
