"""The members of a host that have no deadlines: which of their nodes runs now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flashrt_ros.engine.host_slack import Slack
from flashrt_ros.engine.served import FillingEngine

TAKING_IN = ""
"""Kind of what the host does once a node is done; no node is submitted."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Filling:
    """A member, and the kinds of nodes that it was told don't fit."""

    engine: FillingEngine
    slack: Slack
    short: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Node:
    """A node under way."""

    member: _Filling
    kind: str
    submitted_ns: int
    was_owed: bool


class Filler:
    """Submits nodes of the members without deadlines where they fit, one at a time.

    Args:
        members: Engines, each with its slack.
        clock_ns: The engines' clock.
    """

    def __init__(
        self, members: Sequence[tuple[FillingEngine, Slack]], clock_ns: Callable[[], int]
    ) -> None:
        self._members = [_Filling(engine, slack) for engine, slack in members]
        self._clock_ns = clock_ns
        self._next = 0
        self._node: _Node | None = None

    @property
    def has_members(self) -> bool:
        """Whether there are any."""
        return bool(self._members)

    @property
    def engines(self) -> list[FillingEngine]:
        """Theirs."""
        return [member.engine for member in self._members]

    @property
    def is_waiting(self) -> bool:
        """Whether a node of theirs is under way on a device."""
        return any(member.engine.is_waiting for member in self._members)

    @property
    def owed_ns(self) -> int | None:
        """When the first of the nodes that wait is owed; None for never."""
        times = (member.slack.owed_ns for member in self._members)
        return min((ns for ns in times if ns is not None), default=None)

    def can_advance(
        self, deadline_ns: int | None, *, others_wait: bool, others_have_work: bool
    ) -> bool:
        """Tell whether :meth:`advance` would do something; notes who waits for slack."""
        return self._choose(deadline_ns, others_wait, others_have_work) is not None

    def advance(
        self, deadline_ns: int | None, *, others_wait: bool, others_have_work: bool
    ) -> bool:
        """Submit one node, or take one in that is done.

        Args:
            deadline_ns: The nearest of the others; None for no deadline.
            others_wait: Whether they have something under way on a device.
            others_have_work: Whether they have something to submit.

        Returns:
            Whether something was done.

        Raises:
            DeviceLostError: Nothing can run any more.
        """
        chosen = self._choose(deadline_ns, others_wait, others_have_work)
        if chosen is None:
            return False
        index, is_owed = chosen
        self._next = index + 1
        member = self._members[index]
        kind, started_ns = member.engine.next_node, self._clock_ns()
        if kind == TAKING_IN:
            member.slack.rest()
            member.engine.advance()
            member.slack.note(TAKING_IN, self._clock_ns() - started_ns)
            return True
        self._tell(member, kind, is_owed)
        member.slack.rest()
        self._node = _Node(member, kind, started_ns, is_owed)
        member.engine.advance()
        if not member.engine.is_waiting:
            self._note_end(self._clock_ns())
        return True

    def _choose(
        self, deadline_ns: int | None, others_wait: bool, others_have_work: bool
    ) -> tuple[int, bool] | None:
        """Say whose turn it is, and whether it is owed; None where nothing may run."""
        now_ns = self._clock_ns()
        is_flying = self.is_waiting
        is_free = not others_have_work and (deadline_ns is None or not others_wait)
        count = len(self._members)
        for offset in range(count):
            index = (self._next + offset) % count
            engine, slack = self._members[index].engine, self._members[index].slack
            if not engine.has_work:
                slack.rest()
                continue
            kind = engine.next_node
            if kind == TAKING_IN:
                self._note_end(now_ns)
                is_allowed = not others_have_work
            elif is_flying:
                continue
            else:
                is_allowed = is_free
            if is_allowed and slack.fits(kind, now_ns, deadline_ns):
                return index, False
            slack.wait(now_ns, deadline_ns)
            if slack.is_owed(now_ns, others_have_work=others_have_work):
                return index, True
        return None

    def _note_end(self, now_ns: int) -> None:
        """Learn how long the node took that is done, once."""
        node, self._node = self._node, None
        if node is not None:
            node.member.slack.note(node.kind, now_ns - node.submitted_ns, was_owed=node.was_owed)

    def _tell(self, member: _Filling, kind: str, is_owed: bool) -> None:
        """Tell a member that nodes of a kind don't fit, once until they do again."""
        if not is_owed:
            if kind in member.short:
                member.short.remove(kind)
                if not member.short:
                    member.engine.note_shortage(0, 0)
            return
        if kind in member.short:
            return
        member.short.add(kind)
        needs_ns, found_ns = member.slack.needs_ns(kind), member.slack.largest_ns
        logger.warning(
            "a node '%s' of %s needs %.1f ms of slack, and found at most %.1f ms: it runs late, "
            "and may delay a tick",
            kind,
            member.engine.info.name,
            needs_ns / 1e6,
            found_ns / 1e6,
        )
        member.engine.note_shortage(needs_ns, found_ns)
