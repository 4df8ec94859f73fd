"""Batches: consecutive lanes, seen as rows of one strided view per buffer.

A *row* is the lane of one environment. A replay runs over all rows of a batch at once
and changes those that its mask names; between replays a row is snapshot and restored
as any lane is, by one copy of its capsule run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import torch

from flashrt_ros.errors import BackendError, LanePoisonedError, SealedArenaError, SpecError
from flashrt_ros.runtime.arena import DTYPES, Arena
from flashrt_ros.runtime.backend import Backend, CapturedGraph
from flashrt_ros.runtime.spec import CAPSULE_ROLES, BufferSpec, Placement, Role

ROW_MASK = "row_mask"
"""BINDING, ``bool[1]``: whether a replay changes the row."""

KEPT = CAPSULE_ROLES | {Role.OUTPUT}
"""Roles whose buffers a replay leaves alone in rows outside its mask."""


def with_row_mask(specs: Sequence[BufferSpec]) -> tuple[BufferSpec, ...]:
    """Add the mask that a batch needs to the buffers of a lane.

    It comes after STATE and INPUT: a capsule's run stays what it is without it.

    Args:
        specs: Of a lane, as a model declares them.

    Raises:
        SpecError: They declare a buffer of this name themselves.
    """
    if any(spec.name == ROW_MASK for spec in specs):
        raise SpecError(
            f"a model declares a buffer '{ROW_MASK}' itself", fix="give it another name"
        )
    return (*specs, BufferSpec(ROW_MASK, (1,), "bool", Role.BINDING))


def batch_views(arena: Arena, lanes: range) -> dict[str, torch.Tensor]:
    """View consecutive lanes as one tensor per buffer, in place.

    Nothing is copied: row ``i`` of a view is the buffer of lane ``lanes[i]``, at the
    address that :meth:`Arena.views` gives. Every call makes tensors of its own; they
    keep the arena's pages alive.

    Args:
        arena: Sealed.
        lanes: Consecutive, within the arena, at least one.

    Returns:
        Name → ``[len(lanes), *shape]``, strided by the pitch of the arena's lanes.

    Raises:
        SpecError: There are no such lanes.
        SealedArenaError: The arena is not sealed: adding a lane would move them.
        BackendError: The arena is closed.
    """
    if not lanes or lanes.step != 1 or lanes[0] < 0 or lanes[-1] >= arena.num_lanes:
        raise SpecError(
            "lanes can't be viewed as a batch",
            expected=f"consecutive lanes of 0 to {arena.num_lanes - 1}",
            found=f"{lanes}",
        )
    if not arena.is_sealed:
        raise SealedArenaError(
            "lanes can't be viewed as a batch", expected="a sealed arena", fix="call seal() first"
        )
    views = arena.views(lanes[0])
    if next(iter(views.values())).device.type == "cpu":
        # On the host each view of a lane is a storage of its own and ends with its buffer.
        views = _host_views(arena, lanes[0], views)
    return {
        name: view.as_strided(
            (len(lanes), *view.size()),
            (arena.pitch_bytes(name) // view.itemsize, *view.stride()),
        )
        for name, view in views.items()
    }


def _host_rows(arena: Arena, lanes: range, buffer: str, keep: torch.Tensor) -> torch.Tensor:
    """View an OUTPUT buffer of consecutive lanes where the host reads it.

    Args:
        arena: Sealed.
        lanes: Consecutive.
        buffer: Its name.
        keep: The device's view of the same; lives as long as this one.
    """
    spec, pitch = arena.layout.by_name[buffer].spec, arena.pitch_bytes(buffer)
    num_bytes = (len(lanes) - 1) * pitch + spec.num_bytes
    memory = (ctypes.c_char * num_bytes).from_address(arena.host_address(lanes[0], buffer))
    memory.owner = keep  # type: ignore[attr-defined]  # alive as long as the storage
    flat = torch.frombuffer(memory, dtype=DTYPES[spec.dtype])
    return flat.as_strided(keep.size(), keep.stride())


def _host_views(
    arena: Arena, first: int, owners: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """View a lane through one storage that reaches to the arena's end."""
    start = arena.lane_address(first)
    memory = (ctypes.c_char * (arena.address + arena.num_bytes - start)).from_address(start)
    memory.owners = dict(owners)  # type: ignore[attr-defined]  # alive as long as the storage
    whole = torch.frombuffer(memory, dtype=torch.uint8)

    def view(place: Placement) -> torch.Tensor:
        end = place.offset + place.spec.num_bytes
        flat = whole[place.offset : end].view(DTYPES[place.spec.dtype])
        return flat.view(place.spec.shape)

    return {name: view(place) for name, place in arena.layout.by_name.items()}


