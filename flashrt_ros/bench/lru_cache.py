"""A cache of tensors without pins, as people write one: the peer of pinned capsules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch


@dataclass(slots=True, eq=False)
class Shelf:
    """Tensors in one kind of memory.

    Attributes:
        free: Allocated, and of no key; ``uint8[num_bytes]``, all alike.
        held: By key, the least recently used first.
    """

    free: list[torch.Tensor]
    held: OrderedDict[int, torch.Tensor] = field(default_factory=OrderedDict)


class LruCache:
    """Tensors by key; the least recently used is pushed down, from memory to files in the end.

    It does what it can to be fast: memory is allocated once and reused, a file is written
    once, is not waited for to be on disk, and is not checked when it is read.

    Args:
        num_bytes: Of each tensor.
        memory: Kinds of memory and how many tensors each holds, fastest first; the last is
            the host's.
        folder: For files.
    """

    def __init__(
        self, num_bytes: int, memory: Sequence[tuple[torch.device, int]], folder: Path
    ) -> None:
        def make(device: torch.device) -> torch.Tensor:
            is_locked = device.type == "cpu" and torch.cuda.is_available()
            return torch.zeros(num_bytes, dtype=torch.uint8, device=device, pin_memory=is_locked)

        self._shelves = [Shelf([make(device) for _ in range(count)]) for device, count in memory]
        self._folder = folder
        self._filed: set[int] = set()
        # One more of each kind, so that who comes up need not wait for who goes down.
        self._spare = make(memory[0][0])
        self._bounce = make(memory[-1][0]) if len(memory) > 1 else None

    def put(self, key: int, value: torch.Tensor) -> None:
        """Take in a copy of a tensor under a key that is new."""
        tensor = self._claim(0)
        tensor.copy_(value)
        self._shelves[0].held[key] = tensor

    def get(self, key: int) -> torch.Tensor:
        """Return the tensor of a key in the fastest memory, brought there if it must be.

        It is the cache's own, and valid until the next call.
        """
        level = self.level_of(key)
        if level == 0:
            self._shelves[0].held.move_to_end(key)
            return self._shelves[0].held[key]
        if level == len(self._shelves):
            self._read(key)
        else:
            source = self._shelves[level].held.pop(key)
            self._spare.copy_(source)
            self._shelves[level].free.append(source)
        tensor, self._spare = self._spare, self._claim(0)
        self._shelves[0].held[key] = tensor
        return tensor

    def level_of(self, key: int) -> int:
        """Return where a key is: the index of its memory, or their number for a file."""
        places = (index for index, shelf in enumerate(self._shelves) if key in shelf.held)
        return next(places, len(self._shelves))

    def _claim(self, level: int) -> torch.Tensor:
        """Take a tensor of a kind of memory, from the least recently used if it must be."""
        shelf = self._shelves[level]
        if shelf.free:
            return shelf.free.pop()
        key, tensor = shelf.held.popitem(last=False)
        if level + 1 < len(self._shelves):
            lower = self._claim(level + 1)
            lower.copy_(tensor)
            self._shelves[level + 1].held[key] = lower
        elif key not in self._filed:
            self._path(key).write_bytes(tensor.numpy().data)
            self._filed.add(key)
        return tensor

    def _read(self, key: int) -> None:
        """Read a file into the spare tensor."""
        target = self._spare if self._bounce is None else self._bounce
        with self._path(key).open("rb", buffering=0) as file:
            file.readinto(target.numpy().data)
        if target is not self._spare:
            self._spare.copy_(target)

    def _path(self, key: int) -> Path:
        return self._folder / str(key)
