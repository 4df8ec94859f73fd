"""What is installed: Python, libraries, ROS, the package's own parts."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import flashrt_ros
from flashrt_ros.cli.findings import Row, Status

SOFTWARE = "software"
ROS = "ros"

PYTHON_RANGE = ((3, 11), (3, 13))
TORCH_RANGE = ((2, 9), (2, 14))
"""From the first, below the second; as in ``pyproject.toml``."""

REQUIRED = ("numpy", "msgspec", "PyYAML", "rich", "safetensors", "torch", "xxhash")
_DEMO = ("'flashrt-ros demo' and the simulated robot do not run", "demo")
EXTRAS = {
    "gym-pusht": _DEMO,
    "matplotlib": _DEMO,
    "tokenizers": ("no planner engine starts, so that no words become subgoals", "lm"),
}
"""Libraries that only some things need: what does not run without one, and the extra with it."""

MAX_DOMAIN = 101
"""Above it a domain's ports reach into those that Linux gives to clients."""

_DISTROS = {"7": "jazzy", "9": "kilted", "3": "humble"}
"""ROS distribution by the major version of rclpy, where no variable names it."""

_PROBE_TIMEOUT_S = 60.0
_PROBE = """
import json, os
facts = {"distro": os.environ.get("ROS_DISTRO", "")}
import rclpy
from rclpy.utilities import get_rmw_implementation_identifier
facts["rmw"] = get_rmw_implementation_identifier()
try:
    from rclpy.type_support import check_for_type_support
    from flashrt_ros.msg import ActionChunk
    from flashrt_ros.srv import ResetEpisode
    check_for_type_support(ActionChunk)
    check_for_type_support(ResetEpisode)
    facts["interfaces"] = ""
except Exception as error:
    facts["interfaces"] = f"{type(error).__name__}: {error}"
print("facts=" + json.dumps(facts))
"""

Version = Callable[[str], str | None]
"""Installed version of a distribution, None where there is none."""


def installed_version(name: str) -> str | None:
    """Look a distribution up."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_software(version: Version = installed_version) -> list[Row]:
    """Report Python, the package, its libraries and its files."""
    rows = [python_row(platform.python_version()), _platform(), _package()]
    rows += [library_row(name, version(name)) for name in REQUIRED]
    rows += [_extra_library(name, version(name)) for name in EXTRAS]
    rows.append(weights_row(Path(flashrt_ros.__file__).parent / "models" / "weights"))
    return rows


def python_row(text: str) -> Row:
    """Judge a version of Python."""
    low, high = PYTHON_RANGE
    major, minor = text.split(".")[:2]
    found = (int(major), int(minor))
    if low <= found < high:
        return Row(SOFTWARE, "python", Status.OK, text)
    return Row(
        SOFTWARE,
        "python",
        Status.FAIL if found < low else Status.WARN,
        text,
        "no release of this package was tested on it",
        "use CPython 3.11 or 3.12",
    )


def _platform() -> Row:
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform == "linux":
        return Row(SOFTWARE, "platform", Status.OK, found)
    return Row(SOFTWARE, "platform", Status.FAIL, found, "the engine needs memfd", "use Linux")


def _package() -> Row:
    where = Path(flashrt_ros.__file__).parent
    return Row(SOFTWARE, "flashrt_ros", Status.OK, f"{flashrt_ros.__version__} at {where}")


def library_row(name: str, found: str | None) -> Row:
    """Judge the version of a library that the package can't do without."""
    if found is None:
        return Row(
            SOFTWARE,
            name,
            Status.FAIL,
            "missing",
            "the engine does not start",
            f"pip install {name}",
        )
    if name == "torch":
        low, high = TORCH_RANGE
        parts = re.match(r"(\d+)\.(\d+)", found)
        if parts is None or not low <= (int(parts[1]), int(parts[2])) < high:
            limits = f">={low[0]}.{low[1]},<{high[0]}.{high[1]}"
            return Row(
                SOFTWARE,
                name,
                Status.WARN,
                found,
                "captures rest on operator schemas that change between releases",
                f"pip install 'torch{limits}'",
            )
    return Row(SOFTWARE, name, Status.OK, found)


def _extra_library(name: str, found: str | None) -> Row:
    if found is not None:
        return Row(SOFTWARE, name, Status.OK, found)
    problem, extra = EXTRAS[name]
    return Row(
        SOFTWARE, name, Status.WARN, "missing", problem, f"pip install 'flashrt_ros[{extra}]'"
    )


