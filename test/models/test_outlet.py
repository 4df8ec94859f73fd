"""What a program writes into an outlet's row, and what it tells the host of it."""

from __future__ import annotations

import math

import pytest
import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.models.outlet import OutletSpec, judged
from flashrt_ros.runtime.arena import DTYPES
from flashrt_ros.runtime.spec import ChannelRole, ChannelSpec, FieldSpec, Role

FIELDS = (
    FieldSpec("pose", (2, 3), "float32", -1.0, 1.0, "m"),
    FieldSpec("latent", (5,), "float16"),
    FieldSpec("index", (2,), "int64", 0, 7),
    FieldSpec("flag", (1,), "bool"),
)
OUTLET = OutletSpec(ChannelSpec("latent", ChannelRole.GOAL, FIELDS), num_rows=3)
VALUES = {
    "pose": torch.tensor([[0.5, -0.25, 0.0], [2.0, 0.0, 0.0]]),
    "latent": torch.tensor([1.0, math.nan, 2.0, 3.0, 4.0], dtype=torch.float16),
    "index": torch.tensor([3, 5]),
    "flag": torch.tensor([True]),
}


@pytest.fixture
def buffers() -> dict[str, torch.Tensor]:
    """A lane's, with the second row bound."""
    made = {
        spec.name: torch.zeros(spec.shape, dtype=DTYPES[spec.dtype]) for spec in OUTLET.buffers()
    }
    made[OUTLET.binding][0] = 1
    return made


def test_its_buffers_say_what_they_are_for() -> None:
    rows, binding, extremes = OUTLET.buffers()
    assert (rows.role, rows.shape) == (Role.SCRATCH, (3, 4 * 256))
    assert (binding.role, binding.shape) == (Role.BINDING, (1,))
    assert (extremes.role, extremes.shape) == (Role.OUTPUT, (4, 2))


def test_every_field_lands_in_the_bound_row_alone(buffers: dict[str, torch.Tensor]) -> None:
    for name, value in VALUES.items():
        OUTLET.write(buffers, name, value)
    rows = buffers[OUTLET.rows]
    assert not rows[0].any()
    assert not rows[2].any()
    for part in FIELDS:
        start = OUTLET.channel.field_offset(part.name)
        found = rows[1, start : start + part.num_bytes].view(DTYPES[part.dtype])
        assert torch.equal(found.view(torch.uint8), VALUES[part.name].reshape(-1).view(torch.uint8))


def test_the_host_is_told_least_and_greatest(buffers: dict[str, torch.Tensor]) -> None:
    for name, value in VALUES.items():
        OUTLET.write(buffers, name, value)
    pose, latent, index, flag = buffers[OUTLET.extremes].tolist()
    assert pose == [-0.25, 2.0]
    assert all(map(math.isnan, latent))
    assert index == [3.0, 5.0]
    assert flag == [0.0, 0.0], "no value of it is refused"
    assert [judged(part) for part in FIELDS] == [True, True, True, False]


def test_an_unknown_field_is_refused(buffers: dict[str, torch.Tensor]) -> None:
    with pytest.raises(SpecError, match="no field 'pise'"):
        OUTLET.write(buffers, "pise", VALUES["pose"])
    assert not buffers[OUTLET.rows].any()
