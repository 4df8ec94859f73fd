"""Blocks that copies of a lane go to, kept and lent again."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flashrt_ros.errors import BackendError
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.backend import Backend


class BlockPool:
    """Lends blocks of one size; what is closed comes back and is lent again.

    A block that a device still reads must not go back to its allocator, which would zero it
    for the next holder on another stream. Lent again, it is written in the order of the
    lane's own copies. Nothing is allocated before it is asked for.

    Ownership: the pool owns the memory. Close it after everything submitted has completed;
    blocks that are lent then are freed as they come back.

    Args:
        backend: Allocates.
        num_bytes: Of each block.
    """

    def __init__(self, backend: Backend, num_bytes: int) -> None:
        self._backend = backend
        self._num_bytes = num_bytes
        self._idle: list[Block] = []
        self._is_closed = False

    def lend(self) -> Block:
        """Return a block, whatever it holds; its ``close`` gives it back.

        Raises:
            BackendError: There is no memory.
        """
        block = self._idle.pop() if self._idle else self._backend.allocate_block(self._num_bytes)
        return _LentBlock(block, self._take_back)

    def close(self) -> None:
        """Free what is not lent; idempotent."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _take_back(self, block: Block) -> None:
        if self._is_closed:
            block.close()
        else:
            self._idle.append(block)


class _LentBlock(Block):
    """A block of a pool, to whoever holds it."""

    def __init__(self, block: Block, give_back: Callable[[Block], None]) -> None:
        self._block = block
        self._give_back: Callable[[Block], None] | None = give_back
        self.address = block.address

    @property
    def num_bytes(self) -> int:
        return self._block.num_bytes

    @property
    def is_closed(self) -> bool:
        return self._give_back is None

    def view(self) -> memoryview:
        return self._open_block().view()

    def tensor(self, dtype: str, shape: tuple[int, ...], offset: int = 0) -> torch.Tensor:
        return self._open_block().tensor(dtype, shape, offset)

    def close(self) -> None:
        """Give it back; idempotent."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(self._block)

    def _open_block(self) -> Block:
        if self.is_closed:
            raise BackendError(f"a block of {self.num_bytes} bytes is closed")
        return self._block
