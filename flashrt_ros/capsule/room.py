"""Who gives way when a tier is full: the least recently used, never a pin, never the last copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.tiers import DISK, DiskTier, FilePlace, MemoryTier
from flashrt_ros.errors import CapsuleQuotaError, FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.runtime.arena import Block


class NotYet(Exception):  # noqa: N818 - an answer that comes later, not an error
    """A verb needs bytes moved first; nothing has changed, and the mover knows what to do.

    Never leaves the engine: the verb is tried again once something has moved.

    Args:
        what: What is waited for.
        capsule_id: Whose bytes are to come; "" where room is to be made.
    """

    def __init__(self, what: str, capsule_id: str = "") -> None:
        super().__init__(what)
        self.capsule_id = capsule_id


class Room:
    """Decides which copy is released where; moves nothing itself.

    A copy in a tier may be released when another one remains, and when the capsule is
    not pinned or a faster tier has it too. So a capsule only moves down as far as a lower
    tier already holds its bytes; ``Mover`` makes those lower copies ahead of need.

    Attributes:
        wanted: Capsules to be brought to memory, in the order they were asked for.
        climbing: Capsules used below the first tier, to be brought up when there is room.
        has_changed: Something was used, made or let go since the mover looked.
        disk_error: Why no file is written for a while; None while the disk is fine.
        on_release_file: Called with a file that no capsule needs any more.

    Args:
        tiers: Memory, fastest first.
        disk: Below them, or None.
        capsules: The store's, by id; read only here.
    """

    def __init__(
        self,
        tiers: Sequence[MemoryTier],
        disk: DiskTier | None,
        capsules: Mapping[str, Capsule],
    ) -> None:
        self.tiers = tuple(tiers)
        self.disk = disk
        self._capsules = capsules
        self._num_uses = 0
        self.wanted: dict[str, None] = {}
        self.climbing: dict[str, None] = {}
        self.has_changed = False
        self.disk_error: FlashrtError | None = None
        self.on_release_file: Callable[[FilePlace], None] = lambda place: None

    @property
    def all_tiers(self) -> tuple[MemoryTier | DiskTier, ...]:
        """Every tier, fastest first."""
        return self.tiers if self.disk is None else (*self.tiers, self.disk)

    @property
    def lowest(self) -> MemoryTier:
        """Memory next to the disk; the host reads and writes it."""
        return self.tiers[-1]

    def tier(self, name: str) -> MemoryTier:
        """Return a memory tier; "" for the first."""
        return next(tier for tier in self.tiers if not name or tier.name == name)

    # use ---------------------------------------------------------------------------------

    def note_use(self, capsule: Capsule) -> None:
        """Make a capsule the most recently used one."""
        self._num_uses += 1
        capsule.residence.last_use = self._num_uses
        self._stir()

    def use(self, capsule: Capsule) -> None:
        """Note a use; have the bytes fetched if they are on disk only.

        Raises:
            NotYet: They are.
            CapsuleQuotaError: Pins leave no room to fetch them into.
        """
        residence = capsule.residence  # asked without detours: every restore comes by
        if not residence.blocks:
            self.check_claimable(self.lowest)
            self._want(capsule)
        is_low = self.tiers[0].name not in residence.blocks and not capsule.is_automatic
        if residence.last_use == self._num_uses and not is_low:
            return  # used last already, so that nothing moves
        self.note_use(capsule)
        if is_low:
            self.climbing[capsule.id] = None

    def require_lowest(self, capsule: Capsule) -> None:
        """Make sure that the host can read a capsule's bytes.

        Raises:
            NotYet: The mover was told to bring them where it can.
            CapsuleQuotaError: Pins leave no room to bring them to.
        """
        if self.lowest.name not in capsule.residence.blocks:
            self.check_claimable(self.lowest)
            self._want(capsule)

    def _want(self, capsule: Capsule) -> None:
        self.wanted[capsule.id] = None
        self.has_changed = True
        raise NotYet(f"capsule '{capsule.title}' is in the tier {capsule.tier}", capsule.id)

    # claiming ----------------------------------------------------------------------------

    def claim(self, tier: MemoryTier) -> Block:
        """Take a block of a tier, from the least recently used if it must be.

        Raises:
            CapsuleQuotaError: Pins leave no room, or what is below is full; with figures.
            NotYet: One is being made free.
        """
        if not tier.has_room:
            victim = self.victim(tier)
            if victim is None or not self.may_release(victim, tier):
                self.check_claimable(tier)
                self.has_changed = True
                raise NotYet(f"the tier {tier.name} is full")
            self.release_copy(victim, tier)
        return tier.take()

    def claim_arriving(self, tier: MemoryTier) -> Block:
        """Take a block that a move will fill; :meth:`arrive` ends it.

        Raises:
            CapsuleQuotaError: As :meth:`claim`.
            NotYet: As :meth:`claim`.
        """
        block = self.claim(tier)
        tier.num_arriving += 1
        return block

    def arrive(self, tier: MemoryTier) -> None:
        """Note that a block taken by :meth:`claim_arriving` is filled, or given back."""
        tier.num_arriving -= 1
        self.has_changed = True

    def claim_reserved(self, tier: MemoryTier) -> Block:
        """Take one of the blocks set aside for automatic capsules.

        Raises:
            CapsuleQuotaError: All are in use.
        """
        block = tier.take_reserved()
        if block is None:
            raise CapsuleQuotaError(
                f"no block of the tier {tier.name} is left for the engine's own"
            )
        return block

    def check_claimable(self, tier: MemoryTier) -> None:
        """Refuse what no amount of moving would make room for.

        Raises:
            CapsuleQuotaError: With the figures of every tier.
        """
        if not self._is_claimable(self.tiers.index(tier)):
            pinned = sum(
                c.residence.blocks.get(tier.name) is not None
                for c in self._capsules.values()
                if c.pinned and not c.is_automatic
            )
            used = [f"{t.name} {t.used_bytes} of {t.quota_bytes}" for t in self.all_tiers]
            refused = "" if self.disk_error is None else f"; no file is written: {self.disk_error}"
            raise CapsuleQuotaError(
                f"no room can be made for a capsule in the tier {tier.name}",
                expected=f"{tier.block_bytes} bytes free",
                found=f"{', '.join(used)} bytes in use, "
                f"{pinned * tier.block_bytes} of them pinned{refused}",
                fix="drop or unpin capsules, or raise the quotas",
            )

    def claim_disk(self, num_bytes: int) -> bool:
        """Make room on disk, releasing files of capsules that memory holds; False for none."""
        disk = self.disk
        if disk is None:
            return False
        while not disk.has_room(num_bytes):
            spare = self._spare_file()
            if spare is None:
                return False
            self.release_file(spare)
        return True

    def disk_refusal(self, num_bytes: int) -> CapsuleQuotaError:
        """Say why :meth:`claim_disk` was refused."""
        disk = self.disk
        used = "no folder" if disk is None else f"{disk.used_bytes} of {disk.quota_bytes} in use"
        return CapsuleQuotaError(
            "the disk tier has no room for a capsule",
            expected=f"{num_bytes} bytes free",
            found=used,
            fix="drop capsules, or raise capsule_disk_quota_bytes",
        )

    # victims -----------------------------------------------------------------------------

    def victim(self, tier: MemoryTier) -> Capsule | None:
        """Return who is next to give way in a tier, None where pins hold all of it.

        A copy that a faster tier has too goes first; then the least recently used.
        """
        held = [
            capsule
            for capsule in self._capsules.values()
            if tier.name in capsule.residence.blocks
            and tier.name not in (capsule.residence.anchor, capsule.residence.reserved)
            and (not capsule.pinned or capsule.tier != tier.name)
        ]
        return min(held, key=lambda c: (c.tier == tier.name, c.residence.last_use), default=None)

    def may_release(self, capsule: Capsule, tier: MemoryTier) -> bool:
        """Tell whether a victim's copy in a tier can be released now."""
        residence = capsule.residence
        return residence.is_redundant(tier.name) and not residence.num_holds

    def victim_without_copy(self, tier: MemoryTier) -> Capsule | None:
        """Return the next to give way if nothing below holds its bytes yet."""
        victim = self.victim(tier)
        if victim is None or victim.residence.is_redundant(tier.name):
            return None
        return victim

    # releasing ---------------------------------------------------------------------------

    def release_copy(self, capsule: Capsule, tier: MemoryTier) -> None:
        """Give a copy's block back; another copy remains."""
        tier.give(capsule.residence.blocks.pop(tier.name))

    def release_file(self, capsule: Capsule) -> None:
        """Give a copy's file back."""
        self.on_release_file(self.disown_file(capsule))

    def disown_file(self, capsule: Capsule) -> FilePlace:
        """Forget a copy's file, which stays where it is."""
        place = capsule.residence.file
        assert place is not None
        assert self.disk is not None
        capsule.residence.file = None
        self.disk.used_bytes -= place.num_bytes
        return place

    def add_file(self, capsule: Capsule, place: FilePlace) -> None:
        """Note that a file holds a capsule's bytes, in place of the one before."""
        assert self.disk is not None
        old = capsule.residence.file
        if old is not None and (old.folder, old.key) == (place.folder, place.key):
            self.disk.used_bytes -= old.num_bytes
        elif old is not None:
            self.release_file(capsule)
        capsule.residence.file = place
        self.disk.used_bytes += place.num_bytes

    def release(self, capsule: Capsule) -> None:
        """Give back all that a dropped capsule holds, once no job uses it."""
        residence = capsule.residence
        self.wanted.pop(capsule.id, None)
        self.climbing.pop(capsule.id, None)
        residence.is_gone = True
        self._stir()
        if residence.file is not None:
            self.release_file(capsule)
        if residence.num_holds:
            return
        for name, block in residence.blocks.items():
            tier = self.tier(name)
            (tier.give_reserved if name == residence.reserved else tier.give)(block)
        residence.blocks = {}

    def hold(self, capsule: Capsule) -> None:
        """Keep a capsule's memory from being released while a job uses it."""
        capsule.residence.num_holds += 1

    def unhold(self, capsule: Capsule) -> None:
        """End a hold; the last one gives back what a dropped capsule held."""
        capsule.residence.num_holds -= 1
        if capsule.residence.is_gone and not capsule.residence.num_holds:
            self.release(capsule)

    def close(self) -> None:
        """Free the blocks that no capsule holds. Idempotent."""
        for tier in self.tiers:
            tier.close()

    def _stir(self) -> None:
        """Have the mover look, where it could find something to do."""
        is_waited_for = bool(self.wanted or self.climbing)
        is_full = not all(tier.has_room for tier in self.tiers)
        self.has_changed = self.has_changed or is_waited_for or is_full

    # parts -------------------------------------------------------------------------------

    def _is_claimable(self, index: int) -> bool:
        """Tell whether moving capsules down from a tier could free a block of it."""
        if index == len(self.tiers):
            return False
        tier = self.tiers[index]
        if tier.has_room or tier.num_arriving:
            return True
        victim = self.victim(tier)
        if victim is None:
            return False
        if victim.residence.is_redundant(tier.name):
            return True
        is_last = index + 1 == len(self.tiers)
        return self.can_file(victim.num_bytes) if is_last else self._is_claimable(index + 1)

    def can_file(self, num_bytes: int) -> bool:
        """Tell whether :meth:`claim_disk` would succeed, now that the disk is fine."""
        if self.disk is None or self.disk_error is not None:
            return False
        spare = sum(
            c.residence.file.num_bytes
            for c in self._capsules.values()
            if c.residence.file is not None and self._is_spare(c)
        )
        return self.disk.used_bytes - spare + num_bytes <= self.disk.quota_bytes

    def _is_spare(self, capsule: Capsule) -> bool:
        residence = capsule.residence
        return residence.is_redundant(DISK) and not capsule.persist and not residence.num_holds

    def _spare_file(self) -> Capsule | None:
        """Return the most recently used capsule whose file is spare: it is next to go last."""
        spare = [c for c in self._capsules.values() if c.residence.file and self._is_spare(c)]
        return max(spare, key=lambda c: c.residence.last_use, default=None)
