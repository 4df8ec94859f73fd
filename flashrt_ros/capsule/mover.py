"""Moves payloads between tiers in the background, a slice at a time."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flashrt_ros.capsule.archivist import Archivist
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.copy_job import Copy, CopyJob
from flashrt_ros.capsule.filing import Done, Filing, WriteRequest
from flashrt_ros.capsule.keeper import RETRY_NS, Keeper
from flashrt_ros.capsule.record import CapsuleRecord
from flashrt_ros.capsule.room import NotYet, Room
from flashrt_ros.capsule.shelf import KEPT, SPILLED, Shelf
from flashrt_ros.capsule.store import CapsuleStore
from flashrt_ros.capsule.tiers import FilePlace, MemoryTier
from flashrt_ros.errors import CapsuleNotFoundError, CapsuleQuotaError, FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.runtime.arena import Block
    from flashrt_ros.runtime.backend import Fence

logger = logging.getLogger(__name__)

POLL_NS = 1_000_000
"""How often a file that is under way is asked for."""

CLOSE_S = 60.0
"""Longest wait for one file at the end."""

WHOLE = 1 << 62
"""Slice for callers that need not stay responsive."""


class Mover:
    """Makes the copies that ``Room`` decides by, and the files that were asked for.

    Lower copies are made ahead of need: as soon as a tier is full, of the capsule that is
    next to give way. So a snapshot finds room at once unless they come faster than the
    disk takes them; then it waits for the disk, and ticks do not.

    Args:
        store: Whose capsules are moved.
        archivist: Runs what blocks.
        shelves: By name: :data:`SPILLED`, :data:`KEPT`, and those of the verbs.
        copy: Between any two blocks, beside whatever else the device does.
        fence: Marks all that was submitted; the archivist starts once it is done.
        now_ns: Monotonic clock, ns.
    """

    def __init__(
        self,
        store: CapsuleStore,
        archivist: Archivist,
        shelves: Mapping[str, Shelf],
        *,
        copy: Copy,
        fence: Callable[[], Fence],
        now_ns: Callable[[], int],
    ) -> None:
        self._store = store
        self._room: Room = store.room
        self._filing = Filing(archivist, shelves, fence)
        self._keeper = Keeper(store, self.write, now_ns)
        self._copy = copy
        self._now_ns = now_ns
        self._job: CopyJob | None = None
        self._is_closing = False
        self._is_filing = False
        self._writes: deque[WriteRequest] = deque()
        self._removals: dict[tuple[str, str], None] = {}
        self._failures: dict[str, FlashrtError] = {}
        self._has_failed = False
        self._retry_ns = 0
        self._polled_ns = 0
        self._room.on_release_file = self._remove_later

    # what is asked -------------------------------------------------------------------------

    def write(
        self, capsule: Capsule, shelf: str, key: str, done: Done, *, replace: bool = True
    ) -> None:
        """Have a capsule written to a file; ``done`` is told later."""
        self._writes.append(WriteRequest(capsule.id, shelf, key, done, replace))
        self._room.has_changed = True

    def persist(self, capsule: Capsule, key: str) -> None:
        """Have a persisted capsule written, in place of the file of that key; see ``Keeper``."""
        self._keeper.persist(capsule, key)

    def read(self, shelf: str, key: str, block: Block, done: Done) -> None:
        """Read a file into a block of the lowest memory tier; ``done`` is told later."""
        self._filing.read(shelf, key, block.view(), done)

    def bring_up(self, capsule: Capsule) -> None:
        """Read a capsule from its file into memory now; before there is a loop to delay.

        Raises:
            CapsuleQuotaError: There is no room.
            FlashrtError: It can't be read; nothing changed.
        """
        place = capsule.residence.file
        assert place is not None
        lowest = self._room.lowest
        block = self._room.claim(lowest)
        try:
            self._filing.read_now(place.folder, place.key, block.view())
        except BaseException:
            lowest.give(block)
            raise
        capsule.residence.put(lowest.name, block)
        self._room.use(capsule)

    def take_failures(self) -> dict[str, FlashrtError]:
        """Return why capsules could not be fetched since the last call, by id; "" is the disk's."""
        failures, self._failures = self._failures, {}
        return failures

    # the loop ------------------------------------------------------------------------------

    def next_ns(self) -> int | None:
        """Return when :meth:`advance` has something to do, None for never."""
        if self._job is not None or self._filing.waits_for_device or self._room.has_changed:
            return self._polled_ns
        if self._filing.num_pending:
            return self._polled_ns + POLL_NS
        retry_ns, keeper_ns = self._retry_ns, self._keeper.next_ns
        if retry_ns and keeper_ns:
            return min(retry_ns, keeper_ns)
        return retry_ns or keeper_ns or None

    def advance(self, max_bytes: int) -> bool:
        """Do one slice of work; True if something was moved, so that who waits may try again."""
        self._polled_ns = self._now_ns()
        if self._retry_ns and self._polled_ns >= self._retry_ns:
            self._retry_ns = 0
            self._room.disk_error = None
            self._room.has_changed = True
        self._keeper.advance()
        if self._filing.poll():
            # who waited for it is served before it can be moved away again
            return True
        if self._job is not None:
            return self._copy_slice(self._job, max_bytes)
        if self._room.has_changed:
            self._room.has_changed = self._start()
        has_failed, self._has_failed = self._has_failed, False
        return has_failed

    def wait(self, timeout_s: float) -> bool:
        """Advance until something was moved, at most ``timeout_s`` without progress.

        For callers without a loop; True if something was moved.
        """
        while not self.advance(WHOLE):
            if self._job is not None:
                self._job.wait()
            elif self._filing.waits_for_device:
                self._filing.wait_for_device()
            elif not self._room.has_changed:
                return self._filing.poll(timeout_s)
        return True

    def close(self) -> None:
        """Finish the files that were asked for; then nothing is moved any more. Idempotent."""
        self._is_closing = True
        while (self._writes or self._removals or self._is_filing) and self.wait(CLOSE_S):
            pass
        if self._job is not None:
            self._job.wait()  # its blocks are given back next
        self._filing.close()

    # choosing ------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Begin the most urgent move that can begin now; False when there is none."""
        return (
            self._start_removal()
            or self._start_fetch()
            or self._start_write()
            or any(self._start_lowering(tier) for tier in reversed(self._room.tiers))
            or self._start_climb()
        )

    def _start_removal(self) -> bool:
        for folder, key in tuple(self._removals):
            del self._removals[folder, key]
            if not self._is_in_use(folder, key):
                self._filing.remove(folder, key)
                return True
        return False

    def _is_in_use(self, folder: str, key: str) -> bool:
        """Tell whether a file has a new owner, or gets one: its replacement is atomic."""
        if any(request.shelf == folder and request.key == key for request in self._writes):
            return True
        places = (capsule.residence.file for capsule in self._store)
        return any(
            place is not None and (place.folder, place.key) == (folder, key) for place in places
        )

    def _start_fetch(self) -> bool:
        for capsule_id in tuple(self._room.wanted):
            capsule = self._store.find(capsule_id)
            lowest = self._room.lowest
            if capsule is None or lowest.name in capsule.residence.blocks:
                del self._room.wanted[capsule_id]
                continue
            is_on_disk = not capsule.residence.is_in_memory
            if is_on_disk and self._is_filing:
                continue
            try:
                block = self._room.claim_arriving(lowest)
            except NotYet:
                continue
            except CapsuleQuotaError as error:
                self._fail(capsule_id, error)
                continue
            if is_on_disk:
                self._begin_fetch(capsule, block)
            else:
                self._begin_copy(capsule, block, lowest)
            return True
        return False

    def _start_write(self) -> bool:
        if self._is_filing:
            return False
        for request in tuple(self._writes):
            capsule = self._store.find(request.capsule_id)
            if capsule is None or capsule.id != request.capsule_id:
                self._writes.remove(request)
                request.done(
                    CapsuleNotFoundError(f"capsule '{request.capsule_id}' was dropped meanwhile")
                )
                continue
            if self._room.lowest.name not in capsule.residence.blocks:
                if capsule.id in self._room.wanted:
                    continue
                self._room.wanted[capsule.id] = None
                return True
            if request.shelf == KEPT and not self._room.claim_disk(capsule.num_bytes):
                self._writes.remove(request)
                request.done(self._room.disk_refusal(capsule.num_bytes))
                continue
            self._writes.remove(request)
            self._begin_write(capsule, request)
            return True
        return False

    def _start_lowering(self, tier: MemoryTier) -> bool:
        if tier.has_room:
            return False
        victim = None if self._is_closing else self._room.victim_without_copy(tier)
        if victim is None or victim.residence.num_holds:
            return False
        index = self._room.tiers.index(tier) + 1
        if index < len(self._room.tiers):
            lower = self._room.tiers[index]
            try:
                block = self._room.claim_arriving(lower)
            except (NotYet, CapsuleQuotaError):
                return False
            self._begin_copy(victim, block, lower)
            return True
        if self._is_filing or self._retry_ns or not self._room.claim_disk(victim.num_bytes):
            return False
        self._begin_write(victim, WriteRequest(victim.id, SPILLED, victim.id, self._after_spill))
        return True

    def _start_climb(self) -> bool:
        first = self._room.tiers[0]
        for capsule_id in tuple(self._room.climbing):
            del self._room.climbing[capsule_id]
            capsule = self._store.find(capsule_id)
            if capsule is None or not capsule.residence.is_in_memory or capsule.tier == first.name:
                continue
            victim = None if first.has_room else self._room.victim(first)
            is_older = victim is None or victim.residence.last_use < capsule.residence.last_use
            if not is_older:
                continue
            try:
                block = self._room.claim_arriving(first)
            except CapsuleQuotaError:
                continue
            except NotYet:
                self._room.climbing[capsule_id] = None
                return False
            self._begin_copy(capsule, block, first)
            return True
        return False

    # moving --------------------------------------------------------------------------------

    def _begin_copy(self, capsule: Capsule, block: Block, tier: MemoryTier) -> None:
        self._room.hold(capsule)
        self._job = CopyJob(capsule, capsule.block, block, tier)

    def _copy_slice(self, job: CopyJob, max_bytes: int) -> bool:
        """Copy on; True once the copy is whole."""
        if not job.advance(max_bytes, self._copy):
            return False
        self._job = None
        self._settle(job.capsule, job.tier, job.target)
        return True

    def _settle(self, capsule: Capsule, tier: MemoryTier, block: Block) -> None:
        """Note a copy that is whole, unless its capsule went away meanwhile."""
        if capsule.residence.is_gone or tier.name in capsule.residence.blocks:
            tier.give(block)
        else:
            capsule.residence.put(tier.name, block)
        self._room.wanted.pop(capsule.id, None)
        self._room.arrive(tier)
        self._room.unhold(capsule)

    def _begin_fetch(self, capsule: Capsule, block: Block) -> None:
        place = capsule.residence.file
        assert place is not None
        lowest = self._room.lowest
        self._room.hold(capsule)
        self._is_filing = True

        def done(answer: CapsuleRecord | FlashrtError) -> None:
            self._is_filing = False
            if isinstance(answer, FlashrtError):
                lowest.give(block)
                self._fail(capsule.id, answer)
                self._room.arrive(lowest)
                self._room.unhold(capsule)
                return
            self._room.note_use(capsule)
            self._settle(capsule, lowest, block)

        self.read(place.folder, place.key, block, done)

    def _begin_write(self, capsule: Capsule, request: WriteRequest) -> None:
        payload = capsule.residence.blocks[self._room.lowest.name].view()[: capsule.num_bytes]
        described = self._describe(capsule, request)
        self._room.hold(capsule)
        self._is_filing = True

        def done(answer: CapsuleRecord | FlashrtError) -> None:
            self._is_filing = False
            if not isinstance(answer, FlashrtError):
                self._note_file(capsule, request, answer.digest)
            self._room.has_changed = True
            self._room.unhold(capsule)
            request.done(answer)

        self._filing.write(described, request, payload, done)

    def _describe(self, capsule: Capsule, request: WriteRequest) -> Capsule:
        """Return the record to write: what a restart finds descends from what it finds too."""
        if request.shelf != KEPT:
            return capsule
        return dataclasses.replace(capsule, parent=self._store.nearest_persisted(capsule))

    def _note_file(self, capsule: Capsule, request: WriteRequest, digest: str) -> None:
        if capsule.residence.is_gone:
            if request.shelf in (KEPT, SPILLED):
                self._remove_later(FilePlace(request.shelf, request.key, 0))
            return
        if request.shelf in (KEPT, SPILLED):
            place = FilePlace(request.shelf, request.key, capsule.num_bytes)
            self._room.add_file(capsule, place)
        self._store.change(capsule, digest=digest)

    def _after_spill(self, answer: CapsuleRecord | FlashrtError) -> None:
        if isinstance(answer, FlashrtError):
            logger.error("no capsule can be moved to disk: %s", answer)
            self._retry_ns = self._now_ns() + RETRY_NS
            self._room.disk_error = answer
            self._note_failure("", answer)

    def _fail(self, capsule_id: str, error: FlashrtError) -> None:
        self._room.wanted.pop(capsule_id, None)
        self._note_failure(capsule_id, error)
        for request in [one for one in self._writes if one.capsule_id == capsule_id]:
            self._writes.remove(request)
            request.done(error)

    def _note_failure(self, capsule_id: str, error: FlashrtError) -> None:
        self._failures[capsule_id] = error
        self._has_failed = True

    def _remove_later(self, place: FilePlace) -> None:
        self._removals[place.folder, place.key] = None
        self._room.has_changed = True
