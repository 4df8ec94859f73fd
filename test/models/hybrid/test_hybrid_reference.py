"""The same random checkpoint, here and in ``transformers``: logits and 256 greedy tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from flashrt_ros.models.hybrid_checkpoint import random_tensors
from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_session import HybridSession
from test.models.hybrid.conftest import MAX_POSITIONS, SMALL, Rig, random_tokens

transformers = pytest.importorskip(
    "transformers", reason="the reference implementation comes with the extra 'test'"
)

CHUNK_LENGTH = 128
NUM_DECODED = 256
BORDERS = (64, 128, 192)  # of a half, one and one and a half chunks
PREFIXES = sorted(border + off for border in BORDERS for off in (-1, 0, 1))
TOLERANCE = 3e-4  # float32, of the logits' deviation; texts that repeat themselves need it

EXPERTS: dict[str, object] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
FAMILIES: dict[str, tuple[str, str, dict[str, object]]] = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", {"num_experts": 0}),
    "qwen3_5_text": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {}),
    "qwen3_5_text, tied": (
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        {"tie_word_embeddings": True},
    ),
    "qwen3_next with experts": ("Qwen3NextConfig", "Qwen3NextForCausalLM", EXPERTS),
    "qwen3_5_moe_text": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", EXPERTS),
}


class Reference:
    """A checkpoint on disk, as ``transformers`` and as we read it."""

    def __init__(self, family: str, folder: Path) -> None:
        config_name, model_name, more = FAMILIES[family]
        if not hasattr(transformers, model_name):
            pytest.skip(f"transformers {transformers.__version__} has no {model_name}")
        sizes = {name: value for name, value in SMALL.items() if name != "model_type"} | more
        if "moe" in family:
            del sizes["intermediate_size"]
        getattr(transformers, config_name)(**sizes).save_pretrained(folder)
        config = HybridConfig.from_file(folder / "config.json")
        tensors = random_tensors(config, 0)
        safetensors.torch.save_file(
            tensors, folder / "model.safetensors", metadata={"format": "pt"}
        )
        self.model = HybridLm.load(folder, max_positions=MAX_POSITIONS, chunk_length=CHUNK_LENGTH)
        self.network = getattr(transformers, model_name).from_pretrained(folder).eval()

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Logits after each token, ``float32[T, V]``."""
        with torch.no_grad():
            logits: torch.Tensor = self.network(torch.tensor([tokens]), use_cache=False).logits
        return logits[0]


@pytest.fixture(scope="module")
def make_reference(
    tmp_path_factory: pytest.TempPathFactory, one_thread: None
) -> Callable[[str], tuple[Reference, HybridSession]]:
    made: dict[str, tuple[Reference, HybridSession]] = {}

    def make(family: str) -> tuple[Reference, HybridSession]:
        if family not in made:
            reference = Reference(family, tmp_path_factory.mktemp("checkpoint"))
            made[family] = reference, Rig(reference.model).sessions[0]
        return made[family]

    return make


def check(reference: Reference, session: HybridSession, prefix: list[int]) -> None:
    """Compare every token and its logits with those of one pass over the whole text."""
    session.reset()
    session.append(prefix)
    tokens, logits = [], []
    for _ in range(NUM_DECODED):
        logits.append(session.logits())
        tokens += session.decode(1)
    # The token after each position, given ours before it: greedy decoding is the same
    # if, and only if, every one of them is.
    expected = reference.logits(prefix + tokens[:-1])[len(prefix) - 1 :]
    assert tokens == expected.argmax(-1).tolist()
    if not reference.model.config.ties_embeddings:  # where each token calls for itself again
        assert len(set(tokens)) > 32
    error = float(np.abs(expected.numpy() - np.stack(logits)).max())
    assert error < TOLERANCE * float(expected.std())


@pytest.mark.parametrize("length", PREFIXES)
def test_greedy_tokens_and_logits_are_those_of_transformers(
    make_reference: Callable[[str], tuple[Reference, HybridSession]], length: int
) -> None:
    reference, session = make_reference("qwen3_next")
    check(reference, session, random_tokens(length, seed=length))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "qwen3_next"])
def test_every_family_agrees(
    make_reference: Callable[[str], tuple[Reference, HybridSession]], family: str
) -> None:
    reference, session = make_reference(family)
    check(reference, session, random_tokens(200, seed=5))


def test_the_first_divergence_would_be_seen(
    make_reference: Callable[[str], tuple[Reference, HybridSession]],
) -> None:
    reference, session = make_reference("qwen3_next")
    prefix = random_tokens(64)
    other = [*prefix[:-1], (prefix[-1] + 1) % 256]
    session.reset()
    session.append(prefix)
    found = np.abs(reference.logits(other)[-1].numpy() - session.logits()).max()
    assert found > 100 * TOLERANCE
