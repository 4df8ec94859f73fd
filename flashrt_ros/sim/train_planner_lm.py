"""Train the planner's language model on instructions about the table, on a CPU.

    python -m flashrt_ros.sim.train_planner_lm --out planner_lm
    python -m flashrt_ros.sim.train_planner_lm --start FOLDER --steps 700 --out planner_lm

Draws every batch anew, and never a held-out instruction. Some turns are none about the table
(:mod:`flashrt_ros.sim.outside`). Writes a checkpoint as its family publishes them:
config.json, model.safetensors, tokenizer.json. Equal arguments on equal machines give equal
weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import safetensors.torch
import torch
from rich.progress import Progress
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flashrt_ros.models.hybrid_config import FULL, LINEAR, HybridConfig
from flashrt_ros.models.planner_lm import PACKAGED_PLANNER
from flashrt_ros.models.planner_text import PLANNER_PREFIX
from flashrt_ros.sim.instructions import FAMILIES, Turn, sample_turn
from flashrt_ros.sim.outside import sample_outside
from flashrt_ros.sim.planner_network import PlannerNetwork
from flashrt_ros.sim.planner_tokenizer import END, VOCAB_SIZE, train_tokenizer
from flashrt_ros.sim.training import training_cost, training_progress

CONFIG: Mapping[str, object] = {
    "model_type": "qwen3_5_text",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "layer_types": [LINEAR, FULL, LINEAR, FULL],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
    },
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}
"""``config.json`` of the model."""

WEIGHTS_NAME = "model.safetensors"
"""File of the weights in a checkpoint's folder."""

_POOL = 16  # batches drawn at once and sorted by length, so that little is padding
_TURNS, _TURN_SHARES = (1, 2, 3), (6, 3, 1)
_TOKENIZER_TURNS = 20_000
_TOKENIZER_PREFIX = 20  # every so many turns, so that the prefix too is made of whole words
_IGNORED = -100

# Training dwells on the kinds of instructions that take longest to learn.
_DWELLING: dict[str, int] = {
    "place": 4,
    "relation": 4,
    "coordinates": 16,
    "via": 5,
    "round": 5,
    "lap": 3,
    "tour": 2,
    "back": 12,
    "sequence 2": 24,
    "sequence 3": 30,
    "reorder": 16,
    "shuttle": 6,
    "stay": 6,
}
_SHARES = tuple(_DWELLING[family] for family in FAMILIES)


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How long it is trained; all of it decides the weights.

    Attributes:
        seed: Of data and first weights.
        steps: Optimizer steps.
        batch: Sequences of a step, of one turn to three.
        matrix_rate: Peak of the learning rate of the layers' matrices.
        rate: The same of everything else.
        outside: Share of turns that are none about the table.
    """

    seed: int = 0
    steps: int = 3000
    batch: int = 32
    matrix_rate: float = 0.02
    rate: float = 4e-3
    outside: float = 0.35


@dataclass(frozen=True, slots=True)
class TrainedPlanner:
    """A checkpoint before it is written.

    Attributes:
        network: Trained.
        tokenizer: Of its texts.
        loss: Mean over the last hundred steps, nats a token of the answers.
    """

    network: PlannerNetwork
    tokenizer: Tokenizer
    loss: float

    def save(self, folder: Path, figures: Mapping[str, object]) -> None:
        """Write the three files, making the folder where it is missing.

        Args:
            folder: Where they go.
            figures: Of the training, kept as the weights' metadata.
        """
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(CONFIG, indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")
        (folder / "tokenizer.json").write_text(self.tokenizer.to_str(), encoding="utf-8")
        metadata = {"format": "pt", "training": json.dumps(dict(figures))}
        data = safetensors.torch.save(self.network.tensors(), metadata)
        (folder / WEIGHTS_NAME).write_bytes(data)


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of about one length.

    Attributes:
        tokens: ``int64[B, T]``, what follows the prefix.
        wanted: ``int64[B, T]``, the token after each; -100 where none is asked for.
    """

    tokens: Tensor
    wanted: Tensor


def train(plan: TrainingPlan, progress: Progress, start: Path | None = None) -> TrainedPlanner:
    """Train tokenizer and model; the number of threads is the caller's.

    Args:
        plan: What to do.
        progress: Started; gets a bar.
        start: Folder of a checkpoint of this script to go on from, its tokenizer and its
            weights; None begins with random ones.
    """
    generator = torch.Generator().manual_seed(plan.seed)
    network = PlannerNetwork(HybridConfig.from_json(CONFIG), generator)
    if start is None:
        tokenizer = train_tokenizer(_tokenizer_texts(Random(f"{plan.seed} tokenizer")))
    else:
        tokenizer = Tokenizer.from_file(str(start / "tokenizer.json"))
        network.load(safetensors.torch.load_file(start / WEIGHTS_NAME))
    prefix = torch.tensor([_encode(tokenizer, PLANNER_PREFIX)])
    random = Random(f"{plan.seed} turns")
    batches = sample_batches(random, tokenizer, plan.batch, outside=plan.outside)
    bar = progress.add_task("planner", total=plan.steps, loss=math.nan)
    optimizers = _optimizers(network, plan)
    losses: list[float] = []
    for step in range(plan.steps):
        share = _share_of_peak(step, plan.steps)
        for optimizer, peak in optimizers:
            optimizer.param_groups[0]["lr"] = peak * share
            optimizer.zero_grad()
        loss = answer_loss(network, prefix, next(batches))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
        losses = [*losses[-99:], loss.item()]
        progress.update(bar, advance=1, loss=sum(losses) / len(losses))
    return TrainedPlanner(network, tokenizer, sum(losses) / len(losses))


