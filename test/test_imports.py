"""The layers, read off the imports: downward only, ROS at the top, torch where it is needed."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "flashrt_ros"
GENERATED = ("msg", "srv")

BELOW: dict[str, set[str]] = {
    "": set(),  # flashrt_ros/__init__.py
    "errors": set(),
    "native": set(),
    "runtime": {"errors"},
    "capsule": {"errors", "runtime"},
    "models": {"errors", "runtime"},
    "proof": {"errors", "runtime", "models"},
    "engine": {"errors", "runtime", "capsule", "models"},
    "planner": {"errors", "runtime", "capsule", "models", "engine"},
    "episode": {"errors", "runtime", "capsule", "engine"},
    "nodes": {"errors", "runtime", "capsule", "models", "engine", "episode", "planner"},
    "sim": {"errors", "runtime", "capsule", "models", "engine", "planner", "nodes", "episode"},
    "demo": {
        "errors",
        "runtime",
        "capsule",
        "models",
        "proof",
        "engine",
        "episode",
        "planner",
        "nodes",
        "sim",
    },
    "bench": {
        "errors",
        "runtime",
        "capsule",
        "models",
        "engine",
        "episode",
        "planner",
        "nodes",
        "sim",
        "demo",
    },
    "cli": {
        "errors",
        "runtime",
        "capsule",
        "models",
        "proof",
        "engine",
        "episode",
        "planner",
        "nodes",
        "sim",
        "demo",
        "bench",
    },
}
"""Room → rooms that it may import besides itself."""

ROS_ROOMS = {"nodes", "sim", "demo", "bench"}
"""Rooms that may import ROS."""

TRITON = [
    "flashrt_ros.models.hybrid_attention_cuda",
    "flashrt_ros.models.hybrid_choose_cuda",
    "flashrt_ros.models.hybrid_delta_cuda",
    "flashrt_ros.models.hybrid_kernels_cuda",
    "flashrt_ros.models.hybrid_linear_cuda",
    "flashrt_ros.models.hybrid_matrix_cuda",
    "flashrt_ros.models.hybrid_ops_cuda",
]
"""Modules of kernels, which only a GPU machine has the package for."""

TORCH_FREE = [
    "flashrt_ros",
    "flashrt_ros.errors",
    "flashrt_ros.runtime.spec",
    "flashrt_ros.capsule.folder",
    "flashrt_ros.capsule.transfer",
    "flashrt_ros.engine.address",
    "flashrt_ros.engine.channels",
    "flashrt_ros.engine.client",
    "flashrt_ros.engine.config",
    "flashrt_ros.engine.host",
    "flashrt_ros.engine.host_channels",
    "flashrt_ros.engine.host_process",
    "flashrt_ros.engine.leaving",
    "flashrt_ros.engine.members",
    "flashrt_ros.engine.protocol",
    "flashrt_ros.engine.shared",
    "flashrt_ros.engine.slots",
    "flashrt_ros.models.planner_text",
    "flashrt_ros.episode.client",
    "flashrt_ros.planner.config",
    "flashrt_ros.planner.grammar",
    "flashrt_ros.planner.members",
]


def source_files() -> list[Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [path for path in files if path.relative_to(PACKAGE).parts[0] not in GENERATED]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(module: str, source: str, *, is_package: bool) -> set[str]:
    """Every absolute name that a module imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                parents = parents[: len(parents) - (node.level - 1)]
                base = ".".join([*parents, base] if base else parents)
            # `from flashrt_ros import engine` imports the room engine
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def is_ros(name: str) -> bool:
    top, _, rest = name.partition(".")
    if top == "flashrt_ros":
        return rest.split(".")[0] in GENERATED
    return (
        top in {"builtin_interfaces", "rclpy", "tf2_ros", "launch", "launch_ros"}
        or top.startswith("ament_")
        or top.endswith(("_msgs", "_srvs"))
    )


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    room = room_of(module)
    if room not in BELOW:
        return [f"{module} stands in a room that no layer is known for"]
    found = []
    for name in sorted(imported_names(module, source, is_package=is_package)):
        if is_ros(name):
            if room not in ROS_ROOMS:
                found.append(f"{module} imports {name}: ROS belongs to {sorted(ROS_ROOMS)}")
            continue
        if name.split(".")[0] != "flashrt_ros":
            continue
        target = room_of(name)
        if not target or target.startswith("__"):  # the package itself, its __version__
            continue
        if target != room and target not in BELOW[room]:
            found.append(f"{module} imports {name}: {room or 'the package'} may not see {target}")
    return found


