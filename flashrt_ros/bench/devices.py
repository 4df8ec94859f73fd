"""The device a bench runs on: its backend, its clock, and what a raw copy is there."""

from __future__ import annotations

import abc
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from flashrt_ros import __version__
from flashrt_ros.bench.sampling import NO_SAMPLE, Sample, Timer
from flashrt_ros.errors import ConfigError
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.cuda_memory import view_bytes
from flashrt_ros.runtime.devices import make_backend

MIN_CORES = 16
"""Of a machine, from which on some targets bind: with fewer, processes take turns."""

_HEAD_START_BYTES = 1 << 30
"""Copied on a GPU before a timing, so that the host is ahead of the device; empties its cache."""


class Device(abc.ABC):
    """A device: its clock, its memory, and what to call it.

    Attributes:
        name: As in configurations.
        backend: A backend of the bench's own; an engine has another.
    """

    name: str
    backend: Backend

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """The hardware, in words."""

    @property
    @abc.abstractmethod
    def free_bytes(self) -> int:
        """Memory that can be had."""

    @property
    @abc.abstractmethod
    def num_allocations(self) -> int | None:
        """Allocations of device memory so far; None where there is none of its own."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors go."""
        return self.backend.device

    @abc.abstractmethod
    def settle(self) -> None:
        """Wait until nothing runs on the device."""

    def time_wall(self, run: Callable[[], object]) -> tuple[Sample, object]:
        """Time a call until all that it submitted is done, by the host's clock."""
        self.settle()
        begun = time.perf_counter_ns()
        answer = run()
        self.settle()
        wall_ns = time.perf_counter_ns() - begun
        return Sample(wall_ns, wall_ns), answer

    @abc.abstractmethod
    def timer(self, backend: Backend) -> Timer:
        """Return what times calls that submit work to a backend.

        On the device between two events, and on the host.
        """

    @abc.abstractmethod
    def torch_timer(self, backend: Backend) -> Timer:
        """Return what times torch operators in a backend's order; as :meth:`timer` does."""

    @abc.abstractmethod
    def raw_copy(
        self, target_address: int, source_address: int, num_bytes: int
    ) -> Callable[[], object]:
        """Return a call that copies bytes with what the platform has for it, and no more.

        Both ranges are the device's and stay mapped. Time it with :meth:`torch_timer`.
        """

    @abc.abstractmethod
    def memory(self, address: int, num_bytes: int) -> torch.Tensor:
        """Return memory of the device as ``uint8[num_bytes]``, without a copy; it stays mapped."""

    def versions(self) -> dict[str, str]:
        """Return the versions of what figures depend on."""
        found = {
            "flashrt_ros": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": importlib.metadata.version("numpy"),
            "kernel": platform.release(),
        }
        if importlib.util.find_spec("rclpy") is not None:
            found["ros"] = os.environ.get("ROS_DISTRO") or _version("ros-rclpy")
        return found


class HostDevice(Device):
    """The CPU, with one intra-op thread as an engine has by default."""

    def __init__(self) -> None:
        self.name = "cpu"
        self.backend = make_backend(self.name)
        torch.set_num_threads(1)

    @property
    def title(self) -> str:
        """Processor and number of cores."""
        return f"{cpu_name()}, {num_cores()} cores"

    @property
    def free_bytes(self) -> int:
        """MemAvailable."""
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return 0

    @property
    def num_allocations(self) -> None:
        """None: the device's memory is the host's."""
        return

    def settle(self) -> None:
        """Return at once: every call runs to its end."""

    def timer(self, backend: Backend) -> Timer:
        """Return the host's clock; the device has no other."""
        return time_host

    def torch_timer(self, backend: Backend) -> Timer:
        """Return the host's clock."""
        return time_host

    def raw_copy(
        self, target_address: int, source_address: int, num_bytes: int
    ) -> Callable[[], object]:
        """Return a ``memmove``."""
        return lambda: ctypes.memmove(target_address, source_address, num_bytes)

    def memory(self, address: int, num_bytes: int) -> torch.Tensor:
        """Return a tensor over it."""
        pages = (ctypes.c_uint8 * num_bytes).from_address(address)
        return torch.frombuffer(pages, dtype=torch.uint8)


