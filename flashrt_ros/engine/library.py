"""The verbs over stored capsules: find, save, load, collect, and what a restart takes in."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Sequence

from flashrt_ros.capsule.archive_format import SUFFIX
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.record import CapsuleRecord
from flashrt_ros.capsule.retention import Query, Rules
from flashrt_ros.capsule.shelf import KEPT, SAVED
from flashrt_ros.capsule.store import home_name, is_home, keeps
from flashrt_ros.capsule.tiers import FilePlace, Residence
from flashrt_ros.engine import protocol
from flashrt_ros.engine.describe import capsule_info, timeline_infos
from flashrt_ros.engine.keeping import Holding, Keeping
from flashrt_ros.engine.moves import own_home
from flashrt_ros.engine.storage import spare_key
from flashrt_ros.engine.timeline import Environment, environment_of
from flashrt_ros.engine.waits import Answer, Done
from flashrt_ros.errors import DeviceLostError, FlashrtError
from flashrt_ros.runtime.arena import Block

logger = logging.getLogger(__name__)

MAX_PAGE = 64
"""Capsules in one answer; keeps it below the message limit."""

MAX_COLLECT_BYTES = 32_000
"""What a collection says of what it dropped in one answer: it must fit, for it is not repeated."""


class Library:
    """Capsules as things to keep; moves no environment, but for :meth:`take_in_kept`.

    Args:
        core: The engine's parts.
        moves: Finds capsules and lets them go.
    """

    def __init__(self, core: Keeping, moves: Holding) -> None:
        self._core = core
        self._moves = moves
        self._storage = core.storage

    # finding -------------------------------------------------------------------------------

    def find(self, request: protocol.ListCapsules) -> protocol.CapsulePage:
        """Return a page of what a search finds.

        Raises:
            UnknownEnvironmentError: There is no such environment.
        """
        environment_of(self._core.environments, request.env_index)
        query = Query(
            label=request.label,
            name_prefix=request.name_prefix,
            since_ns=request.since_ns,
            until_ns=request.until_ns,
            tier=request.tier,
            pinned=None if request.pinned < 0 else bool(request.pinned),
        )
        found = [capsule for capsule in self._core.store if query.matches(capsule)]
        limit = min(request.limit or MAX_PAGE, MAX_PAGE)
        return self._page(request.rid, found, request.offset, limit)

    def fingerprint(self, request: protocol.GetFingerprint) -> protocol.FingerprintInfo:
        """Say what a capsule was taken under, whether or not it fits.

        Raises:
            UnknownEnvironmentError: There is no such environment.
            CapsuleNotFoundError: There is no such capsule.
        """
        environment_of(self._core.environments, request.env_index)
        found = self._core.fingerprint
        if request.capsule:
            key = home_name(request.env_index) if request.capsule == "home" else request.capsule
            found = self._core.store.get(key).fingerprint
        return protocol.FingerprintInfo(request.rid, found.fields, found.digest)

    def collect(self, request: protocol.Collect) -> protocol.CapsulePage:
        """Drop what every rule admits, a page at a time; or only say what would go.

        Raises:
            UnknownEnvironmentError: There is no such environment.
            SpecError: The rules are none; nothing is dropped.
        """
        environment_of(self._core.environments, request.env_index)
        rules = Rules(
            older_than_ns=request.older_than_ns,
            label=request.label,
            name_prefix=request.name_prefix,
            unpinned=request.unpinned,
            keep_last=request.keep_last,
        )
        rules.check()
        free = [
            capsule
            for capsule in self._core.store
            if keeps(capsule) is None and not self._moves.is_held(capsule)
        ]
        chosen = rules.choose(free, now_ns=time.time_ns())
        if request.dry_run:
            return self._page(request.rid, chosen, request.offset, MAX_PAGE)
        infos: list[protocol.CapsuleInfo] = []
        num_bytes = 0
        for capsule in chosen[:MAX_PAGE]:
            infos.append(capsule_info(capsule))
            num_bytes += len(protocol.encode(infos[-1]))
            if num_bytes > MAX_COLLECT_BYTES:
                break
        for info in infos:
            self._moves.forget(self._core.store.drop(info.id))
        return protocol.CapsulePage(request.rid, tuple(infos), len(chosen))

    def _page(
        self, rid: int, found: list[Capsule], offset: int, limit: int
    ) -> protocol.CapsulePage:
        page = found[offset : offset + limit]
        infos = tuple(map(capsule_info, page))
        return protocol.CapsulePage(rid, infos, len(found), timeline_infos(self._core))

    # files ---------------------------------------------------------------------------------

    def save(self, env: Environment, request: protocol.Save, done: Done) -> None:
        """Have a capsule written; ``done`` gets the answer once it is on disk.

        Raises:
            UnsupportedError: There is no folder.
            CapsuleNotFoundError: There is no such capsule.
            NotYet: Its bytes are being brought where the host can read them.
        """
        self._storage.require_folder("save")
        capsule = self._moves.find(env, request.capsule)
        self._core.store.room.require_lowest(capsule)
        started = self._core.clock_ns()

        def answer(outcome: CapsuleRecord | FlashrtError) -> None:
            if isinstance(outcome, FlashrtError):
                done(outcome)
                return
            done(
                protocol.Saved(
                    request.rid,
                    outcome.file,
                    outcome.file_bytes,
                    outcome.digest,
                    self._core.clock_ns() - started,
                )
            )

        key = request.file or capsule.title
        self._storage.mover.write(capsule, SAVED, key, answer, replace=request.replace)

    def load(self, env: Environment, request: protocol.Load, done: Done) -> None:
        """Have a file read; ``done`` gets the answer once every byte was checked.

        Raises:
            UnsupportedError: There is no folder.
            SpecError: The name is another environment's home.
            CapsuleNameTakenError: The name is taken, without ``replace``.
            CapsulePinnedError: What it would replace is pinned.
            CapsuleQuotaError: Pins leave no room for it.
            NotYet: Room is being made.
        """
        self._storage.require_folder("load")
        name = own_home(env, request.name)
        store = self._core.store
        store.check_new(name, (), replace=request.replace)
        tier = store.room.lowest
        block = store.room.claim_arriving(tier)

        def answer(outcome: CapsuleRecord | FlashrtError) -> None:
            done(self._adopted(env, request, outcome, block))

        self._storage.mover.read(SAVED, request.file, block, answer)

    def _adopted(
        self,
        env: Environment,
        request: protocol.Load,
        outcome: CapsuleRecord | FlashrtError,
        block: Block,
    ) -> Answer:
        tier = self._core.store.room.lowest
        self._core.store.room.arrive(tier)
        try:
            if isinstance(outcome, FlashrtError):
                raise outcome
            called = own_home(env, request.name or outcome.name)
            residence = Residence()
            residence.put(tier.name, block)
            capsule, replaced = self._core.store.adopt(
                _capsule_of(
                    outcome,
                    name=called,
                    pinned=request.pinned or is_home(called),
                    persist=is_home(called),
                    residence=residence,
                ),
                replace=request.replace,
            )
        except FlashrtError as error:
            tier.give(block)
            return error
        if replaced is not None:
            self._moves.forget(replaced)
        self._moves.note_home(capsule)
        if capsule.persist:
            self._storage.persist(capsule)
        return protocol.CapsuleReply(request.rid, capsule_info(capsule), 0)

    # restart -------------------------------------------------------------------------------

    def take_in_kept(self) -> None:
        """Take in what an engine of this name persisted; put environments at their homes.

        Homes and pins are read at once, the others when they are used. What does not fit
        or can't be read is logged, with the reason, and stays on disk.
        """
        if not self._storage.has_files:
            return
        listing = self._storage.shelves[KEPT].folder.scan()
        for file, reason in listing.damaged:
            self._leave(file.removesuffix(SUFFIX), reason)
        records = self._in_force([one for one in listing.records if self._fits(one)])
        taken = [self._take_in(record) for record in _as_they_were_made(records)]
        for capsule in taken:
            if capsule is not None and capsule.pinned:
                self._bring_up(capsule)
        for env in self._core.environments:
            home = self._core.store.find(home_name(env.env_index))
            if home is not None and home.residence.is_in_memory:
                self._moves.note_home(home)
                self._moves.begin_at(env, home)
        if records:
            logger.info("%d persisted capsules were taken in", len(self._core.store))

    def _fits(self, record: CapsuleRecord) -> bool:
        rows = self._core.fingerprint.differences(record.fingerprint)
        if rows:
            told = "; ".join(f"{name}: here {own}, there {theirs}" for name, own, theirs in rows)
            self._leave(record.file, f"it was taken under another fingerprint: {told}")
        return not rows

    def _in_force(self, records: Sequence[CapsuleRecord]) -> list[CapsuleRecord]:
        """Leave those whose name was given to another file because they could not be used."""
        renamed = {
            one.name: one.file
            for one in records
            if one.name and one.file == spare_key(one.name, one.fingerprint)
        }
        kept = []
        for record in records:
            later = renamed.get(record.name, record.file)
            if record.file == record.name != later:
                self._leave(record.file, f"'{later}' was written in its place")
            else:
                kept.append(record)
        return kept

    def _leave(self, key: str, reason: object) -> None:
        """Leave a file as it is; nothing is written under its name."""
        logger.warning("the persisted capsule '%s' stays on disk, unused: %s", key, reason)
        self._storage.foreign_keys.add(key)

    def _take_in(self, record: CapsuleRecord) -> Capsule | None:
        store = self._core.store
        entry = _capsule_of(
            record, name=record.name, pinned=record.pinned, persist=True, residence=Residence()
        )
        try:
            capsule, _ = store.adopt(entry)
        except FlashrtError as error:
            self._leave(record.file, error)
            return None
        store.room.add_file(capsule, FilePlace(KEPT, record.file, record.num_bytes))
        return capsule

    def _bring_up(self, capsule: Capsule) -> None:
        """Read a pinned capsule into memory before anyone waits for it."""
        place = capsule.residence.file
        assert place is not None
        try:
            self._storage.mover.bring_up(capsule)
        except DeviceLostError:
            raise
        except FlashrtError as error:
            self._leave(place.key, error)
            self._core.store.disown(capsule)


def _as_they_were_made(records: Sequence[CapsuleRecord]) -> list[CapsuleRecord]:
    """Order by time, but none before its parent: the clock may have jumped."""
    known = {record.id for record in records}
    children: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        children.setdefault(record.parent if record.parent in known else "", []).append(index)
    ready = [(records[index].created_ns, index) for index in children.pop("", [])]
    heapq.heapify(ready)
    ordered = []
    while ready:
        record = records[heapq.heappop(ready)[1]]
        ordered.append(record)
        for index in children.pop(record.id, []):
            heapq.heappush(ready, (records[index].created_ns, index))
    # files that descend from each other in a circle: foreign hands wrote them
    return ordered + [records[index] for circle in children.values() for index in circle]


def _capsule_of(
    record: CapsuleRecord, *, name: str, pinned: bool, persist: bool, residence: Residence
) -> Capsule:
    return Capsule(
        id=record.id,
        name=name,
        parent=record.parent,
        labels=record.labels,
        created_ns=record.created_ns,
        position=record.position,
        pinned=pinned,
        is_automatic=False,
        persist=persist,
        fingerprint=record.fingerprint,
        residence=residence,
        num_bytes=record.num_bytes,
        digest=record.digest,
    )
