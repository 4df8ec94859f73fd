"""Planner engines embedded, with a tiny random model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from flashrt_ros.engine import protocol
from flashrt_ros.planner.config import PlannerConfig
from flashrt_ros.planner.engine import PlannerEngine
from test.planner import toy_planner

PREFIXES = (
    "persona = You move a pusher on a table.",
    "tools = Answer with subgoals, in metres, and then the word that ends a plan. " * 2,
    "map = The table is half a metre wide. The block stands near its middle; go round it.",
)


class Recorder:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.events: list[protocol.Event] = []

    def output(self, *arguments: object) -> None:
        raise AssertionError("a planner engine has no outputs")

    def event(self, event: protocol.Event) -> None:
        self.events.append(event)

    def details(self, kind: protocol.EventKind) -> list[str]:
        return [event.detail for event in self.events if event.kind == kind]


class Rig:
    """A planner engine, with what it tells, and short ways to ask."""

    def __init__(self, engine: PlannerEngine) -> None:
        self.engine = engine
        self.recorder = Recorder()
        engine.sink = self.recorder
        self.answers: list[protocol.Reply | Exception] = []

    def instruct(self, text: str | bytes = "go left", **fields: Any) -> protocol.TurnDone:
        """Ask, and run to the end."""
        reply = self.engine.handle(self.request(text, **fields))
        assert isinstance(reply, protocol.TurnDone)
        return reply

    def request(self, text: str | bytes = "go left", **fields: Any) -> protocol.Instruct:
        prompt = text.encode() if isinstance(text, str) else text
        return protocol.Instruct(0, fields.pop("env_index", 0), prompt, **fields)

    def begin(self, text: str | bytes = "go left", **fields: Any) -> list[Any]:
        """Ask; what answers goes to the list that is returned."""
        answers: list[Any] = []
        self.engine.begin(self.request(text, **fields), answers.append)
        return answers

    def ask(self, kind: type[Any], *values: Any) -> Any:
        """Carry out a verb of environment 0."""
        return self.engine.handle(kind(0, 0, *values))

    def ask_drop(self, key: str) -> None:
        self.engine.handle(protocol.Drop(0, key))

    def set_prefix(self, name: str, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        assert self.engine.handle(protocol.SetPrefix(0, name, data)) == protocol.Ack(0)

    def snapshot(self, name: str = "", **fields: Any) -> protocol.CapsuleReply:
        given = {"labels": (), "pinned": False, "replace": False, "align_down": False, **fields}
        reply = self.engine.handle(protocol.Snapshot(0, 0, name, **given))
        assert isinstance(reply, protocol.CapsuleReply)
        return reply

    def restore(self, capsule: str, **fields: Any) -> protocol.Moved:
        given = {
            "keep_goal": False,
            "seed": None,
            "reset": False,
            "episode_id": "",
            "stamp_ns": 0,
            **fields,
        }
        reply = self.engine.handle(protocol.Restore(0, 0, capsule, **given))
        assert isinstance(reply, protocol.Moved)
        return reply

    def run(self, count: int = -1) -> int:
        """Run so many nodes, or all there are."""
        num_nodes = 0
        while num_nodes != count and (self.engine.has_work or self.engine.wait()):
            num_nodes += bool(self.engine.has_work and self.engine.next_node)
            self.engine.advance()
        return num_nodes

    def capsules(self) -> list[protocol.CapsuleInfo]:
        page = self.engine.handle(protocol.ListCapsules(0, 0, 64, ""))
        assert isinstance(page, protocol.CapsulePage)
        return list(page.capsules)

    def capsule(self, key: str) -> protocol.CapsuleInfo:
        return next(c for c in self.capsules() if key in (c.id, c.name))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_config(**changes: Any) -> PlannerConfig:
    given: dict[str, Any] = {
        "prefixes": PREFIXES,
        "max_positions": 640,
        "max_tokens": 48,
        "capsule_quota_bytes": 64 << 20,
        "may_refuse": False,  # a random model would, half the time
        **changes,
    }
    return PlannerConfig(**given)


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    with ExitStack() as stack:

        def make(**changes: Any) -> Rig:
            seed = changes.pop("model_seed", 0)
            config = make_config(**changes)
            model, tokenizer = toy_planner.make(Path(str(seed)), config)
            return Rig(stack.enter_context(PlannerEngine(model, tokenizer, config)))

        yield make


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    """An engine for tests that leave their text behind; reset before each use."""
    config = make_config(num_environments=2)
    model, tokenizer = toy_planner.make(None, config)
    with PlannerEngine(model, tokenizer, config) as engine:
        yield Rig(engine)


@pytest.fixture
def rig(shared: Rig) -> Iterator[Rig]:
    """The module's engine, at home, with nothing told yet."""
    reset(shared)
    shared.recorder.events.clear()
    yield shared
    reset(shared)
    assert not [info for info in shared.capsules() if info.is_automatic], "kept for nobody"


def reset(rig: Rig) -> None:
    for env_index in range(2):
        rig.engine.handle(protocol.Restore(0, env_index, "home", False, 0, True, "", 0))
