"""Policies of the benches: their sums, their sizes, their factories."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.bench import models
from flashrt_ros.bench.checksums import checksum, read_checksum
from flashrt_ros.bench.devices import HostDevice
from flashrt_ros.bench.stand import Stand
from flashrt_ros.bench.wide_flow import WideFlowPolicy
from flashrt_ros.models.base import CHUNK, PolicyModel
from flashrt_ros.models.checks import check_model
from flashrt_ros.runtime.spec import ArenaLayout


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_a_sum_survives_the_chunk(values: list[int]) -> None:
    payload = np.array(values, np.int64)
    buffers = {CHUNK: torch.zeros(8, 2)}
    models.write_checksum(buffers, [torch.from_numpy(payload)])
    assert read_checksum(buffers[CHUNK].numpy().tobytes()) == checksum(payload)
    assert checksum(payload) == sum(values) % 2**64


@pytest.mark.parametrize(
    "model",
    [
        models.StatefulPolicy(1 << 20, work=1),
        models.GoalPolicy(4096),
        models.CameraPolicy(),
        WideFlowPolicy(width=64, layers=1, num_bytes=1 << 16),
    ],
    ids=lambda model: model.name,
)
def test_a_policy_fits_together_and_steps(model: PolicyModel) -> None:
    check_model(model)
    with Stand(HostDevice(), model) as stand:
        stand.activate()
        stand.feed()
        first = stand.step(model.execute_horizon + 1)
        assert len(first.chunks) == 2
        assert np.isfinite(np.frombuffer(first.chunks[0].actions, np.float32)).all()


def test_ballast_is_as_large_as_asked_for() -> None:
    layout = ArenaLayout.of(models.StatefulPolicy(1 << 20).buffers())
    assert (1 << 20) * 0.99 < layout.capsule_bytes < (1 << 20) * 1.05


def test_factories_are_found_by_name() -> None:
    module, _, name = models.stateful_factory(1 << 20, 2).partition(":")
    assert module == models.__name__
    made = getattr(models, name)(None)
    assert isinstance(made, models.StatefulPolicy)
    assert made.weights_digest() == "bench-2"
    goal = getattr(models, models.goal_factory(4096).partition(":")[2])(None)
    assert goal.channels()[0].payload_bytes == 4096
    assert isinstance(models.camera_policy(None), models.CameraPolicy)


@pytest.mark.parametrize("name", ["goal_big", "stateful_1", "other_1", "stateful_a_b"])
def test_other_names_are_no_factories(name: str) -> None:
    with pytest.raises(AttributeError):
        getattr(models, name)