def weights_row(folder: Path) -> Row:
    """Judge the weights that ship with the package."""
    files = sorted(folder.rglob("*.safetensors"))
    if files:
        names = ", ".join(str(file.relative_to(folder)) for file in files)
        return Row(SOFTWARE, "weights", Status.OK, names)
    return Row(
        SOFTWARE,
        "weights",
        Status.FAIL,
        f"none in {folder}",
        "the packaged policy can't be loaded",
        "install the package again, or name a file with --weights",
    )


# ROS -----------------------------------------------------------------------------------------


def check_ros(
    version: Version = installed_version,
    environment: Mapping[str, str] = os.environ,
    probe: str = _PROBE,
) -> list[Row]:
    """Report ROS and the variables it reads; a missing ROS is a warning.

    ROS is imported in a process of its own: what fails there takes nothing along.
    """
    rows = _installation(version, environment, probe)
    rows.append(domain_row(environment))
    rows.append(discovery_row(environment))
    return rows


def _installation(version: Version, environment: Mapping[str, str], probe: str) -> list[Row]:
    try:
        result = subprocess.run(
            [sys.executable, "-c", probe],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            env=dict(environment),
        )
    except subprocess.TimeoutExpired:
        found = f"importing it took longer than {_PROBE_TIMEOUT_S:.0f} s"
        return [Row(ROS, "rclpy", Status.FAIL, found, "no node starts", "check the middleware")]
    line = next((x for x in result.stdout.splitlines() if x.startswith("facts=")), None)
    if line is None:
        return [_no_ros(result.stderr, environment)]
    facts = json.loads(line.removeprefix("facts="))
    wheel = version("ros-rclpy") or ""
    distro = facts["distro"] or _DISTROS.get(wheel.split(".")[0], "unknown")
    found = f"{wheel} (wheel)" if wheel else "from its own packages"
    return [
        Row(ROS, "rclpy", Status.OK, found),
        Row(ROS, "distribution", Status.OK, distro),
        Row(ROS, "middleware", Status.OK, facts["rmw"]),
        _interfaces(facts["interfaces"]),
    ]


def _no_ros(stderr: str, environment: Mapping[str, str]) -> Row:
    reason = stderr.strip().splitlines()[-1] if stderr.strip() else "it ended without a word"
    if "No module named 'rclpy'" in reason:
        return Row(
            ROS,
            "rclpy",
            Status.WARN,
            "ROS is not installed",
            "nodes, 'up' and 'demo' do not run; engine, client, 'capsule' and 'prove' do",
            "pip install 'flashrt_ros[ros]' on x86_64, or source a ROS 2 installation",
        )
    wanted = environment.get("RMW_IMPLEMENTATION")
    return Row(
        ROS,
        "rclpy",
        Status.FAIL,
        reason,
        "no node starts",
        f"install the middleware {wanted}, or unset RMW_IMPLEMENTATION"
        if wanted
        else "repair the ROS installation",
    )


def _interfaces(error: str) -> Row:
    if not error:
        return Row(ROS, "interfaces", Status.OK, "compiled, type support loads")
    return Row(
        ROS,
        "interfaces",
        Status.FAIL,
        error,
        "nodes have no messages and services of this package",
        "install again with 'pip install .[ros]', or build with colcon and source the result",
    )


def domain_row(environment: Mapping[str, str]) -> Row:
    """Judge the ROS domain."""
    name = "ROS_DOMAIN_ID"
    text = environment.get(name, "")
    if not text:
        return Row(ROS, name, Status.OK, "not set: domain 0")
    if not text.isdecimal() or int(text) > 232:
        return Row(
            ROS, name, Status.FAIL, repr(text), "ROS does not start", "set it to 0 to 101, or unset"
        )
    if int(text) > MAX_DOMAIN:
        return Row(
            ROS,
            name,
            Status.WARN,
            text,
            "its ports lie where Linux takes ports for clients: now and then a node finds its own "
            "taken",
            f"use 0 to {MAX_DOMAIN}",
        )
    return Row(ROS, name, Status.OK, text)


def discovery_row(environment: Mapping[str, str]) -> Row:
    """Judge how far nodes look for each other."""
    reach = environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "")
    local = environment.get("ROS_LOCALHOST_ONLY", "")
    name = "ROS_AUTOMATIC_DISCOVERY_RANGE"
    if local:
        name = "ROS_LOCALHOST_ONLY"
    found = f"{name}={local or reach}" if local or reach else "not set: the whole subnet"
    if local == "1" or reach in ("LOCALHOST", "OFF"):
        return Row(ROS, "discovery", Status.OK, found)
    return Row(
        ROS,
        "discovery",
        Status.WARN,
        found,
        "every node of the domain on the network hears these commands, and is heard",
        "set ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST unless nodes run on several machines",
    )
