"""A random model of a few thousand weights and a tokenizer of bytes, also for a real process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashrt_ros.errors import PayloadRangeError, PayloadShapeError, PayloadTypeError
from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.hybrid_kernels import TORCH_KERNELS
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.planner.config import PlannerConfig
from flashrt_ros.planner.scorers import Plan

TINY: dict[str, object] = {
    "model_type": "qwen3_next",
    "vocab_size": 132,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_conv_kernel_dim": 4,
}


class ByteTokenizer:
    """A token for each ASCII character, and some that stand for more; the last is a control."""

    MORE = ("go ", "; ", "done")
    CONTROL = 131

    def encode(self, text: str | bytes, *, has_control_tokens: bool = False) -> list[int]:
        try:
            text = text.decode() if isinstance(text, bytes) else text
        except UnicodeDecodeError as error:
            raise PayloadTypeError("a prompt is no text", found=error) from error
        if not text:
            raise PayloadShapeError("a prompt is empty")
        tokens: list[int] = []
        at = 0
        while at < len(text):
            if has_control_tokens and text.startswith("<end>", at):
                tokens.append(self.CONTROL)
                at += 5
                continue
            whole = next((one for one in self.MORE if text.startswith(one, at)), "")
            if whole:
                tokens.append(128 + self.MORE.index(whole))
            elif ord(text[at]) < 128:
                tokens.append(ord(text[at]))
            else:
                raise PayloadRangeError("the tokenizer lacks a part of the prompt", found=text[at])
            at += len(whole) or 1
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        if any(not 0 <= token < 132 for token in tokens):
            raise PayloadRangeError("the tokenizer lacks a token")
        return "".join(self._piece(token) for token in tokens)

    def _piece(self, token: int) -> str:
        if token < 128:
            return chr(token)
        return "" if token == self.CONTROL else self.MORE[token - 128]


def make(checkpoint: Path | None, config: PlannerConfig) -> tuple[HybridLm, ByteTokenizer]:
    """Build model and tokenizer, for ``--model-factory``."""
    seed = int(checkpoint.name) if checkpoint is not None else 0
    model = HybridLm.random(
        HybridConfig.from_json(TINY),
        seed,
        max_positions=config.max_positions,
        chunk_length=config.chunk_length,
        device=config.device,
        kernels=TORCH_KERNELS,  # sizes too small for others
    )
    return model, ByteTokenizer()


def score_by_length(plan: Plan) -> float:
    """Prefer few subgoals, then the first coordinate."""
    return -len(plan.subgoals) + plan.subgoals[0][0]


def score_badly(plan: Plan) -> float:
    return float("nan")


def leave_always(plan: Plan) -> float:
    raise SystemExit("had enough")


def raise_always(plan: Plan) -> float:
    raise ValueError("no idea")
