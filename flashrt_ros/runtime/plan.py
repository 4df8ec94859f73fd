"""Graphs in order: what makes a chunk, submitted node by node."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flashrt_ros.errors import AbandonedError, SpecError
from flashrt_ros.runtime.backend import CapturedGraph
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.spec import CAPSULE_ROLES, ArenaLayout, Role, ShapeKey


def check_commits_last(nodes: Sequence[CapturedGraph], layout: ArenaLayout) -> None:
    """Refuse nodes of a plan of which another than the last writes STATE or INPUT.

    Args:
        nodes: In the order they run.
        layout: Of the lanes that they run over.

    Raises:
        SpecError: One does; names it and the buffers.
    """
    by_name = layout.by_name
    for node in nodes[:-1]:
        written = sorted(
            name for name in node.written_buffers if by_name[name].spec.role in CAPSULE_ROLES
        )
        if written:
            raise SpecError(
                f"node {node.key} of a plan writes STATE or INPUT before the commit node",
                expected="writes to SCRATCH, OUTPUT or BINDING only",
                found=f"writes to {', '.join(written)}",
                fix="write to SCRATCH, and copy from there in the commit node",
            )


def check_latches_first(nodes: Sequence[CapturedGraph], slot_bindings: Collection[str]) -> None:
    """Refuse nodes of a plan of which another than the first reads slots.

    Once the device is done with the first, they may be a writer's again.

    Args:
        nodes: In the order they run.
        slot_bindings: Buffers that say which slot is read.

    Raises:
        SpecError: One does; names it and the bindings.
    """
    for node in nodes[1:]:
        read = sorted(node.touched_buffers & set(slot_bindings))
        if read:
            raise SpecError(
                f"node {node.key} of a plan reads slots after the latch node",
                expected="slots to be read by the first node only",
                found=f"reads through {', '.join(read)}",
                fix="copy what it needs to SCRATCH in the latch node",
            )


class Plan:
    """Nodes in the order they run; only the last, the *commit node*, writes STATE or INPUT.

    So a plan that is left between two nodes has changed neither.

    Args:
        graphs: Where the nodes are captured.
        nodes: Their keys, in order.
        commit: Place of the commit node, which must be the last; None takes the last.
        between: Key of a graph that may run between two nodes, see
            :meth:`PlanRun.submit_between`; it may write SCRATCH only.
        slot_bindings: Buffers that say which slot of a writer's is read; only the first node,
            and the graph between, may read them.

    Raises:
        SpecError: There are no nodes, the commit node is not the last, or another node
            writes STATE or INPUT, or another than the first reads slots, or the graph between
            them writes anything but SCRATCH: the message names the node and the buffers.
        UnknownShapeKeyError: A node is not captured.
    """

    def __init__(
        self,
        graphs: GraphSet,
        nodes: Sequence[ShapeKey],
        commit: int | None = None,
        *,
        between: ShapeKey | None = None,
        slot_bindings: Collection[str] = (),
    ) -> None:
        if not nodes:
            raise SpecError("a plan has no nodes", expected="at least a commit node")
        last = len(nodes) - 1
        if commit is not None and commit != last:
            raise SpecError(
                "the commit node is not the last node of the plan", expected=last, found=commit
            )
        captured = [graphs.graph(0, key) for key in nodes]
        check_commits_last(captured, graphs.arena.layout)
        check_latches_first(captured, slot_bindings)
        if between is not None:
            by_name = graphs.arena.layout.by_name
            written = sorted(
                name
                for name in graphs.graph(0, between).written_buffers
                if by_name[name].spec.role is not Role.SCRATCH
            )
            if written:
                raise SpecError(
                    f"{between} may not run between the nodes of a plan",
                    expected="writes to SCRATCH only",
                    found=f"writes to {', '.join(written)}",
                )
        self._nodes = tuple(nodes)
        self._between = between
        self._graphs = graphs

    @property
    def nodes(self) -> tuple[ShapeKey, ...]:
        """Keys, in the order they run."""
        return self._nodes

    @property
    def commit(self) -> int:
        """Place of the commit node."""
        return len(self._nodes) - 1

    @property
    def between(self) -> ShapeKey | None:
        """Key of the graph that may run between two nodes, None where there is none."""
        return self._between

    def shares_nothing_with(self, key: ShapeKey) -> bool:
        """Tell whether a graph may run beside the nodes before the commit.

        It may if it touches nothing that they write and writes nothing that they touch.

        Raises:
            UnknownShapeKeyError: Nothing is captured under this key.
        """
        other = self._graphs.graph(0, key)
        keys = self._nodes[: self.commit] + ((self._between,) if self._between else ())
        nodes = [self._graphs.graph(0, key) for key in keys]
        return not any(
            node.written_buffers & other.touched_buffers
            or node.touched_buffers & other.written_buffers
            for node in nodes
        )


class PlanRun:
    """One run of a plan over a lane.

    Between nodes the lane's STATE and INPUT are those of the last boundary, and the run
    may be left at any time. A commit node that fails after its first write to either
    poisons the lane; any other failure ends the run and leaves both whole.

    Args:
        plan: What to run.
        lane: What to run it over.

    Raises:
        LanePoisonedError: The lane is poisoned.
    """

    def __init__(self, plan: Plan, lane: Lane) -> None:
        lane.check_not_poisoned()
        self._plan = plan
        self._lane = lane
        self._index = 0
        self._ended = ""

    @property
    def plan(self) -> Plan:
        """What is run."""
        return self._plan

    @property
    def index(self) -> int:
        """Place of the next node; the number of nodes once all are submitted."""
        return self._index

    @property
    def is_done(self) -> bool:
        """Whether the commit node was submitted."""
        return self._index == len(self._plan.nodes)

    def go_on_as(self, plan: Plan) -> None:
        """Go on with a variant of the plan: as many nodes, of which those submitted count.

        Raises:
            SpecError: It has another number of nodes.
        """
        if len(plan.nodes) != len(self._plan.nodes):
            raise SpecError(
                "a run can't go on as a plan of another length",
                expected=len(self._plan.nodes),
                found=len(plan.nodes),
            )
        self._plan = plan

    @property
    def is_abandoned(self) -> bool:
        """Whether the run ended before its commit: abandoned, or failed."""
        return bool(self._ended)

    def submit_next(self) -> bool:
        """Submit the next node.

        Returns:
            True once the commit node is submitted.

        Raises:
            AbandonedError: The run was abandoned, or a node of it failed before.
            SpecError: The run is done.
            LanePoisonedError: The lane was poisoned meanwhile.
            UnknownShapeKeyError: The node was evicted meanwhile.
            BackendError: The node failed; the run is over.
        """
        self._submit(self._plan.nodes[self._index] if not self.is_done else None)
        self._index += 1
        return self.is_done

    def submit_between(self) -> None:
        """Submit the plan's graph between two nodes, before the one that is next.

        Raises:
            AbandonedError: The run was abandoned, or a node of it failed before.
            SpecError: The run is done, or the plan has no such graph.
            LanePoisonedError: The lane was poisoned meanwhile.
            BackendError: The graph failed; the run is over.
        """
        if self._plan.between is None:
            raise SpecError("the plan has no graph that may run between its nodes")
        self._submit(self._plan.between if not self.is_done else None)

    def _submit(self, key: ShapeKey | None) -> None:
        if self._ended:
            raise AbandonedError(
                f"a plan can't go on at node {self._index}", found=f"it {self._ended}"
            )
        if key is None:
            raise SpecError("a plan has no node left", found=f"{self._index} nodes submitted")
        try:
            self._lane.replay(key)
        except BaseException as error:
            self._ended = f"failed there with {type(error).__name__}"
            raise

    def abandon(self) -> None:
        """Leave the run; STATE and INPUT stay those of the last boundary.

        Without effect on a run that is done; idempotent.
        """
        if not self.is_done and not self._ended:
            self._ended = "was abandoned"
