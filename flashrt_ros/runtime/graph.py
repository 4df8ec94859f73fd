"""Captured graphs by shape key, for every lane of an arena."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from flashrt_ros.errors import SealedArenaError
from flashrt_ros.runtime.arena import Arena
from flashrt_ros.runtime.backend import Backend, CapturedGraph, Program, Slots
from flashrt_ros.runtime.keyed_graphs import KeyedGraphs
from flashrt_ros.runtime.spec import ShapeKey


class GraphSet(KeyedGraphs[tuple[CapturedGraph, ...]]):
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
        super().__init__(programs)

    @property
    def backend(self) -> Backend:
        """What captured the graphs."""
        return self._backend

    @property
    def arena(self) -> Arena:
        """What the graphs read and write."""
        return self._arena

    def graph(self, lane: int, key: ShapeKey) -> CapturedGraph:
        """Return the graph of a lane.

        Raises:
            UnknownShapeKeyError: Nothing is captured under this key.
            SpecError: No lane has this index.
        """
        try:
            graphs = self._graphs[key]
        except KeyError:
            raise self._unknown(key) from None
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

    def _capture(self, key: ShapeKey, program: Program) -> tuple[CapturedGraph, ...]:
        with ExitStack() as undo:
            graphs = [self._backend.capture(program, key, self._arena, 0, self._slots)]
            undo.callback(self._free, graphs)
            for lane in range(1, self._arena.num_lanes):
                graphs.append(graphs[0].rebase(lane))
            undo.pop_all()
        return tuple(graphs)

    def _free(self, graphs: Iterable[CapturedGraph]) -> None:
        for graph in graphs:
            graph.close()
