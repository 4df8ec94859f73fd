"""A restore without one part of the state diverges; with all of it, it doesn't."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashrt_ros.errors import PayloadShapeError
from flashrt_ros.models.hybrid_ablation import (
    Ablation,
    Divergence,
    first_difference,
    run_ablations,
)
from flashrt_ros.models.hybrid_session import HybridSession
from test.models.hybrid.conftest import Rig, random_tokens

PREFIX = random_tokens(256, seed=3)
SUFFIX = random_tokens(64, seed=4)


@pytest.fixture(scope="module")
def results(make_rig: Callable[..., Rig]) -> dict[Ablation, Divergence]:
    return run_ablations(make_rig().sessions[0], PREFIX, SUFFIX, num_tokens=64)


def test_with_the_whole_state_nothing_diverges(results: dict[Ablation, Divergence]) -> None:
    assert results[Ablation.NOTHING] == Divergence(token=None, logits=None, largest_error=0.0)


@pytest.mark.parametrize("ablation", [each for each in Ablation if each is not Ablation.NOTHING])
def test_without_a_part_the_text_diverges(
    results: dict[Ablation, Divergence], ablation: Ablation
) -> None:
    found = results[ablation]
    assert found.logits == 0
    assert found.token is not None
    assert found.largest_error > 0.01


@pytest.mark.parametrize("length", [64, 100, 0])
def test_a_prefix_without_two_borders_is_refused(session: HybridSession, length: int) -> None:
    with pytest.raises(PayloadShapeError, match="two borders"):
        run_ablations(session, PREFIX[:length], SUFFIX, num_tokens=1)


def test_sequences_are_compared_to_their_end() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1]) == 1
