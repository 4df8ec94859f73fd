"""Capsules in memory: names, pins, lineage, and blocks that are reused."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator
from types import TracebackType

from flashrt_ros.capsule.capsule import HOME, Capsule, Position, check_labels, check_name
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.errors import (
    CapsuleNameTakenError,
    CapsuleNotFoundError,
    CapsulePinnedError,
    CapsuleQuotaError,
)
from flashrt_ros.runtime.arena import Block


class CapsuleStore:
    """Owner of every capsule of one engine.

    All payloads have one size, so a dropped capsule's block serves the next one:
    fresh pages cost several times the copy. Automatic capsules (rollback ring,
    interrupt stack) draw on blocks of their own, set aside at construction, and so
    never compete with a caller's.

    Args:
        allocate: Makes a block of a given size.
        num_bytes: Bytes of one payload.
        quota_bytes: What a caller's capsules may take together.
        num_automatic: Automatic capsules that may live at once.
        now_ns: Wall clock, ns.
    """

    def __init__(
        self,
        allocate: Callable[[int], Block],
        *,
        num_bytes: int,
        quota_bytes: int,
        num_automatic: int,
        now_ns: Callable[[], int],
    ) -> None:
        self.num_bytes = num_bytes
        self.quota_bytes = quota_bytes
        self._allocate = allocate
        self._now_ns = now_ns
        self._capsules: dict[str, Capsule] = {}
        self._names: dict[str, str] = {}
        self._free: list[Block] = []
        self._free_automatic = [allocate(num_bytes) for _ in range(num_automatic)]

    def __enter__(self) -> CapsuleStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._capsules)

    def __iter__(self) -> Iterator[Capsule]:
        """Iterate over all capsules, oldest first."""
        return iter(tuple(self._capsules.values()))

    @property
    def used_bytes(self) -> int:
        """Bytes held by callers' capsules; automatic ones are set aside beforehand."""
        return self.num_bytes * sum(not c.is_automatic for c in self._capsules.values())

    def get(self, key: str) -> Capsule:
        """Return the capsule with this id or name; a name wins over an id.

        Raises:
            CapsuleNotFoundError: There is none, or ``key`` is empty.
        """
        found = self.find(key)
        if found is None:
            known = ", ".join(sorted(self._names)) or "none"
            raise CapsuleNotFoundError(
                f"no capsule has the id or name '{key}'",
                expected=known,
                fix="activate the environment once" if is_home(key) else None,
            )
        return found

    def find(self, key: str) -> Capsule | None:
        """Return the capsule with this id or name, or None."""
        return self._capsules.get(self._names.get(key, key))

    def has(self, key: str) -> bool:
        """Tell whether :meth:`get` would succeed."""
        return self._names.get(key, key) in self._capsules

    def create(
        self,
        fill: Callable[[Block], None],
        *,
        position: Position,
        fingerprint: Fingerprint,
        parent: str,
        name: str = "",
        labels: tuple[str, ...] = (),
        pinned: bool = False,
        replace: bool = False,
        automatic: bool = False,
    ) -> tuple[Capsule, Capsule | None]:
        """Make a capsule; nothing changes when it is refused.

        With ``replace`` the old capsule of that name loses it only after ``fill``
        returned, and is dropped then. A pinned one is not replaced, a ``home`` is.

        Args:
            fill: Copies the payload into the block it is given.
            position: Host counters at the boundary.
            fingerprint: What the payload was taken under.
            parent: Id of the state's origin, "" for none.
            name: Unique name, or "".
            labels: ``key=value`` strings.
            pinned: Never to be dropped.
            replace: Take the name over from the capsule that has it.
            automatic: Taken by the engine, from the blocks set aside.

        Returns:
            The capsule, and the one it replaced.

        Raises:
            CapsuleNameError: The name or a label is malformed.
            CapsuleNameTakenError: The name is taken and ``replace`` is false, or it is
                another capsule's id.
            CapsulePinnedError: The capsule to be replaced is pinned.
            CapsuleQuotaError: No block is left within the quota.
        """
        if name:
            check_name(name)
        check_labels(labels)
        old = self._replaceable(name, replace=replace) if name else None
        block = self._take_block(automatic=automatic)
        try:
            fill(block)
        except BaseException:
            self._give_block(block, automatic=automatic)
            raise
        capsule = Capsule(
            id=secrets.token_hex(8),
            name=name,
            parent=parent,
            labels=labels,
            created_ns=self._now_ns(),
            position=position,
            pinned=pinned,
            is_automatic=automatic,
            fingerprint=fingerprint,
            block=block,
            num_bytes=self.num_bytes,
        )
        self._capsules[capsule.id] = capsule
        if old is not None:
            self._remove(old)
        if name:
            self._names[name] = capsule.id
        return self._capsules[capsule.id], old

    def drop(self, key: str) -> Capsule:
        """Forget a capsule and reuse its block; its children become its parent's.

        Raises:
            CapsuleNotFoundError: There is none.
            CapsulePinnedError: It is pinned, a ``home``, or the engine's own.
        """
        capsule = self.get(key)
        reason = _keeps(capsule)
        if reason is not None:
            raise CapsulePinnedError(
                f"capsule '{capsule.name or capsule.id}' can't be dropped",
                found=reason[0],
                fix=reason[1],
            )
        self._remove(capsule)
        return capsule

    def recycle(self, capsule: Capsule) -> Capsule | None:
        """Take an automatic capsule back that the ring or the stack has done with.

        Returns:
            What was removed, as it stood; None when a pin made it the caller's.
        """
        kept = self._capsules.get(capsule.id)
        if kept is None or not kept.is_automatic:
            return None
        self._remove(kept)
        return kept

    def pin(self, key: str, *, pinned: bool) -> Capsule:
        """Pin or unpin a capsule and return it as it is now.

        An automatic one that is pinned becomes the caller's and counts against the quota.

        Raises:
            CapsuleNotFoundError: There is none.
            CapsulePinnedError: A ``home`` can't be unpinned.
            CapsuleQuotaError: The quota has no room for an automatic one.
        """
        capsule = self.get(key)
        if is_home(capsule.name) and not pinned:
            raise CapsulePinnedError(f"capsule '{capsule.name}' is a home and stays pinned")
        if capsule.is_automatic and pinned:
            self._free_automatic.append(self._take_block(automatic=False))
            return self._replace(capsule, pinned=True, is_automatic=False)
        return self._replace(capsule, pinned=pinned)

    def ancestors(self, capsule_id: str) -> Iterator[str]:
        """Yield the ids on the way up from a capsule, itself first, while they are known."""
        seen: set[str] = set()
        while capsule_id and capsule_id not in seen:
            seen.add(capsule_id)
            yield capsule_id
            known = self._capsules.get(capsule_id)
            capsule_id = known.parent if known else ""

    def close(self) -> None:
        """Free every block; capsules handed out before are void. Idempotent."""
        blocks = [capsule.block for capsule in self._capsules.values()]
        for block in (*blocks, *self._free, *self._free_automatic):
            block.close()
        self._capsules.clear()
        self._names.clear()
        self._free.clear()
        self._free_automatic.clear()

    def _replaceable(self, name: str, *, replace: bool) -> Capsule | None:
        if name in self._capsules:
            raise CapsuleNameTakenError(
                f"the capsule name '{name}' is another capsule's id", fix="use another name"
            )
        old = self._capsules.get(self._names.get(name, ""))
        if old is not None and not replace:
            raise CapsuleNameTakenError(
                f"the capsule name '{name}' is taken",
                found=old.id,
                fix="use replace, or another name",
            )
        if old is not None and old.pinned and not is_home(name):
            raise CapsulePinnedError(
                f"capsule '{name}' can't be replaced", found="pinned", fix="unpin it first"
            )
        return old

    def _replace(self, capsule: Capsule, **changes: object) -> Capsule:
        changed = dataclasses.replace(capsule, **changes)  # type: ignore[arg-type]
        self._capsules[capsule.id] = changed
        return changed

    def _remove(self, capsule: Capsule) -> None:
        del self._capsules[capsule.id]
        for child in [c for c in self._capsules.values() if c.parent == capsule.id]:
            self._replace(child, parent=capsule.parent)
        if self._names.get(capsule.name) == capsule.id:
            del self._names[capsule.name]
        self._give_block(capsule.block, automatic=capsule.is_automatic)

    def _take_block(self, *, automatic: bool) -> Block:
        if automatic:
            if not self._free_automatic:
                raise CapsuleQuotaError("no block is left for an automatic capsule")
            return self._free_automatic.pop()
        if self.used_bytes + self.num_bytes > self.quota_bytes:
            raise CapsuleQuotaError(
                "a new capsule would exceed the quota",
                expected=f"{self.num_bytes} bytes free",
                found=f"{self.quota_bytes - self.used_bytes} of {self.quota_bytes}",
                fix="drop capsules, or raise capsule_quota_bytes",
            )
        return self._free.pop() if self._free else self._allocate(self.num_bytes)

    def _give_block(self, block: Block, *, automatic: bool) -> None:
        (self._free_automatic if automatic else self._free).append(block)


def home_name(env_index: int) -> str:
    """Name of an environment's home capsule: ``home``, then ``home.1`` and so on."""
    return HOME if env_index == 0 else f"{HOME}.{env_index}"


def is_home(name: str) -> bool:
    """Tell whether a name is some environment's home."""
    return name == HOME or (name.startswith(f"{HOME}.") and name[len(HOME) + 1 :].isdigit())


def _keeps(capsule: Capsule) -> tuple[str, str] | None:
    """Say why a capsule may not be dropped and what to do about it, None when it may."""
    if is_home(capsule.name):
        return "a home", "replace it by a snapshot of that name"
    if capsule.pinned:
        return "pinned", "unpin it first"
    if capsule.is_automatic:
        return "the engine's own (rollback ring, interrupt stack or fork)", "pin it to keep it"
    return None
