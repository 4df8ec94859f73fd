"""The training script learns, repeats itself, and never sees what is held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import safetensors
import torch
from rich.progress import Progress
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.planner_lm import load_planner_lm
from flashrt_ros.models.planner_text import PLANNER_PREFIX
from flashrt_ros.sim.instructions import sample_turn
from flashrt_ros.sim.planner_network import PlannerNetwork
from flashrt_ros.sim.planner_tokenizer import END, VOCAB_SIZE, train_tokenizer
from flashrt_ros.sim.train_planner_lm import (
    CONFIG,
    TrainingPlan,
    answer_loss,
    main,
    sample_batches,
    train,
)


def texts(count: int) -> Iterator[str]:
    yield PLANNER_PREFIX
    random = Random(1)
    for _ in range(count):
        turn = sample_turn(random, held_out=False)
        yield turn.prompt + turn.answer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts(2000))


def test_equal_texts_give_an_equal_tokenizer(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(texts(2000)).to_str() == tokenizer.to_str()
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert tokenizer.token_to_id(END) == CONFIG["eos_token_id"]


def test_turns_go_through_the_tokenizer_and_back(tokenizer: Tokenizer) -> None:
    random = Random(2)
    for _ in range(200):
        turn = sample_turn(random, held_out=True)
        prompt, answer = (tokenizer.encode(text).ids for text in (turn.prompt, turn.answer))
        assert tokenizer.decode(prompt) == turn.prompt.lower()
        assert tokenizer.decode(answer) == turn.answer
        # A turn is appended to what came before: its tokens must not depend on that.
        assert tokenizer.encode(turn.prompt + turn.answer).ids == prompt + answer


def test_any_text_has_tokens_and_digits_have_their_own(tokenizer: Tokenizer) -> None:
    text = "grüße an 日本 1234 \t x0.5"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    tokens = tokenizer.encode("12 0.345").tokens
    assert tokens == ["1", "2", "Ġ0.", "3", "4", "5"]


def test_batches_ask_for_the_answers_and_their_end(tokenizer: Tokenizer) -> None:
    end = tokenizer.token_to_id(END)
    for batch in islice(sample_batches(Random(3), tokenizer, 32), 3):
        assert batch.tokens.shape == batch.wanted.shape
        for tokens, wanted in zip(batch.tokens, batch.wanted, strict=True):
            asked = tokenizer.decode(wanted[wanted >= 0].tolist(), skip_special_tokens=False)
            answers = [each for each in asked.split(END) if each]
            assert 1 <= len(answers) <= 3
            assert all(each.startswith("go ") and each.endswith("; done") for each in answers)
            inside = (wanted[:-1] >= 0) & (wanted[:-1] != end)
            assert bool((tokens[1:][inside] == wanted[:-1][inside]).all())


def test_turns_that_are_none_about_the_table_ask_for_no_subgoal(tokenizer: Tokenizer) -> None:
    for outside, least, most in ((1.0, 1.0, 1.0), (0.5, 0.3, 0.7)):
        batches = islice(sample_batches(Random(3), tokenizer, 64, outside=outside), 4)
        asked = "".join(
            tokenizer.decode(batch.wanted[batch.wanted >= 0].tolist(), skip_special_tokens=False)
            for batch in batches
        )
        answers = [each for each in asked.split(END) if each]
        assert least <= sum(each == "done" for each in answers) / len(answers) <= most


def losses(tokenizer: Tokenizer, num_steps: int) -> list[float]:
    network = PlannerNetwork(HybridConfig.from_json(CONFIG), torch.Generator().manual_seed(0))
    prefix = torch.tensor([tokenizer.encode(PLANNER_PREFIX).ids])
    batch = next(sample_batches(Random(4), tokenizer, 8))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    found = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss: Tensor = answer_loss(network, prefix, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(loss.item())
    return found


def test_the_loss_of_one_batch_falls(tokenizer: Tokenizer) -> None:
    found = losses(tokenizer, 6)
    assert found[-1] < 0.8 * found[0]


def test_equal_plans_give_equal_weights() -> None:
    def weights(seed: int) -> Tensor:
        with Progress(disable=True) as progress:
            trained = train(TrainingPlan(seed=seed, steps=2, batch=8), progress)
        return trained.network.tensors()["model.layers.1.self_attn.q_proj.weight"]

    first = weights(4)
    assert first.equal(weights(4))
    assert not first.equal(weights(5))


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    few = ["--steps", "1", "--batch", "4"]
    assert main(["--out", str(first), "--seed", "7", *few]) == 0
    still = ["--rate", "0", "--matrix-rate", "0"]
    assert main(["--out", str(second), "--start", str(first), *few, *still]) == 0
    assert (first / "tokenizer.json").read_text() == (second / "tokenizer.json").read_text()
    weights = [load_file(folder / "model.safetensors") for folder in (first, second)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with safetensors.safe_open(second / "model.safetensors", framework="pt") as file:
        figures = json.loads(file.metadata()["training"])
    digest = hashlib.sha256((first / "model.safetensors").read_bytes()).hexdigest()
    assert figures["start"] == f"sha256:{digest}"


def test_command_line_writes_a_checkpoint_that_loads(tmp_path: Path) -> None:
    folder = tmp_path / "planner"
    assert main(["--out", str(folder), "--steps", "1", "--batch", "4", "--seed", "7"]) == 0
    model, text = load_planner_lm(folder, max_positions=128)
    assert text.decode(text.encode("go to the centre")) == "go to the centre"
    assert model.config == HybridConfig.from_json(CONFIG)
    with safetensors.safe_open(folder / "model.safetensors", framework="pt") as file:
        figures = json.loads(file.metadata()["training"])
    assert figures["seed"] == 7
    assert figures["steps"] == 1
    assert figures["cpu_seconds"] >= 0
