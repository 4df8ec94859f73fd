"""What a buffer is damaged with: finite, and other than it was."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.proof.damage import damages
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_damage_is_finite_and_differs(dtype: str) -> None:
    layout = ArenaLayout.of([BufferSpec("state", (3,), dtype, Role.STATE)])
    place = layout.placements[0]
    now = bytes(layout.capsule_bytes)
    other = bytes([1]) + now[1:]
    found = list(damages(place, now, [other]))
    assert len(found) >= 2 or dtype == "bool"
    for label, value in found:
        assert value.shape == (3,), label
        assert bool(torch.isfinite(value.to(torch.float64)).all())
        assert value.view(torch.uint8).numpy().tobytes() != now[: place.spec.num_bytes]
