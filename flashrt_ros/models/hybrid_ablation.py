"""What a restore is worth without one part of the state: where the text diverges."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashrt_ros.errors import PayloadShapeError
from flashrt_ros.models.hybrid_borders import SessionCapsule
from flashrt_ros.models.hybrid_config import BORDER_TOKENS
from flashrt_ros.models.hybrid_lm import CONVOLUTION, POSITION, RECURRENT
from flashrt_ros.models.hybrid_session import HybridSession


class Ablation(enum.Enum):
    """What is taken from the state after it was restored."""

    NOTHING = "nothing"
    """The control: must not diverge."""
    RECURRENT_ZEROED = "recurrent state zeroed"
    """As a cache of keys and values alone would restore it."""
    RECURRENT_STALE = "recurrent state stale"
    """Left as it was one border before."""
    CONVOLUTION_ZEROED = "convolution state zeroed"
    """As if a text began at the border: the last inputs of each convolution are gone."""
    POSITION_OFF = "position off by one"
    """One more than there are: what is appended leaves a place out."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """How a text after an ablation differs from the uninterrupted one.

    Attributes:
        token: Index of the first chosen token that differs, or None.
        logits: Index of the first token whose logits differ in any bit, or None.
        largest_error: Largest difference of a logit at the first token.
    """

    token: int | None
    logits: int | None
    largest_error: float


def first_difference(expected: Sequence[object], found: Sequence[object]) -> int | None:
    """Return the first index at which two sequences differ, or None.

    Where one is the other's beginning, they differ at its end.
    """
    for at, (left, right) in enumerate(zip(expected, found, strict=False)):
        if left != right:
            return at
    return None if len(expected) == len(found) else min(len(expected), len(found))


def run_ablations(
    session: HybridSession, prefix: Sequence[int], suffix: Sequence[int], *, num_tokens: int
) -> dict[Ablation, Divergence]:
    """Restore the capsule of a prefix, damage one part, append a suffix, decode; for each part.

    Every run is compared with one that computes prefix and suffix without a restore. The
    session is left in the last ablation's text: reset or restore it.

    Args:
        session: On any text; sampling is reset to greedy.
        prefix: A multiple of 64 tokens, 128 at least.
        suffix: At least one token.
        num_tokens: Tokens to decode.

    Raises:
        PayloadShapeError: The prefix has another length; nothing ran.
    """
    if len(prefix) < 2 * BORDER_TOKENS or len(prefix) % BORDER_TOKENS:
        raise PayloadShapeError(
            "the prefix of an ablation has no two borders",
            expected=f"a multiple of {BORDER_TOKENS}, {2 * BORDER_TOKENS} at least",
            found=len(prefix),
        )
    results: dict[Ablation, Divergence] = {}
    with ExitStack() as stack:
        session.reset()
        session.append(prefix[:-BORDER_TOKENS])
        stale = session.snapshot()
        stack.callback(stale.close)
        session.append(prefix[-BORDER_TOKENS:])
        whole = session.snapshot()
        stack.callback(whole.close)
        session.reset()
        session.append([*prefix, *suffix])
        expected = decode_with_logits(session, num_tokens)
        for ablation in Ablation:
            session.restore(whole)
            _damage(session, ablation, stale)
            session.append(suffix)
            results[ablation] = _compare(expected, decode_with_logits(session, num_tokens))
    return results


Decoded = tuple[list[int], list[npt.NDArray[np.float32]]]
"""Tokens, and the logits ``float32[V]`` that each was chosen by."""


def decode_with_logits(session: HybridSession, num_tokens: int) -> Decoded:
    """Decode token by token, and keep what each was chosen by.

    Args:
        session: On a text of one token at least; it goes on by those that are decoded.
        num_tokens: How many.

    Returns:
        The tokens, and copies of the logits on the host.
    """
    tokens: list[int] = []
    logits: list[npt.NDArray[np.float32]] = []
    for _ in range(num_tokens):
        logits.append(session.logits())
        tokens += session.decode(1)
    return tokens, logits


def _damage(session: HybridSession, ablation: Ablation, stale: SessionCapsule) -> None:
    by_name = session.layout.by_name
    if ablation is Ablation.RECURRENT_ZEROED:
        session.write(RECURRENT, bytes(by_name[RECURRENT].spec.num_bytes))
    elif ablation is Ablation.RECURRENT_STALE:
        place = by_name[RECURRENT]
        session.backend.copy(
            session.lane.address + place.offset,
            stale.block.address + place.offset,
            place.spec.num_bytes,
        )
    elif ablation is Ablation.CONVOLUTION_ZEROED:
        session.write(CONVOLUTION, bytes(by_name[CONVOLUTION].spec.num_bytes))
    elif ablation is Ablation.POSITION_OFF:
        session.write(POSITION, struct.pack("<q", session.position + 1))


def _compare(expected: Decoded, found: Decoded) -> Divergence:
    return Divergence(
        token=first_difference(expected[0], found[0]),
        logits=first_difference(
            [row.tobytes() for row in expected[1]], [row.tobytes() for row in found[1]]
        ),
        largest_error=float(np.abs(expected[1][0] - found[1][0]).max()),
    )
