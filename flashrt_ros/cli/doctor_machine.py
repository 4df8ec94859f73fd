"""What the machine offers: cores, memory, limits, system calls."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from flashrt_ros.cli.findings import Row, Status
from flashrt_ros.engine import linux
from flashrt_ros.engine.slots import SlotMemory
from flashrt_ros.errors import FlashrtError

MACHINE = "machine"
LIMITS = "limits"
KERNEL = "kernel"

MIN_FILES = 1024
MIN_SHM_BYTES = 64 << 20
MIN_MEMORY_BYTES = 1 << 30

_CAP_SYS_NICE = 23
_MIB = 1 << 20


def check_machine() -> list[Row]:
    """Report cores, their governor, load and memory."""
    cores = len(os.sched_getaffinity(0))
    return [
        cores_row(cores),
        load_row(os.getloadavg()[0], cores),
        governor_row(Path("/sys/devices/system/cpu")),
        memory_row(Path("/proc/meminfo")),
        huge_pages_row(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        shared_memory_row(Path("/dev/shm")),
    ]


def cores_row(count: int) -> Row:
    """Judge the cores this process may use."""
    if count >= 2:
        return Row(MACHINE, "cores", Status.OK, str(count))
    return Row(
        MACHINE,
        "cores",
        Status.WARN,
        str(count),
        "engine and nodes share one core: ticks come late whenever an image is decoded",
        "give the process two cores or more",
    )


def load_row(load: float, cores: int) -> Row:
    """Judge the load of the last minute."""
    found = f"{load:.1f} over the last minute, {cores} cores"
    if load <= cores:
        return Row(MACHINE, "load", Status.OK, found)
    return Row(
        MACHINE,
        "load",
        Status.WARN,
        found,
        "ticks come late while other work runs",
        "stop other work, or set the engine's rt_priority",
    )


def governor_row(folder: Path) -> Row:
    """Judge how the cores' clock is governed."""
    files = sorted(folder.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    governors = sorted({file.read_text(encoding="ascii").strip() for file in files})
    if not governors:
        return Row(MACHINE, "governor", Status.OK, "not shown (a virtual machine or container)")
    found = ", ".join(governors)
    if governors == ["performance"]:
        return Row(MACHINE, "governor", Status.OK, found)
    return Row(
        MACHINE,
        "governor",
        Status.WARN,
        found,
        "between two ticks the clock falls: the first operators of a plan run slower",
        "cpupower frequency-set -g performance",
    )


def memory_row(file: Path) -> Row:
    """Judge the memory that is free."""
    available = available_bytes(file)
    if available is None:
        return Row(MACHINE, "memory", Status.OK, "not shown")
    found = f"{available // _MIB} MiB available"
    if available >= MIN_MEMORY_BYTES:
        return Row(MACHINE, "memory", Status.OK, found)
    return Row(
        MACHINE,
        "memory",
        Status.WARN,
        found,
        "an engine takes about 0.4 GiB, and its memory is not locked",
        "free memory, or use fewer lanes and a smaller capsule_quota_bytes",
    )


def available_bytes(file: Path) -> int | None:
    """Read ``MemAvailable``, None where it is not shown.

    Args:
        file: ``/proc/meminfo``.
    """
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def huge_pages_row(file: Path) -> Row:
    """Judge transparent huge pages."""
    name = "huge pages"
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        text = "not built into the kernel"
    if "[always]" in text or "[madvise]" in text:
        return Row(MACHINE, name, Status.OK, text)
    return Row(
        MACHINE,
        name,
        Status.WARN,
        text,
        "arenas lie in 4 KiB pages: copies of large capsules are slower",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def shared_memory_row(folder: Path) -> Row:
    """Judge the shared memory that DDS uses; slots don't lie there."""
    name = str(folder)
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        found = str(error.strerror)
        free = -1
    else:
        found = f"{free // _MIB} MiB free"
    if free >= MIN_SHM_BYTES:
        return Row(MACHINE, name, Status.OK, found)
    return Row(
        MACHINE,
        name,
        Status.WARN,
        found,
        "DDS falls back to the network stack between processes; slots are not affected",
        "mount a larger one (docker run --shm-size=256m), remove what crashed programs left",
    )


# limits --------------------------------------------------------------------------------------


def check_limits() -> list[Row]:
    """Report resource limits of this process, which an engine would inherit."""
    return [
        priority_row(
            resource.getrlimit(resource.RLIMIT_RTPRIO)[0],
            has_capability(Path("/proc/self/status"), _CAP_SYS_NICE),
        ),
        locked_memory_row(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        files_row(*resource.getrlimit(resource.RLIMIT_NOFILE), linux.num_fds()),
    ]


def has_capability(file: Path, number: int) -> bool:
    """Tell whether a capability is in the effective set of ``/proc/<pid>/status``."""
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def priority_row(limit: int, is_capable: bool) -> Row:
    """Judge whether SCHED_FIFO would be granted."""
    name = "rtprio"
    if is_capable or limit == resource.RLIM_INFINITY or limit > 0:
        reason = "CAP_SYS_NICE" if is_capable else _limit(limit)
        return Row(LIMITS, name, Status.OK, f"real-time priority is granted ({reason})")
    return Row(
        LIMITS,
        name,
        Status.WARN,
        "0: real-time priority is refused",
        "rt_priority has no effect: on busy cores ticks are missed",
        "add '@realtime - rtprio 80' to /etc/security/limits.d, join the group, log in again",
    )


def locked_memory_row(limit: int) -> Row:
    """Report how much memory may be locked; the CPU locks none, a device is asked itself."""
    return Row(LIMITS, "memlock", Status.OK, _limit(limit, _MIB, " MiB"))


def files_row(soft: int, hard: int, num_open: int) -> Row:
    """Judge how many files may be open; every client and ring takes some."""
    found = f"{_limit(soft)} (at most {_limit(hard)}), {num_open} open here"
    if soft == resource.RLIM_INFINITY or soft >= MIN_FILES:
        return Row(LIMITS, "nofile", Status.OK, found)
    return Row(
        LIMITS,
        "nofile",
        Status.WARN,
        found,
        "an engine runs out of descriptors with a few dozen clients",
        f"ulimit -n {MIN_FILES}",
    )


def _limit(value: int, unit: int = 1, suffix: str = "") -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value // unit}{suffix}"


# kernel --------------------------------------------------------------------------------------


def check_kernel() -> list[Row]:
    """Try every system call that the engine rests on."""
    return [
        attempt("memfd", _try_memfd, Status.FAIL, "no slot channel can be made"),
        attempt("timerfd", _try_timer, Status.FAIL, "the engine has no clock to tick by"),
        attempt("unix sockets", _try_socket, Status.FAIL, "no client can reach an engine"),
        attempt(
            "pidfd",
            _try_pidfd,
            Status.WARN,
            "a dead client whose children live on keeps its loans until they end",
        ),
        attempt("inotify", _try_watch, Status.WARN, "clients poll for an engine that starts"),
    ]


def attempt(name: str, action: Callable[[], str], refused: Status, problem: str) -> Row:
    """Try something; ``refused`` is the status where the kernel says no."""
    try:
        return Row(KERNEL, name, Status.OK, action())
    except (OSError, AttributeError, FlashrtError) as error:
        fix = "use Linux 5.4 or newer, and a container that allows the call"
        return Row(KERNEL, name, refused, str(error), problem, fix)


def _try_memfd() -> str:
    with SlotMemory("doctor", 4096) as memory:
        memory.seal(readers_only=True)
    return "made and sealed"


def _try_timer() -> str:
    os.close(linux.create_timer())
    return "made"


def _try_socket() -> str:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.close()
    right.close()
    return "SEQPACKET"


def _try_pidfd() -> str:
    os.close(os.pidfd_open(os.getpid()))
    return "made"


def _try_watch() -> str:
    os.close(linux.watch_folder(tempfile.gettempdir()))
    return "made"
