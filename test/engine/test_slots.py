from __future__ import annotations

import errno
import fcntl
import mmap
import os

import pytest

from flashrt_ros.engine import linux
from flashrt_ros.engine.slots import SlotMemory, map_received
from flashrt_ros.errors import SharedMemoryError


def test_sealed_memory_cannot_be_resized_nor_unsealed() -> None:
    with SlotMemory("test", 8192) as memory:
        memory.seal()
        for size in (0, 4096, 16384):
            with pytest.raises(PermissionError) as caught:
                os.ftruncate(memory.fd, size)
            assert caught.value.errno == errno.EPERM
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_unsealed_memory_can_be_cut_and_is_refused_by_a_client() -> None:
    """The control of the test above: it is the seal that refuses."""
    with SlotMemory("test", 8192) as memory:
        os.ftruncate(memory.fd, 4096)
        os.ftruncate(memory.fd, 8192)
        with pytest.raises(SharedMemoryError, match="can't be trusted"):
            map_received(os.dup(memory.fd), 8192, writable=True)


def test_memory_smaller_than_announced_is_refused() -> None:
    with SlotMemory("test", 4096) as memory:
        memory.seal()
        with pytest.raises(SharedMemoryError, match="4096 bytes"):
            map_received(os.dup(memory.fd), 8192, writable=False)


def test_received_descriptor_is_closed_whatever_happens() -> None:
    with SlotMemory("test", 4096) as memory:
        memory.seal()
        fd = os.dup(memory.fd)
        map_received(fd, 4096, writable=False).close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_output_memory_takes_no_new_writer_but_keeps_the_old_one() -> None:
    with SlotMemory("test", 4096) as memory:
        writer = mmap.mmap(memory.fd, 4096)
        memory.seal(readers_only=True)
        with pytest.raises(SharedMemoryError, match="mapped"):
            map_received(os.dup(memory.fd), 4096, writable=True)
        with pytest.raises(PermissionError):
            os.write(memory.fd, b"x")
        reader = map_received(os.dup(memory.fd), 4096, writable=False)
        writer[:5] = b"hello"
        assert reader[:5] == b"hello"
        with pytest.raises(TypeError):
            reader[:1] = b"x"
        reader.close()
        writer.close()


def test_close_is_idempotent() -> None:
    memory = SlotMemory("test", 4096)
    memory.close()
    memory.close()


def test_locate_agrees_with_the_descriptor() -> None:
    address = linux.map_private(12288)
    assert linux.locate(address + 5)[1:] == (0, 0)
    with SlotMemory("test", 8192) as memory:
        memory.seal()
        linux.remap_shared(address + 4096, 8192, memory.fd)
        assert linux.locate(address + 4096 + 5000) == (memory.device, memory.inode, 5000)
    linux.unmap(address, 12288)
    with pytest.raises(SharedMemoryError, match="nothing is mapped"):
        linux.locate(address)
