"""The CUDA device: whether engines can use it, and what they find there."""

from __future__ import annotations

import contextlib
import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flashrt_ros.cli.doctor_machine import available_bytes
from flashrt_ros.cli.doctor_probe import MARK, REGISTERED_BYTES, CudaFacts, DeviceFacts
from flashrt_ros.cli.findings import Row, Status

CUDA = "cuda"

MIN_FREE_BYTES = 1 << 30

PROBE = (sys.executable, "-m", "flashrt_ros.cli.doctor_probe")
PROBE_TIMEOUT_S = 60.0
TOOL_TIMEOUT_S = 10.0

_NODES = ("nvidiactl", "nvgpu", "nvhost-gpu")
"""Files under ``/dev`` of which a machine with a device of NVIDIA's has one."""

_SMI_FIELDS = (
    "uuid",
    "driver_version",
    "pstate",
    "enforced.power.limit",
    "persistence_mode",
    "mig.mode.current",
)
_MIB = 1 << 20
_ON_THE_CPU = "engines run on the CPU"


def check_device() -> list[Row]:
    """Report CUDA: asked in a process of its own, for a driver may hang or take it along."""
    facts = probe()
    return device_rows(
        facts,
        has_hardware=has_hardware(Path("/dev")),
        meminfo=Path("/proc/meminfo"),
        smi=smi_fields(run_tool(smi_command())) if facts.devices else [],
        nvpmodel=run_tool(["nvpmodel", "-q"]) if facts.devices else "",
    )


# asking --------------------------------------------------------------------------------------


def probe(command: Sequence[str] = PROBE, timeout_s: float = PROBE_TIMEOUT_S) -> CudaFacts:
    """Ask the device; returns what was told last, and why there is no more.

    Args:
        command: Prints lines of facts.
        timeout_s: Longest it may take.
    """
    out, errors, end = _ask(command, timeout_s)
    lines = [line for line in out.splitlines() if line.startswith(MARK.encode())]
    try:
        told = msgspec.json.decode(lines[-1].removeprefix(MARK.encode()), type=CudaFacts)
    except (IndexError, msgspec.MsgspecError):
        told = CudaFacts(stage="starting")
    if not told.stage:
        return told
    last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
    ended = f"did not answer within {timeout_s:g} s" if end is None else f"ended with code {end}"
    reason = f"{told.stage}, the probe {ended}" + f": {last}" * bool(last)
    return msgspec.structs.replace(told, reason=reason)


def smi_command() -> list[str]:
    """Return what asks ``nvidia-smi`` for :func:`smi_fields`."""
    return ["nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader"]


def smi_fields(text: str) -> list[dict[str, str]]:
    """Read what ``nvidia-smi`` says of each device; what it does not know is left out."""
    devices = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(_SMI_FIELDS):
            pairs = zip(_SMI_FIELDS, values, strict=True)
            devices.append({name: value for name, value in pairs if _is_known(value)})
    return devices


def run_tool(command: Sequence[str]) -> str:
    """Return what a tool prints, "" where it is not there, fails or hangs."""
    try:
        out, _, end = _ask(command, TOOL_TIMEOUT_S)
    except OSError:
        return ""
    return out.decode("utf-8", "replace") if end == 0 else ""


def _ask(command: Sequence[str], timeout_s: float) -> tuple[bytes, bytes, int | None]:
    """Run a command; returns what it printed, its errors and its exit code, None if it hangs."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        # one that waits in the kernel does not die of it; it is left behind then
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        return error.stdout or b"", b"", None
    return out, errors, process.returncode


def has_hardware(folder: Path) -> bool:
    """Tell whether the kernel shows a device of NVIDIA's, usable or not."""
    return any((folder / name).exists() for name in _NODES)


def _is_known(value: str) -> bool:
    return bool(value) and value.strip("[]").lower() not in (
        "n/a",
        "not supported",
        "unknown error",
    )


# judging -------------------------------------------------------------------------------------


