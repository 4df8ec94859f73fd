"""Counts what processes hold, so that what they leak shows; Linux only, needs no ROS."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_DDS = ("/dev/shm/fastrtps", "/dev/shm/sem.fastrtps", "/dev/shm/fast_datasharing")
"""The middleware's own shared memory, which follows discovery and not clients."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a process has open.

    Attributes:
        num_fds: Open descriptors, the middleware's shared memory apart.
        num_mappings: Mappings of anonymous shared memory (``memfd``).
    """

    num_fds: int
    num_mappings: int


def holdings(pid: int) -> Holdings:
    """Count what a process of this user has open.

    Raises:
        OSError: It is gone, or not ours.
    """
    num_fds = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # closed meanwhile, such as the one this listing needs
            continue
        num_fds += not target.startswith(_DDS)
    return Holdings(num_fds, len(shared_mappings(pid)))


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping of anonymous shared memory.

    Attributes:
        start: First address in its process.
        num_bytes: Length.
        is_writable: May be written through.
        offset: Of its start in the memory.
        device: As ``os.stat`` gives it.
        inode: Names the memory, machine-wide, together with the device.
    """

    start: int
    num_bytes: int
    is_writable: bool
    offset: int
    device: int
    inode: int


def shared_mappings(pid: int) -> list[Mapping]:
    """List a process's mappings of ``memfd`` memory.

    Raises:
        OSError: It is gone, or not ours.
    """
    found = []
    with Path(f"/proc/{pid}/maps").open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if "/memfd:" not in line:
                continue
            span, mode, offset, device, inode = line.split()[:5]
            start, end = (int(part, 16) for part in span.split("-"))
            major, minor = (int(part, 16) for part in device.split(":"))
            found.append(
                Mapping(
                    start=start,
                    num_bytes=end - start,
                    is_writable="w" in mode,
                    offset=int(offset, 16),
                    device=os.makedev(major, minor),
                    inode=int(inode),
                )
            )
    return found


def find_mapping(pid: int, is_wanted: Callable[[Mapping], bool]) -> Mapping | None:
    """Return the first mapping of shared memory that is wanted, None if a process has none."""
    return next(filter(is_wanted, shared_mappings(pid)), None)


def marked_processes(variable: str, value: str) -> list[int]:
    """Find processes started with a variable in their environment, their children included.

    Args:
        variable: Name that nothing else uses.
        value: Chosen by who started them.

    Returns:
        Process ids without the caller's. Of a zombie nothing is left to find.
    """
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # another user's, or gone
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(entry.name))
    return sorted(found)
