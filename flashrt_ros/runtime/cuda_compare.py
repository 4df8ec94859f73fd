"""What a capture is compared with: the bytes of its lanes, before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from flashrt_ros.errors import CaptureError
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.cuda_graph import Recipe

Saved = tuple[torch.Tensor, ...]
"""Copies of every buffer, in order."""


@dataclass(frozen=True, slots=True)
class LaneBytes:
    """All bytes of some lanes, wherever they lie."""

    arena: Arena
    lanes: range

    def parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every buffer with its name, as ``uint8``."""
        for lane in self.lanes:
            for name, view in self.arena.views(lane).items():
                yield name, view.reshape(-1).view(torch.uint8)

    def save(self) -> Saved:
        """Copy every buffer, in device memory."""
        return tuple(part.clone() for _, part in self.parts())

    def load(self, saved: Saved) -> None:
        """Put back what :meth:`save` gave."""
        for (_, part), old in zip(self.parts(), saved, strict=True):
            part.copy_(old)

    def differing(self, left: Saved, right: Saved) -> frozenset[str]:
        """Name the buffers that differ."""
        names = [name for name, _ in self.parts()]
        pairs = zip(names, left, right, strict=True)
        return frozenset(name for name, one, other in pairs if not torch.equal(one, other))


def check_recorded(recipe: Recipe, lane_bytes: LaneBytes, before: Saved, eager: Saved) -> None:
    """Refuse a program that wrote where no operator was seen to write.

    Raises:
        CaptureError: It did; names the buffers.
    """
    unseen = sorted(lane_bytes.differing(before, eager) - recipe.tape.written_buffers)
    if unseen:
        raise CaptureError(
            f"program {recipe.key} can't be captured: it writes past the operators it calls",
            expected=f"writes to {', '.join(sorted(recipe.tape.written_buffers)) or 'nothing'}",
            found=f"other bytes in {', '.join(unseen)}",
            fix="wrap a kernel of your own with torch.library.custom_op and its mutates_args",
        )


def check_replayed(recipe: Recipe, lane_bytes: LaneBytes, eager: Saved, replayed: Saved) -> None:
    """Refuse a program whose replay gives other bytes than the program itself.

    Raises:
        CaptureError: It does; names the buffers.
    """
    differing = sorted(lane_bytes.differing(eager, replayed))
    if differing:
        raise CaptureError(
            f"program {recipe.key} can't be captured: its replay differs from the program itself",
            expected="the same bytes",
            found=f"other bytes in {', '.join(differing)}",
            fix="look for operators that add in no fixed order (index_add, scatter_add), and for "
            "what the program reads besides its buffers, slots and weights",
        )
