"""The small language model that ships: instructions about the table to subgoals.

What it reads and answers stands in :mod:`flashrt_ros.models.planner_text`.
"""

from __future__ import annotations

from pathlib import Path

from flashrt_ros.models.hybrid_config import BORDER_TOKENS
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_tokenizer import HybridTokenizer

PACKAGED_PLANNER = Path(__file__).with_name("weights") / "planner_lm"
"""Folder of the checkpoint that ships: config.json, model.safetensors, tokenizer.json."""

_POSITIONS = 1024


def load_planner_lm(
    path: Path | None = None,
    *,
    max_positions: int = _POSITIONS,
    chunk_length: int = BORDER_TOKENS,
    device: str = "cpu",
) -> tuple[HybridLm, HybridTokenizer]:
    """Load a planner's model and tokenizer; nothing in the files is executed.

    Args:
        path: Folder of a checkpoint, or None for the one in the package.
        max_positions: Most tokens a lane holds.
        chunk_length: Rows of a prefill replay; a multiple of 64.
        device: Where the weights go.

    Raises:
        ConfigError: The config or tokenizer is missing, damaged or of another model, or
            the package ``tokenizers`` is not installed.
        WeightsError: The weights are missing, damaged or of another shape.
    """
    folder = PACKAGED_PLANNER if path is None else path
    model = HybridLm.load(
        folder, max_positions=max_positions, chunk_length=chunk_length, device=device
    )
    return model, HybridTokenizer.load(folder / "tokenizer.json", model.config)
