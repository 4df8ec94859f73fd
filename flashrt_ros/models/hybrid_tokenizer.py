"""Text to tokens and back, by a checkpoint's ``tokenizer.json``; needs the extra ``lm``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from flashrt_ros.errors import (
    ConfigError,
    PayloadRangeError,
    PayloadShapeError,
    PayloadTypeError,
)
from flashrt_ros.models.hybrid_config import HybridConfig

if TYPE_CHECKING:
    import tokenizers

_MOST_PADDING = 1024  # rows that families add to a vocabulary, to round its size up


class HybridTokenizer:
    """A tokenizer that fits a model; refuses text that it would lose a part of.

    Args:
        tokenizer: A ``tokenizers.Tokenizer``, taken over.
        config: Of the model that the tokens go to.

    Raises:
        ConfigError: The tokenizer is another model's: it has tokens outside the
            vocabulary, far fewer than the vocabulary, or not the token that ends a text.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, config: HybridConfig) -> None:
        ids = tokenizer.get_vocab(with_added_tokens=True).values()
        size = max(ids, default=-1) + 1
        if not config.vocab_size - _MOST_PADDING < size <= config.vocab_size:
            raise ConfigError(
                "the tokenizer does not match the model's vocabulary",
                expected=f"up to {config.vocab_size} tokens, the last few unused at most",
                found=f"{size} tokens",
                fix="use the tokenizer.json of the model's own checkpoint",
            )
        for token in config.eos_token_ids:
            if tokenizer.id_to_token(token) is None:
                raise ConfigError(
                    "the tokenizer lacks the token that ends the model's texts",
                    expected=token,
                    found=f"{size} tokens without it",
                    fix="use the tokenizer.json of the model's own checkpoint",
                )
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, path: Path, config: HybridConfig) -> Self:
        """Read a ``tokenizer.json``.

        Args:
            path: The file.
            config: Of the model that the tokens go to.

        Raises:
            ConfigError: The package ``tokenizers`` is not installed, the file is missing
                or damaged, or the tokenizer is another model's.
        """
        try:
            import tokenizers  # an extra: token ids need no tokenizer
        except ImportError as error:
            raise ConfigError(
                "text can't be tokenized",
                expected="the package 'tokenizers'",
                fix="install flashrt_ros[lm], or give token ids",
            ) from error
        try:
            tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the package raises Exception itself
            raise ConfigError(
                f"tokenizer '{path}' can't be read", expected="a tokenizer.json", found=error
            ) from error
        return cls(tokenizer, config)

    def encode(self, text: str | bytes, *, has_control_tokens: bool = False) -> list[int]:
        """Turn a text into token ids, without adding any at its ends.

        Args:
            text: Not empty; bytes are UTF-8.
            has_control_tokens: Whether the names of control tokens in the text stand for
                them. Leave it off for text from outside: a text that spells the end of a
                turn is text.

        Raises:
            PayloadTypeError: The bytes are no UTF-8, or the string holds half of a
                surrogate pair.
            PayloadShapeError: The text is empty.
            PayloadRangeError: The tokenizer lacks a part of the text; the message has it.
        """
        if isinstance(text, bytes):
            try:
                text = text.decode("utf-8")
            except UnicodeDecodeError as error:
                raise PayloadTypeError(
                    "a prompt is no text", expected="valid UTF-8", found=error
                ) from error
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PayloadTypeError(
                "a prompt is no text", expected="valid Unicode", found=error
            ) from error
        self._tokenizer.encode_special_tokens = not has_control_tokens
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        self._check_whole(text, encoding.ids, encoding.offsets)
        if not encoding.ids:
            raise PayloadShapeError("a prompt is empty", expected="at least one token")
        return list(encoding.ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn token ids into text; control tokens leave none.

        Raises:
            PayloadRangeError: A token is not in the tokenizer: a model may choose one of
                the rows that only pad its vocabulary.
        """
        for token in tokens:
            if token < 0 or self._tokenizer.id_to_token(token) is None:
                raise PayloadRangeError("the tokenizer lacks a token", found=token)
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _check_whole(
        self, text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]]
    ) -> None:
        name = getattr(self._tokenizer.model, "unk_token", None)
        unknown = self._tokenizer.token_to_id(name) if name else None
        covered = {
            at
            for token, (start, end) in zip(ids, offsets, strict=True)
            if token != unknown
            for at in range(start, end)
        }
        for at, character in enumerate(text):
            if at not in covered and not character.isspace():
                raise PayloadRangeError(
                    "the tokenizer lacks a part of the prompt",
                    expected="text that it has tokens for",
                    found=f"{text[at : at + 16]!r} at character {at}",
                )