def lane_views(arena: Arena, lane: int, num_rows: int | None) -> dict[str, torch.Tensor]:
    """Return what a program over a lane, or over a batch from that lane on, is given.

    Args:
        arena: Sealed.
        lane: The lane; of a batch, the first.
        num_rows: Lanes of the batch, or None for a program over one lane.

    Raises:
        SpecError: There are no such lanes.
    """
    if num_rows is None:
        return arena.views(lane)
    return batch_views(arena, range(lane, lane + num_rows))


def reach(tensor: torch.Tensor, pitch: int) -> tuple[int, int]:
    """Say how far a tensor reaches from its first element, by lanes and within a lane.

    A step from one index to the next is taken apart into whole lanes and the rest: what
    stays within a buffer by its rests stays within it in every lane.

    Args:
        tensor: Not empty.
        pitch: Bytes from the buffer in one lane to that in the next.

    Returns:
        Lanes from the first element's to the last's, and bytes from the first element to
        the end of the last one's in a lane.
    """
    lanes, last = 0, 0
    for size, stride in zip(tensor.size(), tensor.stride(), strict=True):
        whole, rest = divmod(stride * tensor.itemsize, pitch)
        lanes += (size - 1) * whole
        last += (size - 1) * rest
    return lanes, last + tensor.itemsize


