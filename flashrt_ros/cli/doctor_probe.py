"""What the CUDA device says of itself: asked in a process of its own, which may hang or die.

``python -m flashrt_ros.cli.doctor_probe`` prints what it knows after every stage, so that
the last line tells how far it came.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from flashrt_ros.errors import BackendError

REGISTERED_BYTES = 64 << 20
"""How much host memory is registered to see whether it can be; more than rings take."""

MARK = "facts="
"""Begins every line that holds facts."""


class DeviceFacts(msgspec.Struct, frozen=True):
    """What is known of one device.

    Attributes:
        index: Of ``cuda:N``.
        name: As the driver says.
        uuid: As the driver says, "" where torch does not tell it.
        architecture: Major and minor.
        is_integrated: Whether it shares the host's memory.
        reads_in_place: Whether it says that registered host memory keeps its address.
        refusal: Why registering host memory failed, "" where it did not.
        free_bytes: Memory that is free; on an integrated device without the page cache.
        total_bytes: Memory there is.
    """

    index: int
    name: str
    uuid: str
    architecture: tuple[int, int]
    is_integrated: bool
    reads_in_place: bool
    refusal: str
    free_bytes: int
    total_bytes: int


class CudaFacts(msgspec.Struct, frozen=True):
    """What is known of CUDA on this machine.

    Attributes:
        stage: What was done next when these were told, "" at the end.
        torch: Version, "" where torch is not there.
        torch_cuda: CUDA version it is built for, "" where it is built without.
        architectures: Those it has kernels for, as "sm_90".
        driver: Newest CUDA version that the driver serves, None where there is no driver.
        min_driver: Oldest that is supported.
        reason: Why no device can be used, "" where one can.
        devices: Those there are.
    """

    stage: str = ""
    torch: str = ""
    torch_cuda: str = ""
    architectures: tuple[str, ...] = ()
    driver: tuple[int, int] | None = None
    min_driver: tuple[int, int] = (0, 0)
    reason: str = ""
    devices: tuple[DeviceFacts, ...] = ()


class Driver(Protocol):
    """The calls of ``runtime.cuda_driver.Driver`` that are made here."""

    def version(self) -> tuple[int, int]:
        """Return the newest CUDA version that the driver serves."""

    def attribute(self, attribute: Any, device: int) -> int:
        """Return a device's attribute."""

    def register(self, address: int, num_bytes: int) -> int:
        """Lock host pages and map them for the device; returns their device address."""

    def unregister(self, address: int) -> None:
        """Undo :meth:`register`."""


def look(torch: Any, open_driver: Callable[[], Driver]) -> Iterator[CudaFacts]:
    """Look at the device, stage by stage; yields what is known before each.

    Args:
        torch: The module.
        open_driver: Opens the driver.
    """
    from flashrt_ros.runtime.cuda import MIN_DRIVER

    facts = CudaFacts(
        stage="opening the driver",
        torch=str(torch.__version__),
        torch_cuda=torch.version.cuda or "",
        min_driver=MIN_DRIVER,
    )
    replace = msgspec.structs.replace
    yield facts
    if not facts.torch_cuda:
        yield replace(facts, stage="", reason=f"torch {facts.torch} is built without CUDA")
        return
    try:
        driver = open_driver()
        facts = replace(facts, driver=driver.version())
    except BackendError as error:
        yield replace(facts, stage="", reason=f"no driver: {error.found or error}")
        return
    facts = replace(facts, stage="initialising CUDA")
    yield facts
    try:
        count = torch.cuda.device_count()
        if count:
            torch.cuda.init()
    except RuntimeError as error:
        yield replace(facts, stage="", reason=_first_line(error))
        return
    if not count:
        yield replace(facts, stage="", reason="the driver shows no device")
        return
    facts = replace(facts, architectures=tuple(torch.cuda.get_arch_list()))
    for index in range(count):
        facts = replace(facts, stage=f"looking at cuda:{index}")
        yield facts
        try:
            found = _look_at(torch, driver, index)
        except (RuntimeError, BackendError) as error:
            yield replace(facts, stage="", reason=f"cuda:{index}: {_first_line(error)}")
            return
        facts = replace(facts, devices=(*facts.devices, found))
    yield replace(facts, stage="")


def _look_at(torch: Any, driver: Driver, index: int) -> DeviceFacts:
    from flashrt_ros.runtime.cuda_driver import Attribute

    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    reads_in_place = bool(
        driver.attribute(Attribute.HOST_REGISTER_SUPPORTED, index)
        and driver.attribute(Attribute.CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, index)
    )
    return DeviceFacts(
        index=index,
        name=properties.name,
        uuid=str(getattr(properties, "uuid", "")),
        architecture=(properties.major, properties.minor),
        is_integrated=bool(driver.attribute(Attribute.INTEGRATED, index)),
        reads_in_place=reads_in_place,
        refusal=_refusal(driver) if reads_in_place else "",
        free_bytes=free,
        total_bytes=total,
    )


def _refusal(driver: Driver) -> str:
    """Register memory as a ring's is registered, and give it back."""
    from flashrt_ros.runtime.arena import Block

    with contextlib.ExitStack() as undo:
        block = undo.enter_context(Block(REGISTERED_BYTES))
        try:
            found = driver.register(block.address, REGISTERED_BYTES)
        except BackendError as error:
            return str(error.found or error)
        undo.callback(driver.unregister, block.address)
        return "" if found == block.address else "the device reads it at an address of its own"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def main() -> int:
    """Print the facts, a line after each stage."""
    try:
        import torch

        from flashrt_ros.runtime.cuda_driver import Driver as CudaDriver
    except ImportError as error:
        _tell(CudaFacts(reason=f"torch can't be imported: {_first_line(error)}"))
        return 0
    for facts in look(torch, CudaDriver):
        _tell(facts)
    return 0


def _tell(facts: CudaFacts) -> None:
    print(MARK + msgspec.json.encode(facts).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
