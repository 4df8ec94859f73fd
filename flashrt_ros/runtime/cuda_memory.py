"""Memory of a CUDA device, and host memory that the device reads in place."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from flashrt_ros.errors import (
    BackendError,
    CaptureError,
    DeviceLostError,
    DeviceMemoryError,
    SpecError,
)
from flashrt_ros.runtime.arena import DTYPES, Arena, Block
from flashrt_ros.runtime.cuda_driver import Driver, driver
from flashrt_ros.runtime.spec import (
    PAGE_BYTES,
    ArenaLayout,
    Placement,
    Role,
    round_up,
)

_FIX = "use fewer lanes, a smaller capsule quota or a smaller model, or free memory on the device"


class _Memory:
    """Hands memory that torch did not allocate to torch, by the array interface.

    The interface knows no bfloat16, so it is bytes here and viewed as what it is later.
    """

    def __init__(self, address: int, num_bytes: int, keep: object) -> None:
        self._keep = keep
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def view_bytes(
    address: int, num_bytes: int, device: torch.device, keep: object = None
) -> torch.Tensor:
    """View bytes that the device reaches as ``uint8[num_bytes]``, in place.

    Args:
        address: Of device memory, or of registered host memory.
        num_bytes: Positive.
        device: Reads them.
        keep: Lives as long as the tensor.
    """
    return torch.as_tensor(_Memory(address, num_bytes, keep), device=device)


@contextmanager
def exhaustion_told(what: str, device: torch.device, wanted: str = "") -> Iterator[None]:
    """Say with figures that the device's memory was exhausted in the block.

    Args:
        what: What did not fit.
        device: Whose memory.
        wanted: How much that is; what torch says if empty.

    Raises:
        DeviceMemoryError: It was.
    """
    try:
        yield
    except (torch.OutOfMemoryError, CaptureError) as error:
        cause = error.__cause__ if isinstance(error, CaptureError) else error
        if not isinstance(cause, torch.OutOfMemoryError):
            raise
        # What torch keeps for another time is free as well.
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        raise DeviceMemoryError(
            f"{what} does not fit the memory of {device}",
            expected=wanted or str(cause).partition("\n")[0],
            found=f"{free} of {total} bytes free",
            fix=_FIX,
        ) from error


def allocate(num_bytes: int, device: torch.device, what: str) -> torch.Tensor:
    """Allocate ``uint8[num_bytes]`` on the device, zeroed.

    Raises:
        DeviceMemoryError: There is no such memory; nothing stays allocated.
        DeviceLostError: The device's context is gone.
    """
    calls, stream = driver(), int(torch.cuda.current_stream(device).cuda_stream)
    try:
        with exhaustion_told(what, device, f"{num_bytes} bytes"):
            # The allocator splits and caches: a block that is given back can be had again.
            tensor = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    except RuntimeError:
        calls.synchronize(stream)  # where the device is lost, the driver says so
        raise
    calls.fill(tensor.data_ptr(), 0, num_bytes, stream)
    calls.synchronize(stream)
    return tensor


class CudaBlock(Block):
    """Device memory at one address for the block's whole life.

    Ownership: tensors over the block keep its memory alive.

    Args:
        num_bytes: Bytes wanted.
        device: Where.
        what: Names it in messages.

    Raises:
        SpecError: ``num_bytes`` is not positive.
        DeviceMemoryError: The device has no such memory.
    """

    def __init__(self, num_bytes: int, device: torch.device, what: str = "a block") -> None:
        if num_bytes <= 0:
            raise SpecError("a block has no bytes", expected="a positive size", found=num_bytes)
        self._num_bytes = num_bytes
        self._memory: torch.Tensor | None = allocate(num_bytes, device, what)
        self.address = self._memory.data_ptr()

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._memory is None

    def view(self) -> memoryview:
        """Refuse: the host can't see these bytes.

        Raises:
            BackendError: Always.
        """
        raise BackendError(
            "device memory can't be viewed by the host", fix="use the backend's read and write"
        )

    def tensor(self, dtype: str, shape: tuple[int, ...], offset: int = 0) -> torch.Tensor:
        """Return a contiguous tensor over part of the block.

        Raises:
            BackendError: The block is closed.
        """
        if self._memory is None:
            raise BackendError(f"a block of {self._num_bytes} bytes is closed")
        return slice_bytes(self._memory, dtype, shape, offset)

    def close(self) -> None:
        """Give the memory back; idempotent. Tensors over it stay valid."""
        self._memory = None


class HostBlock(Block):
    """Locked memory of the host that the device reads and writes in place.

    The driver's own, and exactly as much as is asked for: torch's allocator of locked memory
    rounds up to powers of two, and does not know which graphs use what it hands out again.

    Ownership: tensors over the block keep its memory alive.

    Args:
        num_bytes: Bytes wanted.
        device: Reads and writes them.

    Raises:
        SpecError: ``num_bytes`` is not positive.
        BackendError: The host has no such memory.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        if num_bytes <= 0:
            raise SpecError("a block has no bytes", expected="a positive size", found=num_bytes)
        self._num_bytes = num_bytes
        self._device = device
        try:
            memory = _lock(num_bytes)
        except DeviceLostError:
            raise
        except BackendError as error:
            raise BackendError(
                f"{num_bytes} bytes of host memory can't be locked for {device}",
                found=error.found,
                fix="free memory on the host, or use a smaller quota",
            ) from error
        self._memory: torch.Tensor | None = memory.zero_()
        self.address = memory.data_ptr()

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._memory is None

    def view(self) -> memoryview:
        """Return the bytes, writable, in place.

        Raises:
            BackendError: The block is closed.
        """
        return self._open().numpy().data

    def tensor(self, dtype: str, shape: tuple[int, ...], offset: int = 0) -> torch.Tensor:
        """Return a contiguous tensor of the host over part of the block.

        Raises:
            BackendError: The block is closed.
        """
        return slice_bytes(self._open(), dtype, shape, offset)

    def device_tensor(self, dtype: str, shape: tuple[int, ...], offset: int = 0) -> torch.Tensor:
        """Return a contiguous tensor of the device over part of the block, in place.

        Raises:
            BackendError: The block is closed.
        """
        memory = self._open()
        whole = view_bytes(self.address, self._num_bytes, self._device, keep=memory)
        return slice_bytes(whole, dtype, shape, offset)

    def close(self) -> None:
        """Let go of the memory; idempotent. No graph may use it any more."""
        self._memory = None

    def _open(self) -> torch.Tensor:
        if self._memory is None:
            raise BackendError(f"a block of {self._num_bytes} bytes is closed")
        return self._memory


