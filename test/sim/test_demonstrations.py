"""Training data: deterministic, unused rows zero, chunks that keep off the block."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.sim.demonstrations import ChunkFormat, Demonstrations, sample_demonstrations
from flashrt_ros.sim.expert import AGENT_RADIUS_M, block_corners, clearance

COUNT = 2000
FORM = ChunkFormat(horizon=16, execute_horizon=8, num_latches=2)


@pytest.fixture(scope="module")
def data() -> Demonstrations:
    return sample_demonstrations(np.random.default_rng(3), COUNT, FORM)


def test_shapes(data: Demonstrations) -> None:
    shapes = {
        "features": (16,),
        "agent_pos": (2,),
        "goal": (2,),
        "history": (2, 19),
        "tail": (8, 3),
        "chunk": (16, 2),
    }
    for name, shape in shapes.items():
        column = getattr(data, name)
        assert column.shape == (COUNT, *shape)
        assert column.dtype == np.float32
        assert np.isfinite(column).all()


def test_equal_generators_give_equal_data(data: Demonstrations) -> None:
    again = sample_demonstrations(np.random.default_rng(3), COUNT, FORM)
    np.testing.assert_array_equal(again.chunk, data.chunk)
    np.testing.assert_array_equal(again.history, data.history)


def test_unused_rows_are_zero_and_newest_come_first(data: Demonstrations) -> None:
    used = data.history[..., -1] > 0
    assert not data.history[~used].any()
    assert not data.tail[~used[:, 0]].any()
    assert (used[:, 0] | ~used[:, 1]).all()
    assert 0.05 < (~used[:, 0]).mean() < 0.3
    assert (data.tail[used[:, 0], :, -1] == 1.0).all()


def test_features_are_the_corners_but_for_a_few_millimetres(data: Demonstrations) -> None:
    error = data.features.reshape(COUNT, 8, 2) - block_corners(data.block)
    assert 0.001 < np.hypot(error[..., 0], error[..., 1]).mean() < 0.008


def test_chunks_start_at_the_agent_and_keep_off_the_block(data: Demonstrations) -> None:
    first = np.hypot(*(data.chunk[:, 0] - data.agent_pos).T)
    assert np.quantile(first, 0.99) < 0.08
    gaps = clearance(data.block, data.chunk.astype(np.float64)).min(-1)
    assert np.quantile(gaps, 0.01) > AGENT_RADIUS_M + 0.01
    assert gaps.min() > 0.0


def test_many_chunks_end_at_the_goal_and_none_beyond_the_table(data: Demonstrations) -> None:
    left = np.hypot(*(data.chunk[:, -1] - data.goal).T)
    assert (left < 0.002).mean() > 0.2
    assert data.chunk.min() > 0.0
    assert data.chunk.max() < 0.512
