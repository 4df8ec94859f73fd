"""Random histories: whatever fails, and where, it is all of them or none."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flashrt_ros.episode.catalog import MemoryCatalog
from flashrt_ros.episode.coordinator import Episodes
from flashrt_ros.errors import CapsuleNameTakenError, CapsuleNotFoundError, EpisodeError
from test.episode.fakes import VERBS, Fake

names = st.sampled_from(["a", "b"])
failures = st.none() | st.tuples(st.integers(0, 2), st.sampled_from(VERBS), st.booleans())


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fakes = [Fake("planner"), Fake("sim"), Fake("policy")]
        self.catalog = MemoryCatalog()
        self.episodes = Episodes(self.fakes[2], self.fakes[:2], self.catalog)
        self.model: dict[str, tuple[int, ...]] = {}
        self.num_lost = 0

    def states(self) -> tuple[int, ...]:
        return tuple(fake.state for fake in self.fakes)

    def arm(self, failure: tuple[int, str, bool] | None) -> None:
        for fake in self.fakes:
            fake.fail_at("")
        if failure is not None:
            index, verb, late = failure
            self.fakes[index].fail_at(verb, late=late and verb != "take")

    @rule(index=st.integers(0, 2))
    def tick(self, index: int) -> None:
        self.fakes[index].tick()

    @rule(name=names, replace=st.booleans(), failure=failures)
    def snapshot(self, name: str, replace: bool, failure: tuple[int, str, bool] | None) -> None:
        self.arm(failure)
        before = self.states()
        try:
            self.episodes.snapshot(name, replace=replace)
        except CapsuleNameTakenError:
            assert name in self.model
            assert not replace
        except EpisodeError:
            assert failure is not None
        else:
            assert failure is None or failure[1] in ("check", "put")
            self.model[name] = before
        assert self.states() == before

    @rule(name=names, failure=failures)
    def restore(self, name: str, failure: tuple[int, str, bool] | None) -> None:
        self.arm(failure)
        before = self.states()
        try:
            self.episodes.restore(name)
        except CapsuleNotFoundError:
            assert name not in self.model
        except EpisodeError:
            assert failure is not None
            assert self.states() == before
        else:
            assert failure is None or failure[1] == "take"
            assert self.states() == self.model[name]

    @rule(name=names)
    def drop(self, name: str) -> None:
        self.arm(None)
        try:
            self.episodes.drop(name)
        except CapsuleNotFoundError:
            assert name not in self.model
        else:
            del self.model[name]

    @invariant()
    def nobody_is_left_standing(self) -> None:
        assert not any(fake.is_held or fake.replaced is not None for fake in self.fakes)

    @invariant()
    def what_is_kept_belongs_to_an_episode(self) -> None:
        assert {one.name for one in self.episodes.manifests()} == set(self.model)
        assert sum(len(fake.kept) for fake in self.fakes) == 3 * len(self.model)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
