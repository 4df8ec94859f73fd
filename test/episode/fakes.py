"""Participants that fail where they are told to."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from flashrt_ros.episode.manifest import Part
from flashrt_ros.episode.participant import Taking
from flashrt_ros.errors import CapsuleNotFoundError, EngineGoneError

VERBS = ("hold", "take", "check", "put", "release")
_ids = itertools.count()


class Fake:
    """A state, what was kept of it, and a verb that fails, before or after it acts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.state = 0
        self.is_held = False
        self.kept: dict[str, int] = {}
        self.replaced: int | None = None
        self.failing = ""
        self.fails_late = False
        self.log: list[str] = []

    @property
    def name(self) -> str:
        return self._name

    def fail_at(self, verb: str, *, late: bool = False) -> None:
        self.failing, self.fails_late = verb, late

    def tick(self) -> None:
        """What a robot does while nobody holds it."""
        assert not self.is_held
        self.state += 1

    def hold(self) -> None:
        self._act("hold", self._hold)

    def take(self, taking: Taking) -> Part:
        assert self.is_held
        key = f"{self._name}{next(_ids)}"
        if self.failing == "take":
            self._act("take", lambda: None)
        self._act("take", lambda: self.kept.update({key: self.state}))
        return Part(self._name, "fake", key, state=str(self.state).encode())

    def check(self, part: Part) -> None:
        assert self.is_held
        if part.capsule_id not in self.kept:
            raise CapsuleNotFoundError(f"no capsule {part.capsule_id}")
        self._act("check", lambda: None)

    def put(self, part: Part) -> None:
        assert self.is_held

        def act() -> None:
            self.replaced, self.state = self.state, self.kept[part.capsule_id]

        self._act("put", act)

    def release(self) -> None:
        self._act("release", self._release)

    def settle(self) -> None:
        self.replaced = None

    def undo(self) -> None:
        self.log.append(f"undo {self._name}")
        self._undo()

    def revert(self) -> None:
        self.log.append(f"revert {self._name}")
        self._undo()
        self._release()

    def drop(self, part: Part) -> None:
        self.log.append("drop")
        self.kept.pop(part.capsule_id, None)

    def _undo(self) -> None:
        if self.replaced is not None:
            self.state, self.replaced = self.replaced, None

    def _hold(self) -> None:
        self.is_held = True

    def _release(self) -> None:
        self.is_held = False

    def _act(self, verb: str, act: Callable[[], None]) -> None:
        self.log.append(verb)
        if self.failing != verb:
            act()
            return
        if self.fails_late:
            act()
        raise self.error()

    def error(self) -> Exception:
        return EngineGoneError(f"{self._name} is gone")