def answer_loss(network: PlannerNetwork, prefix: Tensor, batch: Batch) -> Tensor:
    """Return the cross entropy of the answers' tokens, nats a token.

    Args:
        network: Gets the gradients.
        prefix: ``int64[1, P]``, run once for all.
        batch: What follows it.
    """
    _, states = network(prefix, network.start(), 0)
    rows, _ = network(batch.tokens, states, prefix.shape[1])
    is_asked = batch.wanted != _IGNORED
    return cross_entropy(network.logits(rows[is_asked]), batch.wanted[is_asked])


def sample_batches(
    random: Random, tokenizer: Tokenizer, batch: int, *, outside: float = 0.0
) -> Iterator[Batch]:
    """Draw batches of training turns without end.

    Args:
        random: Source of chance; advanced.
        tokenizer: Of the turns.
        batch: Sequences of each.
        outside: Share of turns that are none about the table.
    """
    end = tokenizer.token_to_id(END)
    assert end is not None
    while True:
        pool = [_sequence(random, tokenizer, end, outside) for _ in range(_POOL * batch)]
        pool.sort(key=lambda pair: len(pair[0]))
        starts = list(range(0, len(pool), batch))
        random.shuffle(starts)
        for start in starts:
            rows = pool[start : start + batch]
            length = len(rows[-1][0])
            tokens = torch.tensor([ids + [end] * (length - len(ids)) for ids, _ in rows])
            wanted = torch.tensor([ids + [_IGNORED] * (length - len(ids)) for _, ids in rows])
            yield Batch(tokens, wanted)


def _sequence(
    random: Random, tokenizer: Tokenizer, end: int, outside: float
) -> tuple[list[int], list[int]]:
    tokens: list[int] = []
    wanted: list[int] = []
    for _ in range(random.choices(_TURNS, _TURN_SHARES)[0]):
        turn = _turn(random, outside)
        prompt, answer = _encode(tokenizer, turn.prompt), _encode(tokenizer, turn.answer)
        tokens += prompt + answer
        # The last token of the prompt asks for the first of the answer, "done" for the end.
        wanted += [_IGNORED] * (len(prompt) - 1) + answer + [end]
    return tokens, wanted


def _turn(random: Random, outside: float) -> Turn:
    if outside and random.random() < outside:
        return sample_outside(random, held_out=False)
    return sample_turn(random, held_out=False, shares=_SHARES)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _tokenizer_texts(random: Random) -> Iterator[str]:
    for at in range(_TOKENIZER_TURNS):
        turn = sample_turn(random, held_out=False)
        yield turn.prompt + turn.answer
        if not at % _TOKENIZER_PREFIX:
            yield PLANNER_PREFIX


def _optimizers(
    network: PlannerNetwork, plan: TrainingPlan
) -> list[tuple[torch.optim.Optimizer, float]]:
    """Return the optimizers with their peak rates: Muon for the layers' matrices, AdamW else.

    Muon orthogonalises what it adds to a matrix (Jordan et al., 2024).
    """
    embedding = network.weight("model.embed_tokens.weight")
    is_matrix = {p: p.ndim == 2 and p is not embedding for p in network.parameters()}
    matrices = [p for p, flag in is_matrix.items() if flag]
    others = [p for p, flag in is_matrix.items() if not flag]
    return [
        (torch.optim.Muon(matrices, weight_decay=0.02, momentum=0.95), plan.matrix_rate),
        (torch.optim.AdamW(others, weight_decay=0.0, betas=(0.9, 0.98)), plan.rate),
    ]


def _digest(folder: Path) -> str:
    """Name the weights that a training went on from."""
    return "sha256:" + hashlib.sha256((folder / WEIGHTS_NAME).read_bytes()).hexdigest()


def _share_of_peak(step: int, num_steps: int) -> float:
    """Rise over 50 steps, then fall to a hundredth along a cosine."""
    fall = 0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * step / num_steps))
    return min(1.0, (step + 1) / 50) * fall


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line and write the checkpoint."""
    default = TrainingPlan()
    parser = argparse.ArgumentParser(description="Train the planner's language model on a CPU.")
    parser.add_argument("--out", type=Path, default=PACKAGED_PLANNER)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--steps", type=int, default=default.steps)
    parser.add_argument("--batch", type=int, default=default.batch)
    parser.add_argument("--matrix-rate", type=float, default=default.matrix_rate)
    parser.add_argument("--rate", type=float, default=default.rate)
    parser.add_argument(
        "--outside", type=float, default=default.outside, help="share of turns not about the table"
    )
    parser.add_argument(
        "--start", type=Path, metavar="FOLDER", help="checkpoint of this script to go on from"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    plan = TrainingPlan(
        seed=options.seed,
        steps=options.steps,
        batch=options.batch,
        matrix_rate=options.matrix_rate,
        rate=options.rate,
        outside=options.outside,
    )
    began = time.monotonic()
    with training_progress(" loss {task.fields[loss]:.4f}") as progress:
        trained = train(plan, progress, options.start)
    figures = {
        **asdict(plan),
        **({"start": _digest(options.start)} if options.start is not None else {}),
        "threads": options.threads,
        "loss": round(trained.loss, 6),
        **training_cost(began),
    }
    trained.save(options.out, figures)
    print(f"wrote {options.out}: {figures}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
