"""How tokens are chosen: noise by seed and position, forks, bias, probability, stops."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.errors import ParameterRangeError
from flashrt_ros.models.hybrid_lm import BIAS
from flashrt_ros.models.hybrid_session import HybridSession
from test.models.hybrid.conftest import VOCAB_SIZE, decode, random_tokens

TOKENS = random_tokens(90)
OTHERS = random_tokens(300, seed=1)
NUM_DECODED = 12


def sampled(session: HybridSession, seed: int, temperature: float = 0.8) -> list[int]:
    session.reset()
    session.append(TOKENS[:64])
    session.set_sampling(temperature=temperature, seed=seed)
    return session.decode(24)


def test_the_seed_and_the_position_decide_what_is_drawn(session: HybridSession) -> None:
    assert sampled(session, 3) == sampled(session, 3)
    assert sampled(session, 3) != sampled(session, 4)
    assert sampled(session, 3) != sampled(session, 3, temperature=0.0)


def test_a_restored_text_draws_what_the_uninterrupted_one_drew(session: HybridSession) -> None:
    session.reset()
    session.set_sampling(temperature=1.0, seed=9)
    session.append(TOKENS[:64])
    capsule = session.snapshot()
    session.append(TOKENS[64:90])
    expected = decode(session, NUM_DECODED)
    session.reset()
    session.append(OTHERS)

    session.restore(capsule)
    session.append(TOKENS[64:90])

    assert decode(session, NUM_DECODED) == expected
    capsule.close()


def test_draws_follow_the_softmax(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:63])
    drawn = []
    for seed in range(400):
        session.set_sampling(temperature=0.5, seed=seed)
        drawn.append(session.choose())
    scores = session.logits().astype(np.float64) / 0.5
    likely = np.sort(scores)[::-1][:64]
    chance = 1.0 / np.exp(likely - likely[0]).sum()
    share = drawn.count(int(scores.argmax())) / len(drawn)
    assert abs(share - chance) < 4 * np.sqrt(chance * (1 - chance) / len(drawn))


def test_texts_that_fork_at_a_capsule_differ_from_their_first_token(
    session: HybridSession,
) -> None:
    session.reset()
    session.append(TOKENS[:64])
    capsule = session.snapshot()
    texts = []
    for seed in range(8):
        session.restore(capsule)
        session.set_sampling(temperature=1.5, seed=seed)
        session.choose()
        texts.append(session.decode(4))
    assert len({text[0] for text in texts}) > 1
    capsule.close()


def test_choosing_again_greedily_takes_back_what_was_drawn(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:64])
    greedy, chance = session.next_token, session.log_probability
    session.set_sampling(temperature=5.0, seed=2)
    assert session.choose() != greedy
    session.set_sampling(temperature=0.0)
    assert (session.choose(), session.log_probability) == (greedy, chance)


def test_bias_forbids_tokens_and_counts_in_the_probability(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:20])
    free = session.next_token
    allowed = np.full(VOCAB_SIZE, -np.inf, np.float32)
    allowed[7] = 0.0
    session.reset()
    session.write(BIAS, allowed.tobytes())
    session.append(TOKENS[:20])
    assert free != session.next_token == 7
    assert session.log_probability == 0.0
    session.write(BIAS, bytes(4 * VOCAB_SIZE))


def test_the_log_probability_is_that_of_the_next_token(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:20])
    logits = session.logits().astype(np.float64)
    expected = logits[session.next_token] - np.log(np.exp(logits - logits.max()).sum())
    assert session.log_probability == pytest.approx(expected - logits.max(), abs=1e-5)


def test_a_stop_token_ends_a_text_and_is_not_taken_in(session: HybridSession) -> None:
    session.reset()
    session.append(TOKENS[:20])
    text = session.decode(8)
    stop = text[5]
    session.reset()
    session.append(TOKENS[:20])
    assert session.decode(8, stop=[stop]) == text[: text.index(stop)]
    assert session.next_token == stop
    assert session.position == 20 + text.index(stop)


@pytest.mark.parametrize(
    ("temperature", "seed"), [(-0.1, 0), (float("nan"), 0), (float("inf"), 0), (1.0, -1)]
)
def test_sampling_out_of_range_is_refused(
    session: HybridSession, temperature: float, seed: int
) -> None:
    session.reset()
    with pytest.raises(ParameterRangeError):
        session.set_sampling(temperature=temperature, seed=seed)
