"""The backend of a host, for tests of what others don't do, or do in another way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.cpu import CpuBackend


@pytest.fixture
def backend() -> Iterator[Backend]:
    with CpuBackend() as backend:
        yield backend
