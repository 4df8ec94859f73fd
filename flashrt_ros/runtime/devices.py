"""Backends by the name of their device; imports without torch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flashrt_ros.errors import ConfigError

if TYPE_CHECKING:
    from flashrt_ros.runtime.backend import Backend

_DEVICE = re.compile(r"cpu|cuda(?::\d{1,3})?")


def check_device(device: str) -> None:
    """Refuse what is no device's name; whether it is there shows when it is opened.

    Raises:
        ConfigError: It is none.
    """
    if not _DEVICE.fullmatch(device):
        raise ConfigError("unknown device", expected="'cpu', 'cuda' or 'cuda:N'", found=device)


def make_backend(device: str, *, is_background: bool = False) -> Backend:
    """Open a device.

    Args:
        device: "cpu", "cuda" (device 0) or "cuda:N".
        is_background: Whether what is submitted gives way to other backends of the process on
            the same device; nothing on the host, where each does what it is asked at once.

    Returns:
        Its backend; the caller closes it.

    Raises:
        ConfigError: There is no such kind of device.
        BackendError: The device is not there, or its driver can't be used.
    """
    check_device(device)
    if device == "cpu":
        from flashrt_ros.runtime.cpu import CpuBackend

        return CpuBackend()
    from flashrt_ros.runtime.cuda import CudaBackend

    return CudaBackend(int(device.partition(":")[2] or 0), is_background=is_background)
