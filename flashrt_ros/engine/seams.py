"""Where the robot really is when a verb brings an older boundary back under it."""

from __future__ import annotations

from flashrt_ros.models.base import LAST_ACTION, PolicyModel
from flashrt_ros.runtime.arena import Block
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.spec import ArenaLayout


class Seams:
    """Carries the action executed last across a resume, for models that bridge seams.

    All of it is submitted in the order of replays and copies; nothing waits.

    Args:
        model: Without a ``seam`` in its plan there is nothing to do.
        layout: Of a lane.
        backend: Copies; one small block of it is owned.
    """

    def __init__(self, model: PolicyModel, layout: ArenaLayout, backend: Backend) -> None:
        self._seam = model.plan().seam
        self._backend = backend
        self._block: Block | None = None
        self._offset = self._num_bytes = 0
        if self._seam is not None:
            place = layout.by_name[LAST_ACTION]
            self._offset, self._num_bytes = place.offset, place.spec.num_bytes
            self._block = backend.allocate_block(self._num_bytes)

    def keep(self, lane: Lane) -> None:
        """Put aside what was executed last, before another boundary comes under a lane."""
        if self._block is not None:
            self._backend.copy(self._block.address, lane.address + self._offset, self._num_bytes)

    def bridge(self, lane: Lane) -> None:
        """Have the queue that was brought back begin at what :meth:`keep` put aside."""
        if self._block is not None and self._seam is not None:
            self._backend.copy(lane.address + self._offset, self._block.address, self._num_bytes)
            lane.replay(self._seam)

    def close(self) -> None:
        """Free the block; idempotent."""
        if self._block is not None:
            self._block.close()
            self._block = None
