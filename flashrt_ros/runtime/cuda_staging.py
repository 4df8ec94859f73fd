"""Locked memory between the host's bytes and the device's, for small and rare transfers."""

from __future__ import annotations

import ctypes

import torch

from flashrt_ros.runtime.backend import PASSED, Fence
from flashrt_ros.runtime.cuda_driver import Driver
from flashrt_ros.runtime.cuda_memory import HostBlock
from flashrt_ros.runtime.cuda_streams import Streams

_HALF_BYTES = 1 << 19


class Staging:
    """Writes bytes of the host into the device in order, and reads bytes back.

    A write is copied into locked memory and submitted from there, so that it neither waits
    for the device nor keeps the caller's bytes. The memory is used in two halves, each
    again once the copies out of it are done.

    Args:
        driver: Calls.
        streams: Writes go to the state stream.
        device: Where to.
    """

    def __init__(self, driver: Driver, streams: Streams, device: torch.device) -> None:
        self._driver = driver
        self._streams = streams
        self._outgoing = HostBlock(2 * _HALF_BYTES, device)
        self._incoming = HostBlock(_HALF_BYTES, device)
        self._half = 0
        self._used = 0
        self._left: list[Fence] = [PASSED, PASSED]

    def write(self, address: int, data: bytes | bytearray, *, beside: bool) -> None:
        """Submit the writing of bytes; ``data`` may change at once."""
        for start in range(0, len(data), _HALF_BYTES):
            self._write(address + start, bytes(data[start : start + _HALF_BYTES]), beside)

    def read(self, address: int, num_bytes: int) -> bytes:
        """Return bytes as of all that is submitted; waits for it."""
        parts = []
        for start in range(0, num_bytes, _HALF_BYTES):
            length = min(_HALF_BYTES, num_bytes - start)
            stream = self._streams.before_state()
            self._driver.copy(self._incoming.address, address + start, length, stream.handle)
            self._streams.submitted(stream)
            self._streams.fence().wait()
            parts.append(ctypes.string_at(self._incoming.address, length))
        return b"".join(parts)

    def close(self) -> None:
        """Let go of the memory; idempotent. Everything submitted must have completed."""
        self._outgoing.close()
        self._incoming.close()

    def _write(self, address: int, data: bytes, beside: bool) -> None:
        if self._used + len(data) > _HALF_BYTES:
            self._left[self._half] = self._streams.fence()
            self._half = 1 - self._half
            self._used = 0
            self._left[self._half].wait()
        source = self._outgoing.address + self._half * _HALF_BYTES + self._used
        ctypes.memmove(source, data, len(data))
        self._used += len(data)
        stream = self._streams.before_state(beside=beside)
        self._driver.copy(address, source, len(data), stream.handle)
        self._streams.submitted(stream)
