"""What an installation must have, and what the four build files must agree on."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import flashrt_ros

ROOT = Path(__file__).resolve().parents[1]
STANDARD = {"rclpy", "launch", "launch_ros", "tf2_ros"}


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def package_xml() -> ET.Element:
    return ET.parse(ROOT / "package.xml").getroot()


def setup_constant(name: str) -> Any:
    """A literal of setup.py, which can't be imported without building."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise LookupError(name)


@pytest.fixture
def prefix() -> Path:
    """Where pip or colcon has laid out ``share/`` and ``lib/``."""
    package = Path(flashrt_ros.__file__).absolute()  # links of --symlink-install lead elsewhere
    for prefix in [*package.parents, Path(sysconfig.get_path("data"))]:
        if (prefix / "share" / "flashrt_ros" / "package.xml").is_file():
            return prefix
    pytest.skip("not installed; pip install -e '.[test]' or colcon build would run it")


def test_versions_agree() -> None:
    version = flashrt_ros.__version__
    assert package_xml().findtext("version") == version
    changelog = (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8")
    newest = re.search(r"^(\d+\.\d+\.\d+) \(.+\)$", changelog, re.MULTILINE)
    assert newest is not None
    assert newest[1] == version


def test_installed_version_is_that_of_the_tree(prefix: Path) -> None:
    installed = ET.parse(prefix / "share" / "flashrt_ros" / "package.xml").getroot()
    assert installed.findtext("version") == flashrt_ros.__version__
    assert importlib.metadata.version("flashrt_ros") == flashrt_ros.__version__


def test_licence_and_name_agree() -> None:
    project = pyproject()["project"]
    assert package_xml().findtext("license") == project["license"] == "Apache-2.0"
    assert package_xml().findtext("name") == project["name"] == "flashrt_ros"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_ros_wheels_are_pinned_and_only_asked_for_where_they_exist() -> None:
    document = pyproject()
    requirements = [
        *document["build-system"]["requires"],
        *document["project"]["dependencies"],
        *(r for extra in document["project"]["optional-dependencies"].values() for r in extra),
    ]
    ros = [requirement for requirement in requirements if requirement.startswith("ros-")]
    assert len(ros) == 5
    for requirement in ros:
        name, _, marker = requirement.partition(";")
        assert "==" in name
        assert marker.strip() == "platform_machine == 'x86_64' and sys_platform == 'linux'"


def ros_packages_imported() -> set[str]:
    found: set[str] = set()
    for path in [*(ROOT / "flashrt_ros").rglob("*.py"), *(ROOT / "launch").glob("*.py")]:
        if path.relative_to(ROOT).parts[1] in ("msg", "srv"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    endings = ("_msgs", "_srvs", "_interfaces")
    return {name for name in found if name in STANDARD or name.endswith(endings)}


def test_package_xml_names_every_ros_package_that_is_imported() -> None:
    declared = {
        element.text
        for tag in ("depend", "exec_depend")
        for element in package_xml().iter(tag)
        if element.text
    }
    assert ros_packages_imported() <= declared


def test_package_xml_names_what_the_interfaces_refer_to() -> None:
    declared = {element.text for element in package_xml().iter("depend")}
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    pattern = re.compile(r"^(\w+)/\w+(?:\[\])? ", re.MULTILINE)
    files = [*(ROOT / "msg").glob("*.msg"), *(ROOT / "srv").glob("*.srv")]
    used = {name for path in files for name in pattern.findall(path.read_text(encoding="utf-8"))}
    used.discard("flashrt_ros")
    assert used == {"builtin_interfaces", "std_msgs"}
    assert used <= declared
    assert used <= set(setup_constant("INTERFACE_DEPENDENCIES"))
    assert all(f"find_package({name} REQUIRED)" in cmake for name in used)


def test_both_builds_install_the_same_executables() -> None:
    from_pip = setup_constant("EXECUTABLES")
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    block = re.search(r"set\(executables\n(.*?)\)", cmake, re.DOTALL)
    assert block is not None
    words = block[1].split()
    from_colcon = dict(zip(words[::2], words[1::2], strict=True))
    scripts = pyproject()["project"]["scripts"]
    assert from_colcon == from_pip | {k: v.removesuffix(":main") for k, v in scripts.items()}


@pytest.mark.parametrize(
    "module", [*setup_constant("EXECUTABLES").values(), "flashrt_ros.cli.main"]
)
def test_executables_name_a_main(module: str) -> None:
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    assert "main" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    guards = [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)]
    assert "__name__ == '__main__'" in guards


def test_executable_hands_on_arguments_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "probe_target.py").write_text(
        "import sys\nprint(sys.argv[1:], sys.executable)\nsys.exit(7)\n"
    )
    template = (ROOT / "resource" / "executable.in").read_text(encoding="utf-8")
    script = tmp_path / "lib" / "flashrt_ros" / "probe"
    script.parent.mkdir(parents=True)
    script.write_text(template.replace("@MODULE@", "probe_target"))
    script.chmod(0o755)
    own = tmp_path / "bin" / "python3"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\necho own\nexec "{sys.executable}" "$@"\n')
    own.chmod(0o755)
    result = subprocess.run(
        [script, "--ros-args", "-r", "__ns:=/a b"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 7, result.stderr
    assert result.stdout.startswith("own\n['--ros-args', '-r', '__ns:=/a b']")


@pytest.mark.parametrize("folder", ["config", "launch", "msg", "srv"])
def test_installation_has_what_ros_tools_look_for(folder: str, prefix: Path) -> None:
    source = {path.name for path in (ROOT / folder).glob("*") if path.is_file()}
    assert source
    installed = prefix / "share" / "flashrt_ros" / folder
    assert source <= {path.name for path in installed.glob("*")}


def test_installation_has_executables(prefix: Path) -> None:
    for name in setup_constant("EXECUTABLES"):
        assert os.access(prefix / "lib" / "flashrt_ros" / name, os.X_OK), name


def test_installation_is_in_the_ament_index(prefix: Path) -> None:
    index = prefix / "share" / "ament_index" / "resource_index"
    assert (index / "packages" / "flashrt_ros").is_file()
    listed = (index / "rosidl_interfaces" / "flashrt_ros").read_text(encoding="utf-8").split()
    assert {"msg/Subgoal.msg", "msg/Subgoal.idl", "srv/Step.srv"} <= set(listed)


def test_package_is_typed() -> None:
    assert Path(flashrt_ros.__file__).with_name("py.typed").is_file()
