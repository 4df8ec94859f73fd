"""Random histories of a store, its mover and its files, against a model in plain Python."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.record import CapsuleRecord
from flashrt_ros.capsule.retention import Rules
from flashrt_ros.capsule.room import NotYet
from flashrt_ros.capsule.store import keeps
from flashrt_ros.capsule.tiers import DISK, TIERS, Residence
from flashrt_ros.errors import CapsuleQuotaError, FlashrtError
from test.capsule.conftest import SIZE, InlineArchivist, Yard

NAMES = ("", "a", "b", "c", "home")


@dataclass
class Entry:
    """What the model knows of a capsule."""

    value: int
    name: str
    parent: str
    pinned: bool
    automatic: bool
    created: int
    lowest_allowed: int = len(TIERS)


class StoreMachine(RuleBasedStateMachine):
    """Every verb over the store, with background work in slices between and during them."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, Entry] = {}
        self.saved: dict[str, Entry] = {}
        self.count = 0

    @initialize(device=st.integers(0, 2), host=st.integers(1, 3), disk=st.integers(0, 6))
    def open(self, device: int, host: int, disk: int) -> None:
        self.yard = Yard(device=device, host=host, disk=disk, archivist=InlineArchivist())

    def teardown(self) -> None:
        if hasattr(self, "yard"):
            self.yard.settle()
            self.check_bytes(everywhere=True)
            self.yard.close()

    # rules -----------------------------------------------------------------------------------

    def key(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.model, key=lambda k: self.model[k].created)))

    def create(self, **facts: object) -> Capsule | None:
        """Try to make a capsule, waiting for room; None where it was refused."""
        self.count += 1
        for _ in range(50):
            before = self.snapshot()
            try:
                made = self.yard.take(self.count % 250 + 1, **facts)  # type: ignore[arg-type]
            except NotYet:
                assert self.snapshot() == before
                self.yard.mover.wait(1.0)
                continue
            except CapsuleQuotaError:
                assert self.snapshot() == before
                if not facts.get("automatic"):
                    self.assert_no_room_could_be_made()
                return None
            except FlashrtError:
                assert self.snapshot() == before
                return None
            return made
        raise AssertionError("no room came, and no refusal")

    @rule(
        data=st.data(),
        name=st.sampled_from(NAMES),
        pinned=st.booleans(),
        persist=st.booleans(),
        replace=st.booleans(),
        automatic=st.booleans(),
    )
    def make(
        self,
        data: st.DataObject,
        name: str,
        pinned: bool,
        persist: bool,
        replace: bool,
        automatic: bool,
    ) -> None:
        parent = self.key(data) if bool(self.model) and data.draw(st.booleans()) else ""
        facts: dict[str, object] = {"parent": parent, "replace": replace}
        if automatic:
            facts |= {"automatic": True}
        else:
            facts |= {
                "name": name,
                "pinned": pinned or name == "home",
                "persist": persist and self.yard.disk is not None,
            }
        made = self.create(**facts)
        if made is None:
            return
        old = [k for k, e in self.model.items() if e.name and e.name == made.name]
        self.note(made, self.count % 250 + 1, parent)
        for key in old:
            self.forget(key)

    @precondition(lambda self: bool(self.model))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        key = self.key(data)
        entry = self.model[key]
        try:
            self.yard.store.drop(key)
        except FlashrtError:
            assert entry.pinned or entry.automatic or entry.name == "home"
            return
        assert not entry.pinned
        assert not entry.automatic
        self.forget(key)

    @precondition(lambda self: bool(self.model))
    @rule(data=st.data())
    def recycle(self, data: st.DataObject) -> None:
        key = self.key(data)
        gone = self.yard.store.recycle(self.yard.store.get(key))
        assert (gone is not None) == self.model[key].automatic
        if gone is not None:
            self.forget(key)

    @precondition(lambda self: bool(self.model))
    @rule(data=st.data(), pinned=st.booleans())
    def pin(self, data: st.DataObject, pinned: bool) -> None:
        key = self.key(data)
        entry = self.model[key]
        try:
            capsule = self.yard.store.pin(key, pinned=pinned)
        except NotYet:
            return
        except FlashrtError:
            return
        entry.pinned = pinned
        entry.automatic = entry.automatic and not pinned
        entry.lowest_allowed = TIERS.index(capsule.tier) if pinned else len(TIERS)

    @precondition(lambda self: bool(self.model))
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        """Use a capsule to the end, as a restore does."""
        key = self.key(data)
        for _ in range(50):
            try:
                self.yard.store.require_memory(self.yard.store.get(key))
            except NotYet:
                self.yard.mover.wait(1.0)
                if key in self.yard.mover.take_failures():
                    self.assert_no_room_could_be_made()
                    return
                continue
            except CapsuleQuotaError:
                self.assert_no_room_could_be_made()
                return
            assert self.yard.value(key) == self.model[key].value
            return
        raise AssertionError("the bytes never came")

    @rule(count=st.integers(1, 8), share=st.sampled_from([1, 2, 5]))
    def spill(self, count: int, share: int) -> None:
        """Let the background work a little: moves are caught half way by what follows."""
        for _ in range(count):
            self.yard.mover.advance(SIZE // share)

    @precondition(lambda self: bool(self.model) and self.yard.disk is not None)
    @rule(data=st.data(), file=st.sampled_from(["x", "y"]))
    def save(self, data: st.DataObject, file: str) -> None:
        key = self.key(data)
        entry = dataclasses.replace(self.model[key])

        def done(answer: CapsuleRecord | FlashrtError) -> None:
            if isinstance(answer, CapsuleRecord):
                assert self.yard.saved.files[file] == bytes([entry.value]) * SIZE
                self.saved[file] = entry

        self.yard.mover.write(self.yard.store.get(key), "saved", file, done)

    @precondition(lambda self: bool(self.saved))
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        """Read a file back, as the engine does: into a block first, then into the store."""
        file = data.draw(st.sampled_from(sorted(self.saved)))
        value = self.yard.saved.files[file][0]
        room = self.yard.store.room
        try:
            block = room.claim_arriving(room.lowest)
        except (NotYet, CapsuleQuotaError):
            return
        self.yard.saved.read(file, block.view())
        room.arrive(room.lowest)
        template = next(iter(self.yard.store), None)
        if template is None:
            room.lowest.give(block)
            return
        residence = Residence()
        residence.put(room.lowest.name, block)
        entry = dataclasses.replace(
            template,
            name="",
            parent=template.id,
            pinned=False,
            is_automatic=False,
            persist=False,
            residence=residence,
            num_bytes=SIZE,
        )
        made, _ = self.yard.store.adopt(entry)
        self.note(made, value, template.id)

    @rule(keep_last=st.integers(0, 3), prefix=st.sampled_from(["", "a"]))
    def collect(self, keep_last: int, prefix: str) -> None:
        rules = Rules(name_prefix=prefix, unpinned=True, keep_last=keep_last)
        free = [one for one in self.yard.store if keeps(one) is None]
        expected = [
            key
            for key, entry in self.model.items()
            if not entry.pinned
            and not entry.automatic
            and entry.name != "home"
            and entry.name.startswith(prefix)
        ]
        chosen = [one.id for one in rules.choose(free, now_ns=100)]
        assert chosen == expected[: max(0, len(expected) - keep_last)]
        for key in chosen:
            self.yard.store.drop(key)
            self.forget(key)

    @rule()
    def settle(self) -> None:
        self.yard.settle()
        self.check_bytes(everywhere=True)
        for tier in self.yard.tiers:
            held = [c for c in self.yard.store if tier.name in c.residence.blocks]
            own = [c for c in held if c.residence.reserved != tier.name]
            assert tier.used_bytes == len(own) * SIZE
            assert tier.num_arriving == 0

    # model -----------------------------------------------------------------------------------

    def note(self, made: Capsule, value: int, parent: str) -> None:
        self.model[made.id] = Entry(
            value,
            made.name,
            parent,
            made.pinned,
            made.is_automatic,
            len(self.model) + self.count * 1000,
            TIERS.index(made.tier) if made.pinned else len(TIERS),
        )

    def forget(self, key: str) -> None:
        gone = self.model.pop(key)
        for entry in self.model.values():
            if entry.parent == key:
                entry.parent = gone.parent

    def snapshot(self) -> list[tuple[object, ...]]:
        return [(c.id, c.name, c.parent, c.pinned, c.tier) for c in self.yard.store]

    def assert_no_room_could_be_made(self) -> None:
        """Justify a refusal: pins, or what must stay on disk, hold what there is."""
        store, room = self.yard.store, self.yard.store.room
        for tier in room.tiers:
            held = [
                c
                for c in store
                if tier.name in c.residence.blocks and c.residence.reserved != tier.name
            ]
            if all(c.pinned and c.tier == tier.name for c in held) and not tier.has_room:
                return  # pins hold all of it
        assert room.disk is None or room.disk.used_bytes + SIZE > room.disk.quota_bytes

    # invariants --------------------------------------------------------------------------------

    @invariant()
    def quotas_hold(self) -> None:
        if not hasattr(self, "yard"):
            return
        for tier in self.yard.tiers:
            blocks = [
                c
                for c in self.yard.store
                if tier.name in c.residence.blocks and c.residence.reserved != tier.name
            ]
            assert tier.used_bytes <= tier.quota_bytes
            assert len(blocks) * SIZE <= tier.used_bytes
        disk = self.yard.disk
        if disk is not None:
            files = [c.residence.file for c in self.yard.store if c.residence.file is not None]
            assert disk.used_bytes == len(files) * SIZE <= disk.quota_bytes

    @invariant()
    def the_store_is_the_model(self) -> None:
        if not hasattr(self, "yard"):
            return
        store = self.yard.store
        assert {one.id for one in store} == set(self.model)
        names = [one.name for one in store if one.name]
        assert len(names) == len(set(names))
        for one in store:
            entry = self.model[one.id]
            assert (one.name, one.parent, one.pinned, one.is_automatic) == (
                entry.name,
                entry.parent,
                entry.pinned,
                entry.automatic,
            )
            assert not one.name or store.get(one.name).id == one.id

    @invariant()
    def pins_never_move_down(self) -> None:
        for one in self.yard.store if hasattr(self, "yard") else ():
            entry = self.model[one.id]
            place = TIERS.index(one.tier)
            assert place <= entry.lowest_allowed
            if entry.pinned:
                entry.lowest_allowed = place  # nor below where it climbed to

    @invariant()
    def parents_are_known_and_never_go_in_circles(self) -> None:
        for one in self.yard.store if hasattr(self, "yard") else ():
            line = list(self.yard.store.ancestors(one.id))
            assert len(line) == len(set(line))
            assert all(key in self.model for key in line)

    @invariant()
    def blocks_are_never_shared(self) -> None:
        if not hasattr(self, "yard"):
            return
        held = [b.address for c in self.yard.store for b in c.residence.blocks.values()]
        free = [b.address for t in self.yard.tiers for b in (*t._free, *t._reserved)]
        assert len(held + free) == len(set(held + free))

    @invariant()
    def bytes_are_what_was_stored(self) -> None:
        if hasattr(self, "yard"):
            self.check_bytes()

    def check_bytes(self, *, everywhere: bool = False) -> None:
        """Compare every copy in memory, and on disk where nothing is under way."""
        for one in self.yard.store:
            wanted = bytes([self.model[one.id].value]) * SIZE
            for block in one.residence.blocks.values():
                assert bytes(block.view()) == wanted
            place = one.residence.file
            if everywhere and place is not None:
                shelf = {"kept": self.yard.kept, "spilled": self.yard.spilled}[place.folder]
                assert shelf.files[place.key] == wanted
            assert one.residence.blocks or (place is not None and one.tier == DISK)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
