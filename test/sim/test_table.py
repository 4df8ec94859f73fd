"""The table without ROS: exact poses, equal futures, and the environment's own pixels."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.sim.camera import SceneCamera
from flashrt_ros.sim.episodes import HELD_OUT_SEEDS, sample_blocks, sample_episode, sample_points
from flashrt_ros.sim.table import Table, TableState, block_shift


def test_reset_places_everything_exactly() -> None:
    with Table() as table:
        for seed in HELD_OUT_SEEDS[:5]:
            episode = table.reset(seed)
            assert episode == sample_episode(seed)
            np.testing.assert_allclose(table.block(), episode.block, atol=1e-12)
            np.testing.assert_allclose(table.agent(), episode.agent, atol=1e-12)
            assert table.state().agent_velocity == (0.0, 0.0)


def test_the_blocks_centre_is_the_simulators_centre_of_gravity() -> None:
    with Table() as table:
        for seed in HELD_OUT_SEEDS[:5]:
            table.reset(seed)
            body = table._environment.block
            center = np.array(body.local_to_world(body.center_of_gravity)) / 1000
            np.testing.assert_allclose(table.block_center(), center, atol=1e-9)
            assert abs(np.subtract(table.block_center(), table.block()[:2])).max() > 0.01


def test_images_are_the_environments_own() -> None:
    with Table() as table:
        for seed in HELD_OUT_SEEDS[:10]:
            table.reset(seed)
            image = table.render()
            assert image.shape == (96, 96, 3)
            assert image.dtype == np.uint8
            np.testing.assert_array_equal(image, table._environment._render())


def test_images_are_rgb_and_show_the_agent_where_it_is() -> None:
    with Table() as table:
        table.set_state(TableState((0.1, 0.4), (0.0, 0.0), (0.3, 0.2, 0.5)))
        image = table.render().astype(int)
    bluest = np.unravel_index((image[..., 2] - image[..., 0]).argmax(), (96, 96))
    np.testing.assert_allclose(np.array(bluest) * 512 / 96, (400, 100), atol=20)


def test_the_training_camera_sees_the_same_pixels() -> None:
    generator = np.random.default_rng(2)
    blocks = sample_blocks(generator, 40)
    agents = np.stack([sample_points(generator, blocks) for _ in range(2)], 1)
    camera = SceneCamera()
    with Table() as table:
        for block, pair in zip(blocks, agents, strict=True):
            for agent, image in zip(pair.tolist(), camera.render(block, pair), strict=True):
                x, y, angle = block.tolist()
                table.set_state(TableState((agent[0], agent[1]), (0.0, 0.0), (x, y, angle)))
                np.testing.assert_array_equal(image, table.render())


def _push(table: Table, num_ticks: int) -> TableState:
    for _ in range(num_ticks):
        table.step((0.256, 0.45))
    return table.state()


def test_equal_states_have_equal_futures_whatever_went_before() -> None:
    touching = TableState((0.256, 0.16), (0.05, 0.2), (0.25, 0.2, 0.3))
    with Table() as table, Table() as other:
        table.set_state(touching)
        first = _push(table, 6)
        assert block_shift(touching.block, first.block) > 0.005
        other.reset(3)
        _push(other, 9)
        other.set_state(touching)
        assert _push(other, 6) == first
        assert _push(other, 1) != first


def test_targets_are_clipped_to_the_table() -> None:
    with Table() as table:
        table.set_state(TableState((0.4, 0.1), (0.0, 0.0), (0.2, 0.3, 0.0)))
        for _ in range(30):
            table.step((5.0, -5.0))
        np.testing.assert_allclose(table.agent(), (0.512, 0.0), atol=1e-3)


@pytest.mark.parametrize(("after", "shift"), [((0.2, 0.2, 0.0), 0.0), ((0.203, 0.204, 0.0), 0.005)])
def test_block_shift_of_a_translation(after: tuple[float, float, float], shift: float) -> None:
    assert block_shift((0.2, 0.2, 0.0), after) == pytest.approx(shift)


def test_block_shift_counts_a_turn_at_its_far_end() -> None:
    assert block_shift((0.2, 0.2, 0.0), (0.2, 0.2, 0.1)) == pytest.approx(
        2 * np.hypot(0.12, 0.015) * np.sin(0.05)
    )


def test_close_twice_is_fine() -> None:
    table = Table()
    table.close()
    table.close()