def _lock(num_bytes: int) -> torch.Tensor:
    """Allocate locked memory as ``uint8[num_bytes]``; freed with the last tensor over it."""
    calls = driver()
    address = calls.allocate_host(num_bytes)
    pages = (ctypes.c_uint8 * num_bytes).from_address(address)
    # At the end of the process the driver may be gone before; the memory goes with either.
    weakref.finalize(pages, _free, calls, address).atexit = False
    return torch.frombuffer(pages, dtype=torch.uint8)


def _free(calls: Driver, address: int) -> None:
    # After a device error nothing can be given back, and nothing needs to be.
    with suppress(BackendError):
        calls.free_host(address)


def slice_bytes(
    memory: torch.Tensor, dtype: str, shape: tuple[int, ...], offset: int
) -> torch.Tensor:
    """View part of ``uint8`` memory as a contiguous tensor, in place."""
    num_bytes = torch.Size(shape).numel() * DTYPES[dtype].itemsize
    return memory[offset : offset + num_bytes].view(DTYPES[dtype]).view(shape)


class CudaArena(Arena):
    """Lanes in device memory; their OUTPUT buffers in host memory that graphs write in place.

    So what a plan gives away is on the host when its last node has completed, with no copy.

    Args:
        layout: Offsets within a lane; those of OUTPUT buffers hold nothing here.
        num_lanes: Lanes to begin with, at least one.
        device: Where.
        allocate_host: Makes the block for OUTPUT.

    Raises:
        SpecError: ``num_lanes`` is not positive.
        DeviceMemoryError: The device has no such memory.
    """

    def __init__(
        self,
        layout: ArenaLayout,
        *,
        num_lanes: int,
        device: torch.device,
        allocate_host: Callable[[int], HostBlock],
    ) -> None:
        self._device = device
        outputs = [place for place in layout.placements if place.spec.role is Role.OUTPUT]
        self._outputs_start = outputs[0].offset if outputs else 0
        ends = (place.offset + place.spec.num_bytes for place in outputs)
        self._outputs_bytes = max(ends, default=0) - self._outputs_start
        self._outputs_pitch = round_up(self._outputs_bytes, PAGE_BYTES)
        self._outputs: HostBlock | None = None
        self._allocate_host = allocate_host
        super().__init__(layout, num_lanes=num_lanes)

    def host_address(self, lane: int, buffer: str) -> int:
        """Address at which the host reads an OUTPUT buffer, once its graph has completed."""
        self.lane_address(lane)
        assert self._outputs is not None
        place = self._layout.by_name[buffer]
        start = self._outputs.address + lane * self._outputs_pitch
        return start + place.offset - self._outputs_start

    def pitch_bytes(self, buffer: str) -> int:
        """Bytes from a buffer in one lane to the same buffer in the next."""
        is_output = self._layout.by_name[buffer].spec.role is Role.OUTPUT
        return self._outputs_pitch if is_output else self._layout.lane_bytes

    def locate(self, address: int) -> tuple[int, Placement, int] | None:
        """Say which byte of which buffer lies at an address, OUTPUT in host memory included."""
        outputs = self._outputs
        if outputs is not None:
            inside = address - outputs.address
            if 0 <= inside < self._outputs_pitch * self._num_lanes:
                lane, offset = divmod(inside, self._outputs_pitch)
                place = self._placement_at(self._outputs_start + offset)
                return lane, place, self._outputs_start + offset - place.offset
        return super().locate(address)

    def close(self) -> None:
        """Give the memory back; idempotent. Graphs over it must not be replayed any more."""
        super().close()
        if self._outputs is not None:
            self._outputs.close()

    def _allocate(self, num_bytes: int) -> Block:
        if self._outputs_bytes:
            if self._outputs is not None:
                self._outputs.close()
            num_lanes = num_bytes // self._layout.lane_bytes
            self._outputs = self._allocate_host(self._outputs_pitch * num_lanes)
        return CudaBlock(num_bytes, self._device, f"an arena of {num_bytes} bytes")

    def _move(self, target: Block, source: Block, num_bytes: int) -> None:
        target.tensor("uint8", (num_bytes,)).copy_(source.tensor("uint8", (num_bytes,)))
        torch.cuda.current_stream(self._device).synchronize()

    def _make_views(self, lane: int) -> dict[str, torch.Tensor]:
        views = super()._make_views(lane)
        if self._outputs is not None:
            for name, place in self._layout.by_name.items():
                if place.spec.role is Role.OUTPUT:
                    offset = lane * self._outputs_pitch + place.offset - self._outputs_start
                    views[name] = self._outputs.device_tensor(
                        place.spec.dtype, place.spec.shape, offset
                    )
        return views
