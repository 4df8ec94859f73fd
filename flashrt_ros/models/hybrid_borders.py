"""Where a text may be cut, and what is kept of it there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flashrt_ros.models.hybrid_config import BORDER_TOKENS
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.backend import Backend


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


class LastBorder:
    """The small buffers of a lane at its last border, and the tokens since.

    At the border they are those of the lane itself: a copy is made where the lane leaves it
    for a position that is none, and a text that goes from border to border makes none.

    Ownership: the copy is its own; close it after the lane's last replay.

    Args:
        backend: Copies.
        address: Of the lane.
        num_bytes: Of the small buffers, which come first in a lane.

    Raises:
        BackendError: There is no memory for the copy.
    """

    def __init__(self, backend: Backend, address: int, num_bytes: int) -> None:
        self._backend = backend
        self._lane_address = address
        self._block = backend.allocate_block(num_bytes)
        self._position: int | None = None
        self._since: list[int] = []
        self._is_copied = False

    @property
    def position(self) -> int | None:
        """Of the border; None where the lane passed none since it was restored."""
        return self._position

    @property
    def since(self) -> tuple[int, ...]:
        """Tokens taken in after it."""
        return tuple(self._since)

    @property
    def address(self) -> int:
        """Of the copy; only where the lane has left the border."""
        assert self._is_copied
        return self._block.address

    def reach(self, position: int) -> None:
        """Note that the lane stands at a border."""
        self._position, self._since, self._is_copied = position, [], False

    def forget(self) -> None:
        """Note that the lane was restored at a position that is no border."""
        self._position, self._since, self._is_copied = None, [], False

    def leave(self) -> None:
        """Copy the lane's buffers, unless they are copied, before a replay changes them."""
        if self._position is not None and not self._is_copied:
            self._backend.copy(self._block.address, self._lane_address, self._block.num_bytes)
            self._is_copied = True

    def write(self, offset: int, data: bytes) -> None:
        """Change the copy as the lane is changed; the lane itself is the caller's."""
        if self._is_copied:
            self._backend.write(self._block.address + offset, data)

    def take(self, tokens: Sequence[int]) -> None:
        """Note tokens that the lane took in."""
        self._since += tokens

    def close(self) -> None:
        """Free the copy; idempotent."""
        self._block.close()


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
