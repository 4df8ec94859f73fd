"""Graphs over a batch of rows, and the plan that replays them in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.backend import CapturedGraph, Program, Slots
from flashrt_ros.runtime.batch import KEPT, Batch
from flashrt_ros.runtime.batch_programs import masked
from flashrt_ros.runtime.keyed_graphs import KeyedGraphs
from flashrt_ros.runtime.plan import check_commits_last
from flashrt_ros.runtime.spec import ShapeKey


class BatchedGraphSet(KeyedGraphs[CapturedGraph]):
    """Programs captured over every row of a batch, each under the batch's mask.

    A program that writes STATE, INPUT or OUTPUT is captured twice: once to see what it writes,
    and once with that under the mask.

    A replay computes all rows and changes STATE, INPUT and OUTPUT of the rows in the mask
    only; SCRATCH and BINDING of the others may change. At one number of rows a row's bytes
    give the same bytes in that row, whatever the others hold; in another row, at another
    number of rows, or replayed alone, they may give others in the last bits.

    Ownership: the set owns its graphs and closes them; batch and slots are the caller's
    and outlive it.

    Args:
        batch: Captured over.
        programs: One program for each key, over buffers ``[num_rows, *shape]``; captured
            in this order. ``batch_programs.over_rows`` makes one of a lane's program.
        slots: Tensors that programs may read.

    Raises:
        CaptureError: A program can't be captured; nothing of the set is left.
    """

    def __init__(self, batch: Batch, programs: Mapping[ShapeKey, Program], slots: Slots) -> None:
        self._batch = batch
        self._slots = dict(slots)
        self._what = f"graph over {batch.num_rows} rows"
        super().__init__(programs)

    @property
    def batch(self) -> Batch:
        """What the graphs read and write."""
        return self._batch

    def graph(self, key: ShapeKey) -> CapturedGraph:
        """Return the graph of a key.

        Raises:
            UnknownShapeKeyError: Nothing is captured under this key.
        """
        try:
            return self._graphs[key]
        except KeyError:
            raise self._unknown(key) from None

    def replay(self, key: ShapeKey, rows: Sequence[int] | None = None) -> None:
        """Replay a graph; change these rows only.

        Args:
            key: Which.
            rows: The mask, or None for all rows.

        Raises:
            UnknownShapeKeyError: Nothing is captured under this key; nothing ran.
            SpecError: A row does not exist or is named twice; nothing ran.
            LanePoisonedError: A row of the mask is poisoned; nothing ran.
            BackendError: The replay failed. If STATE or INPUT may be torn, the rows of
                the mask are poisoned; the others are whole.
        """
        graph = self.graph(key)
        self._batch.replay(graph, self._batch.select(rows))

    def _capture(self, key: ShapeKey, program: Program) -> CapturedGraph:
        graph = self._capture_rows(key, program)
        by_name = self._batch.arena.layout.by_name
        protected = {name for name in graph.written_buffers if by_name[name].spec.role in KEPT}
        if protected:
            graph.close()
            graph = self._capture_rows(key, masked(program, protected))
        return graph

    def _capture_rows(self, key: ShapeKey, program: Program) -> CapturedGraph:
        batch = self._batch
        first, num_rows = batch.lanes.start, batch.num_rows
        return batch.backend.capture(
            program, key, batch.arena, first, self._slots, num_rows=num_rows
        )

    def _free(self, graphs: CapturedGraph) -> None:
        graphs.close()


class BatchedPlan:
    """Nodes in the order they run; only the last writes STATE or INPUT.

    So a plan that fails before its last node has changed neither, in any row.

    Args:
        graphs: Where the nodes are captured.
        nodes: Their keys, in order.

    Raises:
        SpecError: There are no nodes, or another than the last writes STATE or INPUT: the
            message names the node and the buffers.
        UnknownShapeKeyError: A node is not captured.
    """

    def __init__(self, graphs: BatchedGraphSet, nodes: Sequence[ShapeKey]) -> None:
        if not nodes:
            raise SpecError("a plan has no nodes", expected="at least a commit node")
        check_commits_last([graphs.graph(key) for key in nodes], graphs.batch.arena.layout)
        self._graphs = graphs
        self._nodes = tuple(nodes)

    @property
    def nodes(self) -> tuple[ShapeKey, ...]:
        """Keys, in the order they run."""
        return self._nodes

    def replay(self, rows: Sequence[int] | None = None) -> None:
        """Replay every node over the batch; change these rows only.

        Returns once the last node is submitted.

        Args:
            rows: The mask of the whole plan, or None for all rows.

        Raises:
            UnknownShapeKeyError: A node was evicted meanwhile; nothing ran.
            SpecError: A row does not exist or is named twice; nothing ran.
            LanePoisonedError: A row of the mask is poisoned; nothing ran.
            BackendError: A node failed; see :meth:`BatchedGraphSet.replay`.
        """
        graphs = [self._graphs.graph(key) for key in self._nodes]
        batch = self._graphs.batch
        chosen = batch.select(rows)
        for graph in graphs:
            batch.replay(graph, chosen)
