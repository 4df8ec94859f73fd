from __future__ import annotations

import mmap
import os
import secrets
import subprocess
import sys

import pytest

from flashrt_ros.demo.census import (
    Holdings,
    find_mapping,
    holdings,
    marked_processes,
    shared_mappings,
)


def test_descriptors_and_mappings_are_counted() -> None:
    before = holdings(os.getpid())
    fd = os.memfd_create("census")
    try:
        os.ftruncate(fd, 2 * mmap.PAGESIZE)
        with mmap.mmap(fd, mmap.PAGESIZE, offset=mmap.PAGESIZE):
            # CPython keeps a descriptor of its own for each mapping.
            expected = Holdings(before.num_fds + 2, before.num_mappings + 1)
            assert holdings(os.getpid()) == expected
    finally:
        os.close(fd)
    assert holdings(os.getpid()) == before


def test_a_mapping_says_what_memory_it_is() -> None:
    fd = os.memfd_create("census")
    try:
        os.ftruncate(fd, 2 * mmap.PAGESIZE)
        status = os.fstat(fd)
        with mmap.mmap(fd, mmap.PAGESIZE, offset=mmap.PAGESIZE):
            found = find_mapping(os.getpid(), lambda one: one.inode == status.st_ino)
            assert found is not None
            assert found.device == status.st_dev
            assert found.offset == mmap.PAGESIZE
            assert found.num_bytes == mmap.PAGESIZE
            assert found.is_writable
    finally:
        os.close(fd)
    assert find_mapping(os.getpid(), lambda one: one.inode == status.st_ino) is None


def test_private_memory_is_no_mapping() -> None:
    before = len(shared_mappings(os.getpid()))
    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        assert len(shared_mappings(os.getpid())) == before


def test_marked_processes_are_found_with_their_children() -> None:
    token = secrets.token_hex(8)
    code = (
        "import subprocess, sys\n"
        "with subprocess.Popen([sys.executable, '-c', 'input()'], stdin=sys.stdin) as child:\n"
        "    print(child.pid, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "FLASHRT_ROS_TEST": token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert set(marked_processes("FLASHRT_ROS_TEST", token)) == {parent.pid, child}
        assert marked_processes("FLASHRT_ROS_TEST", token + "x") == []
        parent.communicate("\n", timeout=20)
    assert marked_processes("FLASHRT_ROS_TEST", token) == []


def test_a_process_that_is_gone_is_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(20)
    with pytest.raises(OSError, match="No such"):
        holdings(child.pid)
