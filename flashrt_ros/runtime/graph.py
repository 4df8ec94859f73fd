"""Captured graphs by shape key, for every lane of an arena."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from flashrt_ros.errors import SealedArenaError, SpecError, UnknownShapeKeyError
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.backend import Backend, CapturedGraph, Program, Slots
from flashrt_ros.runtime.spec import ShapeKey


class GraphSet:
    """Every program of a model, captured on lane 0 and rebased to all other lanes.

    Ownership: the set owns its graphs and closes them; backend, arena and slots are the
    caller's and outlive it.

    Args:
        backend: Captures.
        programs: One program for each key; captured in this order.
        arena: Sealed.
        slots: Tensors that programs may read.

    Raises:
        SealedArenaError: The arena is not sealed.
        CaptureError: A program can't be captured; nothing of the set is left.
    """

    def __init__(
        self,
        backend: Backend,
        programs: Mapping[ShapeKey, Program],
        arena: Arena,
        slots: Slots,
    ) -> None:
        if not arena.is_sealed:
            raise SealedArenaError(
                "graphs can't be captured", expected="a sealed arena", fix="call seal() first"
            )
        self._backend = backend
        self._arena = arena
        self._slots = dict(slots)
        self._graphs: dict[ShapeKey, tuple[CapturedGraph, ...]] = {}
        try:
            for key, program in programs.items():
                self.capture(key, program)
        except BaseException:
            self.close()
            raise

    @property
    def backend(self) -> Backend:
        """What captured the graphs."""
        return self._backend

    @property
    def arena(self) -> Arena:
        """What the graphs read and write."""
        return self._arena

    @property
    def keys(self) -> tuple[ShapeKey, ...]:
        """Captured keys, in the order of their capture."""
        return tuple(self._graphs)

    def capture(self, key: ShapeKey, program: Program) -> None:
        """Capture a further program; the bytes of every lane stay as they are.

        Raises:
            SpecError: The key is taken; evict it first. Nothing changes.
            CaptureError: The program can't be captured. Nothing changes.
        """
        if key in self._graphs:
            raise SpecError(f"a graph is captured under {key} already", fix="evict it first")
        with ExitStack() as undo:
            graphs = [self._backend.capture(program, key, self._arena, 0, self._slots)]
            undo.callback(_close, graphs)
            for lane in range(1, self._arena.num_lanes):
                graphs.append(graphs[0].rebase(lane))
            undo.pop_all()
        self._graphs[key] = tuple(graphs)

    def graph(self, lane: int, key: ShapeKey) -> CapturedGraph:
        """Return the graph of a lane.

        Raises:
            UnknownShapeKeyError: Nothing is captured under this key.
            SpecError: No lane has this index.
        """
        try:
            graphs = self._graphs[key]
        except KeyError:
            raise UnknownShapeKeyError(
                f"no graph is captured under {key}",
                expected=f"one of {', '.join(map(str, self._graphs)) or 'none: the set is empty'}",
                fix="capture it first",
            ) from None
        self._arena.lane_address(lane)
        return graphs[lane]

    def replay(self, lane: int, key: ShapeKey) -> None:
        """Replay a graph on a lane.

        Raises:
            UnknownShapeKeyError: Nothing is captured under this key. The lane is
                untouched.
            SpecError: No lane has this index.
            BackendError: The replay failed; see :meth:`CapturedGraph.replay`.
        """
        self.graph(lane, key).replay()

    def evict(self, key: ShapeKey) -> None:
        """Free the graphs of a key on every lane; the key is unknown from now on.

        Raises:
            UnknownShapeKeyError: Nothing is captured under this key.
        """
        self.graph(0, key)
        _close(self._graphs.pop(key))

    def close(self) -> None:
        """Free every graph; idempotent."""
        for key in self.keys:
            self.evict(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _close(graphs: Iterable[CapturedGraph]) -> None:
    for graph in graphs:
        graph.close()
