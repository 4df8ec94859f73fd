"""Graphs over a batch of rows, and the plan that replays them in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from flashrt_ros.errors import SpecError, UnknownShapeKeyError
from flashrt_ros.runtime.backend import CapturedGraph, Program, Slots
from flashrt_ros.runtime.batch import KEPT, Batch
from flashrt_ros.runtime.batch_programs import masked
from flashrt_ros.runtime.spec import Role, ShapeKey


class BatchedGraphSet:
    """Programs captured over every row of a batch, each under the batch's mask.

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
        self._graphs: dict[ShapeKey, CapturedGraph] = {}
        try:
            for key, program in programs.items():
                self.capture(key, program)
        except BaseException:
            self.close()
            raise

    @property
    def batch(self) -> Batch:
        """What the graphs read and write."""
        return self._batch

    @property
    def keys(self) -> tuple[ShapeKey, ...]:
        """Captured keys, in the order of their capture."""
        return tuple(self._graphs)

    def capture(self, key: ShapeKey, program: Program) -> None:
        """Capture a further program; the bytes of every row stay as they are.

        A program that writes STATE, INPUT or OUTPUT is captured twice: once to see what
        it writes, and once with that under the mask.

        Raises:
            SpecError: The key is taken; evict it first. Nothing changes.
            CaptureError: The program can't be captured. Nothing changes.
        """
        if key in self._graphs:
            raise SpecError(f"a graph is captured under {key} already", fix="evict it first")
        graph = self._capture(key, program)
        by_name = self._batch.arena.layout.by_name
        protected = {name for name in graph.written_buffers if by_name[name].spec.role in KEPT}
        if protected:
            graph.close()
            graph = self._capture(key, masked(program, protected))
        self._graphs[key] = graph

    def _capture(self, key: ShapeKey, program: Program) -> CapturedGraph:
        batch = self._batch
        first, num_rows = batch.lanes.start, batch.num_rows
        return batch.backend.capture(
            program, key, batch.arena, first, self._slots, num_rows=num_rows
        )

    def graph(self, key: ShapeKey) -> CapturedGraph:
        """Return the graph of a key.

        Raises:
            UnknownShapeKeyError: Nothing is captured under this key.
        """
        try:
            return self._graphs[key]
        except KeyError:
            raise UnknownShapeKeyError(
                f"no graph over {self._batch.num_rows} rows is captured under {key}",
                expected=f"one of {', '.join(map(str, self._graphs)) or 'none: the set is empty'}",
                fix="capture it first",
            ) from None

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

    def evict(self, key: ShapeKey) -> None:
        """Free the graph of a key; the key is unknown from now on.

        Raises:
            UnknownShapeKeyError: Nothing is captured under this key.
        """
        self.graph(key)
        self._graphs.pop(key).close()

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
        by_name = graphs.batch.arena.layout.by_name
        for key in nodes[:-1]:
            written = sorted(
                name
                for name in graphs.graph(key).written_buffers
                if by_name[name].spec.role in (Role.STATE, Role.INPUT)
            )
            if written:
                raise SpecError(
                    f"node {key} of a plan writes STATE or INPUT before the commit node",
                    expected="writes to SCRATCH, OUTPUT or BINDING only",
                    found=f"writes to {', '.join(written)}",
                    fix="write to SCRATCH, and copy from there in the commit node",
                )
        graphs.graph(nodes[-1])
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
