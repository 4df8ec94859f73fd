"""A device, a context with a small budget, and a folder of this test's sockets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flashrt_ros.bench.context import Context
from flashrt_ros.bench.devices import HostDevice
from flashrt_ros.bench.sampling import Budget
from flashrt_ros.cli.bench_crew import hire
from flashrt_ros.engine import address

TINY_S = 0.5
"""Enough for the fewest rounds at the smallest size."""


@pytest.fixture
def make_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Context]:
    """Makes contexts for the CPU; engines put their sockets into the test's folder."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(address.FOLDER_VARIABLE, raising=False)

    def make(seconds: float = TINY_S, **options: object) -> Context:
        return Context(HostDevice(), Budget(seconds), hire, **options)  # type: ignore[arg-type]

    return make
