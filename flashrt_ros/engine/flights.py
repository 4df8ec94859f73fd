"""What an engine has submitted and waits for: the plan in flight, and single pops."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from flashrt_ros.capsule.capsule import Origin
from flashrt_ros.engine.jobs import StepJob
from flashrt_ros.engine.protocol import Provenance
from flashrt_ros.engine.timeline import Timeline
from flashrt_ros.runtime.backend import PASSED, Fence
from flashrt_ros.runtime.plan import PlanRun

MAX_NODES = 2
"""Nodes of a plan under way at once: one runs, one waits, so that the device never does."""


@dataclass(slots=True, eq=False)
class Flight:
    """A chunk plan under way on a timeline.

    Attributes:
        step: The step that asked for it, None for the timer.
        pops: The tick that asked for it pops when it is done.
        elapsed: Ticks since its latch, as its commit node will find them.
        busy_ns: Time that the device worked on it, engine clock.
        provenance: Of its chunk, once the commit node is submitted.
        rows: Of the model's outlets that it writes, by name; none once they are handed over.
        bent_at: Node before which the goal was latched again last, 0 for never.
    """

    timeline: Timeline
    run: PlanRun
    origin: Origin
    step: StepJob | None
    pops: bool
    elapsed: int = 0
    busy_ns: int = 0
    provenance: Provenance | None = None
    rows: dict[str, int] = field(default_factory=dict)
    bent_at: int = 0
    _nodes: deque[tuple[Fence, int]] = field(default_factory=deque)
    _settled_ns: int = 0

    def submit(self, fence: Fence, submitted_ns: int) -> None:
        """Note that a node was submitted at a time, and what tells that it is done."""
        self._nodes.append((fence, submitted_ns))

    def settle(self, now_ns: int) -> None:
        """Let go of the nodes that are done.

        Raises:
            DeviceLostError: The device's context is gone.
        """
        while self._nodes and self._nodes[0][0].is_done:
            _, submitted_ns = self._nodes.popleft()
            self.busy_ns += now_ns - max(submitted_ns, self._settled_ns)
            self._settled_ns = now_ns

    @property
    def is_landed(self) -> bool:
        """Whether the commit node is done."""
        return self.run.is_done and not self._nodes

    @property
    def can_submit(self) -> bool:
        """Whether the next node may be submitted.

        The commit node waits for the others to be done: submitted ahead, it would hold up
        the pops behind it, and an interrupt would come too late.
        """
        if self.run.is_done:
            return False
        is_commit = self.run.index == self.run.plan.commit
        return len(self._nodes) < (1 if is_commit else MAX_NODES)

    @property
    def can_bend(self) -> bool:
        """Whether the goal may be latched again before the next node.

        Once before each, so that a planner that never rests can't hold the plan up; not
        before the commit, which would only rename what was made under the old goal.
        """
        run = self.run
        return run.plan.between is not None and self.bent_at < run.index < run.plan.commit

    @property
    def last_fence(self) -> Fence:
        """What tells that every node submitted so far is done."""
        return self._nodes[-1][0] if self._nodes else PASSED

    @property
    def next_fence(self) -> Fence:
        """What tells that the node that is done next is done."""
        return self._nodes[0][0] if self._nodes else PASSED


@dataclass(frozen=True, slots=True, eq=False)
class Pop:
    """An action under way from the queue to the host.

    Attributes:
        step: The step that it is part of, None for the timer.
        index: Of the action in its chunk.
        provenance: As of its tick.
        fence: Done once the action can be read.
        behind: Plan whose commit node was submitted before it and is not taken in yet; its
            chunk is published first.
    """

    timeline: Timeline
    step: StepJob | None
    index: int
    provenance: Provenance
    fence: Fence
    behind: Flight | None
