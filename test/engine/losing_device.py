"""A device that is lost when a file appears, for ``--model-factory losing_device:make``.

The host's backend, but for one call that fails as a device's would once a kernel of it has
failed, and takes every later call along.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.engine import assembly
from flashrt_ros.errors import DeviceLostError
from flashrt_ros.models.action_queue import counter
from flashrt_ros.models.base import Buffers, PolicyModel, Program, Slots
from flashrt_ros.models.minimal import MinimalPolicy
from flashrt_ros.runtime.backend import Fence
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.spec import BufferSpec, ShapeKey

CALL = "FLASHRT_TEST_LOSING_CALL"
"""Environment variable: name of the call that finds the device lost."""

FILE = "FLASHRT_TEST_LOSING_FILE"
"""Environment variable: the device is lost once this file is there."""

REASON = "a kernel read or wrote an address that is not mapped"


class Device:
    """Whether it is lost."""

    def __init__(self) -> None:
        self._call = os.environ[CALL]
        self._file = Path(os.environ[FILE])
        self._is_lost = False

    def call(self, name: str) -> None:
        """Fail if the device is lost, or if this call finds it so."""
        self._is_lost = self._is_lost or (name == self._call and self._file.exists())
        if self._is_lost:
            raise DeviceLostError(f"the device is lost: {REASON}")


class LosingFence(Fence):
    """Asks the device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    @property
    def is_done(self) -> bool:
        self._device.call("is_done")
        return True

    def wait(self) -> None:
        self._device.call("wait")


class LosingBackend(CpuBackend):
    """Asks the device at every call that a device's backend makes of its driver."""

    def __init__(self) -> None:
        super().__init__()
        self._device = Device()

    def copy(self, dst_address: int, src_address: int, num_bytes: int) -> None:
        self._device.call("copy")
        super().copy(dst_address, src_address, num_bytes)

    def copy_aside(self, dst_address: int, src_address: int, num_bytes: int) -> Fence:
        self._device.call("copy_aside")
        super().copy_aside(dst_address, src_address, num_bytes)
        return LosingFence(self._device)

    def write(self, address: int, data: bytes | bytearray, *, beside: bool = False) -> None:
        self._device.call("write")
        super().write(address, data, beside=beside)

    def read(self, address: int, num_bytes: int) -> bytes:
        self._device.call("read")
        return super().read(address, num_bytes)

    def fence(self) -> Fence:
        self._device.call("fence")
        return LosingFence(self._device)

    def ordered(self) -> Any:
        self._device.call("ordered")
        return super().ordered()

    def synchronize(self) -> None:
        self._device.call("synchronize")

    def unregister(self, address: int) -> None:
        self._device.call("unregister")


def make(weights: Path | None) -> PolicyModel:
    """Return the minimal policy; the engine that is made next has the losing device."""
    pytest.MonkeyPatch().setattr(assembly, "make_backend", lambda device: LosingBackend())
    return MinimalPolicy()


class FailsLater(MinimalPolicy):
    """Reads an index that leaves its range after some chunks."""

    name = "fails_later"

    def buffers(self) -> tuple[BufferSpec, ...]:
        return (*super().buffers(), counter("cursor"))

    def programs(self) -> Mapping[ShapeKey, Program]:
        programs = dict(super().programs())
        commit = programs[self.plan().commit]

        def reads_further(buffers: Buffers, slots: Slots) -> None:
            commit(buffers, slots)
            buffers["momentum"].add_(buffers["path"].index_select(0, buffers["cursor"])[0])
            buffers["cursor"].add_(4)

        return {**programs, self.plan().commit: reads_further}


def make_failing(weights: Path | None) -> PolicyModel:
    """Return the policy whose index leaves its range, for a real device."""
    return FailsLater()
