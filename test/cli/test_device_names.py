"""A device that can't be used is named as it was asked for."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.errors import BackendError
from flashrt_ros.runtime.devices import make_backend


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
@pytest.mark.parametrize("problem", ["no build", "no driver"])
def test_a_device_that_can_t_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, device: str, problem: str
) -> None:
    def count() -> int:
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(torch.version, "cuda", None if problem == "no build" else "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", count)
    with pytest.raises(BackendError, match=f"^device '{device}' can't be used"):
        make_backend(device)
