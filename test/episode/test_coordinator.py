from __future__ import annotations

import pytest

from flashrt_ros.episode.catalog import MemoryCatalog
from flashrt_ros.episode.coordinator import Episodes
from flashrt_ros.episode.state_part import StatePart
from flashrt_ros.errors import (
    CapsuleDiskFullError,
    CapsuleNameError,
    CapsuleNameTakenError,
    CapsuleNotFoundError,
    EpisodeError,
)
from test.episode.fakes import Fake

NAMES = ("planner", "sim", "policy")


class Rig:
    """Three participants and their coordinator."""

    def __init__(self) -> None:
        self.fakes = {name: Fake(name) for name in NAMES}
        self.catalog = MemoryCatalog()
        self.episodes = self.coordinate("planner", "sim")

    def coordinate(self, *others: str, env_index: int = 0) -> Episodes:
        return Episodes(
            self.fakes["policy"],
            [self.fakes[name] for name in others],
            self.catalog,
            env_index=env_index,
            absent=[name for name in NAMES[:2] if name not in others],
        )

    def tick(self) -> None:
        for fake in self.fakes.values():
            fake.tick()

    def states(self) -> tuple[int, ...]:
        return tuple(fake.state for fake in self.fakes.values())

    def kept(self) -> int:
        return sum(len(fake.kept) for fake in self.fakes.values())

    def is_free(self) -> bool:
        return not any(fake.is_held or fake.replaced for fake in self.fakes.values())


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_everybody_goes_back_to_one_boundary(rig: Rig) -> None:
    rig.tick()
    manifest = rig.episodes.snapshot("one")
    before = rig.states()
    rig.tick()
    assert rig.states() != before
    assert rig.episodes.restore("one") == manifest
    assert rig.states() == before
    assert rig.is_free()
    assert manifest.names == NAMES


def test_all_are_held_before_the_first_is_touched_and_the_policy_is_last(rig: Rig) -> None:
    order: list[str] = []
    for fake in rig.fakes.values():
        fake.log = order
    rig.episodes.snapshot("one")
    assert order == ["hold"] * 3 + ["take"] * 3 + ["release"] * 3
    order.clear()
    rig.episodes.restore("one")
    assert order == ["hold"] * 3 + ["check"] * 3 + ["put"] * 3 + ["release"] * 3


