"""Lanes: alike arenas over the same weights, acquired, released and flipped between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from flashrt_ros.errors import BackendError, LanePoisonedError, NoFreeLaneError, SpecError
from flashrt_ros.runtime.arena import Arena, Block
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.spec import CAPSULE_ROLES, ShapeKey


class Lane:
    """One lane and its graphs.

    Attributes:
        address: Of the lane's first byte, where STATE begins; constant. Plain, as every copy asks.

    Args:
        graphs: Captured over every lane of their arena.
        index: Which lane.

    Raises:
        SpecError: No lane has this index.
    """

    def __init__(self, graphs: GraphSet, index: int) -> None:
        self._graphs = graphs
        self._index = index
        self.address = graphs.arena.lane_address(index)
        self._views = graphs.arena.views(index)
        self._poison = ""

    @property
    def index(self) -> int:
        """Place in the arena."""
        return self._index

    @property
    def views(self) -> Mapping[str, torch.Tensor]:
        """Buffers by name."""
        return self._views

    @property
    def is_poisoned(self) -> bool:
        """Whether STATE or INPUT is written in part; see :class:`LanePoisonedError`."""
        return bool(self._poison)

    def host_address(self, buffer: str) -> int:
        """Address at which the host reads an OUTPUT buffer, once its graph has completed."""
        return self._graphs.arena.host_address(self._index, buffer)

    def replay(self, key: ShapeKey, *, beside: bool = False) -> None:
        """Replay a graph on this lane; poison the lane if STATE or INPUT may be torn.

        Args:
            key: Names the graph.
            beside: Don't wait for plan nodes under way; see ``CapturedGraph.replay``.

        Raises:
            LanePoisonedError: The lane is poisoned; nothing ran.
            UnknownShapeKeyError: Nothing is captured under this key; nothing ran.
            BackendError: The replay failed.
        """
        self.check_not_poisoned()
        graph = self._graphs.graph(self._index, key)
        try:
            graph.replay(beside=beside)
        except BackendError as error:
            if error.is_torn:
                self.poison(f"{key} failed: {error}")
            raise
        except BaseException as error:
            # Cut short from outside (a signal): how far it came is not known.
            if graph.written_roles & CAPSULE_ROLES:
                self.poison(f"{key} was cut short by {type(error).__name__}")
            raise

    def poison(self, reason: str) -> None:
        """Refuse every replay from now on, until the lane is restored.

        Args:
            reason: What happened, for messages; not empty.
        """
        self._poison = reason

    def clear_poison(self) -> None:
        """Admit replays again; call it once STATE and INPUT were both overwritten."""
        self._poison = ""

    def check_not_poisoned(self) -> None:
        """Raise if the lane is poisoned.

        Raises:
            LanePoisonedError: It is; the message says by what.
        """
        if self._poison:
            raise LanePoisonedError(
                f"lane {self._index} holds a state that was written in part",
                found=self._poison,
                fix="restore a capsule, or roll back",
            )


@dataclass(slots=True)
class _Standby:
    """A lane that is being filled with the home capsule.

    Attributes:
        lane: The lane.
        num_copied: Bytes of the capsule it holds so far.
        not_before_ns: No slice is copied before this time.
    """

    lane: Lane
    num_copied: int = 0
    not_before_ns: int = 0


class LanePool:
    """Hands lanes out, and keeps some of them filled with the home capsule.

    A lane is *free*, *used*, or *standby*. Standby lanes are never acquired: they are
    taken whole by :meth:`take_standby`, which makes restoring ``home`` a flip instead of
    a copy, and a lane given back by :meth:`retire` or :meth:`release` fills the gap. The
    copies are made in slices by :meth:`refill`, when the caller has time for one.

    Args:
        arena: Sealed.
        graphs: Captured over the arena's lanes.
        num_standby: Lanes kept as standby; the last ones of the arena to begin with.

    Raises:
        SpecError: The graphs are of another arena, or ``num_standby`` is negative or
            more than there are lanes.
    """

    def __init__(self, arena: Arena, graphs: GraphSet, *, num_standby: int = 0) -> None:
        if graphs.arena is not arena:
            raise SpecError("the graphs of a lane pool are captured over another arena")
        if not 0 <= num_standby <= arena.num_lanes:
            raise SpecError(
                "a lane pool can't keep this many standby lanes",
                expected=f"0 to {arena.num_lanes}",
                found=num_standby,
            )
        self._backend = graphs.backend
        self._capsule_bytes = arena.layout.capsule_bytes
        self._lanes = tuple(Lane(graphs, index) for index in range(arena.num_lanes))
        self._num_standby = num_standby
        num_free = arena.num_lanes - num_standby
        self._free = list(self._lanes[:num_free])
        self._standbys = [_Standby(lane) for lane in self._lanes[num_free:]]
        self._used: set[Lane] = set()
        self._home: Block | None = None
        self._token = ""

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Every lane, in the arena's order."""
        return self._lanes

    @property
    def num_free(self) -> int:
        """Lanes that :meth:`acquire` can still hand out."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Lanes handed out and not yet given back."""
        return len(self._used)

    @property
    def num_standby(self) -> int:
        """Standby lanes, whole or not."""
        return len(self._standbys)

    @property
    def num_whole(self) -> int:
        """Standby lanes that hold all of the home capsule."""
        return sum(self._is_whole(standby) for standby in self._standbys)

    def acquire(self) -> Lane:
        """Hand out a free lane, the lowest first; its bytes are whatever they were.

        Raises:
            NoFreeLaneError: There is none; the message has the counts.
        """
        if not self._free:
            raise NoFreeLaneError(
                "no lane is free",
                found=f"{self.num_used} used and {self.num_standby} standby of {len(self._lanes)}",
                fix="release branches, or configure more lanes",
            )
        lane = self._free.pop(0)
        self._used.add(lane)
        return lane

    def release(self, lane: Lane) -> None:
        """Take a lane back: as standby where one is missing, else as free.

        Raises:
            SpecError: The lane is not handed out.
        """
        self.retire(lane, 0)

    def retire(self, lane: Lane, not_before_ns: int) -> None:
        """Take back the lane that a flip left.

        Args:
            lane: Handed out by :meth:`acquire` or :meth:`take_standby`.
            not_before_ns: If it becomes standby, it is refilled no earlier than this: a
                refill right after the reply would cost the caller what the flip saved.

        Raises:
            SpecError: The lane is not handed out.
        """
        if lane not in self._used:
            raise SpecError(
                f"lane {lane.index} can't be given back", found="a lane that is not handed out"
            )
        self._used.remove(lane)
        if len(self._standbys) < self._num_standby:
            self._standbys.append(_Standby(lane, not_before_ns=not_before_ns))
        else:
            self._free.append(lane)
            self._free.sort(key=lambda free: free.index)

    def set_home(self, block: Block | None, token: str) -> None:
        """Fill standby lanes with this capsule from now on.

        Lanes that hold another capsule are refilled; the same token again keeps what is
        copied. The caller keeps the block, unchanged, until home is set to another.

        Args:
            block: STATE and INPUT sections as a lane lays them out, or None for no home.
            token: Names the contents, for :meth:`take_standby`.

        Raises:
            SpecError: The block is smaller than a capsule. Home is as before.
        """
        if block is not None and block.num_bytes < self._capsule_bytes:
            raise SpecError(
                "a block is too small to be a home capsule",
                expected=f"at least {self._capsule_bytes} bytes",
                found=block.num_bytes,
            )
        if block is None or self._home is None or token != self._token:
            for standby in self._standbys:
                standby.num_copied = 0
        self._home = block
        self._token = token if block is not None else ""

    def has_standby(self, token: str) -> bool:
        """Tell whether :meth:`take_standby` would hand a lane out."""
        if token == self._token and self._home is not None:
            for standby in self._standbys:
                if standby.num_copied == self._capsule_bytes:
                    return True
        return False

    def take_standby(self, token: str) -> Lane | None:
        """Hand out a standby lane that holds all of the home capsule.

        Args:
            token: What the caller means to restore.

        Returns:
            The lane, or None where home is another capsule or no lane is whole yet.
        """
        if self._home is None or token != self._token:
            return None
        for standby in self._standbys:
            if standby.num_copied == self._capsule_bytes:
                self._standbys.remove(standby)
                self._used.add(standby.lane)
                return standby.lane
        return None

    def refill(self, now_ns: int, max_bytes: int) -> bool:
        """Copy one slice of the home capsule into a standby lane.

        Args:
            now_ns: Time, on the clock of :meth:`retire`.
            max_bytes: Most bytes to copy; positive.

        Returns:
            True while more could be copied at this time.

        Raises:
            SpecError: ``max_bytes`` is not positive.
        """
        if max_bytes <= 0:
            raise SpecError("a slice has no bytes", expected="a positive size", found=max_bytes)
        due = [
            standby
            for standby in self._standbys
            if standby.not_before_ns <= now_ns and not self._is_whole(standby)
        ]
        if self._home is None or not due:
            return False
        standby = due[0]
        num_bytes = min(max_bytes, self._capsule_bytes - standby.num_copied)
        self._backend.copy_aside(
            standby.lane.address + standby.num_copied,
            self._home.address + standby.num_copied,
            num_bytes,
        )
        standby.num_copied += num_bytes
        if self._is_whole(standby):
            standby.lane.clear_poison()
            return len(due) > 1
        return True

    def next_refill_ns(self) -> int | None:
        """Time from which :meth:`refill` has something to copy; None if it has nothing."""
        if self._home is None:
            return None
        nearest: int | None = None
        for standby in self._standbys:
            is_earlier = nearest is None or standby.not_before_ns < nearest
            if is_earlier and standby.num_copied != self._capsule_bytes:
                nearest = standby.not_before_ns
        return nearest

    def _is_whole(self, standby: _Standby) -> bool:
        return self._home is not None and standby.num_copied == self._capsule_bytes
