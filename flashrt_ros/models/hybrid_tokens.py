"""What may be a token of a prompt."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

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
    # Long prompts all at once; what is no plain list of tokens is looked at one by one.
    with suppress(ValueError, TypeError, OverflowError):
        array = np.asarray(tokens)
        is_plain = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
        if is_plain and int(array.min()) >= 0 and int(array.max()) < vocab_size:
            plain: list[int] = array.tolist()
            return plain
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