def extent_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last; 0 if it has none."""
    return reach(tensor, 1 << 62)[1] if tensor.numel() else 0


def name_lanes(lanes: range) -> str:
    """Name lanes in a message."""
    return f"lane {lanes[0]}" if len(lanes) == 1 else f"lanes {lanes[0]} to {lanes[-1]}"


class Batch:
    """The rows that one replay moves together.

    Ownership: arena and backend are the caller's and outlive the batch.

    Args:
        backend: Copies.
        arena: Sealed, with a buffer :data:`ROW_MASK` in its layout.
        lanes: Which lanes the rows are, consecutive.

    Raises:
        SpecError: There are no such lanes, or the layout has no mask.
    """

    def __init__(self, backend: Backend, arena: Arena, lanes: range) -> None:
        mask = arena.layout.by_name.get(ROW_MASK)
        if mask is None or (mask.spec.shape, mask.spec.dtype) != ((1,), "bool"):
            raise SpecError(
                "lanes without a row mask can't be a batch",
                expected=f"a buffer '{ROW_MASK}' of bool[1]",
                fix="lay out with_row_mask(specs)",
            )
        self._views = batch_views(arena, lanes)
        self._host_rows = {
            place.spec.name: _host_rows(arena, lanes, place.spec.name, self._views[place.spec.name])
            for place in arena.layout.placements
            if place.spec.role is Role.OUTPUT
        }
        self._backend = backend
        self._arena = arena
        self._lanes = lanes
        self._poison: dict[int, str] = {}

    @property
    def backend(self) -> Backend:
        """What captures over the rows and copies them."""
        return self._backend

    @property
    def arena(self) -> Arena:
        """What the rows are lanes of."""
        return self._arena

    @property
    def lanes(self) -> range:
        """Lane of each row."""
        return self._lanes

    @property
    def num_rows(self) -> int:
        """Rows, in and out of any mask."""
        return len(self._lanes)

    @property
    def views(self) -> Mapping[str, torch.Tensor]:
        """Buffers by name, ``[num_rows, *shape]``."""
        return self._views

    @property
    def poisoned_rows(self) -> tuple[int, ...]:
        """Rows whose STATE or INPUT is written in part, ascending."""
        return tuple(sorted(self._poison))

    def address(self, row: int) -> int:
        """Address of a row's first byte, where its capsule run begins.

        Raises:
            SpecError: No row has this index.
        """
        if not 0 <= row < self.num_rows:
            raise SpecError(
                f"a batch has no row {row}", expected=f"0 to {self.num_rows - 1}", found=row
            )
        return self._arena.lane_address(self._lanes[row])

    def read(self, buffer: str) -> torch.Tensor:
        """Copy an OUTPUT buffer of every row to the host, as of all that was submitted.

        Args:
            buffer: Its name.

        Returns:
            ``[num_rows, *shape]``, contiguous, on the host.
        """
        self._backend.synchronize()
        return self._host_rows[buffer].clone(memory_format=torch.contiguous_format)

    def save(self, row: int, address: int) -> None:
        """Copy a row's STATE and INPUT out, in one copy, between replays.

        Args:
            row: Not poisoned.
            address: Of ``layout.capsule_bytes`` bytes.

        Raises:
            SpecError: No row has this index.
            LanePoisonedError: The row is poisoned.
        """
        source = self.address(row)
        self.check_not_poisoned([row])
        self._backend.copy(address, source, self._arena.layout.capsule_bytes)

    def load(self, row: int, address: int) -> None:
        """Put a row's STATE and INPUT back, in one copy, between replays.

        No byte of another row changes. A poisoned row is whole again.

        Args:
            row: Which.
            address: Of ``layout.capsule_bytes`` bytes that :meth:`save` wrote.

        Raises:
            SpecError: No row has this index.
        """
        self._backend.copy(self.address(row), address, self._arena.layout.capsule_bytes)
        self._poison.pop(row, None)

    def check_not_poisoned(self, rows: Sequence[int]) -> None:
        """Raise if one of these rows is poisoned.

        Raises:
            LanePoisonedError: One is; the message says which, and by what.
        """
        for row in rows:
            if row in self._poison:
                raise LanePoisonedError(
                    f"row {row} of a batch holds a state that was written in part",
                    found=self._poison[row],
                    fix="restore a capsule to it",
                )

    def select(self, rows: Sequence[int] | None) -> tuple[int, ...]:
        """Write the mask: the replays that follow change these rows only.

        Args:
            rows: Which, or None for all.

        Returns:
            The rows.

        Raises:
            SpecError: A row does not exist or is named twice.
            LanePoisonedError: One of them is poisoned. The mask stays as it was.
        """
        chosen = tuple(range(self.num_rows)) if rows is None else tuple(rows)
        for row in chosen:
            self.address(row)
        if len(set(chosen)) < len(chosen):
            raise SpecError("a mask names a row twice", expected="each at most once", found=chosen)
        self.check_not_poisoned(chosen)
        mask = torch.zeros((self.num_rows, 1), dtype=torch.bool)
        mask[list(chosen)] = True
        with self._backend.ordered():
            self._views[ROW_MASK].copy_(mask)
        return chosen

    def replay(self, graph: CapturedGraph, rows: Sequence[int]) -> None:
        """Replay a graph under the mask in force; poison its rows if they may be torn.

        Args:
            graph: Captured over this batch.
            rows: Rows of the mask.

        Raises:
            BackendError: The replay failed.
        """
        try:
            graph.replay()
        except BackendError as error:
            if error.is_torn:
                self._poison.update(dict.fromkeys(rows, f"{graph.key} failed: {error}"))
            raise
        except BaseException as error:
            # Cut short from outside (a signal): how far it came is not known.
            if graph.written_roles & CAPSULE_ROLES:
                what = f"{graph.key} was cut short by {type(error).__name__}"
                self._poison.update(dict.fromkeys(rows, what))
            raise
