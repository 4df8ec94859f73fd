"""Tokenizer of the planner's language model: byte pairs, trained on instructions.

Any text has tokens. Digits are tokens of their own, and so is the `` 0.`` that every
coordinate begins with; capitals are read as small letters.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

END = "<|end|>"
"""Token that ends an answer; its id is 0."""

VOCAB_SIZE = 512
"""Tokens, the one for the end included."""

_PIECES = r" 0\.|\d| ?\p{L}+|[^\s\p{L}\d]|\s"


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn byte pairs from texts; equal texts give an equal tokenizer.

    Args:
        texts: As the model will read and answer.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(END, special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
