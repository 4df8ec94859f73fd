"""Where a text may be cut, and what is kept of it there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flashrt_ros.models.hybrid_config import BORDER_TOKENS
from flashrt_ros.runtime.arena import Block


def split_at_borders(start: int, count: int, chunk_length: int) -> Iterator[tuple[int, int]]:
    """Cut positions into prefill replays, so that how a text came in does not matter.

    A replay that begins on a border takes up to a chunk; one that begins off it ends at
    the next border. The last border inside is always an end, so that the state there can
    be kept. Two texts that are equal up to a border give the same bytes there, in however
    many appends each came, as long as each append begins on a border.

    Args:
        start: Position of the first token.
        count: Number of tokens, positive.
        chunk_length: Rows of a replay, a multiple of 64.

    Yields:
        First position and end of each replay, in order, without gaps.
    """
    end = start + count
    last_border = end - end % BORDER_TOKENS
    while start < end:
        off = start % BORDER_TOKENS
        stop = min(end, start + (BORDER_TOKENS - off if off else chunk_length))
        if start < last_border < stop:
            stop = last_border
        yield start, stop
        start = stop


@dataclass(frozen=True, slots=True)
class SessionCapsule:
    """The state of a session at a position, with the tokens to take before any other.

    Attributes:
        block: STATE, INPUT and the used positions of the cache, as the lane lays them
            out; the holder closes it.
        num_bytes: Bytes of it that are used.
        position: Tokens it holds.
        tail: Tokens that were past the border; the next append takes them first.
        temperature: Of sampling.
        seed: Of sampling.
    """

    block: Block
    num_bytes: int
    position: int
    tail: tuple[int, ...]
    temperature: float
    seed: int

    def close(self) -> None:
        """Free the block; idempotent."""
        self.block.close()
