from __future__ import annotations

import ast
import hashlib
import inspect
import math
import statistics

import numpy as np
import pytest

from flashrt_ros.errors import ParameterRangeError, SpecError
from flashrt_ros.runtime import noise
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.noise import NoiseRing, draw_normal, inverse_normal, natural_log

NORMAL = statistics.NormalDist()


def test_bytes_are_pinned() -> None:
    draws = draw_normal(2024, 7, (64, 3))
    assert draws.dtype == np.float32
    assert draws.shape == (64, 3)
    assert hashlib.sha256(draws.tobytes()).hexdigest() == GOLDEN_DIGEST
    assert draws.reshape(-1)[:4].tobytes().hex() == GOLDEN_FIRST


def test_bytes_are_pinned_far_in_the_tails() -> None:
    p = np.concatenate([0.5 ** np.arange(1.0, 54.0), 1.0 - 0.5 ** np.arange(2.0, 54.0)])
    assert hashlib.sha256(inverse_normal(p).tobytes()).hexdigest() == GOLDEN_TAILS


GOLDEN_DIGEST = "31117dd004da59279eaac26672e4cb1b85c9706dda3b5b2b6d40ede999c9dc3f"
GOLDEN_FIRST = "8a69763f9b7787bdedebd7bffb111040"
GOLDEN_TAILS = "9309d27331caa32692e81d88249145caeb982cde9d52f891d27f1b5ba8cb84f7"


def test_same_arguments_give_the_same_bytes_and_others_do_not() -> None:
    first = draw_normal(1, 2, (16,)).tobytes()
    assert draw_normal(1, 2, (16,)).tobytes() == first
    assert draw_normal(1, 3, (16,)).tobytes() != first
    assert draw_normal(2, 2, (16,)).tobytes() != first


def test_shape_does_not_change_the_values() -> None:
    assert draw_normal(5, 0, (6, 2)).tobytes() == draw_normal(5, 0, (12,)).tobytes()


def test_draws_that_follow_each_other_share_no_values() -> None:
    values = np.concatenate([draw_normal(9, counter, (1000,)) for counter in range(20)])
    assert np.unique(values).size > values.size - 20  # float32: a few meet by chance


def test_mean_variance_and_tails() -> None:
    values = np.concatenate([draw_normal(3, counter, (50_000,)) for counter in range(8)])
    wide = values.astype(np.float64)
    n = wide.size
    assert abs(wide.mean()) < 4.0 / math.sqrt(n)
    assert abs(wide.var() - 1.0) < 4.0 * math.sqrt(2.0 / n)
    assert abs((wide**3).mean()) < 4.0 * math.sqrt(15.0 / n)
    assert abs((wide**4).mean() - 3.0) < 4.0 * math.sqrt(96.0 / n)
    assert abs((np.abs(wide) > 3.0).mean() - math.erfc(3.0 / math.sqrt(2.0))) < 4e-4


def test_kolmogorov_smirnov_against_the_error_function() -> None:
    values = np.sort(draw_normal(11, 4, (20_000,)).astype(np.float64))
    cdf = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in values])
    n = values.size
    steps = np.arange(n + 1) / n
    distance = max(np.max(steps[1:] - cdf), np.max(cdf - steps[:-1]))
    assert distance < 1.63 / math.sqrt(n)  # 1% level


def test_kolmogorov_smirnov_finds_a_shift() -> None:
    values = np.sort(draw_normal(11, 4, (20_000,)).astype(np.float64) + 0.05)
    cdf = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in values])
    n = values.size
    assert np.max(np.abs(np.arange(1, n + 1) / n - cdf)) > 1.63 / math.sqrt(n)


def test_neighbouring_draws_and_values_are_uncorrelated() -> None:
    rows = np.stack([draw_normal(1, counter, (64,)).astype(np.float64) for counter in range(800)])
    n = rows.size
    assert abs((rows[1:] * rows[:-1]).mean()) < 4.0 / math.sqrt(n)
    assert abs((rows[:, 1:] * rows[:, :-1]).mean()) < 4.0 / math.sqrt(n)


def test_seeds_that_follow_each_other_are_uncorrelated() -> None:
    rows = np.stack([draw_normal(seed, 0, (64,)).astype(np.float64) for seed in range(800)])
    assert abs((rows[1:] * rows[:-1]).mean()) < 4.0 / math.sqrt(rows.size)


def test_logarithm_is_accurate() -> None:
    x = np.concatenate([np.linspace(1e-6, 0.5, 5000), 0.5 ** np.arange(1.0, 54.0)])
    expected = np.array([math.log(value) for value in x])
    np.testing.assert_allclose(natural_log(x), expected, rtol=2e-15)