class GpuDevice(Device):
    """The first CUDA device.

    Raises:
        ConfigError: There is none.
        BackendError: Its driver can't be used.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(
                "there is no CUDA device that torch can use",
                fix="run on a machine with one, or with --device cpu",
            )
        self.name = "cuda"
        self.backend = make_backend(self.name)
        torch.set_num_threads(1)
        self._pads = [
            torch.empty(_HEAD_START_BYTES, dtype=torch.uint8, device=self.torch_device)
            for _ in range(2)
        ]

    @property
    def title(self) -> str:
        """GPU and the host's cores."""
        return f"{torch.cuda.get_device_name(0)}, {num_cores()} cores"

    @property
    def free_bytes(self) -> int:
        """Free memory of the device."""
        return int(torch.cuda.mem_get_info(0)[0])

    @property
    def num_allocations(self) -> int:
        """Allocations that torch's allocator has made so far."""
        return int(torch.cuda.memory_stats(0).get("allocation.all.allocated", 0))

    def settle(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize()

    def timer(self, backend: Backend) -> Timer:
        """Return two events, with the device busy until the host is ahead of it.

        They stand in the order of replays and copies; the second waits for every stream.
        """

        def time_call(run: Callable[[], object]) -> tuple[Sample, object]:
            start, end = _event(), _event()
            self.settle()
            with backend.ordered():
                self._head_start()
                start.record()
            begun = time.perf_counter_ns()
            answer = run()
            host_ns = time.perf_counter_ns() - begun
            with backend.ordered():
                end.record()
            end.synchronize()
            return Sample(start.elapsed_time(end) * 1e6, host_ns), answer

        return time_call

    def torch_timer(self, backend: Backend) -> Timer:
        """Return two events on the stream that the operators run on."""

        def time_call(run: Callable[[], object]) -> tuple[Sample, object]:
            start, end = _event(), _event()
            self.settle()
            with backend.ordered():
                self._head_start()
                start.record()
                begun = time.perf_counter_ns()
                answer = run()
                host_ns = time.perf_counter_ns() - begun
                end.record()
            end.synchronize()
            return Sample(start.elapsed_time(end) * 1e6, host_ns), answer

        return time_call

    def raw_copy(
        self, target_address: int, source_address: int, num_bytes: int
    ) -> Callable[[], object]:
        """Return one contiguous ``copy_``: a single ``cudaMemcpyAsync``."""
        target = self.memory(target_address, num_bytes)
        source = self.memory(source_address, num_bytes)
        return lambda: target.copy_(source, non_blocking=True)

    def memory(self, address: int, num_bytes: int) -> torch.Tensor:
        """Return a tensor over it."""
        return view_bytes(address, num_bytes, self.torch_device)

    def versions(self) -> dict[str, str]:
        """Return those of the host, and CUDA's."""
        return {**super().versions(), "cuda": str(torch.version.cuda)}

    def _head_start(self) -> None:
        self._pads[0].copy_(self._pads[1])


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


DEVICES: dict[str, type[HostDevice] | type[GpuDevice]] = {"cpu": HostDevice, "cuda": GpuDevice}
"""Devices by name."""


def time_host(run: Callable[[], object]) -> tuple[Sample, object]:
    """Time a call by the host's clock; for calls to other processes."""
    begun = time.perf_counter_ns()
    answer = run()
    spent_ns = time.perf_counter_ns() - begun
    return Sample(spent_ns, spent_ns), answer


def time_reported(run: Callable[[], object]) -> tuple[Sample, object]:
    """Take the time that a call itself found, ns; the sample does not count if it found none."""
    spent_ns = run()
    if not isinstance(spent_ns, int):
        return Sample(float("nan"), float("nan")), NO_SAMPLE
    return Sample(spent_ns, spent_ns), spent_ns


def num_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """Return the processor's name as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
