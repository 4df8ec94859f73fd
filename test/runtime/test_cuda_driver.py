"""What is made of the driver's answers, over a driver that answers as it is told."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashrt_ros.errors import BackendError, CaptureError, DeviceLostError, DeviceMemoryError
from flashrt_ros.runtime import cuda_graph, cuda_memory
from flashrt_ros.runtime.cuda_driver import Driver

ACTIVE, INVALIDATED = 1, 2
CANT = 401  # some refusal that leaves the context as it is
STREAM = 5


class Library:
    """Stands for ``libcuda``: knows which streams are under a capture, and refuses when told to.

    Attributes:
        captures: Status of each stream's capture.
        refusals: What a call answers instead of doing anything.
        calls: Names, in order.
        executables: Made and not destroyed.
    """

    def __init__(self) -> None:
        self.captures: dict[int, int] = {}
        self.refusals: dict[str, int] = {}
        self.calls: list[str] = []
        self.executables: set[int] = set()
        self.num_graphs = 0

    def bind(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            refusal = self.refusals.get(name)
            if refusal is not None:
                return refusal
            return int(getattr(self, name, lambda *_: 0)(*arguments) or 0)

        return call

    def cuStreamIsCapturing(self, stream: int, status: Any) -> None:  # noqa: N802
        status._obj.value = self.captures.get(stream, 0)

    def cuStreamBeginCapture_v2(self, stream: int, mode: int) -> int:  # noqa: N802
        if stream in self.captures:
            return CANT
        self.captures[stream] = ACTIVE
        return 0

    def cuStreamEndCapture(self, stream: int, graph: Any) -> int:  # noqa: N802
        status = self.captures.pop(stream, 0)
        if status != ACTIVE:
            return 901
        self.num_graphs += 1
        graph._obj.value = 77
        return 0

    def cuGraphDestroy(self, graph: Any) -> None:  # noqa: N802
        self.num_graphs -= 1

    def cuGraphInstantiateWithFlags(self, executable: Any, graph: int, flags: int) -> None:  # noqa: N802
        executable._obj.value = 99
        self.executables.add(99)

    def cuGraphExecDestroy(self, executable: int) -> None:  # noqa: N802
        self.executables.remove(executable)


class ToldDriver(Driver):
    """The driver over a library in Python."""

    def __init__(self, library: Library) -> None:
        names = (*_names("_SIGNATURES"), *_names("_WAITING"))
        self._calls = {name: library.bind(name) for name in names}
        self._error_name = self._error_text = _say


def _names(table: str) -> tuple[str, ...]:
    from flashrt_ros.runtime import cuda_driver

    return tuple(getattr(cuda_driver, table))


def _say(status: int, text: Any) -> int:
    ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"SAID"
    return 0


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def driver(library: Library) -> Driver:
    return ToldDriver(library)


# what an answer means ------------------------------------------------------------------------


@pytest.mark.parametrize("status", [214, 220, 226, 700, 702, 709, 710, 714, 719, 721, 911, 999])
def test_after_these_the_context_is_gone(driver: Driver, library: Library, status: int) -> None:
    library.refusals["cuStreamSynchronize"] = status
    with pytest.raises(DeviceLostError, match=f"SAID \\({status}\\)"):
        driver.synchronize(STREAM)


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(712, id="registered already"),
        pytest.param(713, id="not registered"),
        pytest.param(900, id="not while a stream captures"),
        pytest.param(2, id="out of memory"),
    ],
)
def test_after_these_the_device_goes_on(driver: Driver, library: Library, status: int) -> None:
    library.refusals["cuMemHostUnregister"] = status
    with pytest.raises(BackendError) as caught:
        driver.unregister(4096)
    assert not isinstance(caught.value, DeviceLostError)


def test_an_executable_that_can_not_be_uploaded_is_destroyed(
    driver: Driver, library: Library
) -> None:
    assert driver.instantiate(1, STREAM) in library.executables  # the control
    library.executables.clear()
    library.refusals["cuGraphUpload"] = CANT
    with pytest.raises(BackendError):
        driver.instantiate(1, STREAM)
    assert not library.executables


# captures that fail --------------------------------------------------------------------------


class TorchGraph:
    """Ends the captures that it began, as torch does."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.has_begun = False
        self.is_reset = False

    def begin(self) -> None:
        self.has_begun = True
        self.library.captures[STREAM] = ACTIVE

    def capture_end(self) -> None:
        if not self.has_begun:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if self.library.captures.pop(STREAM, 0) != ACTIVE:
            raise RuntimeError("operation failed due to a previous error during capture")

    def reset(self) -> None:
        self.is_reset = True


class TorchStream:
    handle = STREAM


@pytest.mark.parametrize("status", [0, ACTIVE, INVALIDATED])
@pytest.mark.parametrize("has_begun", [True, False])
def test_no_stream_stays_under_a_capture_that_failed(
    driver: Driver, library: Library, status: int, has_begun: bool
) -> None:
    graph: Any = TorchGraph(library)
    stream: Any = TorchStream()
    if has_begun:
        graph.begin()
    if status:
        library.captures[STREAM] = status
    else:
        library.captures.clear()
    cuda_graph._leave(graph, driver, stream)
    assert not library.captures
    assert not library.num_graphs
    assert graph.is_reset
    driver.restart_capture(STREAM)  # the stream takes the next one
    assert library.captures == {STREAM: ACTIVE}


