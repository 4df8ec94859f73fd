"""The verbs over capsules as typed methods; imports without torch."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from flashrt_ros.engine import protocol

_Reply = TypeVar("_Reply", bound=msgspec.Struct)

_PAGE = 64


class CapsuleCalls(abc.ABC):
    """Every verb that makes, moves, finds or keeps capsules; see ``Calls``."""

    @abc.abstractmethod
    def call(
        self, request: protocol.Request, kind: type[_Reply], *, timeout_s: float | None = None
    ) -> _Reply:
        """Send a request, with a ``rid`` of the client's choice, and wait for its answer.

        Args:
            request: Its ``rid`` is replaced.
            kind: The reply to expect.
            timeout_s: How long to wait; None for the client's own.

        Raises:
            FlashrtError: The engine refused, as the class that its code names.
            ProtocolError: Another kind of reply came.
        """

    # capsules --------------------------------------------------------------------------------

    def snapshot(
        self,
        name: str = "",
        *,
        env_index: int = 0,
        labels: tuple[str, ...] = (),
        pinned: bool = False,
        replace: bool = False,
        align_down: bool = False,
        persist: bool = False,
    ) -> protocol.CapsuleReply:
        """Freeze the last boundary.

        Args:
            name: "" stays nameless.
            env_index: Environment.
            labels: Each "key=value".
            pinned: Never evict it.
            replace: Take the name from a capsule that has it.
            align_down: Take the nearest legal border before the boundary.
            persist: Have it written to a file that a restarted engine finds; the answer
                does not wait for it.

        Raises:
            CapsuleNameTakenError: Without ``replace``.
            CapsuleNameError: Not a name.
            CapsuleQuotaError: No room that may be made free.
            UnsupportedError: ``persist`` without a capsule folder.
            BoundaryError: Not at a legal border, without ``align_down``.
        """
        request = protocol.Snapshot(
            0, env_index, name, labels, pinned, replace, align_down, persist
        )
        return self.call(request, protocol.CapsuleReply)

    def restore(
        self,
        capsule: str,
        *,
        env_index: int = 0,
        keep_goal: bool = False,
        seed: int | None = None,
        reset: bool = False,
        episode_id: str = "",
        stamp_ns: int = 0,
    ) -> protocol.Moved:
        """Bring a capsule back.

        Args:
            capsule: Id or name.
            env_index: Environment.
            keep_goal: Keep the goal in force instead of the capsule's.
            seed: Draw noise from this seed on.
            reset: Begin an episode: goals are dropped unless kept, and nothing stamped
                before ``stamp_ns`` acts any more.
            episode_id: A repeated reset of one id answers as the first did; "" never does.
            stamp_ns: The barrier, on the writers' clock.

        Raises:
            CapsuleNotFoundError: No capsule has this id or name.
            FingerprintMismatchError: It was taken under another model or engine.
        """
        request = protocol.Restore(
            0, env_index, capsule, keep_goal, seed, reset, episode_id, stamp_ns
        )
        return self.call(request, protocol.Moved)

    def reset(
        self,
        capsule: str = "home",
        *,
        env_index: int = 0,
        seed: int | None = None,
        keep_goal: bool = False,
        episode_id: str = "",
        stamp_ns: int = 0,
    ) -> protocol.Moved:
        """Begin an episode; :meth:`restore` with ``reset``."""
        request = protocol.Restore(
            0, env_index, capsule, keep_goal, seed, True, episode_id, stamp_ns
        )
        return self.call(request, protocol.Moved)

    def rollback(
        self, *, env_index: int = 0, boundaries: int = 1, capsule: str = ""
    ) -> protocol.Moved:
        """Go back.

        Args:
            env_index: Environment.
            boundaries: How many of those kept by themselves.
            capsule: An ancestor's id or name instead.

        Raises:
            NoBoundaryError: The ring does not reach so far, or it is no ancestor.
        """
        return self.call(protocol.Rollback(0, env_index, boundaries, capsule), protocol.Moved)

    def fork(
        self, count: int, *, env_index: int = 0, capsule: str = "", seeds: tuple[int, ...] = ()
    ) -> protocol.Forked:
        """Fill lanes of their own from a capsule, all or none.

        Args:
            count: Branches.
            env_index: Environment.
            capsule: Id or name; "" forks the last boundary.
            seeds: One for each branch, or none to derive them.

        Raises:
            NoFreeLaneError: Fewer lanes are free.
            CapsuleNotFoundError: No capsule has this id or name.
        """
        return self.call(protocol.Fork(0, env_index, capsule, count, seeds), protocol.Forked)

    def select(
        self, branch: int, *, env_index: int = 0, release_others: bool = True
    ) -> protocol.Moved:
        """Make a branch's state the environment's.

        Args:
            branch: Index, as :meth:`fork` gave it.
            env_index: Environment.
            release_others: End the environment's other branches.

        Raises:
            BranchNotFoundError: No such branch.
        """
        return self.call(protocol.Select(0, env_index, branch, release_others), protocol.Moved)

    def list_capsules(
        self,
        *,
        offset: int = 0,
        limit: int = _PAGE,
        label: str = "",
        name_prefix: str = "",
        since_ns: int = 0,
        until_ns: int = 0,
        tier: str = "",
        pinned: bool | None = None,
        env_index: int = 0,
    ) -> protocol.CapsulePage:
        """Return a page of capsules; it may be shorter than asked for, see ``total``.

        Args:
            offset: First capsule of the page.
            limit: Most capsules to return.
            label: Only those with this "key=value"; "" for all.
            name_prefix: Only those whose name starts so.
            since_ns: Only those created then or later, wall time, ns.
            until_ns: Only those created then or earlier; 0 for any time.
            tier: Only those whose fastest tier is this: "device", "host" or "disk".
            pinned: Only pinned ones, or only others; None for both.
            env_index: Changes nothing, for capsules are of no environment, but must be one.
        """
        request = protocol.ListCapsules(
            0,
            offset,
            limit,
            label,
            name_prefix,
            since_ns,
            until_ns,
            tier,
            -1 if pinned is None else int(pinned),
            env_index,
        )
        return self.call(request, protocol.CapsulePage)

    def capsules(self, **filters: Any) -> Iterator[protocol.CapsuleInfo]:
        """Iterate over all capsules, page by page.

        Args:
            **filters: As :meth:`list_capsules`.
        """
        offset = 0
        while True:
            page = self.list_capsules(offset=offset, **filters)
            yield from page.capsules
            offset += len(page.capsules)
            if not page.capsules or offset >= page.total:
                return

    def save(
        self, capsule: str, *, env_index: int = 0, file: str = "", replace: bool = False
    ) -> protocol.Saved:
        """Write a capsule into the engine's folder, and wait until it is on disk.

        Args:
            capsule: Id or name; ``home`` means the environment's.
            env_index: Environment.
            file: Name in the folder, without the suffix; "" takes the capsule's own.
            replace: Take the name over from another capsule's file.

        Raises:
            CapsuleNotFoundError: No capsule has this id or name.
            CapsuleNameTakenError: Another capsule's file has the name.
            CapsuleDiskFullError: There is no room; the file of before is whole.
            UnsupportedError: The engine has no capsule folder.
        """
        return self.call(protocol.Save(0, env_index, capsule, file, replace), protocol.Saved)

    def load(
        self,
        file: str,
        *,
        env_index: int = 0,
        name: str = "",
        pinned: bool = False,
        replace: bool = False,
    ) -> protocol.CapsuleReply:
        """Read a file of the engine's folder, every byte checked.

        Args:
            file: Name in the folder, without the suffix.
            env_index: Environment that ``home`` means.
            name: "" takes the name that it was saved under.
            pinned: Never evict it.
            replace: Take the name from a capsule that has it.

        Raises:
            CapsuleNotFoundError: There is no such file.
            CapsuleArchiveError: It is damaged or no capsule.
            FingerprintMismatchError: It was taken elsewhere; names what differs.
            CapsuleNameTakenError: Without ``replace``.
            CapsuleQuotaError: No room that may be made free.
            UnsupportedError: The engine has no capsule folder.
        """
        request = protocol.Load(0, env_index, file, name, pinned, replace)
        return self.call(request, protocol.CapsuleReply)

    def collect(
        self,
        *,
        older_than_ns: int = 0,
        label: str = "",
        name_prefix: str = "",
        unpinned: bool = False,
        keep_last: int = 0,
        dry_run: bool = True,
        env_index: int = 0,
    ) -> list[protocol.CapsuleInfo]:
        """Drop what every rule given admits, but for the newest; return what went, or would.

        Pins, homes, and what the engine holds itself never go.

        Args:
            older_than_ns: Age, ns.
            label: One "key=value".
            name_prefix: Start of the name.
            unpinned: All that is not pinned.
            keep_last: Newest of those admitted that stay.
            dry_run: Only say what would go.
            env_index: As :meth:`list_capsules`.

        Raises:
            SpecError: No rule is given, or a number is negative.
        """
        gone: list[protocol.CapsuleInfo] = []
        while True:
            request = protocol.Collect(
                0,
                older_than_ns,
                label,
                name_prefix,
                unpinned,
                keep_last,
                dry_run,
                len(gone) if dry_run else 0,
                env_index,
            )
            page = self.call(request, protocol.CapsulePage)
            gone += page.capsules
            if not page.capsules or (dry_run and len(gone) >= page.total):
                return gone

    def fingerprint(self, capsule: str = "", *, env_index: int = 0) -> protocol.FingerprintInfo:
        """Return what a capsule was taken under, or the engine's own fingerprint.

        Raises:
            CapsuleNotFoundError: No capsule has this id or name.
        """
        request = protocol.GetFingerprint(0, env_index, capsule)
        return self.call(request, protocol.FingerprintInfo)

    def drop(self, capsule: str, *, env_index: int = 0) -> None:
        """Forget a capsule; its children stay.

        Args:
            capsule: Id or name; ``home`` means the environment's.
            env_index: Environment.

        Raises:
            CapsuleNotFoundError: No capsule has this id or name.
            CapsulePinnedError: It is pinned, or in use.
        """
        self.call(protocol.Drop(0, capsule, env_index), protocol.Ack)

    def pin(
        self, capsule: str, *, pinned: bool = True, env_index: int = 0
    ) -> protocol.CapsuleReply:
        """Pin or unpin a capsule.

        Args:
            capsule: Id or name; ``home`` means the environment's.
            pinned: Pin it, or let it go.
            env_index: Environment.

        Raises:
            CapsuleNotFoundError: No capsule has this id or name.
        """
        return self.call(protocol.Pin(0, capsule, pinned, env_index), protocol.CapsuleReply)
