"""Text and tokens as the planner needs them, and what each token spells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flashrt_ros.errors import ConfigError, PayloadRangeError, PayloadShapeError

_ANCHORS = "ago;"
"""Texts before which a token is looked at: some decoders drop a blank at a text's start."""

_BYTES_PER_TOKEN = 16  # more than any text has on average


class Tokenizer(Protocol):
    """What ``models.hybrid_tokenizer.HybridTokenizer`` does, and what a test can stand in for."""

    def encode(self, text: str | bytes, *, has_control_tokens: bool = False) -> list[int]:
        """Turn a text into token ids, without adding any at its ends.

        Raises:
            PayloadTypeError: It is no Unicode.
            PayloadShapeError: It is empty.
            PayloadRangeError: The tokenizer lacks a part of it.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn token ids into text; control tokens leave none.

        Raises:
            PayloadRangeError: A token is not in the tokenizer.
        """


def check_length(what: str, text: bytes, max_positions: int) -> None:
    """Refuse a text that can't fit before it is tokenized: the loop would stand still meanwhile.

    Args:
        what: Names it in the message.
        text: UTF-8, or what came as such.
        max_positions: Tokens that the arena holds.

    Raises:
        PayloadShapeError: It has more bytes than so many tokens ever stand for.
    """
    most = _BYTES_PER_TOKEN * max_positions
    if len(text) > most:
        raise PayloadShapeError(
            f"{what} of {len(text)} bytes does not fit in the arena",
            expected=f"at most {most} bytes, for at most {max_positions} tokens",
            found=len(text),
            fix="shorten it, or raise max_positions",
        )


def token_pieces(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Return what each token adds to a text.

    Args:
        tokenizer: Of the model.
        vocab_size: Tokens that the model may choose.

    Returns:
        By token id; empty for control tokens, for rows that the tokenizer lacks, and for
        parts of a character, which no plan has.

    Raises:
        ConfigError: The tokenizer has no token for any of a plan's characters.
    """
    anchor = _anchor(tokenizer)
    before = tokenizer.decode(anchor)
    pieces: list[bytes] = []
    for token in range(vocab_size):
        try:
            text = tokenizer.decode([*anchor, token])
        except PayloadRangeError:
            text = ""
        is_whole = text.startswith(before) and "\ufffd" not in text
        pieces.append(text[len(before) :].encode() if is_whole else b"")
    return pieces


def _anchor(tokenizer: Tokenizer) -> list[int]:
    for character in _ANCHORS:
        try:
            return tokenizer.encode(character)
        except PayloadRangeError:
            continue
    raise ConfigError(
        "the tokenizer can't write a plan", expected=f"a token for one of {_ANCHORS!r}"
    )
