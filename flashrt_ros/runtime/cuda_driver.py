"""The few calls of the CUDA driver that the runtime makes itself.

A replay and the marks around it are three driver calls of about a microsecond each;
torch's own replay takes ten times that, because it looks up streams and generators.
Calls that return at once keep the interpreter's lock: giving it up and taking it back
can cost a switch interval when another thread runs. Those that wait release it.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from collections.abc import Callable

from flashrt_ros.errors import BackendError, DeviceLostError

NOT_READY = 600
"""What the driver says of work that goes on; no failure."""

_LOST = {
    # The context is gone after these: every later call fails with the same error.
    214: "an uncorrectable memory error",
    220: "an uncorrectable NVLink error",
    226: "an error that the device contained, at the price of the process",
    700: "a kernel read or wrote an address that is not mapped",
    702: "a kernel ran into the time limit",
    709: "its context destroyed",
    710: "a kernel's assertion failed (an index out of range, usually)",
    714: "a hardware stack error",
    715: "an illegal instruction",
    716: "a misaligned address",
    717: "an invalid address space",
    718: "an invalid program counter",
    719: "a kernel failed",
    721: "tensor memory that a kernel did not give back",
    911: "an error of another device",
    999: "an unknown error",
}

_P, _I, _U, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_ADDRESS = ctypes.c_uint64

_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuDriverGetVersion": (_P,),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuMemHostRegister_v2": (_P, _SIZE, _U),
    "cuMemHostGetDevicePointer_v2": (_P, _P, _U),
    "cuMemcpyAsync": (_ADDRESS, _ADDRESS, _SIZE, _P),
    "cuMemsetD8Async": (_ADDRESS, ctypes.c_ubyte, _SIZE, _P),
    "cuEventCreate": (_P, _U),
    "cuEventDestroy_v2": (_P,),
    "cuEventRecord": (_P, _P),
    "cuEventQuery": (_P,),
    "cuStreamWaitEvent": (_P, _P, _U),
    "cuStreamIsCapturing": (_P, _P),
    "cuStreamBeginCapture_v2": (_P, _I),
    "cuStreamEndCapture": (_P, _P),
    "cuGraphDestroy": (_P,),
    "cuGraphGetNodes": (_P, _P, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, ctypes.c_ulonglong),
    "cuGraphUpload": (_P, _P),
    "cuGraphLaunch": (_P, _P),
    "cuGetErrorName": (_I, _P),
    "cuGetErrorString": (_I, _P),
}
_WAITING: dict[str, tuple[object, ...]] = {
    "cuMemHostAlloc": (_P, _SIZE, _U),
    "cuMemFreeHost": (_P,),
    "cuMemHostUnregister": (_P,),
    "cuGraphExecDestroy": (_P,),
    "cuEventSynchronize": (_P,),
    "cuStreamSynchronize": (_P,),
}

_EVENT_DISABLE_TIMING = 2
_CAPTURE_NONE = 0
_CAPTURE_INVALIDATED = 2
_CAPTURE_THREAD_LOCAL = 1
_REGISTER_PORTABLE_MAPPED = 3
_ALLOCATE_PORTABLE_MAPPED = 3


class Attribute(enum.IntEnum):
    """Device attributes, by the driver's numbers."""

    INTEGRATED = 18
    CAN_MAP_HOST_MEMORY = 19
    CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91
    HOST_REGISTER_SUPPORTED = 99


