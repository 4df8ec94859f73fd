"""A small hybrid model on the CPU, with a session over each of its lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
import torch

from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_session import HybridSession
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.noise import NoiseRing
from flashrt_ros.runtime.spec import ArenaLayout

MAX_POSITIONS = 768
VOCAB_SIZE = 256

SMALL: dict[str, object] = {
    "model_type": "qwen3_next",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}

Text = tuple[list[int], list[bytes]]
"""Tokens, and the logits that each was chosen by."""


class Rig:
    """Graphs of a model over some lanes, and a session over each."""

    def __init__(self, model: HybridLm, num_lanes: int = 1) -> None:
        self.model = model
        self.stack = ExitStack()
        self.backend = self.stack.enter_context(CpuBackend())
        layout = ArenaLayout.of(model.buffers())
        self.arena = self.stack.enter_context(
            self.backend.create_arena(layout, num_lanes=num_lanes)
        )
        self.arena.seal()
        self.noise = self.stack.enter_context(
            NoiseRing(model.noise_shape, num_slots=4, backend=self.backend)
        )
        self.graphs = self.stack.enter_context(
            GraphSet(self.backend, model.programs(), self.arena, self.noise.slots)
        )
        self.sessions = [
            self.stack.enter_context(
                HybridSession(model, self.graphs, Lane(self.graphs, lane), self.noise)
            )
            for lane in range(num_lanes)
        ]


def random_tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, VOCAB_SIZE, (count,), generator=generator).tolist()
    return tokens


def decode(session: HybridSession, count: int) -> Text:
    """Decode token by token, and keep what each was chosen by."""
    tokens: list[int] = []
    logits: list[bytes] = []
    for _ in range(count):
        logits.append(session.logits().tobytes())
        tokens += session.decode(1)
    return tokens, logits


def compute(session: HybridSession, tokens: Sequence[int], count: int) -> Text:
    """Compute a text from nothing, and decode."""
    session.reset()
    session.append(tokens)
    return decode(session, count)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def make_rig(one_thread: None) -> Iterator[Callable[..., Rig]]:
    with ExitStack() as stack:

        def make(
            config: dict[str, object] | None = None,
            *,
            chunk_length: int = 64,
            num_lanes: int = 1,
            dtype: torch.dtype = torch.float32,
        ) -> Rig:
            model = HybridLm.random(
                HybridConfig.from_json(SMALL if config is None else config),
                0,
                max_positions=MAX_POSITIONS,
                chunk_length=chunk_length,
                dtype=dtype,
            )
            rig = Rig(model, num_lanes)
            stack.push(rig.stack)
            return rig

        yield make


@pytest.fixture(scope="module", params=[64, 256], ids=["chunk 64", "chunk 256"])
def session(request: pytest.FixtureRequest, make_rig: Callable[..., Rig]) -> HybridSession:
    """A session at two lengths of the chunk; what it holds is the test's to reset."""
    return make_rig(chunk_length=request.param).sessions[0]