# what a TAKE whose answer was lost has kept is known to its owner alone
@pytest.mark.parametrize(
    ("verb", "late"),
    [("hold", False), ("hold", True), ("take", False), ("release", False), ("release", True)],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_that_fails_anywhere_keeps_nothing(
    rig: Rig, name: str, verb: str, late: bool
) -> None:
    rig.tick()
    before = rig.states()
    rig.fakes[name].fail_at(verb, late=late)
    with pytest.raises(EpisodeError, match=f"'{name}' failed at {verb}: ENGINE_GONE") as caught:
        rig.episodes.snapshot("one")
    assert caught.value.participant == name
    assert rig.states() == before
    assert rig.is_free()
    assert not rig.kept()
    assert not rig.episodes.manifests()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("verb", ["hold", "check", "put", "release"])
@pytest.mark.parametrize("name", NAMES)
def test_a_restore_that_fails_anywhere_leaves_everybody_as_they_were(
    rig: Rig, name: str, verb: str, late: bool
) -> None:
    rig.episodes.snapshot("one")
    rig.tick()
    before = rig.states()
    rig.fakes[name].fail_at(verb, late=late)
    with pytest.raises(EpisodeError, match=f"'{name}' failed at {verb}: ENGINE_GONE"):
        rig.episodes.restore("one")
    assert rig.states() == before
    assert rig.is_free()
    rig.fakes[name].fail_at("")
    rig.episodes.restore("one")
    assert rig.states() != before


def test_a_restore_of_the_policy_alone_is_no_restore_of_the_others(rig: Rig) -> None:
    """The control: what only one participant brings back differs."""
    manifest = rig.episodes.snapshot("one")
    rig.tick()
    policy = rig.fakes["policy"]
    policy.hold()
    policy.put(manifest.part("policy"))
    policy.release()
    assert len(set(rig.states())) > 1


def test_a_participant_that_raises_what_it_likes_is_named_and_all_go_back(rig: Rig) -> None:
    class Broken(Fake):
        def error(self) -> Exception:
            return ZeroDivisionError("by the caller's own code")

    broken = Broken("sim")
    episodes = Episodes(rig.fakes["policy"], [rig.fakes["planner"], broken], rig.catalog)
    episodes.snapshot("one")
    rig.tick()
    before = rig.states()
    broken.fail_at("put")
    with pytest.raises(EpisodeError, match=r"'sim' failed at put: INTERNAL.*ZeroDivisionError"):
        episodes.restore("one")
    broken.revert = broken.release  # type: ignore[method-assign]
    broken.fail_at("release")
    with pytest.raises(EpisodeError, match=r"not put back.*'sim' failed at revert: ZeroDivision"):
        episodes.restore("one")
    assert rig.states() == before
    assert rig.is_free()


@pytest.mark.parametrize("verb", ["put", "release"])
def test_a_policy_goes_back_first_and_ticks_last(rig: Rig, verb: str) -> None:
    rig.episodes.snapshot("one")
    rig.tick()
    policy = rig.fakes["policy"]
    order: list[str] = []
    for fake in rig.fakes.values():
        fake.log = order
    policy.fail_at(verb, late=True)
    with pytest.raises(EpisodeError):
        rig.episodes.restore("one")
    backward = ["undo policy", "revert sim", "revert planner", "revert policy"]
    assert order[-4:] == backward
    order.clear()
    policy.fail_at("")
    rig.fakes["sim"].fail_at("hold")
    with pytest.raises(EpisodeError):
        rig.episodes.restore("one")
    assert order == ["hold", "hold", "revert sim", "revert planner"]


def test_one_that_can_not_be_put_back_is_named(rig: Rig) -> None:
    rig.episodes.snapshot("one")
    sim = rig.fakes["sim"]

    def lost() -> None:
        raise sim.error()

    sim.revert = lost  # type: ignore[method-assign]
    rig.fakes["policy"].fail_at("put")
    with pytest.raises(EpisodeError, match=r"'policy' failed at put.*not put back.*'sim'"):
        rig.episodes.restore("one")


@pytest.mark.parametrize(
    ("others", "says"),
    [((), "needs participant 'planner'"), (("planner",), "needs participant 'sim'")],
)
def test_other_participants_than_the_episodes_are_refused_by_name(
    rig: Rig, others: tuple[str, ...], says: str
) -> None:
    rig.episodes.snapshot("whole")
    fewer = rig.coordinate(*others)
    manifest = fewer.snapshot("fewer")
    assert manifest.absent == tuple(name for name in NAMES[:2] if name not in others)
    with pytest.raises(EpisodeError, match=says):
        fewer.restore("whole")
    with pytest.raises(EpisodeError, match="says nothing of participant"):
        rig.episodes.restore("fewer")
    with pytest.raises(EpisodeError, match="another environment"):
        rig.coordinate("planner", "sim", env_index=1).restore("whole")


def test_who_must_be_there_is_asked_for(rig: Rig) -> None:
    rig.episodes.snapshot("one", requires=("sim", "policy"))
    with pytest.raises(EpisodeError, match="'sim' is not there"):
        rig.coordinate("planner").snapshot("two", requires=("sim",))


def test_a_name_is_taken_over_only_when_asked_to_and_its_parts_go(rig: Rig) -> None:
    rig.episodes.snapshot("one")
    with pytest.raises(CapsuleNameTakenError):
        rig.episodes.snapshot("one")
    rig.tick()
    rig.episodes.snapshot("one", replace=True)
    assert rig.kept() == 3
    before = rig.states()
    rig.tick()
    rig.episodes.restore("one")
    assert rig.states() == before


def test_a_failed_replacement_keeps_the_episode_of_before(rig: Rig) -> None:
    rig.episodes.snapshot("one")
    before = rig.states()
    rig.tick()
    rig.fakes["policy"].fail_at("take")
    with pytest.raises(EpisodeError):
        rig.episodes.snapshot("one", replace=True)
    rig.episodes.restore("one")
    assert rig.states() == before


def test_a_manifest_that_can_not_be_kept_takes_its_parts_along(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **more: object) -> None:
        raise CapsuleDiskFullError("no room")

    monkeypatch.setattr(rig.catalog, "write", full)
    with pytest.raises(CapsuleDiskFullError):
        rig.episodes.snapshot("one")
    assert not rig.kept()
    assert rig.is_free()


def test_a_dropped_episode_leaves_nothing(rig: Rig) -> None:
    rig.episodes.snapshot("one")
    rig.episodes.drop("one")
    assert not rig.kept()
    for verb in (rig.episodes.restore, rig.episodes.drop):
        with pytest.raises(CapsuleNotFoundError, match="no episode 'one'"):
            verb("one")


def test_a_capsule_that_is_gone_is_found_before_anybody_moves(rig: Rig) -> None:
    rig.episodes.snapshot("one")
    rig.tick()
    before = rig.states()
    rig.fakes["policy"].kept.clear()
    with pytest.raises(EpisodeError, match="'policy' failed at check: CAPSULE_NOT_FOUND"):
        rig.episodes.restore("one")
    assert rig.states() == before
    assert "put" not in rig.fakes["planner"].log


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "x" * 101, "ö"])
def test_what_is_no_name_is_refused(rig: Rig, name: str) -> None:
    with pytest.raises(CapsuleNameError):
        rig.episodes.snapshot(name)


def test_a_state_that_was_put_by_half_is_put_back(rig: Rig) -> None:
    world = [1, 2]

    def put(state: bytes) -> None:
        world[0] = state[0]
        if state[1] == 9:
            raise ValueError("not this one")
        world[1] = state[1]

    part = StatePart("world", "world/1", lambda: bytes(world), put)
    episodes = Episodes(rig.fakes["policy"], [part], rig.catalog)
    world[1] = 9
    episodes.snapshot("one")
    world[:] = [3, 4]
    with pytest.raises(EpisodeError, match=r"'world' failed at put: INTERNAL.*not this one"):
        episodes.restore("one")
    assert world == [3, 4]
    assert rig.is_free()


@pytest.mark.parametrize("state", [8, "text", None])
def test_what_is_no_state_is_refused(rig: Rig, state: object) -> None:
    part = StatePart("world", "world/1", lambda: state, lambda state: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(EpisodeError, match=r"'world' failed at take: SPEC.*expected bytes"):
        Episodes(rig.fakes["policy"], [part], rig.catalog).snapshot("one")
    assert not rig.kept()


def test_a_name_that_another_coordinator_took_meanwhile_keeps_nothing_behind(rig: Rig) -> None:
    """Each manifest that is replaced takes its capsules along, whoever wrote it and when."""
    other = rig.coordinate("planner", "sim")
    rig.episodes.snapshot("one")
    policy = rig.fakes["policy"]
    release = policy._release

    def intrude() -> None:
        policy._release = release  # type: ignore[method-assign]
        release()
        other.snapshot("one", replace=True)

    policy._release = intrude  # type: ignore[method-assign]
    rig.episodes.snapshot("one", replace=True)
    assert rig.kept() == 3
    rig.episodes.restore("one")
