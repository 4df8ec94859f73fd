"""What may be a token of a prompt."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from flashrt_ros.errors import PayloadRangeError, PayloadTypeError


def checked_tokens(tokens: Sequence[int], vocab_size: int) -> list[int]:
    """Return tokens as integers.

    Args:
        tokens: Ids, or what stands for an integer (NumPy's).
        vocab_size: One more than the largest id.

    Raises:
        PayloadTypeError: One is no integer.
        PayloadRangeError: One is outside the vocabulary.
    """
    checked: list[int] = []
    for at, token in enumerate(tokens):
        try:
            value = operator.index(token)
        except TypeError as error:
            raise PayloadTypeError(
                f"token {at} of a prompt", expected="an integer", found=repr(token)[:80]
            ) from error
        if not 0 <= value < vocab_size:
            raise PayloadRangeError(
                f"token {at} of a prompt is outside the vocabulary",
                expected=f"0 to {vocab_size - 1}",
                found=value,
            )
        checked.append(value)
    return checked