def test_inverse_normal_is_accurate() -> None:
    p = np.concatenate([np.linspace(1e-6, 1 - 1e-6, 5001), 0.5 ** np.arange(1.0, 54.0)])
    expected = np.array([NORMAL.inv_cdf(value) for value in p])
    np.testing.assert_allclose(inverse_normal(p), expected, rtol=1e-14, atol=1e-15)


def test_smallest_and_largest_bits_stay_finite() -> None:
    edges = np.array([0.5 * 2.0**-52, 1.0 - 0.5 * 2.0**-52])
    values = inverse_normal(edges)
    assert np.all(np.isfinite(values))
    assert values[0] == -values[1]
    assert abs(values[0]) < 8.3


def test_transform_calls_no_function_that_differs_between_hosts() -> None:
    exact = {"sqrt", "abs", "where", "minimum", "frexp", "zeros_like", "full_like", "array"}
    exact |= {"asarray", "uint64", "Philox", "astype", "reshape", "random_raw", "prod"}
    for function in (draw_normal, inverse_normal, natural_log, noise._ratio, noise._horner):
        for node in ast.walk(ast.parse(inspect.getsource(function))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr in exact | {"items"}


@pytest.mark.parametrize("value", [-1, 1 << 63, 1 << 64, -(1 << 70)])
def test_seed_or_counter_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(ParameterRangeError, match="this seed"):
        draw_normal(value, 0, (2,))
    with pytest.raises(ParameterRangeError, match="this counter"):
        draw_normal(0, value, (2,))


def test_largest_seed_and_counter_are_fine() -> None:
    largest = (1 << 63) - 1
    assert np.all(np.isfinite(draw_normal(largest, largest, (8,))))


@pytest.mark.parametrize("shape", [(0,), (3, -1)])
def test_empty_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="positive extents"):
        draw_normal(0, 0, shape)


def test_ring_holds_what_was_drawn_in_place() -> None:
    with NoiseRing((5, 3), num_slots=3, backend=CpuBackend()) as ring:
        slots = ring.slots["noise.values"]
        assert tuple(slots.shape) == (3, 5, 3)
        index = ring.draw(4, 2)
        assert slots[index].numpy().tobytes() == draw_normal(4, 2, (5, 3)).tobytes()
        assert ring.values(index).tobytes() == draw_normal(4, 2, (5, 3)).tobytes()


def test_ring_draws_once_and_keeps_recent_slots() -> None:
    with NoiseRing((4,), num_slots=2, backend=CpuBackend()) as ring:
        first = ring.draw(0, 0)
        second = ring.draw(0, 1)
        assert first != second
        assert ring.draw(0, 0) == first
        assert ring.draw(0, 2) == second  # not the slot asked for a moment ago
        assert ring.values(first).tobytes() == draw_normal(0, 0, (4,)).tobytes()


def test_ring_takes_given_noise_and_does_not_take_it_for_a_draw() -> None:
    with NoiseRing((4,), num_slots=2, backend=CpuBackend()) as ring:
        given = np.arange(4, dtype=np.float32)
        index = ring.put(given)
        assert ring.values(index).tolist() == [0.0, 1.0, 2.0, 3.0]
        assert ring.draw(0, 0) != index


def test_ring_refuses_noise_that_does_not_fit() -> None:
    with NoiseRing((4,), num_slots=2, backend=CpuBackend()) as ring:
        with pytest.raises(SpecError, match=r"float32\[4\]"):
            ring.put(np.zeros(5, np.float32))
        with pytest.raises(SpecError, match="float64"):
            ring.put(np.zeros(4, np.float64).view())  # type: ignore[arg-type]


def test_ring_refuses_a_bad_draw_and_stays_as_it_is() -> None:
    with NoiseRing((4,), num_slots=1, backend=CpuBackend()) as ring:
        ring.draw(0, 0)
        with pytest.raises(ParameterRangeError):
            ring.draw(-1, 0)
        assert ring.values(0).tobytes() == draw_normal(0, 0, (4,)).tobytes()


def test_ring_refuses_unknown_slots_and_gives_no_way_to_write() -> None:
    with NoiseRing((4,), num_slots=1, backend=CpuBackend()) as ring:
        with pytest.raises(SpecError, match="0 to 0"):
            ring.values(1)
        assert not ring.values(0).flags.writeable


@pytest.mark.parametrize(("shape", "num_slots"), [((), 1), ((0,), 1), ((2,), 0)])
def test_empty_ring_is_refused(shape: tuple[int, ...], num_slots: int) -> None:
    with pytest.raises(SpecError, match="empty"):
        NoiseRing(shape, num_slots=num_slots, backend=CpuBackend())