class Driver:
    """Typed calls of ``libcuda``, each checked.

    The calling thread must have the device's context: torch gives it one with
    ``torch.cuda.set_device``.

    Raises:
        BackendError: There is no driver.
    """

    def __init__(self) -> None:
        try:
            direct, waiting = ctypes.PyDLL("libcuda.so.1"), ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise BackendError(
                "the CUDA driver can't be loaded",
                expected="libcuda.so.1",
                found=error,
                fix="install the NVIDIA driver, or run with device 'cpu'",
            ) from error
        self._error_name = _bind(direct, "cuGetErrorName", _SIGNATURES["cuGetErrorName"])
        self._error_text = _bind(direct, "cuGetErrorString", _SIGNATURES["cuGetErrorString"])
        self._calls = {
            **{name: _bind(direct, name, types) for name, types in _SIGNATURES.items()},
            **{name: _bind(waiting, name, types) for name, types in _WAITING.items()},
        }
        # Bound once: these are on the path of every tick.
        self._launch = self._calls["cuGraphLaunch"]
        self._record = self._calls["cuEventRecord"]
        self._query = self._calls["cuEventQuery"]
        self._wait = self._calls["cuStreamWaitEvent"]
        self._copy = self._calls["cuMemcpyAsync"]

    # the device ------------------------------------------------------------------------------

    def version(self) -> tuple[int, int]:
        """Return the newest CUDA version that the driver serves."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def attribute(self, attribute: Attribute, device: int) -> int:
        """Return a device's attribute."""
        number = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(number), int(attribute), device)
        return number.value

    # memory ----------------------------------------------------------------------------------

    def register(self, address: int, num_bytes: int) -> int:
        """Lock host pages and map them for the device; returns their device address.

        Waits for nothing, but its undoing waits for the device to be idle.
        """
        self._call("cuMemHostRegister_v2", address, num_bytes, _REGISTER_PORTABLE_MAPPED)
        device = ctypes.c_uint64()
        try:
            self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(device), address, 0)
        except BackendError:
            self.unregister(address)
            raise
        return device.value

    def unregister(self, address: int) -> None:
        """Undo :meth:`register`; returns once the device is idle."""
        self._call("cuMemHostUnregister", address)

    def allocate_host(self, num_bytes: int) -> int:
        """Allocate locked host memory that the device reaches at the same address."""
        address = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(address), num_bytes, _ALLOCATE_PORTABLE_MAPPED)
        return int(address.value or 0)

    def free_host(self, address: int) -> None:
        """Free what :meth:`allocate_host` gave; nothing under way may use it."""
        self._call("cuMemFreeHost", address)

    def copy(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Submit a copy; the addresses say which way it goes."""
        self._check(self._copy(target, source, num_bytes, stream), "a copy")

    def fill(self, target: int, value: int, num_bytes: int, stream: int) -> None:
        """Submit the filling of device memory with one byte's value."""
        self._call("cuMemsetD8Async", target, value, num_bytes, stream)

    # events and streams ----------------------------------------------------------------------

    def create_event(self) -> int:
        """Make an event that takes no time stamps."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), _EVENT_DISABLE_TIMING)
        return int(event.value or 0)

    def destroy_event(self, event: int) -> None:
        """Free an event."""
        self._call("cuEventDestroy_v2", event)

    def record(self, event: int, stream: int) -> None:
        """Have an event mark what was submitted to a stream so far."""
        self._check(self._record(event, stream), "an event")

    def is_done(self, event: int) -> bool:
        """Tell whether what an event marked has completed."""
        status = self._query(event)
        if status == NOT_READY:
            return False
        self._check(status, "the device's work")
        return True

    def wait_event(self, event: int) -> None:
        """Return when what an event marked has completed."""
        self._call("cuEventSynchronize", event)

    def order(self, stream: int, event: int) -> None:
        """Have what is submitted to a stream from now on wait for an event."""
        self._check(self._wait(stream, event, 0), "an order of streams")

    def synchronize(self, stream: int) -> None:
        """Return when everything submitted to a stream has completed."""
        self._call("cuStreamSynchronize", stream)

    def is_capture_broken(self, stream: int) -> bool:
        """Tell whether a stream is under a capture that can't be ended well any more."""
        return self._capture_status(stream) == _CAPTURE_INVALIDATED

    def end_capture(self, stream: int) -> None:
        """End a stream's capture, broken or not, and forget it; nothing without one."""
        if self._capture_status(stream) == _CAPTURE_NONE:
            return
        graph = ctypes.c_void_p()
        # Of a broken one the driver says so here, and ends it even so.
        self._calls["cuStreamEndCapture"](stream, ctypes.byref(graph))
        if graph.value:
            self._call("cuGraphDestroy", graph)

    def restart_capture(self, stream: int) -> None:
        """End a stream's capture, broken or not, and begin one that holds nothing.

        For who can only end a capture that is whole.
        """
        self.end_capture(stream)
        self._call("cuStreamBeginCapture_v2", stream, _CAPTURE_THREAD_LOCAL)

    # graphs ----------------------------------------------------------------------------------

    def num_nodes(self, graph: int) -> int:
        """Count the nodes of a graph."""
        number = ctypes.c_size_t()
        self._call("cuGraphGetNodes", graph, None, ctypes.byref(number))
        return number.value

    def instantiate(self, graph: int, stream: int) -> int:
        """Make a graph ready to launch, its nodes already on the device."""
        executable = ctypes.c_void_p()
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
        handle = int(executable.value or 0)
        try:
            self._call("cuGraphUpload", handle, stream)
        except BackendError:
            self.destroy_graph(handle)
            raise
        return handle

    def launch(self, executable: int, stream: int) -> None:
        """Submit a graph."""
        self._check(self._launch(executable, stream), "a graph's launch")

    def destroy_graph(self, executable: int) -> None:
        """Free what :meth:`instantiate` made; none of its launches may be under way."""
        self._call("cuGraphExecDestroy", executable)

    # inside ----------------------------------------------------------------------------------

    def _capture_status(self, stream: int) -> int:
        status = ctypes.c_int()
        self._call("cuStreamIsCapturing", stream, ctypes.byref(status))
        return status.value

    def _call(self, name: str, *arguments: object) -> None:
        self._check(self._calls[name](*arguments), name)

    def _check(self, status: int, what: str) -> None:
        if not status:
            return
        found = f"{self._text(self._error_name, status)} ({status})"
        reason = _LOST.get(status)
        if reason is not None:
            raise DeviceLostError(
                f"the device is lost: {what} found {reason}",
                found=found,
                fix="end the process; a supervisor starts it anew",
            )
        message = f"{what} was refused by the CUDA driver"
        raise BackendError(message, found=f"{found}: {self._text(self._error_text, status)}")

    def _text(self, call: Callable[..., int], status: int) -> str:
        text = ctypes.c_char_p()
        call(status, ctypes.byref(text))
        return (text.value or b"unknown").decode()


@functools.cache
def driver() -> Driver:
    """Return the process's driver.

    Raises:
        BackendError: There is none.
    """
    return Driver()


def _bind(library: ctypes.CDLL, name: str, types: tuple[object, ...]) -> Callable[..., int]:
    function = getattr(library, name)
    function.argtypes = types
    function.restype = ctypes.c_int
    bound: Callable[..., int] = function
    return bound
