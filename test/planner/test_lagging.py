"""A planner engine over a device that lags behind: nothing waits, and the tokens are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.engine import protocol
from flashrt_ros.errors import AbandonedError
from flashrt_ros.planner import assembly
from flashrt_ros.planner.engine import PlannerEngine
from flashrt_ros.runtime.arena import Block
from test.engine.lagging.conftest import SlowBackend
from test.planner import toy_planner
from test.planner.conftest import Rig, make_config

MAX_TOKENS = 20
LONG = "go round the block, " * 8


class KeepingBackend(SlowBackend):
    """Memory that is let go stays, as a device's does until what was submitted has run."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Any] = []

    def allocate_block(self, num_bytes: int) -> Block:
        block = super().allocate_block(num_bytes)
        self._kept.append(block.close)
        block.close = lambda: None  # type: ignore[method-assign]
        return block

    @property
    def num_blocks(self) -> int:
        return len(self._kept)

    def close(self) -> None:
        super().close()
        while self._kept:
            self._kept.pop()()


@contextmanager
def slow_planner(seed: int = 0, **changes: Any) -> Iterator[tuple[Rig, KeepingBackend]]:
    backend = KeepingBackend()
    backend.driver.random.seed(seed)
    config = make_config(max_tokens=MAX_TOKENS, **changes)
    model, tokenizer = toy_planner.make(None, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "make_backend", lambda device, is_background: backend)
        engine = PlannerEngine(model, tokenizer, config)
    with engine:
        yield Rig(engine), backend


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[int, ...]]:
    """Tokens of texts on a device that does everything at once."""
    config = make_config(max_tokens=MAX_TOKENS)
    model, tokenizer = toy_planner.make(None, config)
    with PlannerEngine(model, tokenizer, config) as engine:
        rig = Rig(engine)
        return {text: rig.instruct(text).tokens for text in ("go left", LONG)}


def test_what_plans_part_from_is_allocated_once() -> None:
    """Memory that is let go while the device reads it would be zeroed for whoever gets it next."""
    with slow_planner() as (rig, backend):
        seeds = (3, 1, 4, 1)
        first = rig.instruct("go left", temperature=2.0, seeds=seeds)
        num_blocks = backend.num_blocks
        for _ in range(3):
            rig.begin("go left", temperature=2.0, seeds=seeds)
            rig.run(30)
            rig.ask(protocol.CancelTurn)
            again = rig.instruct("go left", temperature=2.0, seeds=seeds)
            assert again.candidates == first.candidates
        assert backend.num_blocks == num_blocks


def test_no_node_is_waited_for(alone: dict[str, tuple[int, ...]]) -> None:
    """Nothing is done on the device while the engine submits, asks, and is told to go on."""
    with slow_planner() as (rig, backend):
        backend.synchronize()
        answers = rig.begin("go left")
        engine, driver = rig.engine, backend.driver
        num_asked = 0
        while not answers:
            assert engine.has_work, "one node at a time, and none under way here"
            if not engine.is_waiting:
                before = driver.num_steps
                kind = engine.next_node
                engine.advance()
                assert driver.num_steps == before, f"{kind} waited for the device"
                assert engine.is_waiting
            while not engine.has_work:
                assert engine.next_node == "", "nothing more is submitted meanwhile"
                num_asked += 1
                assert driver.step()
            engine.advance()
        assert answers[0].tokens == alone["go left"]
        assert num_asked > len(alone["go left"])


def test_embedded_it_waits_by_itself(alone: dict[str, tuple[int, ...]]) -> None:
    with slow_planner() as (rig, _):
        assert rig.instruct(LONG).tokens == alone[LONG]
        assert rig.instruct("go left").tokens == alone["go left"]


@pytest.mark.parametrize("verb", ["interrupt", "instruct"])
def test_a_turn_that_is_left_with_a_node_under_way_can_be_resumed(
    alone: dict[str, tuple[int, ...]], verb: str
) -> None:
    """At every node: its token is lost on the way, and read again from what was kept."""
    with slow_planner(interrupt_depth=2) as (rig, backend):
        for num_nodes in (1, 3, 4, 7, 11):
            answers = rig.begin(LONG)
            rig.run(num_nodes)
            assert rig.engine.is_waiting
            if verb == "interrupt":
                rig.engine.interrupt(protocol.Interrupt(0, 0, "", False, None))
            else:
                others = rig.begin("go left")
                rig.run()
                assert others[0].tokens == alone["go left"]
            assert isinstance(answers[0], AbandonedError)
            assert rig.ask(protocol.ResumeTurn).tokens == alone[LONG]
            backend.synchronize()


def test_an_engine_ends_with_a_node_under_way() -> None:
    with slow_planner() as (rig, _):
        rig.begin("go left", seeds=(1, 2), temperature=1.0)
        rig.run(5)
        assert rig.engine.is_waiting


def test_candidates_are_what_each_seed_gives() -> None:
    with slow_planner(seed=3) as (rig, _):
        singles = [rig.instruct("go left", temperature=2.0, seed=one) for one in (3, 1)]
        best = rig.instruct("go left", temperature=2.0, seeds=(3, 1))
        assert [one.text for one in best.candidates] == [done.text for done in singles]


def test_a_prefix_is_replaced_over_nodes_under_way(alone: dict[str, tuple[int, ...]]) -> None:
    with slow_planner() as (rig, backend):
        before = rig.engine.prefixes.num_tokens
        rig.begin(LONG)
        rig.run(2)
        done: list[Any] = []
        rig.engine.begin(protocol.SetPrefix(1, "map", b"There is no table."), done.append)
        rig.run()
        assert done == [protocol.Ack(1)]
        assert rig.engine.prefixes.num_tokens < before
        backend.synchronize()


ACTIONS = st.lists(
    st.sampled_from(["advance", "work", "work", "interrupt", "left", "long", "resume", "snapshot"]),
    min_size=20,
    max_size=120,
)


@settings(deadline=None, max_examples=12)
@given(actions=ACTIONS, seed=st.integers(0, 99))
def test_in_any_order_every_turn_that_ends_has_its_tokens(
    alone: dict[str, tuple[int, ...]], actions: list[str], seed: int
) -> None:
    with slow_planner(seed, interrupt_depth=4) as (rig, backend):
        engine = rig.engine
        asked: list[tuple[str, list[Any]]] = []
        for action in actions:
            if action == "advance" and engine.has_work:
                engine.advance()
            elif action == "work":
                for _ in range(5):
                    backend.driver.step()
            elif action == "interrupt" and engine.core.environments[0].turn is not None:
                if len(engine.core.environments[0].unfinished) < 4:
                    engine.interrupt(protocol.Interrupt(0, 0, "", False, None))
            elif action in ("left", "long"):
                text = "go left" if action == "left" else LONG
                asked.append((text, rig.begin(text)))
            elif action == "resume" and engine.core.environments[0].unfinished:
                unfinished = engine.core.environments[0].unfinished[-1]
                text = LONG if len(unfinished.turn.spec.tokens) > 50 else "go left"
                answers: list[Any] = []
                engine.begin(protocol.ResumeTurn(0, 0), answers.append)
                asked.append((text, answers))
            elif action == "snapshot" and engine.core.environments[0].turn is None:
                rig.snapshot("kept", replace=True, align_down=True)
        rig.run()
        for text, answers in asked:
            assert answers, "everyone is answered"
            if isinstance(answers[0], protocol.TurnDone):
                assert answers[0].tokens == alone[text]
            else:
                assert isinstance(answers[0], AbandonedError)
        backend.synchronize()