def test_every_room_has_its_layer() -> None:
    assert {room_of(module_name(path)) for path in source_files()} == set(BELOW)
    for room, below in BELOW.items():
        assert below <= set(BELOW) - {room}, room


@pytest.mark.parametrize("path", source_files(), ids=module_name)
def test_imports_point_downward(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert not violations(module_name(path), source, is_package=path.name == "__init__.py")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("flashrt_ros.runtime.cpu", "from flashrt_ros.engine import client"),
        ("flashrt_ros.runtime.cpu", "from ..engine import client"),
        ("flashrt_ros.runtime.cpu", "from .. import engine"),
        ("flashrt_ros.engine.client", "def f():\n    import rclpy"),
        ("flashrt_ros.engine.client", "from flashrt_ros.msg import Subgoal"),
        ("flashrt_ros.models.base", "import flashrt_ros.capsule.store"),
        ("flashrt_ros.nodes.lifecycle", "from flashrt_ros.sim import table"),
        ("flashrt_ros.errors", "from flashrt_ros.runtime import spec"),
        ("flashrt_ros.cli.main", "from std_srvs.srv import Trigger"),
        ("flashrt_ros.attic.old", "import os"),
    ],
)
def test_an_upward_import_is_found(module: str, source: str) -> None:
    assert violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("flashrt_ros.runtime.cpu", "from .spec import Role\nimport torch"),
        ("flashrt_ros.engine.client", "from flashrt_ros import __version__, errors"),
        ("flashrt_ros.nodes.lifecycle", "import rclpy\nfrom flashrt_ros.srv import Step"),
        ("flashrt_ros.cli.main", "import flashrt_ros\nfrom flashrt_ros.nodes import configuration"),
    ],
)
def test_a_downward_import_is_not_found(module: str, source: str) -> None:
    assert not violations(module, source)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def import_and_report(modules: list[str], unwanted: str) -> str:
    return (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    assert {unwanted!r} not in sys.modules, f'{{name}} imports {unwanted}'\n"
    )


@pytest.mark.parametrize("module", TORCH_FREE)
def test_imports_without_torch(module: str) -> None:
    result = run_python(import_and_report([module], "torch"))
    assert result.returncode == 0, result.stderr


def test_a_torch_import_is_found() -> None:
    assert run_python(import_and_report(["torch"], "torch")).returncode != 0


def test_nodes_import_without_torch() -> None:
    if importlib.util.find_spec("rclpy") is None:
        pytest.skip("ROS is not installed; pip install -e '.[ros,test]' on x86_64 would run it")
    modules = [module_name(p) for p in source_files() if p.relative_to(PACKAGE).parts[0] == "nodes"]
    result = run_python(import_and_report(modules, "torch"))
    assert result.returncode == 0, result.stderr


def test_rooms_below_the_nodes_import_without_ros() -> None:
    modules = [
        name
        for name in map(module_name, source_files())
        if room_of(name) not in {*ROS_ROOMS, "cli"}
        and not name.endswith("__main__")
        and (name not in TRITON or importlib.util.find_spec("triton"))
    ]
    code = (
        "import importlib, sys\n"
        "class NoRos:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('rclpy', 'std_msgs', 'flashrt_ros.msg', 'flashrt_ros.srv'):\n"
        "            raise ImportError(f'{name} is hidden from this test')\n"
        "sys.meta_path.insert(0, NoRos())\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