def device_rows(
    facts: CudaFacts,
    *,
    has_hardware: bool,
    meminfo: Path,
    smi: Sequence[Mapping[str, str]],
    nvpmodel: str,
) -> list[Row]:
    """Judge what the probe and the tools said.

    Args:
        facts: Of the probe.
        has_hardware: Whether the kernel shows a device.
        meminfo: ``/proc/meminfo``.
        smi: What ``nvidia-smi`` says of each device.
        nvpmodel: What ``nvpmodel -q`` says, "" elsewhere than on a Jetson.
    """
    if facts.reason and not facts.devices:
        return [none_row(facts.reason, has_hardware=has_hardware)]
    kernel = next((fields["driver_version"] for fields in smi if "driver_version" in fields), "")
    rows = [driver_row(facts, kernel)]
    if facts.reason:
        rows.append(none_row(facts.reason, has_hardware=True))
    for device in facts.devices:
        fields = _fields_of(device, smi)
        rows += [
            kind_row(device),
            kernels_row(device, facts),
            slots_row(device, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
            memory_row(device, available_bytes(meminfo)),
            power_row(device, fields, nvpmodel),
            modes_row(device, fields),
        ]
    return rows


def none_row(reason: str, *, has_hardware: bool) -> Row:
    """Say why there is no device; that is trouble only where one is built in."""
    if not has_hardware:
        return Row(CUDA, CUDA, Status.OK, f"none: {reason}; {_ON_THE_CPU}")
    return Row(
        CUDA,
        CUDA,
        Status.WARN,
        reason,
        f"a device is built in and can't be used: device 'cuda' is refused, {_ON_THE_CPU}",
        "install a driver, and a CUDA build of torch that it serves; look at nvidia-smi and dmesg",
    )


def driver_row(facts: CudaFacts, kernel: str) -> Row:
    """Judge the driver's version.

    Args:
        facts: With the CUDA version that it serves.
        kernel: Its own version, "" where no tool tells it.
    """
    driver = facts.driver or (0, 0)
    found = f"serves CUDA {_dotted(driver)}" + f", version {kernel}" * bool(kernel)
    if driver >= facts.min_driver:
        return Row(CUDA, "driver", Status.OK, found)
    return Row(
        CUDA,
        "driver",
        Status.WARN,
        found,
        f"device 'cuda' is refused, {_ON_THE_CPU}",
        f"update it to one that serves CUDA {_dotted(facts.min_driver)} or newer",
    )


def kind_row(device: DeviceFacts) -> Row:
    """Say what the device is, and whose memory it uses."""
    memory = "integrated: shares the host's memory" if device.is_integrated else "memory of its own"
    found = f"{device.name}, sm_{device.architecture[0]}{device.architecture[1]}, {memory}"
    return Row(CUDA, _name(device), Status.OK, found)


def kernels_row(device: DeviceFacts, facts: CudaFacts) -> Row:
    """Judge whether this build of torch has kernels for the device."""
    name = f"{_name(device)} torch"
    found = f"{facts.torch}, CUDA {facts.torch_cuda}"
    if not facts.architectures:
        return Row(CUDA, name, Status.OK, f"{found}, architectures not shown")
    if any(_serves(architecture, device.architecture) for architecture in facts.architectures):
        return Row(CUDA, name, Status.OK, found)
    return Row(
        CUDA,
        name,
        Status.WARN,
        f"{found}, for {' '.join(facts.architectures)}",
        "no kernel runs on this device: every capture fails",
        f"install a build of torch for sm_{device.architecture[0]}{device.architecture[1]}",
    )


def slots_row(device: DeviceFacts, locked_limit: int) -> Row:
    """Judge how graphs read slots: in place, or out of a copy.

    Args:
        device: Whose graphs.
        locked_limit: Soft limit of locked memory, bytes.
    """
    name = f"{_name(device)} slots"
    if not device.reads_in_place:
        return Row(
            CUDA,
            name,
            Status.WARN,
            "staged: the device has no addresses of the host",
            "a payload is copied to the device once at every latch",
            "nothing on this device; keep payloads small, or use one that reads host memory",
        )
    limit = "unlimited" if locked_limit == resource.RLIM_INFINITY else f"{locked_limit // _MIB} MiB"
    if not device.refusal:
        found = f"read in place ({REGISTERED_BYTES // _MIB} MiB registered, memlock {limit})"
        return Row(CUDA, name, Status.OK, found)
    return Row(
        CUDA,
        name,
        Status.WARN,
        f"{REGISTERED_BYTES // _MIB} MiB can't be registered: {device.refusal}; memlock {limit}",
        "an engine with rings of this size does not start on it",
        "add '@realtime - memlock unlimited' to /etc/security/limits.d, log in again; "
        "or name the channels in staged_channels",
    )


def memory_row(device: DeviceFacts, available: int | None) -> Row:
    """Judge the memory that is free.

    Args:
        device: Whose.
        available: The host's ``MemAvailable``, which an integrated device can have: the page
            cache is given up for it.
    """
    name = f"{_name(device)} memory"
    free, told = device.free_bytes, ""
    if device.is_integrated and available is not None:
        free, told = max(free, available), ", the page cache counted in"
    found = f"{free // _MIB} MiB free of {device.total_bytes // _MIB} MiB{told}"
    if free >= MIN_FREE_BYTES:
        return Row(CUDA, name, Status.OK, found)
    return Row(
        CUDA,
        name,
        Status.WARN,
        found,
        "an engine may not find room for lanes and capsules: DEVICE_MEMORY",
        "free memory (nvidia-smi shows who holds it), or use fewer lanes and smaller quotas",
    )


def power_row(device: DeviceFacts, fields: Mapping[str, str], nvpmodel: str) -> Row:
    """Report the power mode; it decides the clocks, and none is wrong."""
    mode = re.search(r"NV Power Mode:\s*(\S+)", nvpmodel)
    told = [f"nvpmodel {mode[1]}"] if mode and device.is_integrated else []
    told += [fields["pstate"]] if "pstate" in fields else []
    if "enforced.power.limit" in fields:
        told.append(f"limit {fields['enforced.power.limit']}")
    return Row(CUDA, f"{_name(device)} power", Status.OK, ", ".join(told) or "unknown")


def modes_row(device: DeviceFacts, fields: Mapping[str, str]) -> Row:
    """Report persistence and MIG."""
    shown = {"persistence": "persistence_mode", "MIG": "mig.mode.current"}
    told = [f"{name} {fields[key]}" for name, key in shown.items() if key in fields]
    return Row(CUDA, f"{_name(device)} modes", Status.OK, ", ".join(told) or "unknown")


def _fields_of(device: DeviceFacts, smi: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """Find a device among those of ``nvidia-smi``, which numbers them its own way."""
    for fields in smi:
        if device.uuid and fields.get("uuid", "").endswith(device.uuid):
            return fields
    return smi[0] if len(smi) == 1 else {}


def _serves(architecture: str, device: tuple[int, int]) -> bool:
    """Tell whether kernels built for an architecture run on a device."""
    parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
    if parts is None:
        return False
    built = (int(parts[2]), int(parts[3]))
    if parts[4] == "a":
        return built == device
    if parts[1] == "compute" and not parts[4]:
        return built <= device
    return built[0] == device[0] and built[1] <= device[1]


def _name(device: DeviceFacts) -> str:
    return f"cuda:{device.index}"


def _dotted(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)
