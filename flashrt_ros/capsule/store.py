"""Capsules by name, with pins, lineage, and a place in every tier that holds them."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from flashrt_ros.capsule import lineage
from flashrt_ros.capsule.capsule import HOME, Capsule, Position, check_labels, check_name
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.room import Room
from flashrt_ros.capsule.tiers import DiskTier, MemoryTier, Residence
from flashrt_ros.errors import (
    CapsuleNameTakenError,
    CapsuleNotFoundError,
    CapsulePinnedError,
)
from flashrt_ros.runtime.arena import Block


class CapsuleStore:
    """Owner of every capsule of one engine.

    A new capsule's payload goes into the first tier. Where its quota is used up, the
    least recently used capsule that is not pinned gives way, once a lower tier holds its
    bytes; see ``Room``. Automatic capsules (rollback ring, interrupt stack) draw on
    blocks set aside, and so never compete with a caller's.

    One thread only. Nothing here copies bytes or touches a file: ``Mover`` does.

    Args:
        tiers: Memory, fastest first.
        disk: The tier below them, or None.
        now_ns: Wall clock, ns.
    """

    def __init__(
        self,
        tiers: Sequence[MemoryTier],
        *,
        disk: DiskTier | None = None,
        now_ns: Callable[[], int],
    ) -> None:
        self._now_ns = now_ns
        self._capsules: dict[str, Capsule] = {}
        self._names: dict[str, str] = {}
        self.room = Room(tiers, disk, self._capsules)

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
        """Bytes that callers' capsules take in the first tier; automatic ones are set aside."""
        return self.room.tiers[0].used_bytes

    def get(self, key: str) -> Capsule:
        """Return the capsule with this id or name; a name wins over an id.

        Raises:
            CapsuleNotFoundError: There is none, or ``key`` is empty.
        """
        found = self.find(key)
        if found is None:
            known = ", ".join(sorted(self._names))
            raise CapsuleNotFoundError(
                f"no capsule has the id or name '{key}'",
                expected=f"an id, or one of {known}" if known else "an id; none has a name yet",
                fix="activate the environment once" if is_home(key) else None,
            )
        return found

    def find(self, key: str) -> Capsule | None:
        """Return the capsule with this id or name, or None."""
        return self._capsules.get(self._names.get(key, key))

    def has(self, key: str) -> bool:
        """Tell whether :meth:`get` would succeed."""
        return self._names.get(key, key) in self._capsules

    def require_memory(self, capsule: Capsule) -> None:
        """Count a use of a capsule and make sure that its bytes can be copied at once.

        Raises:
            NotYet: They are on disk; the mover was told to fetch them.
        """
        self.room.use(capsule)

    # making ------------------------------------------------------------------------------

    def create(
        self,
        fill: Callable[[Block], None],
        *,
        position: Position,
        fingerprint: Fingerprint,
        parent: str,
        num_bytes: int = 0,
        name: str = "",
        labels: tuple[str, ...] = (),
        pinned: bool = False,
        persist: bool = False,
        replace: bool = False,
        automatic: bool = False,
        tier: str = "",
    ) -> tuple[Capsule, Capsule | None]:
        """Make a capsule; nothing changes when it is refused.

        With ``replace`` the old capsule of that name loses it only after ``fill``
        returned, and is dropped then. A pinned one is not replaced, a ``home`` is.

        Args:
            fill: Copies the payload into the block it is given.
            position: Host counters at the boundary.
            fingerprint: What the payload was taken under.
            parent: Id of the state's origin, "" for none.
            num_bytes: Bytes of payload in use; 0 for a whole block.
            name: Unique name, or "".
            labels: ``key=value`` strings.
            pinned: Never to be dropped, nor moved down.
            persist: To be kept in a file; the mover writes it.
            replace: Take the name over from the capsule that has it.
            automatic: Taken by the engine, from the blocks set aside.
            tier: Tier of an automatic one's block; "" for the first.

        Returns:
            The capsule, and the one it replaced.

        Raises:
            CapsuleNameError: The name or a label is malformed.
            CapsuleNameTakenError: The name is taken and ``replace`` is false, or it is
                another capsule's id.
            CapsulePinnedError: The capsule to be replaced is pinned.
            CapsuleQuotaError: No block is left within the quota.
            NotYet: A block is being made free; the mover does it.
        """
        old = self.check_new(name, labels, replace=replace)
        where = self.room.tier(tier)
        block = self.room.claim_reserved(where) if automatic else self.room.claim(where)
        try:
            fill(block)
        except BaseException:
            (where.give_reserved if automatic else where.give)(block)
            raise
        residence = Residence(reserved=where.name if automatic else "")
        residence.put(where.name, block)
        return self._add(
            Capsule(
                id=secrets.token_hex(8),
                name=name,
                parent=parent,
                labels=labels,
                created_ns=self._now_ns(),
                position=position,
                pinned=pinned,
                is_automatic=automatic,
                persist=persist,
                fingerprint=fingerprint,
                residence=residence,
                num_bytes=num_bytes or where.block_bytes,
            ),
            old,
        )

    def adopt(self, capsule: Capsule, *, replace: bool = False) -> tuple[Capsule, Capsule | None]:
        """Take in a capsule that was read from a file; nothing changes when it is refused.

        Its id is kept unless the store has one of that id, its parent if the store knows
        it. The caller has noted in its residence where the bytes are.

        Raises:
            CapsuleNameError: The name or a label is malformed.
            CapsuleNameTakenError: The name is taken and ``replace`` is false.
            CapsulePinnedError: The capsule to be replaced is pinned.
        """
        old = self.check_new(capsule.name, capsule.labels, replace=replace)
        is_taken = capsule.id in self._capsules or capsule.id in self._names
        return self._add(
            dataclasses.replace(
                capsule,
                id=secrets.token_hex(8) if is_taken else capsule.id,
                parent=capsule.parent if capsule.parent in self._capsules else "",
            ),
            old,
        )

    def check_new(self, name: str, labels: tuple[str, ...], *, replace: bool) -> Capsule | None:
        """Refuse what no new capsule can be called; return the one it would replace.

        Raises:
            CapsuleNameError: The name or a label is malformed.
            CapsuleNameTakenError: The name is taken and ``replace`` is false, or it is
                another capsule's id.
            CapsulePinnedError: The capsule to be replaced is pinned.
        """
        if name:
            check_name(name)
        check_labels(labels)
        if name in self._capsules:
            raise CapsuleNameTakenError(
                f"the capsule name '{name}' is another capsule's id", fix="use another name"
            )
        old = self._capsules.get(self._names.get(name, "")) if name else None
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

    def _add(self, capsule: Capsule, old: Capsule | None) -> tuple[Capsule, Capsule | None]:
        self._capsules[capsule.id] = capsule
        if old is not None:
            self._remove(old)
        if capsule.name:
            self._names[capsule.name] = capsule.id
        self.room.note_use(capsule)
        return self._capsules[capsule.id], old

    # keeping and letting go ----------------------------------------------------------------

    def drop(self, key: str) -> Capsule:
        """Forget a capsule and reuse its block; its children become its parent's.

        Raises:
            CapsuleNotFoundError: There is none.
            CapsulePinnedError: It is pinned, a ``home``, or the engine's own.
        """
        capsule = self.get(key)
        reason = keeps(capsule)
        if reason is not None:
            raise CapsulePinnedError(
                f"capsule '{capsule.title}' can't be dropped", found=reason[0], fix=reason[1]
            )
        self._remove(capsule)
        return capsule

    def disown(self, capsule: Capsule) -> None:
        """Forget a capsule whose file can't be read, and leave the file where it is."""
        self.room.disown_file(capsule)
        self._remove(capsule)

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
        One that lies on disk is brought to memory first, for a pin is there to be fast.

        Raises:
            CapsuleNotFoundError: There is none.
            CapsulePinnedError: A ``home`` can't be unpinned.
            CapsuleQuotaError: The quota has no room for an automatic one.
            NotYet: Its bytes, or a block, are on their way.
        """
        capsule = self.get(key)
        if is_home(capsule.name) and not pinned:
            raise CapsulePinnedError(f"capsule '{capsule.name}' is a home and stays pinned")
        if capsule.is_automatic and pinned:
            tier = self.room.tier(capsule.residence.reserved)
            tier.give_reserved(self.room.claim(tier))
            capsule.residence.reserved = ""
            return self.change(capsule, pinned=True, is_automatic=False)
        if pinned:
            self.room.use(capsule)
        return self.change(capsule, pinned=pinned)

    def change(self, capsule: Capsule, **changes: object) -> Capsule:
        """Replace fields of a capsule's record and return it as it is now."""
        changed = dataclasses.replace(self._capsules[capsule.id], **changes)  # type: ignore[arg-type]
        self._capsules[capsule.id] = changed
        self.room.has_changed = self.room.has_changed or "pinned" in changes
        return changed

    def ancestors(self, capsule_id: str) -> Iterator[str]:
        """Yield the ids on the way up from a capsule, itself first, while they are known."""
        return lineage.ancestors(capsule_id, self._capsules)

    def nearest_persisted(self, capsule: Capsule) -> str:
        """Return the id of the nearest ancestor that is kept in a file, "" for none."""
        persisted = (one.id for one in self._capsules.values() if one.persist)
        return lineage.nearest(capsule.id, self._capsules, persisted)

    def close(self) -> None:
        """Free every block; capsules handed out before are void. Idempotent."""
        for capsule in self._capsules.values():
            for block in capsule.residence.blocks.values():
                block.close()
        self._capsules.clear()
        self._names.clear()
        self.room.close()

    def _remove(self, capsule: Capsule) -> None:
        del self._capsules[capsule.id]
        for child in [c for c in self._capsules.values() if c.parent == capsule.id]:
            self.change(child, parent=capsule.parent)
        if self._names.get(capsule.name) == capsule.id:
            del self._names[capsule.name]
        self.room.release(capsule)


def home_name(env_index: int) -> str:
    """Name of an environment's home capsule: ``home``, then ``home.1`` and so on."""
    return HOME if env_index == 0 else f"{HOME}.{env_index}"


def is_home(name: str) -> bool:
    """Tell whether a name is some environment's home."""
    return name == HOME or (name.startswith(f"{HOME}.") and name[len(HOME) + 1 :].isdigit())


def keeps(capsule: Capsule) -> tuple[str, str] | None:
    """Say why a capsule may not be dropped and what to do about it, None when it may."""
    if is_home(capsule.name):
        return "a home", "replace it by a snapshot of that name"
    if capsule.pinned:
        return "pinned", "unpin it first"
    if capsule.is_automatic:
        return "the engine's own (rollback ring, interrupt stack or fork)", "pin it to keep it"
    return None