# memory that is exhausted --------------------------------------------------------------------


@pytest.fixture
def full_device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 100))
    return torch.device("cuda", 0)


def exhausted() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")


def test_memory_that_torch_does_not_find_is_told_with_figures(full_device: torch.device) -> None:
    with (
        pytest.raises(DeviceMemoryError, match="10 of 100 bytes free") as caught,
        cuda_memory.exhaustion_told("the model", full_device),
    ):
        raise exhausted()
    assert "the model does not fit" in str(caught.value)
    assert "Tried to allocate 2.00 GiB" in str(caught.value)
    assert "more" not in str(caught.value)


def test_a_program_that_finds_no_memory_is_told_as_that(full_device: torch.device) -> None:
    with (
        pytest.raises(DeviceMemoryError),
        cuda_memory.exhaustion_told("the capture of a program", full_device),
    ):
        raise CaptureError("it raised OutOfMemoryError") from exhausted()


class Filler:
    """Fills memory of the host; finds the device lost when told to."""

    def __init__(self) -> None:
        self.is_lost = False

    def fill(self, target: int, value: int, num_bytes: int, stream: int) -> None:
        assert stream == STREAM
        ctypes.memset(target, value, num_bytes)

    def synchronize(self, stream: int) -> None:
        if self.is_lost:
            raise DeviceLostError("lost")


@pytest.fixture
def filler(monkeypatch: pytest.MonkeyPatch) -> Filler:
    class Current:
        cuda_stream = STREAM

    filler = Filler()
    monkeypatch.setattr(cuda_memory, "driver", lambda: filler)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Current())
    return filler


def test_memory_of_the_device_is_zero(filler: Filler) -> None:
    made = cuda_memory.allocate(4096, torch.device("cpu"), "a block")
    assert made.dtype == torch.uint8
    assert made.tolist() == [0] * 4096


def test_a_device_that_is_lost_when_memory_is_asked_for_says_so(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "empty", fails)
    with pytest.raises(RuntimeError, match="illegal"):
        cuda_memory.allocate(64, torch.device("cpu"), "a block")
    filler.is_lost = True
    with pytest.raises(DeviceLostError):
        cuda_memory.allocate(64, torch.device("cpu"), "a block")


def test_other_refusals_stay_what_they_are(full_device: torch.device) -> None:
    with (
        pytest.raises(CaptureError, match="its own"),
        cuda_memory.exhaustion_told("the capture of a program", full_device),
    ):
        raise CaptureError("its own") from ValueError("something else")


# locked memory -------------------------------------------------------------------------------


class Locker:
    """Hands out memory of the host as the driver does, and counts it."""

    def __init__(self) -> None:
        self.given: dict[int, Any] = {}
        self.sizes: list[int] = []
        self.refusal: BackendError | None = None

    def allocate_host(self, num_bytes: int) -> int:
        if self.refusal is not None:
            raise self.refusal
        memory = (ctypes.c_uint8 * num_bytes)(*([0xAA] * num_bytes))
        address = ctypes.addressof(memory)
        self.given[address] = memory
        self.sizes.append(num_bytes)
        return address

    def free_host(self, address: int) -> None:
        del self.given[address]
        if self.refusal is not None:
            raise self.refusal


@pytest.fixture
def locker(monkeypatch: pytest.MonkeyPatch) -> Locker:
    locker = Locker()
    monkeypatch.setattr(cuda_memory, "driver", lambda: locker)
    return locker


def test_locked_memory_is_as_much_as_was_asked_for_and_zero(locker: Locker) -> None:
    with cuda_memory.HostBlock(1000, torch.device("cuda", 0)) as block:
        assert locker.sizes == [1000]
        assert bytes(block.view()) == bytes(1000)
        block.view()[8:12] = b"\1\0\0\0"
        assert block.tensor("int32", (2,), 8).tolist() == [1, 0]
        assert ctypes.string_at(block.address + 8, 1) == b"\1"
        assert list(locker.given) == [block.address]
    assert not locker.given


def test_it_is_there_for_as_long_as_a_view_of_it_is(locker: Locker) -> None:
    block = cuda_memory.HostBlock(64, torch.device("cuda", 0))
    tensor, view = block.tensor("uint8", (64,)), block.view()
    block.close()
    assert locker.given
    tensor.fill_(7)
    del tensor
    assert locker.given
    assert bytes(view) == bytes([7]) * 64
    del view
    assert not locker.given
    with pytest.raises(BackendError, match="closed"):
        block.view()


def test_memory_that_can_not_be_locked_is_told_and_a_lost_device_is_not_hidden(
    locker: Locker,
) -> None:
    locker.refusal = BackendError("refused", found="out of memory (2)")
    with pytest.raises(BackendError, match="64 bytes of host memory can't be locked") as caught:
        cuda_memory.HostBlock(64, torch.device("cuda", 0))
    assert "out of memory" in str(caught.value)
    locker.refusal = DeviceLostError("lost")
    with pytest.raises(DeviceLostError):
        cuda_memory.HostBlock(64, torch.device("cuda", 0))


def test_what_a_lost_device_does_not_take_back_is_no_error(locker: Locker) -> None:
    block = cuda_memory.HostBlock(64, torch.device("cuda", 0))
    locker.refusal = DeviceLostError("lost")
    block.close()
    assert not locker.given
