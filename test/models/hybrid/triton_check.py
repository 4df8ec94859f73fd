"""Compares the Triton operations with the torch ones on a device, or in Triton's interpreter.

Run as a program, because Triton decides what it is when it is imported::

    python triton_check.py cuda
    TRITON_INTERPRET=1 python triton_check.py cpu

Prints each operation with its time; on a device that is its compilation, for the most part.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from flashrt_ros.models.hybrid_checkpoint import random_tensors
from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.hybrid_delta_cuda import triton_delta_step, unit_pair
from flashrt_ros.models.hybrid_kernels import TORCH_KERNELS, HybridKernels, select_kernels
from flashrt_ros.models.hybrid_linear import DeltaInputs, torch_delta_chunk, torch_delta_step
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_matrix_cuda import row_times_matrix, rows_times_matrix
from flashrt_ros.models.hybrid_ops import TorchOps
from flashrt_ros.models.hybrid_ops_cuda import TritonOps
from flashrt_ros.models.hybrid_session import HybridSession
from flashrt_ros.models.hybrid_weights import FullWeights, HybridWeights, LinearWeights, pack
from flashrt_ros.runtime.devices import make_backend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.noise import NoiseRing
from flashrt_ros.runtime.spec import ArenaLayout

SIZES: dict[str, object] = {
    "model_type": "qwen3_next",
    "vocab_size": 32,
    "hidden_size": 40,  # no power of two, nor is the next
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
CONFIG = HybridConfig.from_json(SIZES)
MODEL = HybridConfig.from_json(
    {**SIZES, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
)
EPS = 1e-6
PARTS = (CONFIG.key_dim, CONFIG.key_dim, CONFIG.value_dim)
LENGTHS = ((1, None), (5, 3), (5, 5), (5, 1), (5, 0), (40, 33))


def close(found: Tensor, expected: Tensor) -> None:
    is_narrow = found.dtype is torch.bfloat16
    rtol, atol = (2e-2, 2e-2) if is_narrow else (1e-4, 1e-5)
    torch.testing.assert_close(found.float(), expected.float(), atol=atol, rtol=rtol)


@contextmanager
def timed(what: str) -> Iterator[None]:
    begun = time.perf_counter()
    print(f"{what} ...", end=" ", flush=True)
    yield
    print(f"{time.perf_counter() - begun:.1f} s", flush=True)


class Check:
    """Both implementations, the weights of a model, and random rows.

    Args:
        device: As torch names it.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.ours, self.theirs = TritonOps(), TorchOps()
        # On a device products are of 16 bits, as a large model's are: in float32 the compiler
        # takes minutes for them.
        self.narrow = torch.bfloat16 if device == "cuda" else torch.float32
        self.weights: HybridWeights = pack(
            random_tensors(CONFIG, 0), CONFIG, dtype=torch.float32, device=device
        )
        linear, full = self.weights.layers[0].mixer, self.weights.layers[3].mixer
        assert isinstance(linear, LinearWeights)
        assert isinstance(full, FullWeights)
        self.linear, self.full = linear, full
        self.generator = torch.Generator(device).manual_seed(0)

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def num(self, value: int) -> Tensor:
        return torch.tensor([value], device=self.device)

    # operations ------------------------------------------------------------------------------

    def matrices(self) -> None:
        for outputs, width in ((24, 40), (70, 128)):
            weight = self.draw(outputs, width).to(self.narrow)
            close(
                row_times_matrix(row := self.draw(1, width).to(self.narrow), weight),
                self.theirs.project(row, weight),
            )
            for length in (5, 64, 200):
                rows = self.draw(length, width).to(self.narrow)
                close(rows_times_matrix(rows, weight), torch.nn.functional.linear(rows, weight))
        rows = self.draw(70, 40)
        close(self.ours.project(rows, weight := self.draw(24, 40)), rows @ weight.t())

    def norms(self) -> None:
        for length in (1, 5):
            rows, change = self.draw(length, 40), self.draw(length, 40)
            for added in (None, change):
                pair = [
                    ops.add_norm(rows, added, self.weights.final_norm, EPS)
                    for ops in (self.ours, self.theirs)
                ]
                for found, expected in zip(*pair, strict=True):
                    close(found, expected)
            halves = self.draw(length, 48)
            close(self.ours.silu_product(halves), self.theirs.silu_product(halves))
            output, gate = self.draw(length, 4, 12), self.draw(length, 60)[:, -48:]
            close(
                self.ours.gated_norm(output, gate, self.linear.norm, EPS),
                self.theirs.gated_norm(output, gate, self.linear.norm, EPS),
            )

    def convolution(self) -> None:
        for length, valid in LENGTHS:
            num_valid = None if valid is None else self.num(valid)
            projected = self.draw(length, CONFIG.conv_dim + CONFIG.value_dim + 8)
            past = self.draw(3, CONFIG.conv_dim)
            pasts = [past, past.clone()]
            pair = [
                ops.convolve(projected, self.linear.conv, held, num_valid, PARTS)
                for ops, held in zip((self.ours, self.theirs), pasts, strict=True)
            ]
            for found, expected in zip(*pair, strict=True):
                close(found, expected)
                assert found.is_contiguous()
            assert torch.equal(pasts[0], pasts[1])

    def gates(self) -> None:
        for length, valid in LENGTHS:
            num_valid = None if valid is None else self.num(valid)
            wide = self.draw(length, 20)
            step, strength = wide[:, :4] * 8, wide[:, -4:]
            for found, expected in zip(
                self.ours.gates(strength, step, self.linear, num_valid),
                self.theirs.gates(strength, step, self.linear, num_valid),
                strict=True,
            ):
                close(found, expected)

    def attention(self) -> None:
        for length, at in ((1, 0), (1, 150), (66, 70), (5, 0)):
            position = self.num(at)
            projected = self.draw(length, 2 * 96 + 2 * 48).to(self.narrow)
            whole_cache = self.draw(256, 3, 2, 2, 24).to(self.narrow)
            # The torch one in float32: in 16 bits it rounds scores, which this one does not.
            caches = [whole_cache, whole_cache.float().clone()]
            mixed = []
            for ops, cache in zip((self.ours, self.theirs), caches, strict=True):
                view, rows = cache[:, 1], projected.to(cache.dtype)
                queries, gate = ops.place_heads(rows, self.full, CONFIG, view, position)
                mixed.append((queries, ops.attend(queries, gate, view, position)))
            close(caches[0], caches[1])
            close(mixed[0][0], mixed[1][0])
            close(mixed[0][1], mixed[1][1])

    def steps(self) -> None:
        inputs = DeltaInputs(
            queries=self.draw(1, 2, 16),
            keys=self.draw(1, 2, 16),
            values=self.draw(1, 4, 12),
            decay=-self.draw(1, 4).abs(),
            strength=self.draw(1, 4).sigmoid(),
        )
        states = [self.draw(4, 16, 12)]
        states.append(states[0].clone())
        close(triton_delta_step(inputs, states[0]), torch_delta_step(inputs, states[1]))
        close(states[0], states[1])
        pair = self.draw(5, 2, 16), self.draw(5, 2, 16)
        for found, rows in zip(unit_pair(*pair), pair, strict=True):
            close(found, torch.nn.functional.normalize(rows, dim=-1))

    def choices(self) -> None:
        for vocab_size in (32, 3000):
            logits, bias = self.draw(vocab_size) * 3, torch.zeros(vocab_size, device=self.device)
            noise = torch.special.log_ndtr(self.draw(16))
            for heat in (0.0, 0.7, 5.0):
                temperature = torch.tensor([heat], device=self.device)
                for forbidden in (0, 1, 9, vocab_size - 2):
                    order = logits.argsort(descending=True)
                    bias = torch.zeros(vocab_size, device=self.device)
                    bias[order[:forbidden]] = float("-inf")
                    pair = [
                        ops.choose(logits, bias, noise, temperature)
                        for ops in (self.ours, self.theirs)
                    ]
                    assert int(pair[0][0]) == int(pair[1][0])
                    close(pair[0][1], pair[1][1])

    # bytes -----------------------------------------------------------------------------------

    def rows_alone(self) -> None:
        """A row has the same bytes wherever it stands, and in a chunk of any length."""
        wide = [self.draw(1024, size).to(self.narrow) for size in (128, 4 * 24, 4 * 24)]
        weight = self.draw(5000, 128).to(self.narrow)
        for matrix in (weight, weight[:300].contiguous()):
            whole = rows_times_matrix(wide[0], matrix)
            for at in (0, 64, 960):
                part = rows_times_matrix(wide[0][at : at + 64].contiguous(), matrix)
                assert torch.equal(whole[at : at + 64], part), "products"
        queries, gate = (each.reshape(1024, 4, 24) for each in wide[1:])
        cache = self.draw(1200, 2, 2, 24).to(self.narrow)
        whole = self.ours.attend(queries, gate, cache, self.num(64))
        for at in (0, 64, 960):
            query, its_gate = (each[at : at + 64].contiguous() for each in (queries, gate))
            part = self.ours.attend(query, its_gate, cache, self.num(64 + at))
            assert torch.equal(whole[at : at + 64], part), "attention"

    # a model ---------------------------------------------------------------------------------

    def model(self) -> None:
        """Capture a whole model over the operators; it gives what torch's gives on a CPU."""
        tokens = torch.randint(0, 32, (70,), generator=torch.Generator().manual_seed(0)).tolist()
        rounded = {name: each.to(self.narrow) for name, each in random_tensors(MODEL, 0).items()}
        exact = {name: each.float() for name, each in rounded.items()}
        kernels = HybridKernels("check", self.ours, torch_delta_chunk, triton_delta_step)
        if self.device == "cuda":
            kernels = select_kernels(self.device)
        weights = pack(rounded, MODEL, dtype=self.narrow, device=self.device)
        found = self.run(weights, kernels, self.device, tokens)
        weights = pack(exact, MODEL, dtype=torch.float32, device="cpu")
        expected = self.run(weights, TORCH_KERNELS, "cpu", tokens)
        error = float((found[1] - expected[1]).square().mean().sqrt() / expected[1].std())
        print(f"logits off by {error:.2g},", end=" ")
        assert error < (0.1 if self.device == "cuda" else 1e-4)
        assert self.device == "cuda" or found[0] == expected[0]

    def run(
        self, weights: HybridWeights, kernels: HybridKernels, device: str, tokens: list[int]
    ) -> tuple[list[int], Tensor]:
        """Return tokens, decoded and drawn, and the logits after the prompt."""
        # A short prefill beside the long one, where that is not interpreted row by row.
        chunk_length = 128 if device == "cuda" else 64
        model = HybridLm(
            MODEL, weights, max_positions=256, chunk_length=chunk_length, kernels=kernels
        )
        with make_backend(device) as backend:
            layout = ArenaLayout.of(model.buffers())
            with backend.create_arena(layout, num_lanes=1) as arena:
                arena.seal()
                noise = NoiseRing(model.noise_shape, num_slots=2, backend=backend)
                graphs = GraphSet(backend, model.programs(), arena, noise.slots)
                with noise, graphs, HybridSession(model, graphs, Lane(graphs, 0), noise) as session:
                    session.append(tokens)
                    logits = torch.from_numpy(session.logits().copy())
                    decoded = session.decode(2)
                    session.set_sampling(temperature=1.0, seed=3)
                    return [*decoded, *session.decode(2)], logits


def main(device: str) -> None:
    """Run every comparison."""
    with timed("weights"):
        check = Check(device)
    steps: dict[str, Callable[[], None]] = {
        "products": check.matrices,
        "norms": check.norms,
        "convolution": check.convolution,
        "gates": check.gates,
        "attention": check.attention,
        "delta rule": check.steps,
        "choice": check.choices,
        "a captured model": check.model,
    }
    if device == "cuda":  # an interpreter adds up as NumPy does
        steps["rows alone"] = check.rows_alone
    for name, step in steps.items():
        with timed(name):
            step()


if __name__ == "__main__":
    main(sys.argv[1])
