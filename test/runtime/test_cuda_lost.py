"""What torch finds of a lost device is told as what the driver finds; a driver may be too old."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flashrt_ros.errors import BackendError
from flashrt_ros.runtime import cuda
from flashrt_ros.runtime.cuda import MIN_DRIVER

ORDERED = """
import torch
from flashrt_ros.errors import DeviceLostError
from flashrt_ros.runtime.cuda import CudaBackend
backend = CudaBackend()
with backend.ordered():
    values = torch.zeros(4, device=backend.device)
    index = torch.full((1,), 100, device=backend.device)
try:
    with backend.ordered():
        raise RuntimeError("the program's own")
except RuntimeError as error:
    print("OWN", error)
try:
    with backend.ordered():
        values.index_select(0, index).cpu()
except DeviceLostError as error:
    print("LOST", error)
backend.close()
print("CLOSED")
"""


@pytest.mark.gpu
def test_an_operator_that_loses_the_device_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORDERED], capture_output=True, text=True, timeout=120, check=False
    )
    assert "OWN the program's own" in done.stdout, done.stderr
    assert "LOST the device is lost" in done.stdout, done.stderr
    assert "CLOSED" in done.stdout, done.stderr


def test_a_driver_that_is_too_old_is_refused() -> None:
    major, minor = MIN_DRIVER
    cuda._check_driver((major, minor))
    cuda._check_driver((major + 1, 0))
    with pytest.raises(BackendError, match=f"{major}.{minor} or newer, found CUDA 11.8") as caught:
        cuda._check_driver((11, 8))
    assert "update" in (caught.value.fix or "")
