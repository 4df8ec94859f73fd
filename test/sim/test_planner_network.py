"""The form that learns computes what the captured programs compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashrt_ros.models.hybrid_checkpoint import (
    expected_tensors,
    random_tensors,
    read_checkpoint,
)
from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_weights import pack
from flashrt_ros.models.planner_lm import PACKAGED_PLANNER, load_planner_lm
from flashrt_ros.models.planner_text import PLANNER_PREFIX
from flashrt_ros.sim.evaluate_planner_lm import (
    POSITIONS,
    answer_turns,
    open_session,
    sample_held_out,
)
from flashrt_ros.sim.planner_network import PlannerNetwork
from flashrt_ros.sim.train_planner_lm import CONFIG

LENGTH, CUT = 150, 64


@pytest.fixture(scope="module")
def network() -> PlannerNetwork:
    """Weights under which every layer matters, which the first ones are too small for."""
    config = HybridConfig.from_json(CONFIG)
    network = PlannerNetwork(config, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, value in random_tensors(config, 5).items():
            network.weight(name).copy_(value)
    return network


def some_tokens() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, int(str(CONFIG["vocab_size"])), (1, LENGTH), generator=generator)


def test_logits_are_those_of_the_programs(network: PlannerNetwork) -> None:
    tokens = some_tokens()
    with torch.no_grad():
        logits = network.logits(network(tokens, network.start(), 0)[0])[0]
    weights = pack(network.tensors(), network.config, dtype=torch.float32, device="cpu")
    model = HybridLm(network.config, weights, max_positions=2 * LENGTH)
    with open_session(model) as session:
        session.append(tokens[0, :CUT].tolist())
        for at in range(CUT, LENGTH):
            session.append(tokens[0, at : at + 1].tolist())
            found = torch.from_numpy(session.logits().copy())
            torch.testing.assert_close(found, logits[at], rtol=0.0, atol=1e-3)
            assert session.next_token == int(logits[at].argmax())


def test_a_shared_prefix_is_the_prefix_of_every_row(network: PlannerNetwork) -> None:
    tokens = some_tokens()
    rest = torch.cat([tokens[:, CUT:], tokens[:, CUT:].flip(1)])
    whole = torch.cat([tokens[:, :CUT].expand(2, -1), rest], 1)
    with torch.no_grad():
        expected, _ = network(whole, network.start(), 0)
        _, states = network(tokens[:, :CUT], network.start(), 0)
        found, _ = network(rest, states, CUT)
        _, empty = network(tokens[:, :1], network.start(), 0)
        without, _ = network(rest, empty, CUT)
    torch.testing.assert_close(found, expected[:, CUT:], rtol=0.0, atol=1e-3)
    assert (without - expected[:, CUT:]).abs().max() > 0.1


def test_every_weight_has_a_gradient(network: PlannerNetwork) -> None:
    rows, _ = network(some_tokens(), network.start(), 0)
    network.logits(rows).square().mean().backward()  # type: ignore[no-untyped-call]
    for name in expected_tensors(network.config):
        gradient = network.weight(name).grad
        assert gradient is not None, name
        assert bool(gradient.isfinite().all()), name
        assert bool(gradient.any()), name


def test_first_weights_follow_the_generator() -> None:
    config = HybridConfig.from_json(CONFIG)

    def first(seed: int) -> Tensor:
        network = PlannerNetwork(config, torch.Generator().manual_seed(seed))
        return network.weight("model.layers.0.linear_attn.A_log").detach()

    assert first(3).equal(first(3))
    assert not first(3).equal(first(4))


def test_trained_weights_choose_the_tokens_that_the_programs_choose() -> None:
    model, tokenizer = load_planner_lm(max_positions=POSITIONS)
    network = PlannerNetwork(model.config, torch.Generator())
    with torch.no_grad():
        for name, value in read_checkpoint(PACKAGED_PLANNER).items():
            network.weight(name).copy_(value)
    prefix = torch.tensor([tokenizer.encode(PLANNER_PREFIX)])
    turns = sample_held_out(8, seed=31)
    with open_session(model) as session, torch.no_grad():
        _, states = network(prefix, network.start(), 0)
        for turn, answer in zip(
            turns, answer_turns(session, tokenizer, [t.prompt for t in turns]), strict=True
        ):
            prompt, chosen = tokenizer.encode(turn.prompt), tokenizer.encode(answer)
            rows, _ = network(torch.tensor([prompt + chosen]), states, prefix.shape[1])
            likeliest = network.logits(rows[0, len(prompt) - 1 :]).argmax(-1).tolist()
            assert likeliest == [*chosen, *model.config.eos_token_ids]
